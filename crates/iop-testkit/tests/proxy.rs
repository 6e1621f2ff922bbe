//! The fault proxy between two plain sockets: each of its faults does what it says and nothing more.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]

use std::io;
use std::time::{Duration, Instant};

use iop_testkit::PATIENCE;
use iop_testkit::proxy::{Fate, FaultProxy, Towards, Toxic};
use iop_wire::v1::{Envelope, HeartbeatRequest};
use iop_wire::{Message, frame};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// How long a fault takes where it takes time: what a busy machine does by itself is far less.
const PAUSE: Duration = Duration::from_millis(300);

/// A connection through the proxy, by both its ends.
struct Line {
    proxy: FaultProxy,
    node: TcpStream,
    edge: TcpStream,
    edges: TcpListener,
}

impl Line {
    async fn start() -> Self {
        let edges = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = FaultProxy::start(edges.local_addr().unwrap()).await;
        let node = TcpStream::connect(proxy.address()).await.unwrap();
        let edge = edges.accept().await.unwrap().0;
        Self { proxy, node, edge, edges }
    }

    async fn with(towards: Towards, toxic: Toxic) -> Self {
        let line = Self::start().await;
        line.proxy.add(towards, toxic);
        line
    }
}

/// One frame as it travels: a heartbeat with this number.
fn heartbeat(id: u64) -> Vec<u8> {
    let message = Some(Message::HeartbeatRequest(HeartbeatRequest { id }));
    let mut bytes = Vec::new();
    frame::encode(&Envelope { message, ..Envelope::default() }, &mut bytes).unwrap();
    bytes
}

async fn read_exact(socket: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let read = tokio::time::timeout(PATIENCE, socket.read_exact(&mut bytes)).await;
    read.expect("the bytes come").unwrap();
    bytes
}

/// Everything up to the end, and whether the end was a clean one.
async fn read_to_end(socket: &mut TcpStream) -> (Vec<u8>, io::Result<()>) {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut bytes)).await;
    (bytes, read.expect("the end comes").map(drop))
}

