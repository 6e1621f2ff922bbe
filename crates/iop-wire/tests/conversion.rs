//! What a received field means, and that what was meant arrives.

use std::time::Duration;

use bytes::Bytes;
use iop_types::{
    AdapterType, ApiCall, Attempt, Capabilities, Command, CommandFrame, CommandId, CommandRequest,
    ErrorCode, Event, EventKind, Failure, Finish, Header, HealthEvidence, Operation, Ownership,
    Part, ProviderKey, ProviderRevision, ProviderState, ProviderStatus, Refusal, RequestHead,
    Requeue, ResponseHead, RunId, RunKind, RunRequest, SessionId, Stall, StallPhase, StallTimeout,
    Target, TunnelFrame, TunnelId, TunnelRequest, Usage, WorkKey,
};
use iop_wire::answer::{
    JoinError, command_frame, command_refusal, run_event, run_refusal, tunnel_frame, tunnel_refusal,
};
use iop_wire::v1::{self, run_event::Kind};
use iop_wire::{CommandAnswer, EventJoiner, RunAnswer, TunnelAnswer};
use proptest::prelude::*;

fn head() -> RequestHead {
    RequestHead {
        lease: None,
        work: WorkKey {
            run_id: RunId::from_slice(&[7; 16]).expect("16 bytes"),
            attempt: Attempt(2),
        },
        session_id: SessionId::new("conversation-9").ok(),
        provider: ProviderKey::from("ollama"),
        target: Target::from("llama3.2:3b"),
        revision: ProviderRevision(4),
        stall_timeout: StallTimeout::from_wire(1).expect("1 ms is allowed"),
        first_progress_within: Some(Duration::from_secs(900)),
        ends_within: None,
    }
}

fn tunnel_request() -> TunnelRequest {
    TunnelRequest {
        head: head(),
        tunnel_id: TunnelId::from_slice(&[8; 16]).expect("16 bytes"),
        method: "POST".into(),
        path_and_query: "/v1/chat/completions?x=1".into(),
        headers: vec![
            Header::from_static("content-type", "application/json"),
            Header { name: Bytes::from_static(b"x-raw"), value: Bytes::from_static(b"\xff\x00") },
        ],
        content_length: Some(0),
    }
}

#[test]
fn requests_cross_the_wire_unchanged() {
    for kind in [RunKind::Chat, RunKind::Completion, RunKind::Embedding, RunKind::Rerank] {
        let request = RunRequest { head: head(), kind };
        assert_eq!(RunRequest::try_from(v1::RunRequest::from(request.clone())), Ok(request));
    }
    let request = tunnel_request();
    let wire = v1::ProviderTunnelRequest::from(request.clone());
    assert_eq!(TunnelRequest::try_from(wire), Ok(request));
}

#[test]
fn headers_of_a_request_do_not_pin_the_buffer_they_came_in() {
    let wire = v1::ProviderTunnelRequest::from(tunnel_request());
    let before = wire.headers[0].name.as_ptr();
    let read = TunnelRequest::try_from(wire).unwrap();
    assert_ne!(read.headers[0].name.as_ptr(), before);
}

/// A head in which everything is wrong but the stall field.
fn wrong_head(ms: i64) -> v1::RequestHead {
    v1::RequestHead { response_stall_timeout_ms: ms, ..v1::RequestHead::default() }
}

#[test]
fn the_stall_timeout_is_refused_first_of_all_in_both_forms() {
    for ms in [-1, 86_400_001, i64::MIN, i64::MAX] {
        let run = v1::RunRequest { head: Some(wrong_head(ms)), kind: 77 };
        let tunnel = v1::ProviderTunnelRequest {
            head: Some(wrong_head(ms)),
            ..v1::ProviderTunnelRequest::default()
        };
        for refusal in
            [RunRequest::try_from(run).unwrap_err(), TunnelRequest::try_from(tunnel).unwrap_err()]
        {
            assert!(matches!(refusal, Refusal::StallTimeout(error) if error.ms == ms));
        }
    }
}

