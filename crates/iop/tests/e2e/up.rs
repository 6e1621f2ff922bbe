//! `iop up`: from nothing to a streamed answer, and what it does when there is nothing to serve.

use iop_testkit::ScriptedProvider;
use iop_testkit::http;
use iop_testkit::kernel::{self, TcpState};
use iop_testkit::process::Stream;
use serde_json::json;

use crate::support::{CHAT, MODEL, Up, streamed, unary};

#[tokio::test]
async fn demo_with_try_streams_an_answer_goes_on_serving_and_ends_when_asked() {
    let mut up = Up::start(&["--demo", "--try", "hello"]).await;
    up.process.wait_for_line("> hello").await;
    let answer = up.process.wait_for_line("You wrote: hello").await;
    assert!(answer.contains("built-in demo provider"), "{answer}");
    up.process.wait_for_line("Serving on").await;
    let said = up.process.lines(Stream::Out).join("\n");
    assert!(said.contains(&format!("Endpoint  http://{}/v1", up.edge.clients)), "{said}");
    assert!(said.contains("Models    demo"), "{said}");
    assert!(said.contains("answers are invented"), "{said}");
    assert!(said.contains("curl -N"), "{said}");

    let mut client = up.edge.chat(&streamed("demo")).await;
    assert_eq!(client.head().await.unwrap().status, 200);
    let mut events = 0;
    while client.json_event().await.unwrap().is_some() {
        events += 1;
    }
    assert!(events > 10, "a word is an event, not all of them together: {events}");

    up.process.terminate();
    assert!(up.process.wait_for_exit().await.success());
    let told = up.process.lines(Stream::Err).join("\n");
    assert!(!told.contains("WARN") && !told.contains("ERROR"), "an ordinary day: {told}");
}

#[tokio::test]
async fn with_nothing_to_serve_it_stays_up_says_where_it_looked_and_invents_nothing() {
    const PORTS: [u16; 5] = [8000, 8080, 1234, 30_000, 11_434];
    let listens = |port: &u16| {
        let sockets = kernel::tcp_sockets();
        let mut own = sockets.iter().filter(|socket| socket.state == TcpState::Listen);
        own.any(|socket| socket.local.port() == *port)
    };
    if let Some(port) = PORTS.iter().find(|port| listens(port)) {
        // On such a machine there is something to serve.
        eprintln!("not shown here: something listens on the usual port {port}");
        return;
    }
    let mut up = Up::start(&[]).await;
    let models = up.process.wait_for_line("Models ").await;
    assert!(models.contains("none yet"), "{models}");
    for port in PORTS {
        assert!(models.contains(&port.to_string()), "{models}");
    }
    up.process.wait_for_line("iop up --demo").await;

    let (head, body) = http::get(up.edge.clients, "/v1/models").await.unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((head.status, &listed["data"]), (200, &json!([])));
    for model in ["demo", "gpt-4o", MODEL] {
        let (head, body) = http::post(up.edge.clients, CHAT, &unary(model)).await.unwrap();
        let body = String::from_utf8_lossy(&body);
        assert_eq!(head.status, 404, "{body}");
        assert!(body.contains("model_not_found"), "{body}");
    }
    let (head, body) = http::get(up.edge.clients, "/ready").await.unwrap();
    assert_eq!(head.status, 503, "{}", String::from_utf8_lossy(&body));
    let (head, _) = http::get(up.edge.clients, "/health").await.unwrap();
    assert_eq!(head.status, 200);
    up.process.interrupt();
    assert!(up.process.wait_for_exit().await.success());
}

#[tokio::test]
async fn a_provider_that_comes_later_is_served_without_a_restart() {
    // A port that was free a moment ago, for a provider that is not there yet.
    let gone = ScriptedProvider::start().await;
    let address = gone.address();
    gone.stop().await;
    let flag = format!("late=openai_compat:http://{address}");
    let up = Up::start(&["--provider", &flag]).await;
    up.process.wait_for_line("none yet").await;
    let provider = ScriptedProvider::start_on(address).await;
    up.edge.serves(MODEL).await;
    let (head, _) = http::post(up.edge.clients, CHAT, &unary(MODEL)).await.unwrap();
    assert_eq!((head.status, provider.log().exchanges.len()), (200, 1));
}
