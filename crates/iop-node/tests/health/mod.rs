//! What a Node finds out about a provider that fell silent, and how it goes on looking.

mod numbers;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use iop_net::link::Answer;
use iop_node::Secrets;
use iop_testkit::script::{OnCancel, Script, Step};
use iop_testkit::{ScriptedProvider, answer};
use iop_wire::v1::{self, HealthEvidence, ProviderState};
use serde_json::json;

use crate::support::{Rig, all, head, provider, run, tunnel};

const CHAT: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
const PATH: &str = "/v1/chat/completions";

/// How long the provider may be silent.
const STALL_MS: i64 = 300;

async fn with_lab() -> (Rig, ScriptedProvider) {
    with_places(0).await
}

/// A server that takes so many calls at once; 0 as its adapter says.
async fn with_places(max_concurrency: u32) -> (Rig, ScriptedProvider) {
    let lab = ScriptedProvider::start().await;
    lab.set_models(&["m"]);
    lab.on("/health", |_| answer::sized(200, "application/json", "{}"));
    let entry =
        v1::ProviderConfig { max_concurrency, ..provider("lab", "openai_compat", &lab.endpoint()) };
    let rig = Rig::start(vec![entry], Secrets::default()).await;
    rig.wait_for_state("lab", ProviderState::Ready).await;
    (rig, lab)
}

fn impatient() -> v1::RequestHead {
    v1::RequestHead { response_stall_timeout_ms: STALL_MS, ..head("lab", "m") }
}

/// The next request begins its answer and falls silent.
fn falls_silent_once(lab: &ScriptedProvider) {
    lab.once(PATH, |request| answer::stream_start(request).then(Step::Hold));
}

/// What the terminal says of the stall.
fn stall(answers: &[Answer]) -> v1::Stall {
    let failure = match answers.last() {
        Some(Answer::Frame(frame)) => match &frame.kind {
            Some(v1::provider_tunnel_frame::Kind::Error(error)) => match &error.error {
                Some(v1::tunnel_error::Error::Failure(failure)) => failure,
                other => panic!("no failure: {other:?}"),
            },
            other => panic!("no error: {other:?}"),
        },
        Some(Answer::Event(event)) => match &event.kind {
            Some(v1::run_event::Kind::Error(error)) => match &error.error {
                Some(v1::run_error::Error::Failure(failure)) => failure,
                other => panic!("no failure: {other:?}"),
            },
            other => panic!("no error: {other:?}"),
        },
        other => panic!("no terminal: {other:?}"),
    };
    assert_eq!(failure.code, "response_stalled");
    failure.stall.expect("a stall tells what is known")
}

/// Requests for a token that no client sent: these ask for no stream.
fn looks(lab: &ScriptedProvider) -> usize {
    let log = lab.log();
    let chats = log.exchanges.iter().filter(|exchange| exchange.request.path() == PATH);
    chats.filter(|exchange| exchange.request.json()["stream"] != true).count()
}

#[tokio::test]
async fn runs_and_tunnels_that_stall_share_one_sequence_which_begins_at_1() {
    let (rig, lab) = with_lab().await;
    for seq in 1..=4 {
        falls_silent_once(&lab);
        let message = if seq % 2 == 0 { run(impatient()) } else { tunnel(impatient()) };
        let stall = stall(&all(rig.send(message, CHAT)).await);
        assert_eq!(stall.health(), HealthEvidence::AvailableRequestStalled);
        assert_eq!(stall.health_observation_seq, Some(seq));
    }
    assert_eq!(looks(&lab), 4, "each look asked for one token");
}

#[tokio::test]
async fn calls_that_stall_together_share_one_look_and_number_it_each_for_itself() {
    const CALLS: usize = 50;
    let lab = ScriptedProvider::start().await;
    lab.set_models(&["m"]);
    lab.on("/health", |_| answer::sized(200, "application/json", "{}"));
    lab.on(PATH, |request| match request.json()["stream"] == true {
        true => answer::stream_start(request).then(Step::Hold),
        false => answer::chat(request, "."),
    });
    let entry = provider("lab", "openai_compat", &lab.endpoint());
    let entry = v1::ProviderConfig { max_concurrency: 64, ..entry };
    let rig = Rig::start(vec![entry], Secrets::default()).await;
    rig.wait_for_state("lab", ProviderState::Ready).await;
    // So long that a busy machine does not spread the calls over more than it.
    let patient = || v1::RequestHead { response_stall_timeout_ms: 1_000, ..head("lab", "m") };
    let calls = (0..CALLS).map(|_| all(rig.send(tunnel(patient()), CHAT)));
    let stalls: Vec<_> = join_all(calls).await.iter().map(|answers| stall(answers)).collect();
    let known = |stall: &v1::Stall| stall.health() == HealthEvidence::AvailableRequestStalled;
    assert!(stalls.iter().all(known));
    let mut numbers: Vec<_> =
        stalls.iter().map(|stall| stall.health_observation_seq.unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(1..=CALLS as u64), "{numbers:?}");
    assert_eq!(looks(&lab), 1, "the last to stall has nobody who gets on, and asks for all");
}

