//! Two providers as two Nodes, of which the first one fails: the client gets the answer of the other,
//! once, and history has both attempts.

use iop_testkit::http::{self, Client};
use iop_testkit::script::Script;
use iop_testkit::{ScriptedProvider, answer};
use serde_json::{Value, json};

use crate::cli::{outcome, printed};
use crate::support::{Apart, CHAT, Running, stream};

/// An Edge, and two Nodes with a provider each, of which `one` is asked first.
struct Pair {
    first: ScriptedProvider,
    second: ScriptedProvider,
    group: Apart,
    one: Running,
    _two: Running,
}

impl Pair {
    async fn start() -> Self {
        Self::start_with("5m").await
    }

    /// Starts them with this much silence allowed.
    async fn start_with(stall: &str) -> Self {
        let first = ScriptedProvider::start().await;
        let second = ScriptedProvider::start().await;
        second.on(CHAT, |_| whole("from-the-second"));
        let provider = |provider: &ScriptedProvider| {
            format!(
                "providers: {{ p: {{ adapter: openai_compat, endpoint: '{}', max_concurrency: 2, \
                 response_stall_timeout: {stall} }} }}",
                provider.endpoint()
            )
        };
        let candidates = "candidates: [{ node: one, provider: p, target: mock-model }, \
                          { node: two, provider: p, target: mock-model }]";
        let file = format!(
            "version: 1\nnodes:\n  one: {{ {} }}\n  two: {{ {} }}\nroutes:\n  \
             pair: {{ policy: ordered, {candidates} }}\n  \
             alone: {{ candidates: [{{ node: one, provider: p, target: mock-model }}] }}\n",
            provider(&first),
            provider(&second),
        );
        let group = Apart::start(&file).await;
        let one = group.node("one").await;
        let two = group.node("two").await;
        let pair = Self { first, second, group, one, _two: two };
        pair.ready().await;
        pair
    }

    /// Waits until both providers are served.
    async fn ready(&self) {
        self.group
            .edge
            .until("both providers are ready", async |edge| {
                let page = edge.admin("/api/v1/providers").await;
                let all = page["providers"].as_array().unwrap();
                all.len() == 2 && all.iter().all(|provider| provider["ready"] == true)
            })
            .await;
    }

    async fn ask(&self) -> Client {
        self.group.edge.chat(&to("pair")).await
    }

    /// Reads the second provider's whole answer and what history says of its two attempts.
    async fn recovered(&self, client: &mut Client, why: &str) -> Value {
        let head = client.head().await.unwrap();
        assert_eq!(head.status, 200);
        let body = client.body().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&body), whole_body("from-the-second"));
        let run = self.group.edge.run(&head).await;
        let attempts = run["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 2, "{run:#}");
        assert_eq!((&attempts[0]["node"], &attempts[1]["node"]), (&json!("one"), &json!("two")));
        assert_eq!(attempts[0]["recovery_eligible"], true);
        assert_eq!(attempts[1]["why"], why);
        assert_eq!(run["terminal"], json!({ "kind": "completed" }));
        run
    }
}

fn to(model: &str) -> Value {
    json!({
        "model": model, "stream": true, "stream_options": { "include_usage": true },
        "messages": [{ "role": "user", "content": "hello" }],
    })
}

fn whole(text: &str) -> Script {
    stream::head()
        .chunk(stream::content(text))
        .chunk(stream::FINISH)
        .chunk(stream::USAGE)
        .chunk(stream::DONE)
        .last_chunk()
}

fn whole_body(text: &str) -> String {
    [&stream::content(text), stream::FINISH, stream::USAGE, stream::DONE].concat()
}