#[test]
fn an_absent_stall_timeout_and_zero_mean_five_minutes_in_both_forms() {
    let mut run = v1::RunRequest::from(RunRequest { head: head(), kind: RunKind::Chat });
    let mut tunnel = v1::ProviderTunnelRequest::from(tunnel_request());
    for head in [&mut run.head, &mut tunnel.head].into_iter().flatten() {
        head.response_stall_timeout_ms = 0;
    }
    let five_minutes = Duration::from_secs(300);
    let run = RunRequest::try_from(run).unwrap();
    let tunnel = TunnelRequest::try_from(tunnel).unwrap();
    assert_eq!(run.head.stall_timeout.duration(), five_minutes);
    assert_eq!(tunnel.head.stall_timeout.duration(), five_minutes);
}

#[test]
fn a_malformed_field_is_refused_by_name() {
    type Spoil = fn(&mut v1::ProviderTunnelRequest);
    let cases: [(&str, Spoil); 9] = [
        ("head", |request| request.head = None),
        ("run_id", |request| with_head(request, |head| head.run_id.clear())),
        ("attempt", |request| with_head(request, |head| head.attempt = 0)),
        ("adapter", |request| with_head(request, |head| head.adapter.clear())),
        ("target", |request| with_head(request, |head| head.target.clear())),
        ("session_id", |request| with_head(request, |head| head.session_id = "s".repeat(129))),
        ("tunnel_id", |request| request.tunnel_id = Bytes::from_static(b"short")),
        ("method", |request| request.method.clear()),
        ("path_and_query", |request| request.path_and_query = "http://other/".into()),
    ];
    for (field, spoil) in cases {
        let mut wire = v1::ProviderTunnelRequest::from(tunnel_request());
        spoil(&mut wire);
        let refusal = TunnelRequest::try_from(wire).unwrap_err();
        assert!(matches!(refusal, Refusal::Malformed { field: named, .. } if named == field));
    }
    let unknown = v1::RunRequest { head: Some(head_of(tunnel_request())), kind: 5 };
    let refusal = RunRequest::try_from(unknown).unwrap_err();
    assert!(matches!(refusal, Refusal::Malformed { field: "kind", .. }));
}

fn with_head(request: &mut v1::ProviderTunnelRequest, spoil: fn(&mut v1::RequestHead)) {
    spoil(request.head.as_mut().expect("it has one"));
}

fn head_of(request: TunnelRequest) -> v1::RequestHead {
    request.head.into()
}

#[test]
fn a_bound_that_has_run_out_does_not_become_unbounded() {
    let head = RequestHead { ends_within: Some(Duration::ZERO), ..head() };
    let read = RequestHead::try_from(v1::RequestHead::from(head)).unwrap();
    assert_eq!(read.ends_within, Some(Duration::from_millis(1)));
}

fn events() -> Vec<Event> {
    let failure = Failure {
        code: ErrorCode::ProviderError,
        message: "went wrong".into(),
        provider_status: Some(503),
        retry_after_s: Some(7),
        stall: Some(Stall {
            timeout: Duration::from_secs(3),
            silent: Duration::from_millis(3_004),
            phase: StallPhase::MidStream,
            ownership: Ownership::Confirmed,
            health: HealthEvidence::Available,
            observation_seq: Some(1),
        }),
        connection_lost: true,
    };
    let usage = Some(Usage { input_tokens: 3, output_tokens: 4 });
    let delta = |part| EventKind::Delta { choice: 2, part };
    let call = Part::ToolCall {
        index: 1,
        id: Some("call_1".into()),
        name: Some("now".into()),
        arguments: "{\"a\"".into(),
    };
    [
        EventKind::Start,
        delta(Part::Text("héllo".into())),
        delta(call),
        delta(Part::ToolCall { index: 0, id: None, name: None, arguments: String::new() }),
        delta(Part::Logprobs("{}".into())),
        delta(Part::Embedding(vec![1.5, f32::MIN, -0.0])),
        delta(Part::Embedding(Vec::new())),
        delta(Part::Score(0.25)),
        EventKind::ReasoningDelta { choice: 1, text: "hm".into() },
        EventKind::Complete { finish: vec![Finish { choice: 0, reason: "stop".into() }] },
        EventKind::Error(failure),
        EventKind::Cancelled,
    ]
    .into_iter()
    .flat_map(|kind| [Event { kind: kind.clone(), usage }, Event::new(kind)])
    .collect()
}

#[test]
fn events_cross_the_wire_unchanged_and_echo_the_session_first_and_last() {
    let session = SessionId::new("s").ok();
    for event in events() {
        let wire = run_event(event.clone(), session.as_ref());
        let echoes = event.is_terminal() || event.kind == EventKind::Start;
        assert_eq!(wire.session_id, if echoes { "s" } else { "" });
        assert_eq!(wire.is_terminal(), event.is_terminal());
        assert_eq!(RunAnswer::try_from(wire), Ok(RunAnswer::Event(event)));
    }
}