#[tokio::test]
async fn a_new_link_numbers_from_1_again() {
    let (rig, lab) = with_lab().await;
    for generations in 1..=2 {
        rig.wait_until(|seen| seen.generations.len() == generations).await;
        falls_silent_once(&lab);
        let stall = stall(&all(rig.send(tunnel(impatient()), CHAT)).await);
        assert_eq!(stall.health_observation_seq, Some(1));
        rig.cut_wire();
    }
}

#[tokio::test]
async fn no_token_is_asked_for_while_a_neighbour_gets_on_which_is_the_evidence() {
    let (rig, lab) = with_lab().await;
    lab.once(PATH, |request| answer::chat_stream(request, 10_000, Duration::from_millis(20)));
    let mut neighbour = rig.send(tunnel(head("lab", "m")), CHAT);
    let draining = async {
        loop {
            neighbour.recv().await.unwrap();
        }
    };
    let stalling = async {
        lab.wait_for_requests(1).await;
        falls_silent_once(&lab);
        all(rig.send(tunnel(impatient()), CHAT)).await
    };
    let answers = tokio::select! {
        answers = stalling => answers,
        () = draining => unreachable!("it never ends"),
    };
    assert_eq!(stall(&answers).health(), HealthEvidence::AvailableRequestStalled);
    assert_eq!(looks(&lab), 0);
}

/// A server of one place that serves a look works at nothing else; of one with two that shows nothing.
#[tokio::test]
async fn a_served_token_frees_the_zombie_of_a_server_that_takes_one_call_at_once() {
    for (places, is_shown) in [(1, true), (2, false)] {
        let (rig, lab) = with_places(places).await;
        lab.once(PATH, |request| {
            answer::stream_start(request).on_cancel(OnCancel::Ignore).then(Step::Hold)
        });
        let stall = stall(&all(rig.send(tunnel(impatient()), CHAT)).await);
        assert_eq!(stall.health(), HealthEvidence::AvailableRequestStalled);
        rig.wait_until(|seen| seen.providers["lab"].zombies == 1).await;
        assert_eq!(looks(&lab), 1, "it was asked before there was a zombie");
        if is_shown {
            rig.wait_until(|seen| seen.providers["lab"].zombies == 0).await;
            assert_eq!(looks(&lab), 2);
            assert!(all(rig.send(tunnel(head("lab", "m")), CHAT)).await.len() > 2);
        }
    }
}

/// A Node that looks at a server that hangs does nothing else for seconds; that a place is taken is told
/// before. The look that belongs to the stall is answered, so that the terminal follows the zombie at once.
#[tokio::test]
async fn a_zombie_is_told_when_it_becomes_one() {
    let (rig, lab) = with_places(1).await;
    lab.once(PATH, |request| {
        answer::stream_start(request).on_cancel(OnCancel::Ignore).then(Step::Hold)
    });
    // In the middle of the 2 s that the provider has to return.
    let hangs_from = Instant::now() + Duration::from_millis(1_300);
    lab.on("/v1/models", move |_| match Instant::now() < hangs_from {
        true => answer::json(200, &json!({ "object": "list", "data": [{ "id": "m" }] })),
        false => Script::new().hold(),
    });
    let stall = stall(&all(rig.send(tunnel(impatient()), CHAT)).await);
    assert_eq!(stall.health(), HealthEvidence::AvailableRequestStalled);
    assert_eq!(rig.known("lab").zombies, 1, "with the terminal at the latest");
}

#[tokio::test]
async fn an_unavailable_target_is_looked_at_again_and_the_edge_is_told_until_it_is_well() {
    let (rig, lab) = with_lab().await;
    falls_silent_once(&lab);
    lab.on("/health", |_| answer::error(500, "e", "e", "the engine is dead"));
    let stall = stall(&all(rig.send(tunnel(impatient()), CHAT)).await);
    assert_eq!(stall.health(), HealthEvidence::UnavailableProviderUnhealthy);
    assert_eq!(stall.health_observation_seq, Some(1));
    let seen = rig.wait_until(|seen| !seen.observations.is_empty()).await;
    let first = &seen.observations[0];
    assert_eq!((first.adapter.as_str(), first.target.as_str()), ("lab", "m"));
    assert_eq!(first.health(), HealthEvidence::UnavailableProviderUnhealthy);
    lab.on("/health", |_| answer::sized(200, "application/json", "{}"));
    let seen = rig.wait_until(|seen| seen.observations.len() == 2).await;
    assert_eq!(seen.observations[1].health(), HealthEvidence::AvailableRequestStalled);
    let numbers: Vec<_> = seen.observations.iter().map(|o| o.health_observation_seq).collect();
    assert_eq!(numbers, [2, 3]);
}