#[tokio::test]
async fn what_fails_before_the_first_byte_is_answered_by_the_other_provider() {
    let pair = Pair::start().await;
    for status in [429, 502, 503, 504] {
        pair.first.once(CHAT, move |_| answer::error(status, "t", "c", "not now"));
        let mut client = pair.ask().await;
        pair.recovered(&mut client, &format!("provider_{status}")).await;
    }
    // It takes the request and closes, or resets, without a word.
    pair.first.once(CHAT, |_| Script::new().fin());
    let mut client = pair.ask().await;
    pair.recovered(&mut client, "connection_lost").await;
    pair.first.once(CHAT, |_| Script::new().reset());
    let mut client = pair.ask().await;
    pair.recovered(&mut client, "connection_lost").await;
    // A head and a comment are nothing yet.
    pair.first.once(CHAT, |_| stream::head().chunk(": thinking\n\n").reset());
    let mut client = pair.ask().await;
    let run = pair.recovered(&mut client, "connection_lost").await;
    assert!(run["attempts"][0]["head_ms"].is_u64(), "{run:#}");
    pair.group.edge.idle().await;
}

#[tokio::test]
async fn the_last_refusal_passes_as_the_provider_wrote_it() {
    let pair = Pair::start().await;
    let limited = |text: &'static str| {
        let headers =
            [("content-type", "text/plain"), ("retry-after", "9"), ("content-length", "9")];
        Script::new().head(429, &headers).bytes(text)
    };
    pair.first.on(CHAT, move |_| limited("the first"));
    pair.second.on(CHAT, move |_| limited("the other"));
    let (head, body) = http::post(pair.group.edge.clients, CHAT, &to("pair")).await.unwrap();
    assert_eq!((head.status, head.header("retry-after")), (429, Some("9")));
    assert_eq!(&body[..], b"the other");
    assert_eq!(pair.group.edge.run(&head).await["attempts"].as_array().unwrap().len(), 2);
    // With nobody else there is nothing to wait for.
    let (head, body) = http::post(pair.group.edge.clients, CHAT, &to("alone")).await.unwrap();
    assert_eq!((head.status, &body[..]), (429, &b"the first"[..]));
    assert_eq!(pair.group.edge.run(&head).await["attempts"].as_array().unwrap().len(), 1);
    pair.group.edge.idle().await;
}

#[tokio::test]
async fn a_provider_that_is_gone_and_a_node_that_is_killed_are_replaced() {
    let mut pair = Pair::start().await;
    // The Node dies while its provider thinks.
    pair.first.on(CHAT, |_| Script::new().hold());
    let mut client = pair.ask().await;
    pair.first.wait_for_requests(1).await;
    pair.one.kill();
    let run = pair.recovered(&mut client, "node_lost").await;
    assert_eq!(run["attempts"][0]["terminal"]["code"], "node_lost");
    pair.one.end().await;
    pair.one = pair.group.node("one").await;
    pair.ready().await;
    // Its server is gone, which the Node learns from this request at the latest.
    let Pair { first, second: _second, group, one: _one, _two } = pair;
    first.stop().await;
    let (head, body) = http::post(group.edge.clients, CHAT, &to("pair")).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&body), whole_body("from-the-second"));
    let run = group.edge.run(&head).await;
    if let [first, second] = &run["attempts"].as_array().unwrap()[..] {
        assert_eq!(first["terminal"]["code"], "connect_failed", "{run:#}");
        assert_eq!(second["why"], "connect_failed", "{run:#}");
    }
    group.edge.idle().await;
}

#[tokio::test]
async fn a_provider_that_falls_silent_and_lets_go_is_replaced() {
    let pair = Pair::start_with("1s").await;
    for script in [|| Script::new().hold(), || stream::head().chunk(": still\n\n").hold()] {
        pair.first.once(CHAT, move |_| script());
        let mut client = pair.ask().await;
        let run = pair.recovered(&mut client, "response_stalled").await;
        let end = &run["attempts"][0]["terminal"];
        assert_eq!(end["code"], "response_stalled", "{run:#}");
        assert_eq!(
            (&end["stall_timeout_ms"], &end["ownership"]),
            (&json!(1_000), &json!("confirmed"))
        );
        assert_eq!(end["retryable"], true, "{run:#}");
        assert!(end["silent_ms"].as_u64() >= Some(1_000), "{run:#}");
        assert!(end["provider_health"].is_string() && end["phase"].is_string(), "{run:#}");
    }
    pair.group.edge.idle().await;
}

