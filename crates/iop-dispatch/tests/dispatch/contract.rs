//! The table of `docs/failure-contract.md`, written by driving the machine through every row of it.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use iop_dispatch::{ClientEnd, Deadlines, Ended, Evidence, Finish, Outcome, Output, Relay, Spec};
use iop_types::{ErrorCode, Failure, Form, Ownership, Recovery, Refusal, Requeue};

use crate::request::{Request, SECOND, grant, policy, spec, stalled, whole};

/// What the client has when it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The request waits for a permit.
    Queued,
    /// An attempt is out; nothing of its answer is the client's. A held head is among these.
    Nothing(Form),
    /// A relayed stream has begun.
    Relayed,
    /// A stream that the Edge writes has begun.
    Written,
}

/// One way in which a request ends.
struct Way {
    name: &'static str,
    happens: fn(&mut Request),
    /// Where it can happen.
    at: &'static [Stage],
}

const QUEUED: Stage = Stage::Queued;
const NOTHING: Stage = Stage::Nothing(Form::Tunnel);
const NOTHING_OF_A_RUN: Stage = Stage::Nothing(Form::Run);
const SENT: &[Stage] = &[NOTHING, NOTHING_OF_A_RUN, Stage::Relayed, Stage::Written];
const ALWAYS: &[Stage] = &[QUEUED, NOTHING, NOTHING_OF_A_RUN, Stage::Relayed, Stage::Written];
const UNANSWERED: &[Stage] = &[NOTHING, NOTHING_OF_A_RUN];

const WAYS: &[Way] = &[
    Way {
        name: "the answer is whole",
        happens: |request| {
            begin(request);
            request.completed();
        },
        at: SENT,
    },
    Way {
        name: "the queue is full",
        happens: |request| refuse(request, ErrorCode::QueueFull),
        at: &[QUEUED],
    },
    Way {
        name: "it waited too long for a permit",
        happens: |request| refuse(request, ErrorCode::QueueTimeout),
        at: &[QUEUED],
    },
    Way {
        name: "no candidate is ready",
        happens: |request| refuse(request, ErrorCode::NoReadyProvider),
        at: &[QUEUED],
    },
    Way {
        name: "the Node does not take it: its gate is full, it drains, or the choice was made for an earlier configuration or link",
        happens: |request| request.unsent(Requeue::CapacityExceeded),
        at: UNANSWERED,
    },
    Way {
        name: "the adapter cannot do this",
        happens: |request| request.node_refused(Refusal::Unsupported { what: "this".into() }),
        at: UNANSWERED,
    },
    Way {
        name: "no connection to the provider",
        happens: |request| fail(request, Failure::new(ErrorCode::ConnectFailed, "refused")),
        at: UNANSWERED,
    },
    Way {
        name: "the provider closes or resets before its head, or after a held one",
        happens: |request| {
            let lost = Failure::new(ErrorCode::ProviderError, "closed");
            fail(request, Failure { connection_lost: true, ..lost });
        },
        at: UNANSWERED,
    },
    Way {
        name: "the provider closes or resets in its answer",
        happens: |request| {
            let lost = Failure::new(ErrorCode::Truncated, "closed");
            fail(request, Failure { connection_lost: true, ..lost });
        },
        at: &[Stage::Relayed, Stage::Written],
    },
    Way {
        name: "the provider answers 429, 502, 503 or 504",
        happens: |request| answer(request, 503),
        at: UNANSWERED,
    },
    Way {
        name: "the provider answers another error",
        happens: |request| answer(request, 500),
        at: UNANSWERED,
    },
    Way {
        name: "an error object inside a 200",
        happens: |request| {
            begin(request);
            let error = Failure::new(ErrorCode::ProviderError, "out of memory");
            request.ended(Ended::Completed(Evidence { error: Some(error), ..whole() }));
        },
        at: &[Stage::Relayed, Stage::Written],
    },
    Way {
        name: "a stream ends with `[DONE]` and no finish reason",
        happens: |request| end_unfinished(request, true),
        at: &[Stage::Relayed, Stage::Written],
    },
    Way {
        name: "a stream ends with neither",
        happens: |request| end_unfinished(request, false),
        at: &[Stage::Relayed, Stage::Written],
    },
    Way {
        name: "the provider falls silent, its return is confirmed",
        happens: |request| fail(request, stalled(Ownership::Confirmed)),
        at: SENT,
    },
    Way {
        name: "the provider falls silent, its return is unconfirmed",
        happens: |request| fail(request, stalled(Ownership::Unconfirmed)),
        at: SENT,
    },
    Way { name: "the link to the Node ends", happens: Request::node_lost, at: SENT },
    Way { name: "a deadline passes", happens: |request| request.advance(120 * SECOND), at: ALWAYS },
    Way { name: "the client leaves", happens: Request::client_gone, at: ALWAYS },
    Way {
        name: "the client stops reading",
        happens: Request::client_stalled,
        at: &[Stage::Relayed, Stage::Written],
    },
    Way { name: "an operator cancels it", happens: Request::cancel, at: ALWAYS },
    Way { name: "the Edge's drain is over", happens: Request::shut_down, at: ALWAYS },
];

