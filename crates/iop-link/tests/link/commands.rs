//! Commands: correlated, bounded in number and time, each ended by itself.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use iop_link::commands::MAX_COMMANDS;
use iop_link::{Answer, NotSent, OpenError, StreamError, StreamKey, node};
use iop_testkit::Line;
use iop_types::{
    ApiCall, CloseReason, Command, CommandFrame, CommandId, CommandKind, CommandRequest, Operation,
    Patience, SessionId,
};
use iop_wire::Message;
use iop_wire::answer::command_frame;
use iop_wire::v1::{self, CancelReason};

use crate::support::{Pair, bytes, complete, feed, payload, registration, run, spoken, text};

const TICK: Duration = Duration::from_millis(10);
const WHOLE: Patience = Patience::Whole(Duration::from_secs(20));
const IDLE: Patience = Patience::Idle(Duration::from_secs(20));

fn id(number: u8) -> CommandId {
    CommandId::from_slice(&[number; 16]).expect("16 bytes")
}

fn request(number: u8) -> CommandRequest {
    CommandRequest { id: id(number), session_id: None, command: Command::TransportStatus }
}

fn part(number: u8, data: impl Into<Bytes>) -> Answer {
    Answer::Command(command_frame(id(number), CommandFrame::Part(data.into()), None))
}

fn end(number: u8) -> Answer {
    Answer::Command(command_frame(id(number), CommandFrame::End, None))
}

impl Pair {
    fn command(&mut self, number: u8, patience: Patience) -> StreamKey {
        let now = self.clock.now();
        self.edge.link.open_command(now, request(number), patience).expect("the link is up")
    }

    /// Waits for a command and yields its key at the Node.
    fn taken(&mut self, number: u8) -> StreamKey {
        let find = |pair: &Self| {
            pair.node.told.iter().find_map(|told| match told {
                node::Output::Command(key, command)
                    if command.command_id == id(number).as_bytes()[..] =>
                {
                    Some(*key)
                }
                _ => None,
            })
        };
        self.run_until(|pair| find(pair).is_some());
        find(self).expect("it was just seen")
    }

    fn refused(&mut self, number: u8) -> NotSent {
        let now = self.clock.now();
        self.edge.link.open_command(now, request(number), WHOLE).expect_err("it is not sent")
    }

    fn answer(&mut self, key: StreamKey) -> Poll<Result<Answer, StreamError>> {
        self.edge.link.poll_answer(key)
    }
}

fn release(pair: &mut Pair, key: StreamKey) {
    pair.node.link.release_answers(key);
    pair.node.link.release_cancelled(key);
}

#[test]
fn a_command_arrives_whole_and_its_answer_comes_in_parts() {
    let mut pair = Pair::up(Line::LOCAL);
    let command = CommandRequest {
        id: id(1),
        session_id: SessionId::new("s-1").ok(),
        command: Command::OllamaApi(ApiCall {
            provider: "ollama".into(),
            operation: Operation { method: "POST".into(), path: "/api/show".into() },
            body: Bytes::from_static(b"{}"),
        }),
    };
    let now = pair.clock.now();
    let key = pair.edge.link.open_command(now, command.clone(), WHOLE).unwrap();
    let at_node = pair.taken(1);
    let Some(node::Output::Command(_, arrived)) = pair.node.told.last() else { panic!("told") };
    assert_eq!(CommandRequest::try_from(arrived.clone()), Ok(command));
    pair.node.link.send(at_node, part(1, vec![b'x'; 100_000])).unwrap();
    pair.run(TICK);
    let mut seen = 0;
    while let Poll::Ready(Ok(answer)) = pair.answer(key) {
        seen += payload(&answer).len();
        pair.run(TICK);
    }
    assert_eq!(seen, 100_000);
    pair.node.link.finish(at_node, end(1)).unwrap();
    release(&mut pair, at_node);
    pair.run(TICK);
    assert_eq!(pair.answer(key), Poll::Ready(Ok(end(1))));
    pair.edge.link.release(key);
    for stats in [pair.edge.link.stats(), pair.node.link.stats()] {
        assert_eq!((stats.streams, stats.commands, stats.late_frames), (0, 0, 0));
    }
    assert_eq!((pair.edge.link.reserved_bytes(), pair.node.link.reserved_bytes()), (0, 0));
}

