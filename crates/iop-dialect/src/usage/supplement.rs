//! Adds the usage chunk that the client asked for and the provider left out.
//!
//! Servers exist that ignore `include_usage`. A client that asked for it counts on one more chunk in
//! front of `data: [DONE]`; this machine finds that place, whatever the segmentation, and lets its
//! owner put a chunk there. All other bytes pass as they are. Held is only the beginning of a line
//! that may still become `data: [DONE]`, at most 12 bytes.

use bytes::Bytes;
use iop_types::Usage;
use serde::Serialize;

use crate::openai::{Head, TextKind};

/// Finds the end of an OpenAI SSE stream, to put a chunk in front of it.
#[derive(Debug)]
pub struct Supplement {
    /// The beginning of the current line while it may be the end marker.
    held: Vec<u8>,
    /// Whether the current line can no longer be the end marker.
    other: bool,
    /// Whether the place was found: everything passes.
    over: bool,
}

impl Default for Supplement {
    fn default() -> Self {
        Self::new()
    }
}

impl Supplement {
    /// Makes a machine for the beginning of a stream.
    pub const fn new() -> Self {
        Self { held: Vec::new(), other: false, over: false }
    }

    /// Takes the next segment and hands out what may pass, in order. At the end marker `chunk` is
    /// asked, once, for what goes in front of it.
    pub fn push(
        &mut self,
        segment: Bytes,
        chunk: impl FnOnce() -> Option<Bytes>,
        mut pass: impl FnMut(Bytes),
    ) {
        if self.over {
            hand_out(segment, &mut pass);
            return;
        }
        // Where the current line's first byte in this segment is.
        let mut line = 0;
        loop {
            let rest = &segment[line..];
            let end = memchr::memchr2(b'\n', b'\r', rest);
            let text = &rest[..end.unwrap_or(rest.len())];
            if !self.other {
                match Marker::at(&self.held, text) {
                    Marker::Whole => {
                        self.over = true;
                        hand_out(segment.slice(..line), &mut pass);
                        if let Some(chunk) = chunk() {
                            hand_out(chunk, &mut pass);
                        }
                        self.release(&mut pass);
                        hand_out(segment.slice(line..), &mut pass);
                        return;
                    }
                    Marker::Unclear if end.is_none() => {
                        hand_out(segment.slice(..line), &mut pass);
                        self.held.extend_from_slice(text);
                        return;
                    }
                    Marker::Unclear | Marker::Other => {
                        self.release(&mut pass);
                        self.other = true;
                    }
                }
            }
            match end {
                Some(len) => {
                    line += len + 1;
                    self.other = false;
                }
                None => break,
            }
        }
        hand_out(segment, &mut pass);
    }

    /// Ends the stream: a marker without its line end is one, and a stream without a marker gets the
    /// chunk at its end.
    pub fn finish(&mut self, chunk: impl FnOnce() -> Option<Bytes>, mut pass: impl FnMut(Bytes)) {
        if !std::mem::replace(&mut self.over, true)
            && let Some(chunk) = chunk()
        {
            hand_out(chunk, &mut pass);
        }
        self.release(&mut pass);
    }

    fn release(&mut self, pass: &mut impl FnMut(Bytes)) {
        hand_out(std::mem::take(&mut self.held).into(), pass);
    }
}

/// Writes a usage chunk whose figures are estimated, and says so in a member of our own.
pub fn estimated_chunk(head: &Head, usage: Usage) -> Bytes {
    #[derive(Serialize)]
    struct Chunk<'a> {
        id: String,
        object: &'static str,
        created: u64,
        model: &'a str,
        choices: [(); 0],
        usage: Figures,
    }
    #[derive(Serialize)]
    struct Figures {
        prompt_tokens: u64,
        completion_tokens: u64,
        total_tokens: u64,
        iop_source: &'static str,
    }
    let chunk = Chunk {
        id: head.id(),
        object: match head.kind {
            TextKind::Chat => "chat.completion.chunk",
            TextKind::Completion => "text_completion",
        },
        created: head.created,
        model: &head.model,
        choices: [],
        usage: Figures {
            prompt_tokens: usage.input_tokens,
            completion_tokens: usage.output_tokens,
            total_tokens: usage.input_tokens + usage.output_tokens,
            iop_source: "estimated",
        },
    };
    let mut event = b"data: ".to_vec();
    serde_json::to_writer(&mut event, &chunk).expect("strings and numbers become JSON");
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// What the beginning of a line says about its being the end marker.
enum Marker {
    Unclear,
    Other,
    Whole,
}