fn refuse(request: &mut Request, code: ErrorCode) {
    request.refused(Failure::new(code, "refused"));
}

fn fail(request: &mut Request, failure: Failure) {
    request.ended(Ended::Failed(failure));
}

/// Gives the client the beginning of an answer if it has nothing yet.
fn begin(request: &mut Request) {
    let is_tunnel = request.attempt(0).grant.form == Form::Tunnel;
    if request.attempt(0).head_at.is_none() {
        let _ = if is_tunnel { request.head(200) } else { request.start() };
    }
}

/// The provider's status is an error: relayed as a whole answer, or an event of a run.
fn answer(request: &mut Request, status: u16) {
    if request.attempt(0).grant.form == Form::Tunnel {
        let _ = request.head(status);
        request.completed();
    } else {
        let failure = Failure::new(ErrorCode::ProviderError, "an error");
        fail(request, Failure { provider_status: Some(status), ..failure });
    }
}

fn end_unfinished(request: &mut Request, done_seen: bool) {
    request.ended(Ended::Completed(Evidence { finish_seen: false, done_seen, error: None }));
}

/// A streamed chat that has come as far as `stage`.
fn request_at(stage: Stage, recovery: Recovery) -> Request {
    let deadlines = Deadlines { whole: Some(Duration::from_secs(60)), ..Deadlines::default() };
    let spec = Spec { deadlines, policy: policy(recovery), ..spec() };
    let (form, has_begun) = match stage {
        Stage::Queued => return Request::new(spec),
        Stage::Nothing(form) => (form, false),
        Stage::Relayed => (Form::Tunnel, true),
        Stage::Written => (Form::Run, true),
    };
    let mut request = Request::new(spec);
    request.granted(grant(form));
    if has_begun {
        begin(&mut request);
        assert_eq!(request.body(true), Relay::Forward);
    }
    request.take_told();
    request
}

/// How a request ends, if no other attempt follows.
fn end(way: &Way, stage: Stage) -> Option<Finish> {
    let mut request = request_at(stage, Recovery::Off);
    (way.happens)(&mut request);
    let finishes: Vec<_> = request
        .take_told()
        .into_iter()
        .filter_map(|told| match told {
            Output::Finish(finish) => Some(finish),
            _ => None,
        })
        .collect();
    assert!(finishes.len() <= 1, "{}: ended twice", way.name);
    finishes.into_iter().next()
}

/// Whether the request goes on instead of ending, and how.
fn follow_up(way: &Way, stage: Stage) -> Option<&'static str> {
    let mut request = request_at(stage, Recovery::Full);
    (way.happens)(&mut request);
    request.take_told().iter().find_map(|told| match told {
        Output::Requeue(_) => Some("back to its place"),
        Output::Retry(_) => Some("yes"),
        _ => None,
    })
}

/// What the client sees, for one cell.
fn client_sees(way: &Way, stage: Stage) -> String {
    let Some(finish) = end(way, stage) else { return "nothing: it waits on".to_owned() };
    match finish.client {
        ClientEnd::Clean if finish.outcome == Outcome::Completed => "the answer".to_owned(),
        ClientEnd::Clean if stage == NOTHING => "the provider's answer".to_owned(),
        ClientEnd::Clean => "the provider's bytes to their end".to_owned(),
        ClientEnd::Error(failure) => {
            let status = failure.provider_status.unwrap_or(failure.code.status());
            format!("{status} `{}`", failure.code)
        }
        ClientEnd::ErrorEvent(failure) => format!("error event `{}`", failure.code),
        ClientEnd::Abort => "body cut".to_owned(),
        ClientEnd::Nothing => "–".to_owned(),
        ClientEnd::KeptAnswer => panic!("{}: no answer was kept", way.name),
    }
}