#[test]
fn two_commands_never_swap_their_answers() {
    let mut pair = Pair::up(Line::SLOW);
    let (first, second) = (pair.command(1, WHOLE), pair.command(2, WHOLE));
    let (first_there, second_there) = (pair.taken(1), pair.taken(2));
    // The later one is answered first, and both at the same time.
    pair.node.link.send(second_there, part(2, "second")).unwrap();
    pair.node.link.send(first_there, part(1, "first")).unwrap();
    pair.node.link.finish(second_there, end(2)).unwrap();
    pair.node.link.finish(first_there, end(1)).unwrap();
    pair.run(Duration::from_secs(5));
    assert_eq!(pair.answer(first), Poll::Ready(Ok(part(1, "first"))));
    assert_eq!(pair.answer(second), Poll::Ready(Ok(part(2, "second"))));
    assert_eq!(pair.answer(second), Poll::Ready(Ok(end(2))));
    assert_eq!(pair.answer(first), Poll::Ready(Ok(end(1))));
}

#[test]
fn an_answer_with_the_id_of_another_command_breaks_its_stream_and_reaches_nobody() {
    let mut pair = Pair::up(Line::LOCAL);
    let (first, second) = (pair.command(1, WHOLE), pair.command(2, WHOLE));
    let (first_there, second_there) = (pair.taken(1), pair.taken(2));
    pair.node.link.send(first_there, part(2, "swapped")).unwrap();
    pair.run(TICK);
    assert_eq!(pair.answer(first), Poll::Ready(Err(StreamError::Protocol)));
    assert_eq!(
        pair.node.link.poll_cancelled(first_there),
        Poll::Ready(Ok(CancelReason::ProtocolError))
    );
    assert!(pair.answer(second).is_pending());
    pair.node.link.finish(second_there, end(2)).unwrap();
    pair.run(TICK);
    assert_eq!(pair.answer(second), Poll::Ready(Ok(end(2))));
}

#[test]
fn an_answer_of_a_request_breaks_the_stream_of_a_command_and_the_other_way_round() {
    let mut pair = Pair::up(Line::LOCAL);
    let command = pair.command(1, WHOLE);
    let request = pair.open(run());
    let (command_there, request_there) = (pair.taken(1), pair.accepted(request.id));
    pair.node.link.send(command_there, text("hello")).unwrap();
    pair.node.link.send(request_there, part(1, "hello")).unwrap();
    pair.run(TICK);
    assert_eq!(pair.answer(command), Poll::Ready(Err(StreamError::Protocol)));
    assert_eq!(pair.answer(request), Poll::Ready(Err(StreamError::Protocol)));
    assert_eq!(pair.reasons(), (None, None));
}

#[test]
fn an_id_that_is_under_way_is_not_sent_again() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.command(1, WHOLE);
    assert_eq!(pair.refused(1), NotSent::Duplicate { id: id(1) });
    let at_node = pair.taken(1);
    pair.node.link.finish(at_node, end(1)).unwrap();
    pair.run(TICK);
    pair.edge.link.release(key);
    pair.command(1, WHOLE);
}

#[test]
fn cancelling_a_command_leaves_requests_and_other_commands_alone() {
    let mut pair = Pair::up(Line::LOCAL);
    let stopped = pair.command(1, WHOLE);
    pair.command(2, WHOLE);
    let request = pair.open(run());
    let (stopped_there, other_there) = (pair.taken(1), pair.taken(2));
    let request_there = pair.accepted(request.id);
    pair.edge.link.cancel(stopped, CancelReason::Operator);
    pair.run(TICK);
    assert_eq!(
        pair.node.link.poll_cancelled(stopped_there),
        Poll::Ready(Ok(CancelReason::Operator))
    );
    assert!(pair.node.link.poll_cancelled(other_there).is_pending());
    assert!(pair.node.link.poll_cancelled(request_there).is_pending());
    pair.edge.link.cancel(request, CancelReason::ClientGone);
    pair.run(TICK);
    assert!(pair.node.link.poll_cancelled(request_there).is_ready());
    assert!(pair.node.link.poll_cancelled(other_there).is_pending());
}

#[test]
fn what_comes_after_a_command_was_given_up_is_dropped_and_counted() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.command(1, WHOLE);
    let at_node = pair.taken(1);
    pair.node.link.send(at_node, part(1, "in time")).unwrap();
    pair.run(TICK);
    // Both are on their way when the Edge lets go.
    pair.node.link.send(at_node, part(1, "late")).unwrap();
    pair.node.link.finish(at_node, end(1)).unwrap();
    let said = spoken(&mut pair.node.link);
    pair.edge.link.release(key);
    let now = pair.clock.now();
    for frame in said {
        feed(&mut pair.edge.link, now, &bytes(frame.stream_id, frame.seq, frame.message.unwrap()));
    }
    let stats = pair.edge.link.stats();
    assert_eq!((stats.late_frames, stats.commands, stats.buffered_bytes), (2, 0, 0));
    assert_eq!(pair.reasons(), (None, None));
}

