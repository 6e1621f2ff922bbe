//! The way of a tunnelled answer's bytes through the Edge: looked at, perhaps minus or plus the one
//! chunk that is about usage.
//!
//! Nothing here may change, delay or fail the relay. An answer that cannot be read (compressed, of
//! another type, malformed) passes unseen, and its usage is unknown.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use iop_dialect::openai::Head;
use iop_dialect::usage::{
    BodyObserver, ChunkFilter, StreamObserver, Supplement, estimate, estimated_chunk,
};
use iop_dispatch::Evidence;
use iop_types::Usage;

use crate::surface::headers;

/// Watches one answer and sees to it that the client gets usage when it asked, and only then.
#[derive(Debug)]
pub(crate) struct Passage {
    watch: Watch,
    edit: Edit,
}

/// What is done about the usage chunk of a stream.
#[derive(Debug, Clone, Default)]
pub(crate) enum UsageChunk {
    /// Nothing: every byte is the provider's.
    #[default]
    Untouched,
    /// The Edge asked for it on its own account: it is taken out.
    TakeOut,
    /// The client asked for it: where the provider sends none, an estimate is supplied.
    Supply(Box<Estimate>),
}

/// What an estimate is made of.
#[derive(Debug, Clone)]
pub(crate) struct Estimate {
    /// Identity of the answer.
    pub(crate) head: Head,
    /// Length of the request body.
    pub(crate) request_bytes: u64,
}

#[derive(Debug)]
enum Edit {
    Nothing,
    TakeOut(ChunkFilter),
    Supply(Supplement, Box<Estimate>),
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
    /// Looks at the head of an answer.
    pub(crate) fn new(status: u16, headers: &HeaderMap, usage: UsageChunk) -> Self {
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
        let edit = match (&watch, usage) {
            (Watch::Stream(_), UsageChunk::TakeOut) => Edit::TakeOut(ChunkFilter::new()),
            (Watch::Stream(_), UsageChunk::Supply(estimate)) => {
                Edit::Supply(Supplement::new(), estimate)
            }
            (Watch::Stream(_) | Watch::Body(_) | Watch::Nothing, _) => Edit::Nothing,
        };
        Self { watch, edit }
    }

    /// Says whether bytes may be taken out or added, so that the provider's length does not hold.
    pub(crate) const fn reframes(&self) -> bool {
        match self.edit {
            Edit::Nothing => false,
            Edit::TakeOut(_) | Edit::Supply(..) => true,
        }
    }

    /// Says whether a stream has said that it is done and why it finished: nothing of value follows.
    pub(crate) fn is_done(&self) -> bool {
        match &self.watch {
            Watch::Stream(observer) => {
                observer.is_done() && observer.has_finished() && observer.error().is_none()
            }
            Watch::Body(_) | Watch::Nothing => false,
        }
    }

    /// Lets the next segment through.
    pub(crate) fn push(&mut self, segment: Bytes, mut pass: impl FnMut(Bytes)) {
        match &mut self.watch {
            Watch::Stream(observer) => observer.observe(&segment),
            Watch::Body(observer) => observer.observe(&segment),
            Watch::Nothing => {}
        }
        match &mut self.edit {
            Edit::Nothing => pass(segment),
            Edit::TakeOut(filter) => filter.push(segment, pass),
            Edit::Supply(supplement, estimate) => {
                supplement.push(segment, || estimate.chunk(&self.watch), pass);
            }
        }
    }