#[tokio::test]
async fn a_loss_in_the_middle_ends_typed_and_repeats_nothing() {
    let pair = Pair::start().await;
    pair.first.on(CHAT, |_| stream::head().chunk(stream::content("half")).hold().reset());
    let mut client = pair.ask().await;
    let head = client.head().await.unwrap();
    stream::read(&mut client, &stream::content("half")).await;
    pair.first.release(1);
    let (rest, end) = client.body_and_end().await;
    assert!(rest.is_empty(), "{rest:?}");
    assert!(end.unwrap_err().is_early_end());
    let run = pair.group.edge.run(&head).await;
    assert_eq!(run["attempts"].as_array().unwrap().len(), 1, "{run:#}");
    assert_eq!(run["attempts"][0]["recovery_eligible"], false);
    assert_eq!(run["terminal"]["kind"], "failed");
    assert!(pair.second.log().exchanges.iter().all(|exchange| exchange.request.path() != CHAT));
    pair.group.edge.idle().await;
}

#[tokio::test]
async fn an_operator_cancels_a_run_in_every_phase() {
    let pair = Pair::start().await;
    let admin = pair.group.edge.admin.to_string();
    let admin = format!("http://{admin}");
    // Two streams, so that what the provider takes at once is taken.
    pair.first.on(CHAT, |_| stream::head().chunk(stream::content("half")).hold());
    let mut streaming =
        [pair.group.edge.chat(&to("alone")).await, pair.group.edge.chat(&to("alone")).await];
    for client in &mut streaming {
        client.head().await.unwrap();
        stream::read(client, &stream::content("half")).await;
    }
    let mut queued = pair.group.edge.chat(&to("alone")).await;
    pair.group.edge.wait_for_metric("iop_queue_waiting", 1.0).await;
    let mut at_work = Vec::new();
    pair.group
        .edge
        .until("three runs are shown", async |edge| {
            let runs = edge.admin("/api/v1/runs").await;
            let runs = runs["runs"].as_array().unwrap().iter();
            at_work = runs
                .filter(|run| run["terminal"].is_null())
                .map(|run| run["run_id"].as_str().unwrap().to_owned())
                .collect();
            at_work.len() == 3
        })
        .await;
    for id in &at_work {
        let said = printed(&["runs", "cancel", id, "--admin", &admin]).await;
        assert_eq!(said, format!("Cancelled {id}.\n"));
    }
    let head = queued.head().await.unwrap();
    assert_eq!(head.status, 499);
    assert_eq!(queued.json().await.unwrap()["error"]["code"], "cancelled");
    for client in &mut streaming {
        let (rest, end) = client.body_and_end().await;
        assert!(rest.is_empty() && end.unwrap_err().is_early_end());
    }
    let log =
        pair.first.wait_until("the provider is rid of them", |log| log.in_flight() == 0).await;
    assert_eq!(log.exchanges.iter().filter(|exchange| exchange.request.path() == CHAT).count(), 2);

    // Before the head, and behind a head that is held back.
    let mut done = at_work.clone();
    for script in [|| Script::new().hold(), || stream::head().hold()] {
        pair.first.on(CHAT, move |_| script());
        let mut client = pair.group.edge.chat(&to("alone")).await;
        let mut id = String::new();
        pair.group
            .edge
            .until("it is shown and with its provider", async |edge| {
                let runs = edge.admin("/api/v1/runs?limit=1").await;
                id = runs["runs"][0]["run_id"].as_str().unwrap().to_owned();
                !done.contains(&id) && pair.first.log().in_flight() == 1
            })
            .await;
        done.push(id.clone());
        printed(&["runs", "cancel", &id, "-o", "json", "--admin", &admin]).await;
        assert_eq!(client.head().await.unwrap().status, 499);
        pair.first.wait_until("it left the provider", |log| log.in_flight() == 0).await;
    }
    pair.group.edge.idle().await;
    for id in &at_work {
        let run = pair.group.edge.run_where("a cancelled run", |run| run["run_id"] == **id).await;
        assert_eq!(run["terminal"]["kind"], "cancelled", "{run:#}");
        assert_eq!(run["terminal"]["code"], "cancelled", "{run:#}");
    }
    let (code, _, said) = outcome(&["runs", "cancel", &at_work[0], "--admin", &admin]).await;
    assert_eq!(code, 1);
    assert!(said.contains("has ended: cancelled cancelled"), "{said}");
}