#[test]
fn a_command_that_takes_too_long_is_given_up_and_the_node_is_told() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.command(1, WHOLE);
    let at_node = pair.taken(1);
    assert!(pair.answer(key).is_pending());
    pair.run(Duration::from_secs(19));
    // Parts do not prolong the whole.
    pair.node.link.send(at_node, part(1, "a")).unwrap();
    pair.run(TICK);
    assert_eq!(pair.answer(key), Poll::Ready(Ok(part(1, "a"))));
    assert!(pair.answer(key).is_pending());
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.answer(key), Poll::Ready(Err(StreamError::TimedOut(WHOLE))));
    assert_eq!(pair.node.link.poll_cancelled(at_node), Poll::Ready(Ok(CancelReason::Deadline)));
    // Its place is taken until the Node has let go.
    assert_eq!(pair.edge.link.stats().commands, 1);
    pair.node.link.finish(at_node, end(1)).unwrap();
    pair.run(TICK);
    assert_eq!(pair.edge.link.stats().commands, 0);
    assert_eq!(pair.answer(key), Poll::Ready(Err(StreamError::TimedOut(WHOLE))));
}

#[test]
fn an_idle_bound_starts_anew_with_every_part_and_while_the_reader_is_behind() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.command(1, IDLE);
    let at_node = pair.taken(1);
    for _ in 0..10 {
        pair.run(Duration::from_secs(15));
        pair.node.link.send(at_node, part(1, "line\n")).unwrap();
        pair.run(TICK);
        assert_eq!(pair.answer(key), Poll::Ready(Ok(part(1, "line\n"))));
    }
    pair.node.link.send(at_node, part(1, "unread\n")).unwrap();
    pair.run(Duration::from_secs(100));
    assert_eq!(pair.answer(key), Poll::Ready(Ok(part(1, "unread\n"))));
    assert!(pair.answer(key).is_pending());
    pair.run(Duration::from_secs(41));
    assert_eq!(pair.answer(key), Poll::Ready(Err(StreamError::TimedOut(IDLE))));
}

#[test]
fn the_end_of_a_link_ends_its_commands_and_nothing_of_it_reaches_the_next() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.command(1, WHOLE);
    let at_node = pair.taken(1);
    assert!(pair.answer(key).is_pending());
    assert!(pair.node.link.poll_cancelled(at_node).is_pending());
    let now = pair.clock.now();
    pair.edge.link.fence(now, CloseReason::Superseded);
    assert_eq!(
        pair.answer(key),
        Poll::Ready(Err(StreamError::LinkClosed(CloseReason::Superseded)))
    );
    // What the fenced generation still answers is not read.
    let late = bytes(key.id, 1, Message::from(part(1, "late")));
    feed(&mut pair.edge.link, now, &late);
    assert_eq!(
        pair.answer(key),
        Poll::Ready(Err(StreamError::LinkClosed(CloseReason::Superseded)))
    );
    assert_eq!(pair.refused(2), NotSent::Link(OpenError::Fenced(CloseReason::Superseded)));
    pair.run(TICK);
    assert_eq!(pair.node.link.poll_cancelled(at_node), Poll::Ready(Err(CloseReason::Superseded)));
    assert_eq!(pair.edge.link.stats().commands, 0);
}

#[test]
fn a_command_that_was_never_written_ends_as_unsent() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.command(1, WHOLE);
    pair.edge.link.cancel(key, CancelReason::Operator);
    assert_eq!(pair.answer(key), Poll::Ready(Err(StreamError::Unsent)));
    assert_eq!(spoken(&mut pair.edge.link), []);
    assert_eq!(pair.edge.link.stats().commands, 0);
}

