//! What a provider sends is what its client gets, through both hops, however TCP cuts it; and how
//! the stream ended is what history says.

use iop_testkit::http::Error;
use iop_testkit::script::{Cut, Script};
use iop_testkit::{ScriptedProvider, answer};
use serde_json::{Value, json};

use crate::support::stream::{self, DONE, FINISH, USAGE, content};
use crate::support::{Apart, CHAT, Edge, MODEL, Up, streamed, unary};

/// How a provider ends a chunked body.
#[derive(Clone, Copy, Debug)]
enum End {
    /// With its last chunk.
    Clean,
    /// With a FIN instead of it.
    Fin,
    /// With a reset.
    Reset,
}

/// A streamed answer and what must become of it.
struct Case {
    name: &'static str,
    body: Vec<u8>,
    end: End,
    /// Whether the client sees a regular end.
    clean: bool,
    /// Code in history; `None` where the run completed.
    code: Option<&'static str>,
}

fn cases() -> Vec<Case> {
    let whole = |name, parts: &[&[u8]]| Case {
        name,
        body: parts.concat(),
        end: End::Clean,
        clean: true,
        code: None,
    };
    let broken = |name, end, code, parts: &[&[u8]]| Case {
        name,
        body: parts.concat(),
        end,
        clean: false,
        code: Some(code),
    };
    let a = content("a");
    let a = a.as_bytes();
    let (finish, done) = (FINISH.as_bytes(), DONE.as_bytes());
    let crlf = |text: &str| text.replace('\n', "\r\n").into_bytes();
    let last = &b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\
        \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}"[..];
    vec![
        whole("FC-001 a letter of three bytes", &[content("안녕 🙂").as_bytes(), finish, done]),
        whole("FC-001 bytes that are no letter", &[
            b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xff\xfe\"}}]}\n\n", finish, done,
        ]),
        whole("FC-002 CRLF", &[&crlf(&content("a")), &crlf(FINISH), &crlf(DONE)]),
        whole("FC-003 no space after the colon", &[
            b"data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n", finish, b"data:[DONE]\n\n",
        ]),
        whole("FC-004 comments", &[b": PROVIDER BUSY\n\n: ping - 2026\n\n", a, finish, done]),
        whole("FC-005 other fields", &[b"id: q-1\nevent: message\nretry: 100\n", a, finish, done]),
        whole("FC-008 no blank line at the end", &[a, last]),
        whole("FC-008 one line end at the end", &[a, last, b"\n"]),
        whole("FC-010 a chunk with usage only", &[a, finish, USAGE.as_bytes(), done]),
        whole("FC-010 a chunk without choices", &[a, b"data: {\"id\":\"x\"}\n\n", finish, done]),
        whole("FC-013 no [DONE]", &[a, finish]),
        whole("FC-013 [DONE] twice", &[a, finish, done, done]),
        broken("FC-014 end before any finish reason", End::Clean, "truncated", &[a, a]),
        broken("FC-014 FIN before any finish reason", End::Fin, "truncated", &[a, a]),
        broken("FC-014 reset before any finish reason", End::Reset, "truncated", &[a, a]),
        broken("FC-014 a chunked body without its last chunk", End::Fin, "truncated", &[
            a, finish, done,
        ]),
        Case {
            code: Some("provider_error"),
            ..whole("FC-015 an error object", &[
                b"data: {\"error\":{\"message\":\"quota\",\"type\":\"insufficient_quota\",\"code\":429}}\n\n", done,
            ])
        },
        Case {
            code: Some("provider_error"),
            ..whole("FC-015 an error event", &[b"event: error\ndata: {\"error\":\"text\"}\n\n", done])
        },
    ]
}

impl Case {
    /// The body without the usage chunk.
    fn expected(&self) -> Vec<u8> {
        let mut body = self.body.clone();
        let at = body.windows(USAGE.len()).position(|part| part == USAGE.as_bytes());
        if let Some(at) = at {
            body.drain(at..at + USAGE.len());
        }
        body
    }
}