impl Marker {
    const FIELD: &[u8] = b"data:";
    const VALUE: &[u8] = b"[DONE]";

    /// Judges the line that begins with `held` and goes on with `text`.
    fn at(held: &[u8], text: &[u8]) -> Self {
        let mut line = held.iter().chain(text).copied().peekable();
        for expected in Self::FIELD {
            match line.next() {
                None => return Self::Unclear,
                Some(byte) if byte == *expected => {}
                Some(_) => return Self::Other,
            }
        }
        line.next_if_eq(&b' ');
        for expected in Self::VALUE {
            match line.next() {
                None => return Self::Unclear,
                Some(byte) if byte == *expected => {}
                Some(_) => return Self::Other,
            }
        }
        Self::Whole
    }
}

fn hand_out(part: Bytes, pass: &mut impl FnMut(Bytes)) {
    if !part.is_empty() {
        pass(part);
    }
}

#[cfg(test)]
mod tests {
    use iop_types::RunId;
    use proptest::prelude::*;

    use super::*;

    const CHUNK: &[u8] = b"<chunk>";

    fn supplemented(segments: &[&[u8]]) -> Vec<u8> {
        let mut machine = Supplement::new();
        let mut passed = Vec::new();
        for segment in segments {
            let segment = Bytes::copy_from_slice(segment);
            machine.push(
                segment,
                || Some(Bytes::from_static(CHUNK)),
                |part| {
                    passed.extend_from_slice(&part);
                },
            );
        }
        machine.finish(|| Some(Bytes::from_static(CHUNK)), |part| passed.extend_from_slice(&part));
        passed
    }

    #[test]
    fn the_chunk_goes_in_front_of_the_end_marker() {
        let out = supplemented(&[b"data: {\"a\":1}\n\ndata: [DONE]\n\n"]);
        assert_eq!(out, b"data: {\"a\":1}\n\n<chunk>data: [DONE]\n\n");
    }

    #[test]
    fn content_that_mentions_the_marker_is_not_taken_for_it() {
        let text = b"data: {\"content\":\"data: [DONE]\"}\n\ndata: [1]\n\n: data: [DONE]\n\n";
        let out = supplemented(&[text]);
        assert_eq!(out, [text.as_slice(), CHUNK].concat());
    }

    #[test]
    fn a_stream_without_a_marker_gets_it_at_the_end() {
        assert_eq!(supplemented(&[b"data: {}\n\n"]), b"data: {}\n\n<chunk>");
        assert_eq!(supplemented(&[b"data: {}\n\ndata: [DO"]), b"data: {}\n\n<chunk>data: [DO");
    }

    #[test]
    fn an_estimated_chunk_says_what_it_is() {
        let head = Head {
            kind: TextKind::Chat,
            run_id: RunId::parse("01890000-0000-7000-8000-000000000001").unwrap(),
            created: 9,
            model: "m".to_owned(),
        };
        let chunk = estimated_chunk(&head, Usage { input_tokens: 3, output_tokens: 2 });
        let json = chunk.strip_prefix(b"data: ").unwrap();
        let json: serde_json::Value = serde_json::from_slice(json).unwrap();
        assert_eq!(json["usage"]["total_tokens"], 5);
        assert_eq!(json["usage"]["iop_source"], "estimated");
        assert_eq!(json["choices"], serde_json::json!([]));
    }

    proptest! {
        #[test]
        fn the_place_is_the_same_for_any_segmentation(
            lines in prop::collection::vec(
                prop_oneof![
                    Just("data: {\"choices\":[]}"), Just("data:[DONE"), Just(": data: [DONE]"),
                    Just("data:  [DONE]"), Just(""), Just("d"), Just("data:"),
                ],
                0..8,
            ),
            marker in prop_oneof![Just("data: [DONE]"), Just("data:[DONE]")],
            end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let before: String = lines.iter().flat_map(|line| [*line, end]).collect();
            let after = format!("{marker}{end}{end}data: [DONE]{end}");
            let whole = format!("{before}{after}").into_bytes();
            let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(whole.len())).collect();
            at.extend([0, whole.len()]);
            at.sort_unstable();
            let segments: Vec<_> = at.windows(2).map(|pair| &whole[pair[0]..pair[1]]).collect();
            let expected = [before.as_bytes(), CHUNK, after.as_bytes()].concat();
            prop_assert_eq!(supplemented(&segments), expected);
        }
    }
}
