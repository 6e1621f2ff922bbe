//! Watches a relayed OpenAI stream for its few interesting events.

use iop_types::Usage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::likeness::Likeness;
use super::read_figures;
use super::search::{
    ARGUMENTS, CHOICES, CONTENT, ERROR, FINISH_REASON, REASONING, REASONING_CONTENT, TEXT, USAGE,
};
use crate::openai::ProviderError;
use crate::sse::{Event, EventTooLarge, Splitter};

/// Cap on an event that is cut by segments, and so on the memory of an observer: usage and finish
/// reason come in small events, only a whole answer in one event comes near.
const MAX_OBSERVED: usize = 1 << 20;

/// Learns usage, finish, error and end of an OpenAI SSE stream from the bytes that pass.
///
/// Events above 1 MiB are skipped; what they held is unknown.
#[derive(Debug)]
pub struct StreamObserver {
    splitter: Splitter,
    seen: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    usage: Option<Usage>,
    error: Option<ProviderError>,
    is_openai: bool,
    /// An event came whole that is none of OpenAI's: this is a stream in another shape.
    is_foreign: bool,
    has_finished: bool,
    is_done: bool,
    has_skipped: bool,
    deltas: u64,
    ordinary: Likeness,
}

impl Default for StreamObserver {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamObserver {
    /// Makes an observer for the beginning of a stream.
    pub fn new() -> Self {
        Self { splitter: Splitter::new(MAX_OBSERVED), seen: Seen::default() }
    }

    /// Looks at the next segment.
    pub fn observe(&mut self, segment: &[u8]) {
        self.splitter.push(segment, |event| self.seen.see(event));
    }

    /// Ends the stream: what is left counts as an event.
    pub fn finish(&mut self) {
        self.splitter.finish(|event| self.seen.see(event));
    }

    /// Returns the last figures that the provider reported: running totals replace each other.
    pub const fn usage(&self) -> Option<Usage> {
        self.seen.usage
    }

    /// Says whether any choice had a finish reason.
    pub const fn has_finished(&self) -> bool {
        self.seen.has_finished
    }

    /// Says whether the stream's end marker `[DONE]` passed.
    pub const fn is_done(&self) -> bool {
        self.seen.is_done
    }

    /// Returns the error object that the provider put into the stream.
    pub const fn error(&self) -> Option<&ProviderError> {
        self.seen.error.as_ref()
    }

    /// Says whether this is a chat or completion stream in OpenAI's shape.
    pub const fn is_openai(&self) -> bool {
        self.seen.is_openai
    }

    /// Says whether a stream that ended here ended without any finish reason, be it before its first
    /// event or within it. A stream in another shape than OpenAI's has reasons of its own, an error in
    /// the stream is an end of its own, and a skipped event may have held the reason.
    pub const fn is_truncated(&self) -> bool {
        let seen = &self.seen;
        let is_judged = seen.is_openai || !seen.is_foreign;
        is_judged && !seen.has_finished && !seen.has_skipped && seen.error.is_none()
    }

    /// Counts the events that carry content, for [`estimate`](super::estimate).
    pub const fn deltas(&self) -> u64 {
        self.seen.deltas
    }
}

impl Seen {
    fn see(&mut self, event: Result<Event<'_>, EventTooLarge>) {
        let Ok(event) = event else {
            self.has_skipped = true;
            return;
        };
        match event.name {
            b"ping" => return,
            b"error" => {
                self.error = Some(ProviderError::from_event(event.data));
                return;
            }
            _ => {}
        }
        if self.ordinary.covers(event.data) {
            self.deltas += 1;
            return;
        }
        if event.data == b"[DONE]" {
            self.is_done = true;
            return;
        }
        if is_remarkable(event.data) {
            self.parse(event.data);
        } else {
            self.is_openai = self.is_openai || CHOICES.is_in(event.data);
            self.deltas += u64::from(has_content(event.data));
            self.ordinary.learn(event.data);
        }
        // What is cut off within its first event is no stream of another shape.
        if !self.is_openai && !self.is_foreign {
            self.is_foreign = serde_json::from_slice::<IgnoredAny>(event.data).is_ok();
        }
    }

    /// Parses an event that may hold more than content; one that cannot be parsed says nothing.
    fn parse(&mut self, data: &[u8]) {
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else { return };
        if let Some(error) = chunk.error {
            self.error = Some(ProviderError::from_member(error.get()));
        } else if chunk.object.as_deref() == Some("error") {
            self.error = Some(ProviderError::from_event(data));
        }
        if let Some(usage) = chunk.usage {
            self.usage = read_figures(usage.get().as_bytes()).or(self.usage);
        }
        if let Some(choices) = chunk.choices {
            self.is_openai = true;
            self.has_finished |= choices.iter().any(Choice::has_finished);
            self.deltas += u64::from(choices.iter().any(Choice::has_content));
        }
    }
}

/// Says whether an event may hold a finish reason, usage or an error.
///
/// Ordinary chunks have `"finish_reason":null`, and `"usage":null` once usage was asked for.
fn is_remarkable(data: &[u8]) -> bool {
    FINISH_REASON.values(data).any(|value| value[0] == b'"')
        || USAGE.values(data).any(|value| value[0] == b'{')
        || ERROR.occurrences(data).any(|rest| !rest.starts_with(b":null"))
}

/// Says whether an event without a finish reason generated something: the first chunk of many servers
/// only names the role.
fn has_content(data: &[u8]) -> bool {
    [&CONTENT, &REASONING_CONTENT, &REASONING, &TEXT, &ARGUMENTS]
        .into_iter()
        .any(|key| key.values(data).any(|value| value[0] == b'"' && value.get(1) != Some(&b'"')))
}

#[derive(Deserialize)]
struct Chunk<'a> {
    object: Option<String>,
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    finish_reason: Option<String>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

impl Choice<'_> {
    fn has_finished(&self) -> bool {
        self.finish_reason.as_deref().is_some_and(|reason| !reason.is_empty())
    }

