//! A generation that is fenced and credit that is given, while handles and driver are at work.

use bytes::Bytes;
use iop_link::StreamError;
use iop_link::credit::FLOOR;
use iop_loom::link::{EdgeEnd, of_stream};
use iop_types::CloseReason;
use iop_wire::Message;
use iop_wire::frame::Frame;
use iop_wire::v1::{self, provider_tunnel_frame::Kind};
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

fn is_head(frame: &Frame) -> bool {
    matches!(frame.message, Some(Message::ProviderTunnelRequest(_)))
}

fn body_bytes(frames: &[Frame]) -> usize {
    let length = |frame: &Frame| match &frame.message {
        Some(Message::RequestBody(body)) => body.data.len(),
        _ => 0,
    };
    frames.iter().map(length).sum()
}

fn answer() -> Message {
    let body = v1::TunnelBody { data: Bytes::from_static(b"x"), progress: true };
    let kind = Some(Kind::Body(body));
    Message::ProviderTunnelFrame(v1::ProviderTunnelFrame { kind, ..Default::default() })
}

/// The pre-send fence: a takeover against a dispatch.
#[test]
fn no_head_leaves_once_its_generation_is_fenced_and_an_unsent_one_is_known_as_unsent() {
    loom::model(|| {
        let link = Arc::new(EdgeEnd::up(FLOOR));
        let dispatch = thread::spawn({
            let link = Arc::clone(&link);
            move || {
                let key = link.open().ok()?;
                Some(block_on(link.answer(key)).unwrap_err())
            }
        });
        let before = link.write().iter().any(is_head);
        link.fence();
        let after = link.write().iter().any(is_head);
        let outcome = dispatch.join().unwrap();
        assert!(!after, "sent behind the fence");
        assert_eq!(before, outcome == Some(StreamError::LinkClosed(CloseReason::Superseded)));
        assert_eq!(!before, matches!(outcome, None | Some(StreamError::Unsent)), "{outcome:?}");
    });
}

#[test]
fn an_answer_that_comes_behind_the_fence_reaches_nobody_and_its_reader_always_wakes() {
    loom::model(|| {
        let link = Arc::new(EdgeEnd::up(FLOOR));
        let key = link.open().unwrap();
        link.write();
        let reader = thread::spawn({
            let link = Arc::clone(&link);
            move || block_on(link.answer(key))
        });
        link.fence();
        link.read(&of_stream(key, 1, answer()));
        let ended = StreamError::LinkClosed(CloseReason::Superseded);
        assert_eq!(reader.join().unwrap().unwrap_err(), ended);
    });
}

/// Credit that comes while its sender is about to wait for it.
#[test]
fn credit_wakes_its_sender_and_is_spent_once() {
    let window = usize::try_from(FLOOR).unwrap();
    loom::model(move || {
        let link = Arc::new(EdgeEnd::up(FLOOR));
        let key = link.open().unwrap();
        link.queue_body(key, Bytes::from(vec![0; 2 * window]), false);
        assert_eq!(body_bytes(&link.write()), window, "the first window and no more");
        let sender = thread::spawn({
            let link = Arc::clone(&link);
            move || {
                block_on(link.body_room(key));
                link.queue_body(key, Bytes::from(vec![0; window]), true);
            }
        });
        link.read(&of_stream(key, 1, Message::Credit(v1::Credit { bytes: FLOOR })));
        let mut sent = body_bytes(&link.write());
        sender.join().unwrap();
        sent += body_bytes(&link.write());
        assert_eq!(sent, window, "one grant is one window");
        link.read(&of_stream(key, 2, Message::Credit(v1::Credit { bytes: FLOOR })));
        assert_eq!(body_bytes(&link.write()), window);
        assert_eq!(body_bytes(&link.write()), 0);
    });
}

#[test]
fn a_driver_that_falls_asleep_never_misses_a_head_or_the_end() {
    loom::model(|| {
        let link = Arc::new(EdgeEnd::up(FLOOR));
        let dispatch = thread::spawn({
            let link = Arc::clone(&link);
            move || {
                link.open().unwrap();
                link.fence();
            }
        });
        let mut said = block_on(link.drive());
        dispatch.join().unwrap();
        said.extend(link.write());
        let farewell = matches!(said.last().unwrap().message, Some(Message::Close(_)));
        assert!(farewell, "{said:?}");
        assert!(said.iter().filter(|frame| is_head(frame)).count() <= 1);
    });
}