/// The cells of one column: an attempt in either form must look the same where a row has one cell.
fn cell(way: &Way, stages: &[Stage]) -> String {
    let mut seen: Vec<String> = Vec::new();
    for stage in stages.iter().filter(|stage| way.at.contains(stage)) {
        let sees = client_sees(way, *stage);
        if !seen.contains(&sees) {
            seen.push(sees);
        }
    }
    seen.join("; written: ")
}

fn history(way: &Way) -> String {
    let mut seen: Vec<String> = Vec::new();
    for finish in way.at.iter().filter_map(|stage| end(way, *stage)) {
        let kept = match finish.outcome.failure() {
            Some(failure) => format!("{} `{}`", finish.outcome.kind(), failure.code),
            None => finish.outcome.kind().to_owned(),
        };
        if !seen.contains(&kept) {
            seen.push(kept);
        }
    }
    seen.join(", ")
}

fn tried_again(way: &Way) -> String {
    let nothing: Vec<_> = way
        .at
        .iter()
        .filter(|stage| matches!(stage, Stage::Queued | Stage::Nothing(_)))
        .filter_map(|stage| follow_up(way, *stage))
        .collect();
    nothing.first().map_or_else(|| "no".to_owned(), |word| (*word).to_owned())
}

fn table() -> String {
    let mut table = String::from(
        "| what happens | client has nothing | client has a part, relayed | client has a part, written \
         | history | another attempt |\n|---|---|---|---|---|---|\n",
    );
    for way in WAYS {
        let nothing = cell(way, &[QUEUED, NOTHING, NOTHING_OF_A_RUN]);
        let relayed = cell(way, &[Stage::Relayed]);
        let written = cell(way, &[Stage::Written]);
        let (name, history, again) = (way.name, history(way), tried_again(way));
        writeln!(table, "| {name} | {nothing} | {relayed} | {written} | {history} | {again} |")
            .expect("text takes what is written");
    }
    table
}

/// Every code that an answer or history can have.
fn codes() -> String {
    let mut codes = String::from("| code | status | can trying again help |\n|---|---|---|\n");
    for code in ErrorCode::ALL {
        let again = if code.is_retryable() { "yes" } else { "no" };
        writeln!(codes, "| [`{code}`](errors/{code}.md) | {} | {again} |", code.status())
            .expect("text takes what is written");
    }
    codes
}

/// Puts a table between the two comments that mark its place.
fn put(page: &str, name: &str, table: &str) -> String {
    let begin =
        format!("<!-- {name}: written by crates/iop-dispatch/tests/dispatch/contract.rs -->\n");
    let end = format!("<!-- end of {name} -->\n");
    let (before, rest) = page.split_once(&begin).expect("the page has the table's beginning");
    let (_, after) = rest.split_once(&end).expect("the page has the table's end");
    format!("{before}{begin}{table}{end}{after}")
}

#[test]
fn the_page_says_how_every_request_ends() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/failure-contract.md");
    let page = std::fs::read_to_string(&path).expect("the page exists");
    let written = put(&put(&page, "ends", &table()), "codes", &codes());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &written).expect("docs are writable");
    } else {
        let hint = "run UPDATE_DOCS=1 cargo test -p iop-dispatch --test dispatch contract";
        assert!(page == written, "{hint}\n{}", table());
    }
}

#[test]
fn once_a_byte_is_the_clients_no_other_attempt_is_made() {
    for way in WAYS {
        for stage in way.at.iter().filter(|at| matches!(at, Stage::Relayed | Stage::Written)) {
            assert_eq!(follow_up(way, *stage), None, "{} at {stage:?}", way.name);
            assert!(end(way, *stage).is_some(), "{} at {stage:?} ends the request", way.name);
        }
    }
}

#[test]
fn only_a_whole_answer_is_completed() {
    for way in WAYS {
        for stage in way.at {
            let Some(finish) = end(way, *stage) else { continue };
            let is_whole = way.name == "the answer is whole";
            assert_eq!(finish.outcome == Outcome::Completed, is_whole, "{} at {stage:?}", way.name);
        }
    }
}