/// A streamed chat that says nothing of usage.
fn plain() -> Value {
    json!({"model": MODEL, "stream": true, "messages": []})
}

fn cuts() -> Vec<Cut> {
    vec![Cut::Whole, Cut::EveryByte, Cut::Sizes(vec![2]), Cut::Sizes(vec![7, 1, 30])]
}

fn script(case: &Case, cut: Cut) -> Script {
    let script = stream::head().cut(cut).chunk(&case.body);
    match case.end {
        End::Clean => script.hold().last_chunk(),
        End::Fin => script.hold().fin(),
        End::Reset => script.hold().reset(),
    }
}

#[tokio::test]
async fn a_streams_bytes_are_the_providers_for_any_segmentation_and_history_knows_its_end() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 1).await;
    for case in cases() {
        for cut in cuts() {
            let answer = script(&case, cut.clone());
            provider.once(CHAT, move |_| answer.clone());
            // Nothing is asked for by the client: what it gets is the provider's without the chunk
            // that the edge asked for.
            let expected = case.expected();
            let mut client = up.edge.chat(&plain()).await;
            let shown = format!("{} {cut:?}", case.name);
            let head = client.head().await.unwrap_or_else(|error| panic!("{shown}: {error}"));
            assert_eq!(head.status, 200, "{shown}");
            assert_eq!(head.header("content-type"), Some("text/event-stream"), "{shown}");
            // A reset lets kernels throw away what was not read yet, so that it waits for that.
            let mut body = Vec::new();
            while matches!(case.end, End::Reset) && body.len() < expected.len() {
                body.extend(client.piece().await.unwrap().unwrap());
            }
            provider.release(1);
            let (rest, end) = client.body_and_end().await;
            body.extend(rest);
            let lossy = String::from_utf8_lossy;
            assert_eq!(lossy(&body), lossy(&expected), "{shown}");
            assert_eq!(body, expected, "{shown}");
            match end {
                Ok(()) => assert!(case.clean, "{shown}: the end looks regular"),
                Err(error) => assert!(!case.clean && error.is_early_end(), "{shown}: {error}"),
            }
            let run = up.edge.run(&head).await;
            assert_eq!(run["terminal"]["code"].as_str(), case.code, "{shown}: {run}");
            let kind = if case.code.is_some() { "failed" } else { "completed" };
            assert_eq!(run["terminal"]["kind"], kind, "{shown}: {run}");
        }
    }
    up.edge.idle().await;
}

#[tokio::test]
async fn a_client_that_asks_for_usage_gets_every_byte_of_it() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 1).await;
    for cut in cuts() {
        let whole = [&content("a"), ": busy\r\n\r\n", FINISH, USAGE, DONE].concat();
        let body = whole.clone();
        let sent = cut.clone();
        provider.once(CHAT, move |request| {
            assert_eq!(request.json()["stream_options"], json!({"include_usage": true}));
            stream::head().cut(sent.clone()).chunk(&body).last_chunk()
        });
        let mut client = up.edge.chat(&streamed(MODEL)).await;
        let head = client.head().await.unwrap();
        assert_eq!(client.body().await.unwrap(), whole, "{cut:?}");
        let usage = json!({"input_tokens": 9, "output_tokens": 1, "source": "provider"});
        assert_eq!(up.edge.run(&head).await["usage"], usage, "{cut:?}");
    }
}

