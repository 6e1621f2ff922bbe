//! Streams of a provider whose bytes a test knows.

use iop_testkit::Script;
use iop_testkit::answer::STREAM_HEADERS;
use iop_testkit::http::Client;

/// One content event.
pub(crate) fn content(text: &str) -> String {
    format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\
         \"finish_reason\":null}}]}}\n\n"
    )
}

/// The event with the finish reason.
pub(crate) const FINISH: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

/// The chunk with the figures.
pub(crate) const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\
                         \"completion_tokens\":1,\"total_tokens\":10}}\n\n";

/// The mark of the end.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// The head of a chunked stream.
pub(crate) fn head() -> Script {
    Script::new().head(200, STREAM_HEADERS)
}

/// `pieces` content events and the end, each one chunk, and between the first and the rest the hold
/// that [`release`](iop_testkit::ScriptedProvider::release) ends.
pub(crate) fn held(pieces: usize) -> Script {
    let mut script = head().chunk(content("piece-0")).hold();
    for index in 1..pieces {
        script = script.chunk(content(&format!("piece-{index}")));
    }
    script.chunk(FINISH).chunk(USAGE).chunk(DONE).last_chunk()
}

/// The body that [`held`] sends.
pub(crate) fn held_body(pieces: usize) -> String {
    let pieces = (0..pieces).map(|index| content(&format!("piece-{index}")));
    pieces.chain([FINISH, USAGE, DONE].map(str::to_owned)).collect()
}

/// Reads exactly this from the body of an answer.
pub(crate) async fn read(client: &mut Client, expected: &str) {
    let mut got = Vec::new();
    while got.len() < expected.len() {
        let piece = client.piece().await.unwrap_or_else(|error| panic!("{error} after {got:?}"));
        got.extend(piece.unwrap_or_else(|| panic!("the body ended after {got:?}")));
    }
    assert_eq!(String::from_utf8_lossy(&got), expected);
}

/// Reads the first event of a [`held`] stream.
pub(crate) async fn read_first(client: &mut Client) {
    read(client, &content("piece-0")).await;
}

/// What comes behind the first event of [`held`].
pub(crate) fn held_rest(pieces: usize) -> String {
    held_body(pieces).split_off(content("piece-0").len())
}