#[test]
fn frames_of_a_tunnel_cross_the_wire_unchanged_and_echo_the_session_first_and_last() {
    let session = SessionId::new("s").ok();
    let headers = vec![Header::from_static("a", "b")];
    let data = Bytes::from_static(b"data: {}\n\n");
    for frame in [
        TunnelFrame::Head(ResponseHead { status: 207, headers: headers.clone() }),
        TunnelFrame::Body { data: data.clone(), progress: true },
        TunnelFrame::Body { data, progress: false },
        TunnelFrame::Trailers(headers),
        TunnelFrame::End,
        TunnelFrame::Error(Failure::new(ErrorCode::Truncated, "cut")),
        TunnelFrame::Cancelled,
    ] {
        let wire = tunnel_frame(frame.clone(), session.as_ref());
        let echoes = frame.is_terminal() || matches!(frame, TunnelFrame::Head(_));
        assert_eq!(wire.session_id, if echoes { "s" } else { "" });
        assert_eq!(TunnelAnswer::try_from(wire), Ok(TunnelAnswer::Frame(frame)));
    }
}

#[test]
fn refusals_are_flagged_and_only_three_of_them_are_queued_again() {
    let refusals = [
        (Refusal::StallTimeout(StallTimeout::from_wire(-1).unwrap_err()), None),
        (Refusal::Malformed { field: "f", problem: "bad" }, None),
        (Refusal::Duplicate, None),
        (Refusal::StaleConfig { revision: 3 }, Some(Requeue::StaleConfig)),
        (Refusal::UnknownProvider { provider: "p".into() }, None),
        (Refusal::AmbiguousProvider { type_name: "t".into(), choices: vec!["a".into()] }, None),
        (Refusal::Unsupported { what: "w".into() }, None),
        (Refusal::CapacityExceeded { capacity: 2 }, Some(Requeue::CapacityExceeded)),
        (Refusal::Draining, Some(Requeue::Draining)),
        (Refusal::NotPermitted { what: "w".into(), remedy: "r".into() }, None),
    ];
    for (refusal, requeue) in refusals {
        assert_eq!(refusal.requeue(), requeue, "both ends agree");
        let RunAnswer::Refused(run) = RunAnswer::try_from(run_refusal(&refusal, None)).unwrap()
        else {
            panic!("{refusal} arrived as an event")
        };
        let TunnelAnswer::Refused(tunnel) =
            TunnelAnswer::try_from(tunnel_refusal(&refusal, None)).unwrap()
        else {
            panic!("{refusal} arrived as a frame")
        };
        let id = CommandId::from_slice(&[7; 16]).unwrap();
        let command = CommandAnswer::try_from(command_refusal(id, &refusal, None));
        assert_eq!(command, Ok(CommandAnswer::Refused(run.clone())));
        assert_eq!(run, tunnel);
        assert_eq!((run.requeue(), run.message), (requeue, refusal.to_string()));
    }
}

#[test]
fn a_head_that_is_no_answers_head_breaks_the_stream() {
    for status in [0, 99, 100, 101, 103, 199, 1000, 65_736, u32::MAX] {
        let head = v1::TunnelHead { status, headers: Vec::new() };
        let wire = v1::ProviderTunnelFrame {
            session_id: String::new(),
            kind: Some(v1::provider_tunnel_frame::Kind::Head(head)),
        };
        assert!(TunnelAnswer::try_from(wire).is_err(), "{status}");
    }
}

#[test]
fn unknown_values_are_never_success() {
    let unknown_reason = v1::Refusal { reason: 99, ..v1::Refusal::default() };
    assert_eq!(iop_wire::Refused::from(unknown_reason).requeue(), None);
    let failure = v1::Failure { code: "brand_new".into(), ..v1::Failure::default() };
    assert_eq!(Failure::from(failure).code, ErrorCode::ProviderError);
    assert!(RunAnswer::try_from(v1::RunEvent::default()).is_err());
    assert!(TunnelAnswer::try_from(v1::ProviderTunnelFrame::default()).is_err());
    assert!(CommandAnswer::try_from(v1::NodeCommandResponse::default()).is_err());
    let nothing = v1::CommandError { error: None };
    let nothing = Some(v1::node_command_response::Kind::Error(nothing));
    let nothing = v1::NodeCommandResponse { kind: nothing, ..v1::NodeCommandResponse::default() };
    assert!(nothing.is_terminal() && CommandAnswer::try_from(nothing).is_err());
    let empty = v1::RunEvent {
        kind: Some(Kind::Error(v1::RunError { error: None })),
        ..v1::RunEvent::default()
    };
    assert!(RunAnswer::try_from(empty).is_err());
}

