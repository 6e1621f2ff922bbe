//! Dialling, registering, taking over, stopping.

use std::net::SocketAddr;
use std::time::Duration;

use iop_net::link::FatalLink;
use iop_types::CloseReason;
use iop_wire::{Message, v1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Cut, Edge, Node, Relay, echo, soon};

#[tokio::test]
async fn there_are_never_two_dials_or_two_links_wherever_birth_is_cut() {
    // A birth takes less than 100 bytes each way.
    let steps = (0..100).step_by(7);
    let cuts = steps.clone().map(Cut::Up).chain(steps.map(Cut::Down));
    // All at once, so that their backoffs run beside each other.
    let mut nodes = Vec::new();
    for cut in cuts {
        let edge = Edge::start().await;
        let relay = Relay::start(edge.address, vec![cut]).await;
        let node = Node::start(relay.address, echo());
        nodes.push((cut, edge, relay, node));
    }
    for (cut, mut edge, _relay, node) in nodes {
        edge.joined(&node).await;
        node.shutdown.cancel();
        soon("the node", node.task).await.unwrap().unwrap();
        assert_eq!((node.net.most(), node.net.now()), (1, 0), "{cut:?}");
    }
}

#[tokio::test]
async fn a_node_that_is_stopped_during_birth_or_backoff_dials_no_more() {
    for step in (0..100).step_by(9) {
        let edge = Edge::start().await;
        let relay = Relay::start(edge.address, vec![Cut::Down(step); 10]).await;
        let node = Node::start(relay.address, echo());
        soon("a dial", async {
            while node.net.dials() == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        node.shutdown.cancel();
        soon("the node", node.task).await.unwrap().unwrap();
        // Its owner has returned: whoever could dial is gone.
        assert_eq!((node.net.most(), node.net.now()), (1, 0), "step {step}");
    }
}

#[tokio::test]
async fn a_node_rejoins_under_a_larger_generation() {
    let mut edge = Edge::start().await;
    let relay = Relay::start(edge.address, Vec::new()).await;
    let address = relay.address;
    let node = Node::start(address, echo());
    let first = edge.joined(&node).await;
    relay.stop().await;
    assert_eq!(edge.closed().await.0, first.generation());
    let listener = tokio::net::TcpSocket::new_v4().unwrap();
    listener.set_reuseaddr(true).unwrap();
    listener.bind(address).unwrap();
    let _relay = Relay::start_on(listener.listen(8).unwrap(), edge.address, Vec::new());
    let second = edge.joined(&node).await;
    assert!(second.generation() > first.generation());
    assert_eq!(node.net.most(), 1);
}

/// A Node that speaks by hand.
struct Raw(TcpStream);

impl Raw {
    async fn dial(edge: SocketAddr, instance: u8) -> Self {
        let mut raw = Self(TcpStream::connect(edge).await.expect("the edge listens"));
        raw.say(Message::RegisterRequest(v1::RegisterRequest {
            protocol_version: 1,
            node_id: "workstation".into(),
            instance_id: vec![instance; 16].into(),
            ..v1::RegisterRequest::default()
        }))
        .await;
        raw
    }

    async fn say(&mut self, message: Message) {
        let mut bytes = Vec::new();
        let envelope = v1::Envelope { message: Some(message), ..v1::Envelope::default() };
        iop_wire::frame::encode(&envelope, &mut bytes).expect("it fits");
        self.0.write_all(&bytes).await.expect("the edge reads");
    }

    /// Yields the next message, `None` at the end.
    async fn hear(&mut self) -> Option<Message> {
        let mut length = [0; 4];
        soon("a frame", self.0.read_exact(&mut length)).await.ok()?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut frame).await.ok()?;
        let whole = [&length[..], &frame].concat();
        let mut buffer = bytes::BytesMut::from(&whole[..]);
        iop_wire::frame::decode(&mut buffer).expect("the edge keeps to the format")?.message
    }

    async fn registered(&mut self) -> u64 {
        match self.hear().await {
            Some(Message::RegisterResponse(v1::RegisterResponse {
                outcome: Some(v1::register_response::Outcome::Registered(registered)),
            })) => registered.generation,
            other => panic!("not registered: {other:?}"),
        }
    }

    async fn up(&mut self) -> u64 {
        let generation = self.registered().await;
        let ready = v1::NodeReadyRequest { generation, ..v1::NodeReadyRequest::default() };
        self.say(Message::NodeReadyRequest(ready)).await;
        assert!(matches!(self.hear().await, Some(Message::NodeReadyResponse(_))));
        generation
    }
}

#[tokio::test]
async fn the_same_instance_takes_its_seat_over_at_once() {
    let mut edge = Edge::start().await;
    let mut old = Raw::dial(edge.address, 1).await;
    let first = old.up().await;
    edge.ready().await;
    let mut new = Raw::dial(edge.address, 1).await;
    let second = new.up().await;
    assert!(second > first);
    let (generation, reason) = edge.closed().await;
    assert_eq!((generation.0, reason), (first, CloseReason::Superseded));
    assert_eq!(edge.ready().await.generation().0, second);
    let Some(Message::Close(close)) = old.hear().await else { panic!("no reason was given") };
    assert_eq!(close.reason(), v1::CloseReason::Superseded);
}

#[tokio::test]
async fn another_instance_is_refused_while_the_incumbent_answers() {
    let mut edge = Edge::start().await;
    let node = Node::start_as(edge.address, "workstation", [1; 16], echo());
    let incumbent = edge.ready().await;
    let mut other = Raw::dial(edge.address, 2).await;
    let Some(Message::RegisterResponse(v1::RegisterResponse {
        outcome: Some(v1::register_response::Outcome::Refused(refused)),
    })) = other.hear().await
    else {
        panic!("it was not refused")
    };
    assert_eq!(refused.reason(), v1::CloseReason::DuplicateNode);
    assert_eq!(refused.retry_after_ms, 30_000);
    assert!(incumbent.open(incumbent.generation(), crate::support::run()).is_ok());
    assert!(!node.task.is_finished());
}

#[tokio::test]
async fn another_instance_takes_over_when_the_incumbent_stays_silent_for_8_s() {
    let mut edge = Edge::start().await;
    let mut silent = Raw::dial(edge.address, 1).await;
    let first = silent.up().await;
    edge.ready().await;
    let asked = std::time::Instant::now();
    let mut other = Raw::dial(edge.address, 2).await;
    // It asked the incumbent at once.
    assert!(matches!(silent.hear().await, Some(Message::HeartbeatRequest(_))));
    let second = other.up().await;
    let waited = asked.elapsed();
    assert!(waited >= Duration::from_secs(8), "{waited:?}");
    assert!(second > first);
    let (generation, reason) = edge.closed().await;
    assert_eq!((generation.0, reason), (first, CloseReason::Superseded));
}

#[tokio::test]
async fn a_revoked_node_stops_for_good() {
    let edge = Edge::start().await;
    let node = Node::start_as(edge.address, "revoked", [1; 16], echo());
    let error = soon("the end of the node", node.task).await.unwrap().unwrap_err();
    assert!(matches!(&error, FatalLink::IdentityRevoked(why) if why == "revoked on Monday"));
}

#[tokio::test]
async fn plaintext_never_leaves_loopback() {
    let edge = "192.0.2.1:7401".parse().unwrap();
    let node = Node::start(edge, echo());
    let error = soon("the refusal", node.task).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("managed mode"), "{error}");

    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = Edge::start_on(listener);
    let error = soon("the refusal", refused.task).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("managed mode"), "{error}");
}