#[test]
fn commands_are_few_and_take_no_place_of_requests() {
    let limits = v1::Limits { max_streams: 2, ..v1::Limits::standard() };
    let mut pair = Pair::with_limits(Line::LOCAL, limits).brought_up();
    let requests = [pair.open(run()), pair.open(run())];
    for number in 0..u8::try_from(MAX_COMMANDS).unwrap() {
        pair.command(number, WHOLE);
    }
    assert_eq!(pair.refused(100), NotSent::TooMany { limit: MAX_COMMANDS });
    assert_eq!(pair.edge.link.open(run()), Err(OpenError::TooManyStreams { limit: 2 }));
    pair.run(TICK);
    assert_eq!(pair.reasons(), (None, None));
    let at_node = pair.accepted(requests[0].id);
    pair.node.link.finish(at_node, complete()).unwrap();
    pair.run(TICK);
    assert!(pair.edge.link.open(run()).is_ok());
    let at_node = pair.taken(0);
    pair.node.link.finish(at_node, end(0)).unwrap();
    pair.run(TICK);
    pair.command(100, WHOLE);
    pair.run(TICK);
    assert_eq!(pair.reasons(), (None, None));
}

#[test]
fn more_commands_than_there_may_be_close_the_link() {
    let mut pair = Pair::up(Line::LOCAL);
    let now = pair.clock.now();
    for number in 0..=u8::try_from(MAX_COMMANDS).unwrap() {
        let head = Message::NodeCommandRequest(request(number).into());
        feed(&mut pair.node.link, now, &bytes(u32::from(number) + 1, 1, head));
    }
    assert_eq!(pair.node.link.close_reason(), Some(CloseReason::ProtocolError));
}

#[test]
fn a_body_behind_a_command_is_dropped_and_counted() {
    let mut pair = Pair::up(Line::LOCAL);
    let now = pair.clock.now();
    let head = Message::NodeCommandRequest(request(1).into());
    feed(&mut pair.node.link, now, &bytes(1, 1, head));
    let body = v1::RequestBody { data: Bytes::from_static(b"more"), last: true };
    feed(&mut pair.node.link, now, &bytes(1, 2, Message::RequestBody(body)));
    assert_eq!(pair.node.link.stats().late_frames, 1);
    assert_eq!(pair.node.link.close_reason(), None);
}

#[test]
fn a_node_that_does_not_know_a_command_is_not_sent_it() {
    let mut pair = Pair::connected(Line::LOCAL);
    let mut older = registration();
    older.commands.retain(|kind| *kind != v1::CommandKind::TransportStatus as i32);
    pair.node.link = iop_link::Link::dial(pair.clock.now(), older);
    let mut pair = pair.brought_up();
    let kind = CommandKind::TransportStatus;
    assert_eq!(pair.refused(1), NotSent::UnknownKind { kind });
    let now = pair.clock.now();
    let other = CommandRequest { command: Command::Capabilities, ..request(1) };
    assert!(pair.edge.link.open_command(now, other, WHOLE).is_ok());
}

#[test]
fn a_command_without_an_id_closes_the_link() {
    let mut pair = Pair::up(Line::LOCAL);
    let now = pair.clock.now();
    let head = Message::NodeCommandRequest(v1::NodeCommandRequest::default());
    feed(&mut pair.node.link, now, &bytes(1, 1, head));
    assert_eq!(pair.node.link.close_reason(), Some(CloseReason::ProtocolError));
}

#[test]
fn a_command_that_the_node_gives_up_ends_with_an_error_that_echoes_id_and_session() {
    let mut pair = Pair::up(Line::LOCAL);
    let now = pair.clock.now();
    let request = CommandRequest { session_id: SessionId::new("s-1").ok(), ..request(1) };
    let key = pair.edge.link.open_command(now, request, WHOLE).unwrap();
    let at_node = pair.taken(1);
    release(&mut pair, at_node);
    pair.run(TICK);
    let Poll::Ready(Ok(Answer::Command(response))) = pair.answer(key) else { panic!("no answer") };
    assert_eq!(response.session_id, "s-1");
    assert!(response.is_terminal());
}

#[test]
fn a_head_of_a_command_goes_before_the_streams_and_its_answer_among_them() {
    let mut pair = Pair::up(Line::LOCAL);
    let request = pair.open(run());
    pair.edge.link.queue_body(request, Bytes::from(vec![b'x'; 100_000]), true);
    pair.command(1, WHOLE);
    let said = spoken(&mut pair.edge.link);
    let at = |wanted: fn(&Message) -> bool| {
        said.iter().position(|frame| frame.message.as_ref().is_some_and(wanted)).unwrap()
    };
    let command = at(|message| matches!(message, Message::NodeCommandRequest(_)));
    assert!(command < at(|message| matches!(message, Message::RequestBody(_))));
}
