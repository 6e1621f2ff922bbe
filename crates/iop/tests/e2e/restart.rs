//! An Edge that is killed, and what is known afterwards.

use iop_testkit::{ScriptedProvider, answer};

use crate::support::{Apart, CHAT, MODEL, stream, streamed, unary};

#[tokio::test]
async fn an_edge_that_is_killed_knows_afterwards_what_it_interrupted_and_its_node_comes_back() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| {
        if request.json()["stream"] == true { stream::held(2) } else { answer::chat(request, "x") }
    });
    let file = format!(
        "version: 1\nnodes:\n  one:\n    providers:\n      \
         p: {{ adapter: openai_compat, endpoint: '{}' }}\n",
        provider.endpoint()
    );
    let mut group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let mut whole = group.edge.chat(&unary(MODEL)).await;
    let whole_head = whole.head().await.unwrap();
    whole.body().await.unwrap();
    let whole_run = group.edge.run(&whole_head).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = group.edge.chat(&streamed(MODEL)).await;
        let head = client.head().await.unwrap();
        clients.push((client, head));
    }
    group
        .edge
        .until("all rows are written", async |edge| {
            edge.metric("iop_history_waiting_rows").await == 0.0
                && edge.admin("/api/v1/runs").await["runs"].as_array().unwrap().len() == 4
        })
        .await;

    let killed = std::time::Instant::now();
    group.process.end().await;
    for (client, _) in &mut clients {
        assert!(client.body_and_end().await.1.unwrap_err().is_early_end());
    }
    let log = provider
        .wait_until("the node ends all calls of its dead edge", |log| {
            (1..4).all(|index| log.connection_of(index).left_at().is_some())
        })
        .await;
    for index in 1..4 {
        let after = log.connection_of(index).left_at().unwrap().duration_since(killed);
        assert!(after <= crate::support::SEEN, "ended only after {after:?}");
    }

    group.start_again().await;
    group.edge.linked("one").await;
    group.edge.serves(MODEL).await;
    for (_, head) in &clients {
        let run = group.edge.run(head).await;
        assert_eq!(run["terminal"]["code"], "interrupted", "{run}");
        assert_eq!(run["terminal"]["kind"], "failed", "{run}");
    }
    assert_eq!(group.edge.run(&whole_head).await, whole_run, "what was ended stays as it was");
    let (head, _) = iop_testkit::http::post(group.edge.clients, CHAT, &unary(MODEL)).await.unwrap();
    assert_eq!(head.status, 200);
    group.edge.idle().await;
}