    fn has_content(&self) -> bool {
        let delta = self.delta.as_ref();
        let members = delta.into_iter().flat_map(|delta| {
            [delta.content, delta.reasoning, delta.reasoning_content, delta.tool_calls]
        });
        members.chain([self.text]).flatten().any(|value| !matches!(value.get(), "\"\"" | "[]"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(text: &str) -> StreamObserver {
        let mut observer = StreamObserver::new();
        observer.observe(text.as_bytes());
        observer.finish();
        observer
    }

    #[test]
    fn a_whole_stream_is_understood() {
        let seen = observed(concat!(
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},\"finish_reason\":null}],\"usage\":null}\n\n",
            "data: {\"choices\": [{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\": null}], \"usage\" : null}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\" : \"stop\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\n",
            "data: [DONE]\n\n",
        ));
        assert_eq!(seen.usage(), Some(Usage { input_tokens: 9, output_tokens: 2 }));
        assert!(seen.has_finished() && seen.is_done() && seen.is_openai() && !seen.is_truncated());
        assert_eq!((seen.error(), seen.deltas()), (None, 2));
    }

    #[test]
    fn a_chunk_that_only_names_the_role_generated_nothing() {
        for first in [r#"{"role":"assistant"}"#, r#"{"role": "assistant", "content": ""}"#] {
            let seen = observed(&format!(
                "data: {{\"choices\":[{{\"index\":0,\"delta\":{first},\"finish_reason\":null}}]}}\n\n\
                 data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"Hi\"}},\"finish_reason\":null}}]}}\n\n\
                 data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" you\"}},\"finish_reason\":null}}]}}\n\n\
                 data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n",
            ));
            assert_eq!(seen.deltas(), 2, "{first}");
        }
    }

    #[test]
    fn content_that_quotes_the_words_is_only_content() {
        let seen = observed(concat!(
            "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"finish_reason\\\":\\\"stop\\\",\\\"usage\\\":{\\\"prompt_tokens\\\":1}\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"usage\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"error\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"finish_reason\"}}]}\n\n",
        ));
        assert!(!seen.has_finished() && seen.is_truncated());
        assert_eq!((seen.usage(), seen.error(), seen.deltas()), (None, None, 4));
    }

    #[test]
    fn a_stream_that_ends_before_its_first_event_is_truncated() {
        for stream in ["", ": ping\n\n", "event: ping\ndata: {}\n\n", "data: [DONE]\n\n"] {
            let mut observer = StreamObserver::new();
            observer.observe(stream.as_bytes());
            observer.finish();
            assert!(observer.is_truncated(), "{stream:?}");
        }
    }

    #[test]
    fn a_stream_that_is_cut_anywhere_before_its_finish_reason_is_truncated() {
        let stream = concat!(
            "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n",
            "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}",
        );
        for end in 0..stream.len() {
            assert!(observed(&stream[..end]).is_truncated(), "{:?}", &stream[..end]);
        }
        assert!(!observed(stream).is_truncated());
    }

    #[test]
    fn a_stream_in_another_shape_is_never_called_truncated() {
        let seen = observed("event: response.created\ndata: {\"type\":\"response.created\"}\n\n");
        assert!(!seen.is_openai() && !seen.is_truncated());
    }

    #[test]
    fn an_event_above_the_cap_is_skipped_and_gets_the_benefit_of_the_doubt() {
        let mut observer = StreamObserver::new();
        observer.observe(b"data: {\"choices\":[]}\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\",\"text\":\"");
        for _ in 0..80 {
            observer.observe(&[b'x'; 16 << 10]);
        }
        observer.observe(b"\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n");
        observer.finish();
        assert!(!observer.has_finished() && !observer.is_truncated() && observer.is_openai());
        assert_eq!(observer.usage(), Some(Usage { input_tokens: 1, output_tokens: 1 }));
    }

    #[test]
    fn malformed_events_say_nothing() {
        let seen = observed(concat!(
            "data: {\"finish_reason\":\"stop\"\n\n",
            "data: {\"choices\":7,\"usage\":{\"prompt_tokens\":1}}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":\"x\"}}\n\n",
        ));
        assert!(!seen.has_finished());
        assert_eq!((seen.usage(), seen.error()), (None, None));
    }
}
