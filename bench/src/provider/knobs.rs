//! What a prompt may ask of the provider.
//!
//! `[[bench chunks=40 delay_us=50000]]` anywhere in the request body:
//!
//! | knob | default | meaning |
//! |---|---|---|
//! | `size` | 1024 | bytes of text in an answer that is not streamed |
//! | `chunks` | 100 | content chunks of a stream |
//! | `delay_us` | 0 | time between two chunks, on an absolute schedule |
//! | `prefill_us` | 0 | time before the head of the answer |
//! | `pad` | 0 | bytes added to each chunk |
//! | `dims` | 256 | numbers in an embedding |
//! | `status` | – | answers with an error of this status instead |
//! | `cut` | – | breaks the stream off after so many chunks |
//! | `no_usage` | 0 | 1: ignores `include_usage`, as some servers do |

use http::StatusCode;
use memchr::memmem;

const OPEN: &[u8] = b"[[bench ";
const CLOSE: &[u8] = b"]]";

/// How to answer one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Knobs {
    pub(super) size: usize,
    pub(super) chunks: u64,
    pub(super) delay_us: u64,
    pub(super) prefill_us: u64,
    pub(super) pad: usize,
    pub(super) dims: usize,
    pub(super) status: Option<StatusCode>,
    pub(super) cut: Option<u64>,
    pub(super) no_usage: bool,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            size: 1024,
            chunks: 100,
            delay_us: 0,
            prefill_us: 0,
            pad: 0,
            dims: 256,
            status: None,
            cut: None,
            no_usage: false,
        }
    }
}

impl Knobs {
    /// Reads the knobs out of a request body; what is not understood stays at its default.
    pub(super) fn of(body: &[u8]) -> Self {
        let mut knobs = Self::default();
        let Some(start) = memmem::find(body, OPEN).map(|at| at + OPEN.len()) else { return knobs };
        let Some(end) = memmem::find(&body[start..], CLOSE) else { return knobs };
        let words = String::from_utf8_lossy(&body[start..start + end]);
        for word in words.split_ascii_whitespace() {
            let Some((name, Ok(number))) =
                word.split_once('=').map(|(name, value)| (name, value.parse::<u64>()))
            else {
                continue;
            };
            // A prompt is anybody's: no number may cost more than 1 MiB.
            let size = usize::try_from(number.min(1 << 20)).unwrap_or(1 << 20);
            match name {
                "size" => knobs.size = size,
                "chunks" => knobs.chunks = number.min(9_999_999),
                "delay_us" => knobs.delay_us = number,
                "prefill_us" => knobs.prefill_us = number,
                "pad" => knobs.pad = size,
                "dims" => knobs.dims = size,
                "status" => {
                    let status = u16::try_from(number).ok();
                    knobs.status = status.and_then(|status| StatusCode::from_u16(status).ok());
                }
                "cut" => knobs.cut = Some(number),
                "no_usage" => knobs.no_usage = number != 0,
                _ => {}
            }
        }
        knobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_found_inside_a_prompt() {
        let body =
            br#"{"messages":[{"content":"hi [[bench chunks=7 cut=3 status=429 x=1 pad=a]] you"}]}"#;
        let knobs = Knobs::of(body);
        assert_eq!((knobs.chunks, knobs.cut, knobs.pad), (7, Some(3), 0));
        assert_eq!(knobs.status, Some(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(Knobs::of(b"[[bench chunks=7"), Knobs::default());
    }
}