#[test]
fn payloads_that_do_not_fit_their_kind_are_errors() {
    let with = |kind, payload: &'static [u8]| v1::RunEvent {
        kind: Some(kind),
        payload: Bytes::from_static(payload),
        ..v1::RunEvent::default()
    };
    assert!(RunAnswer::try_from(with(Kind::Text(v1::TextDelta {}), b"\xff")).is_err());
    assert!(RunAnswer::try_from(with(Kind::Embedding(v1::EmbeddingDelta {}), b"abc")).is_err());
}

#[test]
fn a_failure_message_is_cut_so_that_its_frame_can_be_sent() {
    let failure = Failure::new(ErrorCode::ProviderError, "é".repeat(100_000));
    let wire = v1::Failure::from(failure);
    assert!(wire.message.len() <= 4096 && wire.message.ends_with('é'));
}

fn status() -> ProviderStatus {
    ProviderStatus {
        provider: ProviderKey::from("ollama"),
        adapter: AdapterType::Ollama,
        state: ProviderState::Ready,
        reason: String::new(),
        targets: vec![Target::from("a"), Target::from("b")],
        loaded: vec![Target::from("b")],
        capacity: 4,
        in_use: 3,
        zombies: 1,
        queued: Some(0),
        revision: ProviderRevision(6),
        capabilities: Capabilities {
            tunnel: vec![Operation { method: "POST".into(), path: "/v1/completions".into() }],
            runs: vec![RunKind::Chat, RunKind::Rerank],
            implicit_latest: true,
        },
    }
}

#[test]
fn statuses_cross_the_wire_unchanged_in_every_state() {
    for state in [
        ProviderState::Starting,
        ProviderState::Ready,
        ProviderState::Absent,
        ProviderState::Failed,
        ProviderState::Draining,
    ] {
        let status = ProviderStatus { state, ..status() };
        assert_eq!(ProviderStatus::try_from(v1::ProviderStatus::from(status.clone())), Ok(status));
    }
}

#[test]
fn an_unknown_provider_state_is_failed_and_an_unknown_adapter_is_refused() {
    let wire = v1::ProviderStatus { state: 42, ..status().into() };
    let read = ProviderStatus::try_from(wire).unwrap();
    assert_eq!(read.state, ProviderState::Failed);
    assert!(read.reason.contains("42"));
    let wire = v1::ProviderStatus { adapter: "future".into(), ..status().into() };
    assert!(ProviderStatus::try_from(wire).unwrap_err().to_string().contains("`future`"));
    let mut wire = v1::ProviderStatus::from(status());
    wire.capabilities.as_mut().unwrap().runs.push(99);
    assert_eq!(ProviderStatus::try_from(wire).unwrap().capabilities.runs.len(), 2);
}

// ---- long events

fn text(payload: Vec<u8>) -> v1::RunEvent {
    v1::RunEvent {
        usage: Some(v1::Usage { input_tokens: 1, output_tokens: 2 }),
        choice: 3,
        payload: payload.into(),
        kind: Some(Kind::Text(v1::TextDelta {})),
        ..v1::RunEvent::default()
    }
}

fn continuation(continues: bool) -> v1::RunEvent {
    v1::RunEvent {
        continues,
        payload: Bytes::from_static(b"x"),
        kind: Some(Kind::Continuation(v1::Continuation {})),
        ..v1::RunEvent::default()
    }
}

#[test]
fn parts_without_a_beginning_or_without_an_end_are_out_of_order() {
    let mut joiner = EventJoiner::new(100);
    assert_eq!(joiner.push(continuation(false)), Err(JoinError::OutOfOrder));
    let mut joiner = EventJoiner::new(100);
    assert_eq!(joiner.push(v1::RunEvent { continues: true, ..text(vec![1]) }), Ok(None));
    assert_eq!(joiner.push(text(vec![2])), Err(JoinError::OutOfOrder));
}

