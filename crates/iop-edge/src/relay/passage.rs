//! The way of a tunnelled answer's bytes through the Edge: looked at, perhaps minus one chunk.
//!
//! Nothing here may change, delay or fail the relay. An answer that cannot be read (compressed, of
//! another type, malformed) passes unseen, and its usage is estimated.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use iop_dialect::usage::{BodyObserver, ChunkFilter, StreamObserver};
use iop_dispatch::Evidence;
use iop_types::Usage;

use crate::surface::headers;

/// Watches one answer and takes out what the client did not ask for.
#[derive(Debug)]
pub(crate) struct Passage {
    watch: Watch,
    filter: Option<ChunkFilter>,
}

#[derive(Debug)]
enum Watch {
    Stream(StreamObserver),
    Body(BodyObserver),
    Nothing,
}

/// What an answer turned out to be.
#[derive(Debug)]
pub(crate) struct Findings {
    /// What speaks for its being whole.
    pub(crate) evidence: Evidence,
    /// The provider's last figures.
    pub(crate) usage: Option<Usage>,
    /// Content deltas, for an estimate.
    pub(crate) deltas: u64,
}

impl Passage {
    /// Looks at the head of an answer. `injected` says that the Edge asked for a usage chunk on its
    /// own account.
    pub(crate) fn new(status: u16, headers: &HeaderMap, injected: bool) -> Self {
        let is_plain = headers
            .get_all(CONTENT_ENCODING)
            .iter()
            .all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"));
        let is_readable = (200..300).contains(&status) && is_plain;
        let watch = if is_readable && headers::is_event_stream(headers) {
            Watch::Stream(StreamObserver::new())
        } else if is_readable && headers::is_json(headers) {
            Watch::Body(BodyObserver::new())
        } else {
            Watch::Nothing
        };
        let filter = (injected && matches!(watch, Watch::Stream(_))).then(ChunkFilter::new);
        Self { watch, filter }
    }

    /// Says whether bytes may be taken out, so that the provider's length does not hold.
    pub(crate) const fn reframes(&self) -> bool {
        self.filter.is_some()
    }

    /// Lets the next segment through.
    pub(crate) fn push(&mut self, segment: Bytes, mut pass: impl FnMut(Bytes)) {
        match &mut self.watch {
            Watch::Stream(observer) => observer.observe(&segment),
            Watch::Body(observer) => observer.observe(&segment),
            Watch::Nothing => {}
        }
        match &mut self.filter {
            Some(filter) => filter.push(segment, pass),
            None => pass(segment),
        }
    }

    /// The answer ended, cleanly or not: lets through what was held and tells what was seen.
    pub(crate) fn finish(&mut self, pass: impl FnMut(Bytes)) -> Findings {
        if let Some(mut filter) = self.filter.take() {
            filter.finish(pass);
        }
        // What cannot be read cannot be found wanting.
        let unread = Evidence { finish_seen: true, done_seen: true, error: None };
        match std::mem::replace(&mut self.watch, Watch::Nothing) {
            Watch::Stream(mut observer) => {
                observer.finish();
                let error = observer.error().map(|error| error.clone().into_failure(None));
                Findings {
                    evidence: Evidence {
                        finish_seen: !observer.is_truncated(),
                        done_seen: observer.is_done(),
                        error,
                    },
                    usage: observer.usage(),
                    deltas: observer.deltas(),
                }
            }
            Watch::Body(observer) => {
                Findings { evidence: unread, usage: observer.finish(), deltas: 0 }
            }
            Watch::Nothing => Findings { evidence: unread, usage: None, deltas: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    use super::*;

    const CONTENT: &[u8] =
        b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n";
    const USAGE: &[u8] = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}\n\n";
    const DONE: &[u8] = b"data: [DONE]\n\n";

    fn passed(status: u16, headers: &HeaderMap, injected: bool) -> (Vec<u8>, Findings) {
        let mut passage = Passage::new(status, headers, injected);
        let mut out = Vec::new();
        for segment in [CONTENT, USAGE, DONE] {
            passage.push(Bytes::from_static(segment), |bytes| out.extend_from_slice(&bytes));
        }
        let findings = passage.finish(|bytes| out.extend_from_slice(&bytes));
        (out, findings)
    }

    fn stream() -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))])
    }

    #[test]
    fn only_an_injected_usage_chunk_is_taken_out_and_it_is_read_first() {
        let usage = Some(Usage { input_tokens: 3, output_tokens: 1 });
        let (out, findings) = passed(200, &stream(), true);
        assert_eq!(out, [CONTENT, DONE].concat());
        assert_eq!(findings.usage, usage);
        assert!(findings.evidence.finish_seen && findings.evidence.done_seen);
        let (out, findings) = passed(200, &stream(), false);
        assert_eq!(out, [CONTENT, USAGE, DONE].concat());
        assert_eq!(findings.usage, usage);
    }

    #[test]
    fn what_cannot_be_read_passes_unseen() {
        let whole = [CONTENT, USAGE, DONE].concat();
        let mut gzip = stream();
        gzip.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(passed(200, &gzip, true).0, whole);
        assert!(!Passage::new(200, &gzip, true).reframes());
        assert_eq!(passed(200, &HeaderMap::new(), true).0, whole);
        assert_eq!(passed(400, &stream(), true).0, whole);
    }
}
