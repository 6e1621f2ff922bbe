//! Tells a JSON body that is whole from one that was cut, as it passes.
//!
//! For bodies whose end nothing but the end of the connection marks: there a cut looks like an end. What is
//! looked at is nesting only, which any cut of an object or a list leaves open. A number, `true` or `null`
//! that stands alone ends nowhere in particular and is taken for whole; no API answers with one.
//!
//! ```text
//!  Blank ──any byte──► Outside ◄──'"'──► String ◄──► Escape
//! ```

use memchr::memchr2;

/// Watches the bytes of one JSON body.
#[derive(Debug, Default)]
pub struct EndScan {
    at: At,
    /// Objects and lists that are open.
    depth: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum At {
    /// Nothing but white space came.
    #[default]
    Blank,
    Outside,
    String,
    /// Behind a backslash in a string.
    Escape,
}

impl EndScan {
    /// Takes the next segment.
    pub fn scan(&mut self, segment: &[u8]) {
        let mut rest = segment;
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            self.at = match (self.at, byte) {
                (At::Escape, _) => At::String,
                (At::String, b'"') => At::Outside,
                (At::String, b'\\') => At::Escape,
                (At::String, _) => {
                    let next = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                    rest = &rest[next..];
                    At::String
                }
                (At::Blank, b' ' | b'\t' | b'\r' | b'\n') => At::Blank,
                (At::Blank | At::Outside, b'"') => At::String,
                (At::Blank | At::Outside, b'{' | b'[') => {
                    self.depth += 1;
                    At::Outside
                }
                (At::Blank | At::Outside, b'}' | b']') => {
                    self.depth = self.depth.saturating_sub(1);
                    At::Outside
                }
                (At::Blank | At::Outside, _) => At::Outside,
            };
        }
    }

    /// Says whether the body may end here.
    pub const fn is_whole(&self) -> bool {
        matches!(self.at, At::Outside) && self.depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_whole(segments: &[&[u8]]) -> bool {
        let mut scan = EndScan::default();
        for segment in segments {
            scan.scan(segment);
        }
        scan.is_whole()
    }

    #[test]
    fn a_body_is_whole_at_its_end_and_nowhere_before_however_it_is_segmented() {
        for body in [
            &br#"{"a":[1,{"b":"} ] \" \\"}],"c":"\\\"","d":{}}"#[..],
            br#"[{"x":"[{"},[],"\\"]"#,
            "\"안녕 \\u005d\"".as_bytes(),
            b"{}",
        ] {
            for cut in 0..body.len() {
                let (head, tail) = body.split_at(cut);
                assert!(!is_whole(&[head]), "cut at {cut}: {body:?}");
                assert!(is_whole(&[head, b"", tail, b" \r\n"]), "cut at {cut}: {body:?}");
                assert!(is_whole(&[b"\n ", head, tail]), "cut at {cut}: {body:?}");
            }
            assert!(is_whole(&body.chunks(1).collect::<Vec<_>>()), "{body:?}");
        }
    }

    #[test]
    fn a_body_of_nothing_is_no_json() {
        assert!(!is_whole(&[]));
        assert!(!is_whole(&[b" \r\n\t"]));
    }

    #[test]
    fn several_values_are_whole_after_each_and_what_is_no_json_panics_nobody() {
        assert!(is_whole(&[b"{}\n{}\n"]));
        assert!(!is_whole(&[b"{}\n{"]));
        assert!(is_whole(&[b"]]}}true"]));
    }
}