    /// The answer ended: lets through what was held and tells what was seen. Nothing is added to an
    /// answer that is not over, because what is missing may be what would be added.
    pub(crate) fn finish(&mut self, is_over: bool, pass: impl FnMut(Bytes)) -> Findings {
        if let Watch::Stream(observer) = &mut self.watch {
            observer.finish();
        }
        match std::mem::replace(&mut self.edit, Edit::Nothing) {
            Edit::Nothing => {}
            Edit::TakeOut(mut filter) => filter.finish(pass),
            Edit::Supply(mut supplement, estimate) => {
                let chunk = || is_over.then(|| estimate.chunk(&self.watch)).flatten();
                supplement.finish(chunk, pass);
            }
        }
        // What cannot be read cannot be found wanting.
        let unread = Evidence { finish_seen: true, done_seen: true, error: None };
        match std::mem::replace(&mut self.watch, Watch::Nothing) {
            Watch::Stream(observer) => {
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

impl Estimate {
    /// Returns the chunk for a stream that finished and said nothing of usage.
    fn chunk(&self, watch: &Watch) -> Option<Bytes> {
        let Watch::Stream(observer) = watch else { return None };
        let lacks_usage =
            observer.has_finished() && observer.usage().is_none() && observer.error().is_none();
        lacks_usage
            .then(|| estimated_chunk(&self.head, estimate(self.request_bytes, observer.deltas())))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    use iop_dialect::openai::TextKind;

    use super::*;

    const CONTENT: &[u8] =
        b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n";
    const USAGE: &[u8] = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}\n\n";
    const DONE: &[u8] = b"data: [DONE]\n\n";

    fn passed(
        status: u16,
        headers: &HeaderMap,
        usage: UsageChunk,
        segments: &[&'static [u8]],
    ) -> (Vec<u8>, Findings) {
        let mut passage = Passage::new(status, headers, usage);
        let mut out = Vec::new();
        for segment in segments {
            passage.push(Bytes::from_static(segment), |bytes| out.extend_from_slice(&bytes));
        }
        let findings = passage.finish(true, |bytes| out.extend_from_slice(&bytes));
        (out, findings)
    }

    const WHOLE: &[&[u8]] = &[CONTENT, USAGE, DONE];

    fn stream() -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))])
    }

    fn supply() -> UsageChunk {
        let run_id = iop_types::RunId::from_uuid(uuid::Uuid::nil());
        let head = Head { kind: TextKind::Chat, run_id, created: 9, model: "m".to_owned() };
        UsageChunk::Supply(Box::new(Estimate { head, request_bytes: 40 }))
    }

    #[test]
    fn only_an_injected_usage_chunk_is_taken_out_and_it_is_read_first() {
        let usage = Some(Usage { input_tokens: 3, output_tokens: 1 });
        let (out, findings) = passed(200, &stream(), UsageChunk::TakeOut, WHOLE);
        assert_eq!(out, [CONTENT, DONE].concat());
        assert_eq!(findings.usage, usage);
        assert!(findings.evidence.finish_seen && findings.evidence.done_seen);
        let (out, findings) = passed(200, &stream(), UsageChunk::Untouched, WHOLE);
        assert_eq!(out, WHOLE.concat());
        assert_eq!(findings.usage, usage);
    }

    #[test]
    fn a_client_that_asked_for_usage_gets_an_estimate_where_the_provider_sends_none() {
        let (out, findings) = passed(200, &stream(), supply(), &[CONTENT, DONE]);
        let added = out.strip_prefix(CONTENT).and_then(|rest| rest.strip_suffix(DONE)).unwrap();
        let added = String::from_utf8_lossy(added);
        assert!(added.contains(r#""choices":[]"#) && added.contains("estimated"), "{added}");
        assert_eq!(findings.usage, None, "history does not take the estimate for the provider's");
        assert_eq!(passed(200, &stream(), supply(), WHOLE).0, WHOLE.concat());
    }

    #[test]
    fn a_stream_that_broke_off_gets_no_estimate() {
        let begun: &[&[u8]] =
            &[b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"];
        assert_eq!(passed(200, &stream(), supply(), begun).0, begun.concat());
    }

    #[test]
    fn a_stream_whose_rest_is_lost_gets_no_estimate_though_it_said_why_it_finishes() {
        let mut passage = Passage::new(200, &stream(), supply());
        let mut out = Vec::new();
        passage.push(Bytes::from_static(CONTENT), |bytes| out.extend_from_slice(&bytes));
        passage.push(Bytes::from_static(b"data: {"), |bytes| out.extend_from_slice(&bytes));
        passage.finish(false, |bytes| out.extend_from_slice(&bytes));
        assert_eq!(out, [CONTENT, b"data: {"].concat());
    }

    #[test]
    fn what_cannot_be_read_passes_unseen() {
        let mut gzip = stream();
        gzip.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let take_out = || UsageChunk::TakeOut;
        assert_eq!(passed(200, &gzip, take_out(), WHOLE).0, WHOLE.concat());
        assert!(!Passage::new(200, &gzip, take_out()).reframes());
        assert_eq!(passed(200, &HeaderMap::new(), take_out(), WHOLE).0, WHOLE.concat());
        assert_eq!(passed(400, &stream(), take_out(), WHOLE).0, WHOLE.concat());
    }
}
