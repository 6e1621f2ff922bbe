//! What runs over a link that is up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_net::link::{OpenError, RequestMessage, StreamError};
use iop_types::CloseReason;
use iop_wire::v1::{self, CancelReason};
use tokio::sync::mpsc;

use crate::support::{
    Edge, Handler, LinkState, Node, Relay, Told, collect, complete, echo, end, event, frame_body,
    run, soon, text, tunnel,
};

#[tokio::test]
async fn two_ends_exchange_a_thousand_streams() {
    let mut edge = Edge::start().await;
    let node = Node::start(edge.address, echo());
    let link = edge.ready().await;
    let mut streams = Vec::new();
    for number in 0..1000_usize {
        let length = number * 97;
        let body = Bytes::from(vec![u8::try_from(number % 251).unwrap(); length]);
        let mut stream =
            link.open(link.generation(), if number % 2 == 0 { run() } else { tunnel() }).unwrap();
        stream.queue_body(body.clone(), true);
        streams.push((stream, body));
    }
    for (mut stream, body) in streams {
        assert_eq!(collect(&mut stream).await.unwrap(), body);
    }
    let stats = link.stats();
    assert_eq!((stats.streams, stats.granted_bytes, stats.late_frames), (0, 0, 0));
    node.shutdown.cancel();
    node.task.await.unwrap().unwrap();
    assert!(matches!(edge.told().await, Told::Draining));
    assert_eq!(edge.closed().await, (link.generation(), CloseReason::ShuttingDown));
}

/// Sends without end, or at most what the other side lets in.
fn flood() -> Handler {
    Arc::new(|mut request| {
        Box::pin(async move {
            let chunk = Bytes::from(vec![b'x'; 10_000]);
            while std::future::poll_fn(|cx| request.answers.poll_ready(cx)).await.is_ok() {
                if request.answers.send(frame_body(chunk.clone())).is_err() {
                    return;
                }
                if let Some(Ok(_)) = futures_util::FutureExt::now_or_never(&mut request.cancelled) {
                    let _ = request.answers.finish(end());
                    return;
                }
            }
        })
    })
}