#[tokio::test]
async fn a_line_of_three_mebibytes_and_an_answer_of_twenty_pass_whole() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 1).await;
    let long = content(&"x".repeat(3 << 20));
    let sent = [long.as_str(), &content("after"), FINISH, USAGE, DONE].concat();
    let body = sent.clone();
    provider.once(CHAT, move |_| stream::head().chunk(&body).last_chunk());
    let mut client = up.edge.chat(&streamed(MODEL)).await;
    let head = client.head().await.unwrap();
    assert!(client.body().await.unwrap() == sent, "the stream differs");
    assert_eq!(up.edge.run(&head).await["terminal"]["kind"], "completed");

    let whole = json!({
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "y".repeat(20 << 20)}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": "many"},
    })
    .to_string();
    let body = whole.clone();
    provider.once(CHAT, move |_| answer::sized(200, "application/json", &body));
    let mut client = up.edge.chat(&unary(MODEL)).await;
    let head = client.head().await.unwrap();
    assert_eq!(head.header("content-length"), Some(whole.len().to_string().as_str()));
    assert!(client.body().await.unwrap() == whole, "the answer differs");
    let run = up.edge.run(&head).await;
    assert_eq!(run["terminal"]["kind"], "completed", "{run}");
    assert_ne!(run["usage"]["source"], "provider", "no figure can be read off it: {run}");
}

#[tokio::test]
async fn each_event_arrives_though_the_next_one_is_not_sent_yet() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| {
        let script = (0..5)
            .fold(stream::head(), |script, index| script.hold().chunk(content(&index.to_string())));
        script.hold().chunk(FINISH).last_chunk()
    });
    let up = Up::serving(&provider, 1).await;
    let mut client = up.edge.chat(&plain()).await;
    provider.wait_for_requests(1).await;
    provider.release(1);
    let head = client.head().await.unwrap();
    assert_eq!(head.header("x-accel-buffering"), Some("no"));
    stream::read(&mut client, &content("0")).await;
    for index in 1..5 {
        provider.release(1);
        stream::read(&mut client, &content(&index.to_string())).await;
    }
    provider.release(1);
    assert_eq!(client.body().await.unwrap(), FINISH);
}

/// Asks for a stream and returns status, content type and body.
async fn asked(edge: &Edge, body: &Value) -> (u16, String, Vec<u8>) {
    let mut client = edge.chat(body).await;
    let head = client.head().await.unwrap();
    let (body, end) = client.body_and_end().await;
    assert!(matches!(end, Ok(()) | Err(Error::Truncated)), "{end:?}");
    let kind = head.header("content-type").unwrap_or_default().to_owned();
    (head.status, kind, body.to_vec())
}

#[tokio::test]
async fn a_providers_status_type_and_encoding_are_the_clients_whatever_was_asked_for() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 1).await;
    let refusal = br#"{"error":{"message":"context too long"}}"#;
    let page = b"<html>no such thing</html>";
    for (status, kind, body) in [
        (400, "application/json", &refusal[..]),
        (503, "application/json", refusal),
        (502, "text/html", page),
        (404, "text/html; charset=utf-8", page),
        (200, "text/html", page),
    ] {
        provider.on(CHAT, move |_| answer::sized(status, kind, body));
        let got = asked(&up.edge, &streamed(MODEL)).await;
        assert_eq!(got, (status, kind.to_owned(), body.to_vec()));
    }
}

#[tokio::test]
async fn an_encoded_answer_is_asked_for_and_passed_on_where_nothing_is_to_be_read_off_it() {
    let provider = ScriptedProvider::start().await;
    let file = format!(
        "version: 1\nnodes:\n  one:\n    providers:\n      \
         p: {{ adapter: openai_compat, endpoint: '{}', usage: observed }}\n",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let zipped = b"\x1f\x8b\x08\x00 not really";
    provider.on(CHAT, |request| {
        assert_eq!(request.header("accept-encoding"), Some("gzip"));
        let length = zipped.len().to_string();
        let headers = [
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
            ("content-length", &length),
        ];
        Script::new().head(200, &headers).bytes(&zipped[..])
    });
    let mut client = group.edge.client().await;
    let headers = [("content-type", "application/json"), ("accept-encoding", "gzip")];
    client.request("POST", CHAT, &headers, unary(MODEL).to_string()).await.unwrap();
    let head = client.head().await.unwrap();
    assert_eq!((head.status, head.header("content-encoding")), (200, Some("gzip")));
    assert_eq!(client.body().await.unwrap(), &zipped[..]);
}