fn was_reset(end: &io::Result<()>) -> bool {
    end.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

/// Whether nothing arrives, not even an end, for as long as faults take here.
async fn silent(socket: &mut TcpStream) -> bool {
    tokio::time::timeout(PAUSE, socket.read_u8()).await.is_err()
}

/// Asserts that what is said in this direction arrives, and at once.
async fn passes(from: &mut TcpStream, to: &mut TcpStream) {
    let said = Instant::now();
    from.write_all(&heartbeat(7)).await.unwrap();
    assert_eq!(read_exact(to, heartbeat(7).len()).await, heartbeat(7));
    assert!(said.elapsed() < PAUSE, "{:?}", said.elapsed());
}

#[tokio::test]
async fn what_no_rule_speaks_of_passes_with_its_end_and_is_recorded() {
    let mut line = Line::start().await;
    for _ in 0..2 {
        passes(&mut line.node, &mut line.edge).await;
        passes(&mut line.edge, &mut line.node).await;
    }
    let half = &heartbeat(1)[..5];
    line.node.write_all(half).await.unwrap();
    line.node.shutdown().await.unwrap();
    let (rest, end) = read_to_end(&mut line.edge).await;
    assert_eq!((rest.as_slice(), end.is_ok()), (half, true), "what is no whole frame too");
    passes(&mut line.edge, &mut line.node).await;
    let seen: Vec<_> = line.proxy.frames();
    let of_edge = seen.iter().filter(|frame| frame.towards == Towards::Edge);
    assert_eq!(of_edge.map(|frame| frame.nth).collect::<Vec<_>>(), [0, 1]);
    for frame in &seen {
        assert_eq!((frame.link, frame.stream, frame.kind), (0, 0, "HeartbeatRequest"));
        assert_eq!(frame.length, heartbeat(7).len());
    }
    assert_eq!((seen.len(), line.proxy.links(), line.proxy.broken()), (5, 1, 0));
}

#[tokio::test]
async fn a_cut_comes_behind_a_frame_or_within_it_and_resets_both_ends() {
    for (fate, arrives) in [(Fate::Cut, heartbeat(2).len()), (Fate::CutWithin(3), 3)] {
        let mut line = Line::start().await;
        line.proxy.rule(move |frame| if frame.nth == 1 { fate } else { Fate::Pass });
        line.node.write_all(&[heartbeat(1), heartbeat(2), heartbeat(3)].concat()).await.unwrap();
        let (bytes, end) = read_to_end(&mut line.edge).await;
        assert_eq!(bytes, [&heartbeat(1), &heartbeat(2)[..arrives]].concat(), "{fate:?}");
        assert!(was_reset(&end), "{fate:?}: {end:?}");
        let (bytes, end) = read_to_end(&mut line.node).await;
        assert!(bytes.is_empty() && was_reset(&end), "{fate:?}: {end:?}");
        assert_eq!(line.proxy.broken(), 1);
    }
}

#[tokio::test]
async fn a_frame_may_be_lost_or_come_twice_and_nobody_is_told() {
    let mut line = Line::start().await;
    line.proxy.rule(|frame| match frame.nth {
        0 => Fate::Swallow,
        1 => Fate::Twice,
        _ => Fate::Pass,
    });
    line.node.write_all(&[heartbeat(1), heartbeat(2), heartbeat(3)].concat()).await.unwrap();
    let expected = [heartbeat(2), heartbeat(2), heartbeat(3)].concat();
    assert_eq!(read_exact(&mut line.edge, expected.len()).await, expected);
    assert_eq!((line.proxy.frames().len(), line.proxy.broken()), (3, 0));
}

#[tokio::test]
async fn what_is_held_holds_what_follows_in_its_direction_until_it_is_released() {
    let mut line = Line::start().await;
    line.proxy.rule(|frame| match (frame.towards, frame.nth) {
        (Towards::Edge, 0) => Fate::Hold,
        _ => Fate::Pass,
    });
    line.node.write_all(&[heartbeat(1), heartbeat(2)].concat()).await.unwrap();
    line.proxy.wait_until("a frame is held", |frames| !frames.is_empty()).await;
    passes(&mut line.edge, &mut line.node).await;
    assert!(silent(&mut line.edge).await, "it waits");
    line.proxy.release();
    let both = [heartbeat(1), heartbeat(2)].concat();
    assert_eq!(read_exact(&mut line.edge, both.len()).await, both);
}

#[tokio::test]
async fn a_node_that_is_lost_is_told_and_its_edge_hears_what_was_held_and_nothing_more() {
    let mut line = Line::start().await;
    line.proxy.rule(|_| Fate::Hold);
    line.node.write_all(&heartbeat(1)).await.unwrap();
    line.proxy.wait_until("a frame is held", |frames| !frames.is_empty()).await;
    line.proxy.lose_node();
    let (bytes, _) = read_to_end(&mut line.node).await;
    assert!(bytes.is_empty());
    assert!(silent(&mut line.edge).await, "nobody tells the edge");
    line.proxy.release();
    assert_eq!(read_exact(&mut line.edge, heartbeat(1).len()).await, heartbeat(1));
    assert!(silent(&mut line.edge).await, "nor of the end");
}

#[tokio::test]
async fn an_order_to_cut_resets_what_is_open_and_spares_what_comes_later() {
    let mut line = Line::start().await;
    passes(&mut line.node, &mut line.edge).await;
    line.proxy.cut();
    assert!(was_reset(&read_to_end(&mut line.edge).await.1));
    assert!(was_reset(&read_to_end(&mut line.node).await.1));
    line.node = TcpStream::connect(line.proxy.address()).await.unwrap();
    line.edge = line.edges.accept().await.unwrap().0;
    passes(&mut line.node, &mut line.edge).await;
    assert_eq!((line.proxy.links(), line.proxy.broken()), (2, 1));
}

#[tokio::test]
async fn latency_delays_each_byte_and_slows_none() {
    let mut line = Line::with(Towards::Edge, Toxic::Latency(PAUSE)).await;
    let said = Instant::now();
    for id in 0..10 {
        line.node.write_all(&heartbeat(id)).await.unwrap();
    }
    read_exact(&mut line.edge, heartbeat(0).len()).await;
    assert!(said.elapsed() >= PAUSE, "{:?}", said.elapsed());
    for id in 1..10 {
        assert_eq!(read_exact(&mut line.edge, heartbeat(id).len()).await, heartbeat(id));
    }
    assert!(said.elapsed() < PAUSE * 3, "they were under way together: {:?}", said.elapsed());
    passes(&mut line.edge, &mut line.node).await;
    line.proxy.clear();
    passes(&mut line.node, &mut line.edge).await;
}

#[tokio::test]
async fn bandwidth_lets_so_many_bytes_pass_in_a_second() {
    let mut line = Line::with(Towards::Node, Toxic::Bandwidth(100)).await;
    let said = Instant::now();
    let bytes = [heartbeat(1), heartbeat(2), heartbeat(3), heartbeat(4)].concat();
    line.edge.write_all(&bytes).await.unwrap();
    assert_eq!(read_exact(&mut line.node, bytes.len()).await, bytes);
    let time = Duration::from_millis(10) * u32::try_from(bytes.len()).unwrap();
    assert!(said.elapsed() >= time, "{:?}", said.elapsed());
    passes(&mut line.node, &mut line.edge).await;
}

#[tokio::test]
async fn a_slicer_hands_out_pieces_with_pauses_between_them() {
    let pause = Duration::from_millis(50);
    let mut line = Line::with(Towards::Edge, Toxic::Slicer(2, pause)).await;
    let said = Instant::now();
    line.node.write_all(&heartbeat(1)).await.unwrap();
    let first = read_exact(&mut line.edge, 2).await;
    let after_the_first = said.elapsed();
    let rest = read_exact(&mut line.edge, heartbeat(1).len() - 2).await;
    assert_eq!([first, rest].concat(), heartbeat(1));
    let pauses = u32::try_from((heartbeat(1).len() - 1) / 2).unwrap();
    let between = said.elapsed() - after_the_first;
    assert!(between >= pause * (pauses - 1), "{between:?} for {pauses} pauses");
    passes(&mut line.edge, &mut line.node).await;
}

#[tokio::test]
async fn a_timeout_lets_nothing_pass_and_then_closes_both_ends() {
    let mut line = Line::with(Towards::Edge, Toxic::Timeout(PAUSE)).await;
    passes(&mut line.edge, &mut line.node).await;
    let said = Instant::now();
    line.node.write_all(&heartbeat(1)).await.unwrap();
    for end in [&mut line.edge, &mut line.node] {
        let (bytes, end) = read_to_end(end).await;
        assert!(bytes.is_empty() && end.is_ok(), "{end:?}");
    }
    assert!(said.elapsed() >= PAUSE, "{:?}", said.elapsed());
}

#[tokio::test]
async fn a_limit_lets_so_many_bytes_pass_from_when_it_was_set_and_closes_both_ends() {
    let mut line = Line::start().await;
    passes(&mut line.node, &mut line.edge).await;
    let limit = heartbeat(1).len() + 3;
    line.proxy.add(Towards::Edge, Toxic::LimitData(limit));
    passes(&mut line.edge, &mut line.node).await;
    let both = [heartbeat(1), heartbeat(2)].concat();
    line.node.write_all(&both).await.unwrap();
    let (bytes, end) = read_to_end(&mut line.edge).await;
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(bytes, both[..limit]);
    assert!(read_to_end(&mut line.node).await.1.is_ok());
}

#[tokio::test]
async fn a_reset_comes_so_long_after_the_next_bytes_and_to_both_ends() {
    let mut line = Line::with(Towards::Node, Toxic::ResetPeer(PAUSE)).await;
    passes(&mut line.node, &mut line.edge).await;
    let said = Instant::now();
    line.edge.write_all(&heartbeat(1)).await.unwrap();
    for end in [&mut line.edge, &mut line.node] {
        let (bytes, end) = read_to_end(end).await;
        assert!(bytes.is_empty() && was_reset(&end), "{end:?}");
    }
    assert!(said.elapsed() >= PAUSE, "{:?}", said.elapsed());
}

#[tokio::test]
async fn a_slow_close_delays_the_end_and_not_the_bytes_before_it() {
    let mut line = Line::with(Towards::Edge, Toxic::SlowClose(PAUSE)).await;
    passes(&mut line.node, &mut line.edge).await;
    let closed = Instant::now();
    line.node.shutdown().await.unwrap();
    let (bytes, end) = read_to_end(&mut line.edge).await;
    assert!(bytes.is_empty() && end.is_ok(), "{end:?}");
    assert!(closed.elapsed() >= PAUSE, "{:?}", closed.elapsed());
    passes(&mut line.edge, &mut line.node).await;
}