#[tokio::test]
async fn a_client_that_stops_reading_blocks_nobody_else() {
    let mut edge = Edge::start().await;
    let both: Handler = {
        let (echo, flood) = (echo(), flood());
        Arc::new(move |request| match request.message {
            RequestMessage::Run(_) => echo(request),
            RequestMessage::Tunnel(_) => flood(request),
        })
    };
    let _node = Node::start(edge.address, both);
    let link = edge.ready().await;
    let stuck: Vec<_> = (0..50).map(|_| link.open(link.generation(), tunnel()).unwrap()).collect();
    for _ in 0..100 {
        let mut stream = link.open(link.generation(), run()).unwrap();
        stream.queue_body(Bytes::from_static(b"hello"), true);
        assert_eq!(collect(&mut stream).await.unwrap(), b"hello");
    }
    let stats = link.stats();
    assert!(stats.buffered_bytes + stats.granted_bytes <= 50 * 64 * 1024, "{stats:?}");
    // Dropping them cancels them, and their terminals free the link.
    drop(stuck);
    soon("the end of the stuck streams", async {
        while link.stats().streams > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(link.stats().late_frames, 0);
}

#[tokio::test]
async fn a_flood_that_is_read_comes_through() {
    let mut edge = Edge::start().await;
    let _node = Node::start(edge.address, flood());
    let link = edge.ready().await;
    let mut stream = link.open(link.generation(), tunnel()).unwrap();
    let mut read = 0;
    while read < 50_000_000 {
        let answer = soon("more of the flood", stream.recv()).await.unwrap();
        if let iop_net::link::Answer::Frame(frame) = answer
            && let Some(v1::provider_tunnel_frame::Kind::Body(body)) = frame.kind
        {
            read += body.data.len();
        }
    }
    stream.cancel(CancelReason::ClientGone);
    collect(&mut stream).await.unwrap();
}

#[tokio::test]
async fn a_cancel_reaches_the_request_at_once() {
    let mut edge = Edge::start().await;
    let (told, mut heard) = mpsc::unbounded_channel();
    let silent: Handler = Arc::new(move |request| {
        let told = told.clone();
        Box::pin(async move {
            let _ = told.send(None);
            let reason = request.cancelled.await;
            let _ = told.send(Some(reason));
            let _ = request.answers.finish(event(complete()));
        })
    });
    let _node = Node::start(edge.address, silent);
    let link = edge.ready().await;
    let mut stream = link.open(link.generation(), run()).unwrap();
    assert_eq!(soon("the request", heard.recv()).await.unwrap(), None);
    let asked = Instant::now();
    stream.cancel(CancelReason::ClientGone);
    let heard = soon("the cancel", heard.recv()).await.unwrap();
    assert_eq!(heard, Some(Ok(CancelReason::ClientGone)));
    collect(&mut stream).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn events_longer_than_a_frame_arrive_whole_and_those_longer_than_allowed_break_the_stream() {
    let mut edge = Edge::start().await;
    let _node = Node::start(edge.address, echo());
    let link = edge.ready().await;
    for (length, whole) in [(8 * 1024 * 1024, true), (8 * 1024 * 1024 + 1, false)] {
        let mut stream = link.open(link.generation(), run()).unwrap();
        stream.queue_body(Bytes::from(vec![b'e'; length]), true);
        let answer = soon("the event", stream.recv()).await;
        if whole {
            let iop_net::link::Answer::Event(event) = answer.unwrap() else {
                panic!("not an event")
            };
            assert_eq!((event.payload.len(), event.continues), (length, false));
            assert!(soon("the terminal", stream.recv()).await.unwrap().is_terminal());
        } else {
            assert_eq!(answer, Err(StreamError::Protocol));
        }
    }
}

#[tokio::test]
async fn a_link_that_is_killed_ends_its_streams_at_once() {
    let mut edge = Edge::start().await;
    let relay = Relay::start(edge.address, Vec::new()).await;
    let (told, mut heard) = mpsc::unbounded_channel();
    let holding: Handler = Arc::new(move |mut request| {
        let told = told.clone();
        Box::pin(async move {
            let _ = request.answers.send(event(text(Bytes::from_static(b"first"))));
            let _ = told.send((&mut request.cancelled).await);
        })
    });
    let node = Node::start(relay.address, holding);
    let link = edge.ready().await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut stream = link.open(link.generation(), run()).unwrap();
        soon("the first event", stream.recv()).await.unwrap();
        streams.push(stream);
    }
    relay.stop().await;
    for stream in &mut streams {
        let lost = soon("the end of the stream", stream.recv()).await.unwrap_err();
        assert!(matches!(lost, StreamError::LinkClosed(_)), "{lost}");
    }
    for _ in 0..50 {
        assert!(soon("the cancel at the node", heard.recv()).await.unwrap().is_err());
    }
    assert_eq!(edge.closed().await.0, link.generation());
    node.reached(|state| matches!(state, LinkState::Down(..))).await;
    assert!(link.open(link.generation(), run()).is_err());
}

/// F16, F85: the Node is back on another link when the request that was granted is to be sent.
#[tokio::test]
async fn what_was_granted_under_an_earlier_link_is_not_sent_on_the_next() {
    let mut edge = Edge::start().await;
    let first = Relay::start(edge.address, Vec::new()).await;
    let _node = Node::start_as(first.address, "workstation", [1; 16], echo());
    let granted = edge.ready().await.generation();
    first.stop().await;
    assert_eq!(edge.closed().await.0, granted);
    let _again = Node::start_as(edge.address, "workstation", [1; 16], echo());
    let next = edge.ready().await;
    let refused = next.open(granted, run()).err();
    assert_eq!(refused, Some(OpenError::Fenced(CloseReason::Superseded)));
    assert!(next.open(next.generation(), run()).is_ok());
}

#[tokio::test]
async fn a_graceful_stop_lets_fifty_streams_finish() {
    for node_stops in [true, false] {
        let mut edge = Edge::start().await;
        let (release, released) = tokio::sync::watch::channel(false);
        let waiting: Handler = Arc::new(move |mut request| {
            let mut released = released.clone();
            Box::pin(async move {
                let _ = request.answers.send(event(text(Bytes::from_static(b"half"))));
                let _ = released.wait_for(|released| *released).await;
                let _ = request.answers.send(event(text(Bytes::from_static(b" done"))));
                let _ = request.answers.finish(event(complete()));
            })
        });
        let node = Node::start(edge.address, waiting);
        let link = edge.ready().await;
        let mut streams: Vec<_> =
            (0..50).map(|_| link.open(link.generation(), run()).unwrap()).collect();
        for stream in &mut streams {
            soon("the first half", stream.recv()).await.unwrap();
        }
        if node_stops {
            node.shutdown.cancel();
            assert!(matches!(edge.told().await, Told::Draining));
        } else {
            edge.shutdown.cancel();
            soon("the drain", async {
                while link.open(link.generation(), run()).is_ok() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
        release.send(true).unwrap();
        for stream in &mut streams {
            assert_eq!(collect(stream).await.unwrap(), b" done", "node stops: {node_stops}");
        }
        assert_eq!(edge.closed().await.1, CloseReason::ShuttingDown);
        node.shutdown.cancel();
        soon("the node", node.task).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn statuses_reach_the_edge_in_order() {
    let mut edge = Edge::start().await;
    let node = Node::start(edge.address, echo());
    edge.ready().await;
    node.reached(|state| matches!(state, LinkState::Up(_))).await;
    let link = node.host.up.lock().unwrap().clone().unwrap();
    for in_use in 1..=3 {
        let status = v1::ProviderStatus { in_use, ..Default::default() };
        link.send_status(status);
        match edge.told().await {
            Told::Status(status) => assert_eq!(status.in_use, in_use),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_concurrent_observations_are_numbered_uniquely_and_grow_from_1() {
    let mut edge = Edge::start().await;
    let node = Node::start(edge.address, echo());
    let link = edge.ready().await;
    node.reached(|state| matches!(state, LinkState::Up(_))).await;
    let numbering = node.host.up.lock().unwrap().clone().unwrap();
    let observation = |task: usize, number: usize| v1::HealthObservation {
        adapter: "p".to_owned(),
        target: format!("{task}-{number}"),
        ..v1::HealthObservation::default()
    };
    // Ten tasks, each as a run, a tunnel or a look would; half of it travels in terminals.
    let tasks: Vec<_> = (0..10)
        .map(|task| {
            let numbering = numbering.clone();
            tokio::spawn(async move {
                let mut own = Vec::new();
                for number in 0..100 {
                    own.push(if number % 2 == 0 {
                        numbering.number_observation()
                    } else {
                        numbering.send_observation(observation(task, number))
                    });
                    tokio::task::yield_now().await;
                }
                own
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        let own: Vec<_> = task.await.unwrap().into_iter().map(Option::unwrap).collect();
        assert!(own.is_sorted_by(|a, b| a < b), "numbers grow");
        all.extend(own);
    }
    all.sort_unstable();
    assert!(all.iter().copied().eq(1..=1_000), "each number is used once, from 1");
    let mut received = Vec::new();
    while received.len() < 500 {
        let Told::Observed(seen) = edge.told().await else { continue };
        received.push(seen.health_observation_seq);
    }
    assert!(received.is_sorted_by(|a, b| a < b), "messages keep their order");
    node.shutdown.cancel();
    node.task.await.unwrap().unwrap();
    assert_eq!(link.generation(), numbering.generation());
    assert_eq!(numbering.number_observation(), None, "its link has ended");
}