#[test]
fn a_terminal_in_the_middle_of_an_event_ends_the_run() {
    let mut joiner = EventJoiner::new(100);
    assert_eq!(joiner.push(v1::RunEvent { continues: true, ..text(vec![1]) }), Ok(None));
    let cancelled = run_event(EventKind::Cancelled.into(), None);
    assert_eq!(joiner.push(cancelled.clone()), Ok(Some(cancelled)));
}

#[test]
fn an_event_that_never_ends_is_stopped_at_the_limit() {
    let mut joiner = EventJoiner::new(10);
    assert_eq!(joiner.push(v1::RunEvent { continues: true, ..text(vec![1; 5]) }), Ok(None));
    for _ in 0..5 {
        assert_eq!(joiner.push(continuation(true)), Ok(None));
    }
    assert_eq!(joiner.push(continuation(true)), Err(JoinError::TooLong { limit: 10 }));
}

proptest! {
    #[test]
    fn an_event_cut_anywhere_is_joined_again(
        payload in proptest::collection::vec(any::<u8>(), 0..5000),
        cuts in proptest::collection::vec(0_usize..2000, 0..10),
    ) {
        let whole = text(payload);
        let mut rest = whole.clone();
        let mut joiner = EventJoiner::new(5000);
        for cut in cuts {
            let front = rest.split_front(cut.min(rest.payload.len()));
            prop_assert_eq!(joiner.push(front), Ok(None));
        }
        prop_assert_eq!(joiner.push(rest), Ok(Some(whole)));
    }
}

fn commands() -> [Command; 3] {
    let call = ApiCall {
        provider: ProviderKey::from("ollama"),
        operation: Operation { method: "POST".into(), path: "/api/show".into() },
        body: Bytes::from_static(b"{}"),
    };
    [Command::Capabilities, Command::TransportStatus, Command::OllamaApi(call)]
}

#[test]
fn commands_cross_the_wire_unchanged() {
    let id = CommandId::from_slice(&[7; 16]).unwrap();
    for session_id in [None, SessionId::new("s").ok()] {
        for command in commands() {
            let request = CommandRequest { id, session_id: session_id.clone(), command };
            let wire = v1::NodeCommandRequest::from(request.clone());
            assert_eq!(CommandRequest::try_from(wire), Ok(request));
        }
    }
}

/// Makes one field wrong.
type Spoil = fn(&mut v1::NodeCommandRequest);

#[test]
fn a_malformed_command_is_refused_by_field() {
    let [_, _, call] = commands();
    let id = CommandId::from_slice(&[7; 16]).unwrap();
    let good = v1::NodeCommandRequest::from(CommandRequest { id, session_id: None, command: call });
    let cases: [(&str, Spoil); 6] = [
        ("command_id", |request| request.command_id = Bytes::from_static(b"short")),
        ("session_id", |request| request.session_id = "x".repeat(129)),
        ("kind", |request| request.kind = 0),
        ("kind", |request| request.kind = 99),
        ("adapter", |request| request.adapter.clear()),
        ("body", |request| request.body = vec![b'x'; 16 * 1024 + 1].into()),
    ];
    for (field, spoil) in cases {
        let mut request = good.clone();
        spoil(&mut request);
        let refused = CommandRequest::try_from(request);
        assert!(
            matches!(refused, Err(Refusal::Malformed { field: f, .. }) if f == field),
            "{field}"
        );
    }
}

#[test]
fn answers_to_commands_cross_the_wire_with_their_id_and_echo_the_session_last() {
    let id = CommandId::from_slice(&[7; 16]).unwrap();
    let session = SessionId::new("s").ok();
    for frame in [
        CommandFrame::Part(Bytes::from_static(b"{}")),
        CommandFrame::End,
        CommandFrame::Error(Failure::new(ErrorCode::Truncated, "cut")),
        CommandFrame::Cancelled,
    ] {
        let wire = command_frame(id, frame.clone(), session.as_ref());
        assert_eq!(wire.command_id, id.as_bytes()[..]);
        assert_eq!(wire.session_id, if frame.is_terminal() { "s" } else { "" });
        assert_eq!(wire.is_terminal(), frame.is_terminal());
        assert_eq!(CommandAnswer::try_from(wire), Ok(CommandAnswer::Frame(frame)));
    }
}