#[tokio::test]
async fn garbage_on_the_link_port_is_answered_with_a_reason_and_the_end() {
    let edge = Edge::start().await;
    for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 100], &[0; 5]] {
        let mut raw = Raw(TcpStream::connect(edge.address).await.unwrap());
        raw.0.write_all(garbage).await.unwrap();
        assert!(matches!(raw.hear().await, Some(Message::Close(_))), "{garbage:?}");
        assert!(raw.hear().await.is_none());
    }
    assert!(!edge.task.is_finished());
}

#[tokio::test]
async fn a_stop_of_the_edge_ends_links_that_are_not_up_at_once() {
    let edge = Edge::start().await;
    let mut raw = Raw::dial(edge.address, 1).await;
    raw.registered().await;
    edge.shutdown.cancel();
    let Some(Message::Close(close)) = raw.hear().await else { panic!("no reason was given") };
    assert_eq!(close.reason(), v1::CloseReason::ShuttingDown);
    drop(raw);
    soon("the server", edge.task).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_nodes_are_all_linked_again_after_their_edge_restarted() {
    const NODES: u8 = 100;
    let mut edge = Edge::start().await;
    let address = edge.address;
    let name = |index: u8| format!("n{index}");
    let nodes: Vec<_> = (0..NODES)
        .map(|index| Node::start_as(address, &name(index), [index; 16], echo()))
        .collect();
    for _ in 0..NODES {
        edge.ready().await;
    }
    let gone = std::time::Instant::now();
    edge.task.abort();
    let _ = edge.task.await;
    // Its sockets were kept for inspection; a process that ends keeps none.
    drop(edge.net.streams());
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    let mut edge = Edge::start_on(socket.listen(1024).unwrap());
    let mut back = std::collections::BTreeSet::new();
    while back.len() < NODES.into() {
        back.insert(edge.ready().await.node().clone());
    }
    assert!(gone.elapsed() < Duration::from_secs(60), "{:?}", gone.elapsed());
    for node in &nodes {
        assert_eq!(node.net.most(), 1, "never two dials or two links");
        node.shutdown.cancel();
    }
}
