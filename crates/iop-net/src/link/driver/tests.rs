//! The driver over a socket that a test fills and blocks by hand, under paused time.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use iop_link::edge::{self, Edge};
use iop_link::node::{self, Node};
use iop_link::{Answer, Link, RequestMessage, StreamKey};
use iop_types::{CloseReason, EdgeBootId, Generation};
use iop_wire::{PROTOCOL_VERSION, v1};
use tokio::io::ReadBuf;
use tokio::time::{advance, timeout};

use super::*;
use crate::net::BoxFuture;
use crate::socket::Transport;

#[derive(Debug, Clone, Default)]
struct Wire(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    incoming: BytesMut,
    written: Vec<u8>,
    is_blocked: bool,
    writes: usize,
    longest: usize,
    /// How much one write takes; 0 for all of it.
    takes: usize,
    reader: Option<Waker>,
}

impl Wire {
    fn with<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        call(&mut self.0.lock().unwrap())
    }

    /// Lets bytes arrive. Unless `told`, the reactor has not noticed yet.
    fn arrive(&self, bytes: &[u8], told: bool) {
        let reader = self.with(|state| {
            state.incoming.extend_from_slice(bytes);
            state.reader.take_if(|_| told)
        });
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Transport for Wire {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.with(|state| {
            if state.incoming.is_empty() {
                state.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let read = state.incoming.len().min(buf.remaining());
            buf.put_slice(&state.incoming.split_to(read));
            Poll::Ready(Ok(()))
        })
    }

    fn poll_write_vectored(
        &self,
        _: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with(|state| {
            if state.is_blocked {
                return Poll::Pending;
            }
            state.writes += 1;
            let offered = bufs.iter().flat_map(|buf| buf.iter().copied()).collect::<Vec<u8>>();
            let taken = if state.takes == 0 {
                &offered[..]
            } else {
                &offered[..state.takes.min(offered.len())]
            };
            state.longest = state.longest.max(taken.len());
            state.written.extend_from_slice(taken);
            Poll::Ready(Ok(taken.len()))
        })
    }

    fn is_readable(&self) -> bool {
        self.with(|state| !state.incoming.is_empty())
    }

    fn closed(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn shutdown_write(&self) -> io::Result<()> {
        Ok(())
    }

    fn reset_on_close(&self) {}

    fn set_notsent_lowat(&self, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
    }
}

/// A driven Node, and the machine of its Edge, which a test moves by hand.
struct Fixture {
    driver: Driver<Node>,
    wire: Wire,
    edge: Link<Edge>,
}

impl Fixture {
    async fn up() -> Self {
        let request = v1::RegisterRequest {
            protocol_version: PROTOCOL_VERSION,
            node_id: "workstation".into(),
            instance_id: Bytes::from_static(&[1; 16]),
            ..v1::RegisterRequest::default()
        };
        let wire = Wire::default();
        let shared = Arc::new(Shared::new(Link::dial(now(), request)));
        let boot_id = EdgeBootId::from_slice(&[2; 16]).unwrap();
        let mut fixture = Self {
            driver: Driver::new(shared, Socket::new(wire.clone())),
            wire,
            edge: Link::accept(now(), boot_id, v1::Limits::standard()),
        };
        assert!(fixture.news().await.is_none());
        fixture.carry_to_edge();
        assert!(matches!(fixture.edge.poll_output(), Some(edge::Output::Register(_))));
        fixture.edge.register(now(), Generation(1), v1::NodeConfig::default(), 0);
        fixture.carry_to_node(true);
        assert!(matches!(fixture.news().await, Some(node::Output::Registered(_))));
        let ready = v1::NodeReadyRequest::default();
        fixture.driver.shared.with_driver(|link| link.ready(now(), ready));
        assert!(fixture.news().await.is_none());
        fixture.carry_to_edge();
        fixture.carry_to_node(true);
        assert!(matches!(fixture.news().await, Some(node::Output::Up)));
        fixture
    }

    /// Drives the Node until it has news or nothing to do.
    async fn news(&mut self) -> Option<node::Output> {
        timeout(Duration::from_millis(1), self.driver.next()).await.ok()
    }

    fn carry_to_edge(&mut self) {
        let written = self.wire.with(|state| std::mem::take(&mut state.written));
        self.edge.handle_read(now(), &mut BytesMut::from(&written[..]));
    }

    fn carry_to_node(&mut self, told: bool) {
        let mut batch = Vec::new();
        loop {
            self.edge.transmit(&mut batch);
            if batch.is_empty() {
                return;
            }
            self.wire.arrive(&batch, told);
            batch.clear();
        }
    }

    /// Opens streams at the Edge and returns the Node's keys of them.
    async fn requests(&mut self, count: usize) -> Vec<StreamKey> {
        for _ in 0..count {
            self.edge.open(RequestMessage::Run(v1::RunRequest::default())).unwrap();
        }
        self.carry_to_node(true);
        let mut keys = Vec::new();
        while let Some(output) = self.news().await {
            let node::Output::Request(key, _) = output else { panic!("{output:?}") };
            keys.push(key);
        }
        assert_eq!(keys.len(), count);
        keys
    }

    fn close_reason(&self) -> Option<CloseReason> {
        self.driver.shared.lock().link.close_reason()
    }
}

fn token() -> Answer {
    Answer::Event(token_event())
}

fn token_event() -> v1::RunEvent {
    v1::RunEvent {
        payload: Bytes::from_static(b"token"),
        kind: Some(v1::run_event::Kind::Text(v1::TextDelta {})),
        ..v1::RunEvent::default()
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_lies_unread_when_its_timer_runs_out_counts() {
    let mut fixture = Fixture::up().await;
    let key = fixture.edge.open(RequestMessage::Run(v1::RunRequest::default())).unwrap();
    advance(Duration::from_secs(30)).await;
    assert!(fixture.news().await.is_none());
    // The Node's heartbeat reaches the Edge, whose answer waits behind much else; the process does
    // not run for a minute, and its reactor has noticed nothing when the timer does.
    fixture.edge.queue_body(key, Bytes::from(vec![b'x'; 250_000]), true);
    fixture.carry_to_node(false);
    fixture.carry_to_edge();
    fixture.carry_to_node(false);
    advance(Duration::from_secs(60)).await;
    assert!(matches!(fixture.news().await, Some(node::Output::Request(..))));
    assert!(fixture.news().await.is_none());
    assert_eq!(fixture.close_reason(), None);
    assert!(!fixture.wire.is_readable());
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_the_timer_is_exact() {
    let mut fixture = Fixture::up().await;
    advance(Duration::from_secs(30)).await;
    let sent = now();
    assert!(fixture.news().await.is_none());
    let end = timeout(Duration::from_secs(100), fixture.driver.next()).await.unwrap();
    assert!(matches!(end, node::Output::Closed(CloseReason::HeartbeatTimeout)));
    let waited = now() - sent;
    // Tokio's timers have a resolution of one millisecond.
    assert!((45_000..=45_002).contains(&waited.as_millis()), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_is_blocked_is_caught_by_the_heartbeat() {
    let mut fixture = Fixture::up().await;
    fixture.wire.with(|state| state.is_blocked = true);
    let end = timeout(Duration::from_secs(80), fixture.driver.next()).await.unwrap();
    assert!(matches!(end, node::Output::Closed(CloseReason::HeartbeatTimeout)));
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_queued_leaves_in_one_write() {
    let mut fixture = Fixture::up().await;
    let keys = fixture.requests(50).await;
    let before = fixture.wire.with(|state| state.writes);
    for key in &keys {
        fixture.driver.shared.with(|link| link.send(*key, token())).unwrap();
    }
    assert!(fixture.news().await.is_none());
    assert_eq!(fixture.wire.with(|state| state.writes) - before, 1);
}

/// Sends a token on the first stream, then lets a new task do so on the next.
fn send_in_turn(shared: Arc<Shared<Node>>, mut keys: Vec<StreamKey>) {
    let Some(key) = keys.pop() else { return };
    tokio::spawn(async move {
        shared.with(|link| link.send(key, token())).unwrap();
        send_in_turn(shared, keys);
    });
}

#[tokio::test(start_paused = true)]
async fn tasks_that_become_ready_after_the_first_frame_join_its_write() {
    let mut fixture = Fixture::up().await;
    let keys = fixture.requests(50).await;
    let Fixture { mut driver, wire, .. } = fixture;
    let writes = || wire.with(|state| state.writes);
    let before = writes();
    let shared = Arc::clone(&driver.shared);
    let driving = tokio::spawn(async move { driver.next().await });
    send_in_turn(shared, keys);
    while writes() == before {
        tokio::task::yield_now().await;
    }
    assert_eq!(wire.with(|state| state.written.windows(5).filter(|at| at == b"token").count()), 50);
    assert_eq!(writes() - before, 1);
    driving.abort();
}

#[tokio::test(start_paused = true)]
async fn batches_grow_while_the_line_takes_them_whole_and_shrink_when_it_does_not() {
    let mut fixture = Fixture::up().await;
    let keys = fixture.requests(20).await;
    let longest = |wire: &Wire| wire.with(|state| std::mem::take(&mut state.longest));
    let fill = |fixture: &Fixture, keys: &[StreamKey]| {
        for key in keys {
            let text = Answer::Event(v1::RunEvent {
                payload: Bytes::from(vec![b'x'; 16 * 1024]),
                ..token_event()
            });
            fixture.driver.shared.with(|link| link.send(*key, text)).unwrap();
        }
    };
    longest(&fixture.wire);
    fill(&fixture, &keys);
    assert!(fixture.news().await.is_none());
    let grown = longest(&fixture.wire);
    assert!((MAX_BATCH + 1..=MOST_WRITE_ROOM).contains(&grown), "{grown}");

    // A line that takes a part of a batch gets small ones from then on.
    fixture.wire.with(|state| state.takes = 1000);
    fill(&fixture, &keys[..2]);
    assert!(fixture.news().await.is_none());
    assert_eq!(fixture.driver.write_room, MAX_BATCH);
}
