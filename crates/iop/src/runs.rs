//! `iop runs`: what was asked, who answered and how it ended; and the end of one that is under way.

use std::fmt::Write as _;

use iop_store::{AttemptRecord, Run, Stall, TerminalKind, TerminalRecord};
use serde::Deserialize;
use serde_json::Value;

use crate::cli::{Asking, Output, Runs};
use crate::client::{AskError, Base, encoded};
use crate::table::{millis, shown as printable, table};

#[derive(Deserialize)]
struct List {
    runs: Vec<Shown>,
}

/// A run and, while it is under way, where it stands.
#[derive(Deserialize)]
struct Shown {
    #[serde(flatten)]
    run: Run,
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    age_ms: Option<u64>,
}

/// Runs `iop runs` and returns what it prints.
///
/// # Errors
/// The Edge could not be asked, or knows no such run.
pub(crate) async fn run(command: &Runs) -> Result<String, AskError> {
    match command {
        Runs::List { limit, model, node, code, asking } => {
            let mut path = format!("/api/v1/runs?limit={limit}");
            for (name, value) in [("route", model), ("node", node), ("code", code)] {
                if let Some(value) = value {
                    let _ = write!(path, "&{name}={}", encoded(value));
                }
            }
            list(asking, &path).await
        }
        Runs::Show { id, asking } => show(asking, &format!("/api/v1/runs/{}", encoded(id))).await,
        Runs::Cancel { id, asking } => cancel(asking, id).await,
    }
}

async fn list(asking: &Asking, path: &str) -> Result<String, AskError> {
    let base = Base::parse(&asking.admin, "--admin")?;
    if asking.output == Output::Json {
        return Ok(format!("{:#}\n", base.get::<Value>(path).await?));
    }
    let List { runs } = base.get(path).await?;
    if runs.is_empty() {
        eprintln!("No such runs.");
        return Ok(String::new());
    }
    Ok(lines(&runs))
}

async fn show(asking: &Asking, path: &str) -> Result<String, AskError> {
    let base = Base::parse(&asking.admin, "--admin")?;
    if asking.output == Output::Json {
        return Ok(format!("{:#}\n", base.get::<Value>(path).await?));
    }
    Ok(page(&base.get(path).await?))
}

async fn cancel(asking: &Asking, id: &str) -> Result<String, AskError> {
    let base = Base::parse(&asking.admin, "--admin")?;
    let path = format!("/api/v1/runs/{}/cancel", encoded(id));
    let cancelled: Value = base.post_json(&path).await?;
    Ok(match asking.output {
        Output::Json => format!("{cancelled:#}\n"),
        Output::Table => {
            format!("Cancelled {}.\n", cancelled["run_id"].as_str().unwrap_or(id))
        }
    })
}

/// A terminal's width, which tables keep to.
const WIDTH: usize = 80;

/// Where the values of a page begin.
const INDENT: usize = 12;

/// The shortest beginning of an id that is shown: it is minted to the millisecond.
const SHORT_ID: usize = 13;

/// Names are cut to no less than this.
const SHORT_NAME: usize = 6;

/// Lays out runs, one a line, as wide as a terminal: ids by a beginning that tells them apart, and long
/// names cut.
fn lines(runs: &[Shown]) -> String {
    let ids: Vec<_> = runs.iter().map(|shown| shown.run.receipt.run_id.to_string()).collect();
    let mut rows: Vec<_> =
        runs.iter().zip(&ids).map(|(run, id)| row(run, short(id, &ids))).collect();
    let headings = ["RUN", "RECEIVED UTC", "MODEL", "SERVED BY", "TOOK", "TOKENS", "END"];
    let width = |rows: &[[String; 7]], column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or_default()
    };
    loop {
        let total: usize = (0..headings.len()).map(|column| width(&rows, column) + 2).sum();
        let widest = if width(&rows, 2) >= width(&rows, 3) { 2 } else { 3 };
        let room = width(&rows, widest);
        if total - 2 <= WIDTH || room <= SHORT_NAME.max(headings[widest].len()) {
            return table(headings, &rows);
        }
        // One character at a time, so that both names stay as long as they may.
        let limit = room - 1;
        rows.iter_mut().for_each(|row| cut(&mut row[widest], limit));
    }
}

fn row(shown: &Shown, id: &str) -> [String; 7] {
    let run = &shown.run;
    let last = run.attempts.last();
    let took = last.and_then(|attempt| attempt.ended_ms).or(shown.age_ms);
    [
        id.to_owned(),
        run.receipt.received_at.strftime("%m-%d %H:%M:%S").to_string(),
        run.receipt.route.as_ref().map_or_else(dash, |route| printable(route.as_str())),
        last.map_or_else(dash, |attempt| {
            printable(&format!("{}/{}", attempt.node, attempt.provider))
        }),
        took.map_or_else(dash, millis),
        run.usage.as_ref().map_or_else(dash, |usage| {
            format!("{}+{}", usage.tokens.input_tokens, usage.tokens.output_tokens)
        }),
        run.terminal.as_ref().map_or_else(|| state(shown), end),
    ]
}

/// Returns the shortest beginning of an id that no other of the list has.
fn short<'a>(id: &'a str, ids: &[String]) -> &'a str {
    let is_clear =
        |length: &usize| ids.iter().filter(|other| other.starts_with(&id[..*length])).count() == 1;
    let length = (SHORT_ID.min(id.len())..id.len()).find(is_clear).unwrap_or(id.len());
    &id[..length]
}

fn cut(text: &mut String, limit: usize) {
    if text.chars().count() > limit {
        *text = text.chars().take(limit.saturating_sub(1)).chain(['…']).collect();
    }
}

fn page(shown: &Shown) -> String {
    let run = &shown.run;
    let receipt = &run.receipt;
    let mut text = String::new();
    let mut line = |name: &str, value: String| paragraph(&mut text, name, &value);
    line("run", receipt.run_id.to_string());
    line("request", receipt.request_id.to_string());
    if let Some(session) = &receipt.session_id {
        line("session", session.as_str().to_owned());
    }
    line("received", format!("{:.3}", receipt.received_at));
    line("surface", receipt.surface.to_string());
    if let Some(route) = &receipt.route {
        line("model", route.to_string());
    }
    if let Some(form) = receipt.form {
        line("form", format!("{form:?}").to_lowercase());
    }
    if let Some(ms) = run.queued_ms {
        line("queued", millis(ms));
    }
    if let Some(usage) = &run.usage {
        let source = format!("{:?}", usage.source).to_lowercase();
        line(
            "usage",
            format!(
                "{} in, {} out ({source})",
                usage.tokens.input_tokens, usage.tokens.output_tokens
            ),
        );
    }
    match &run.terminal {
        Some(terminal) => {
            line("end", told(terminal));
            if let Some(stall) = &terminal.stall {
                line("stall", stalled(stall));
            }
        }
        None => {
            let age = shown.age_ms.map_or_else(String::new, |ms| format!(", for {}", millis(ms)));
            line("state", format!("{}{age}", state(shown)));
        }
    }
    for attempt in &run.attempts {
        text.push('\n');
        paragraphs_of(attempt, &mut text);
    }
    text
}

/// Tells one attempt: where and why, when, how it ended.
fn paragraphs_of(attempt: &AttemptRecord, text: &mut String) {
    let mut line = |name: &str, value: String| paragraph(text, name, &value);
    let why = attempt.why.as_deref().unwrap_or("-");
    line(
        &format!("attempt {}", attempt.attempt),
        format!(
            "{}/{}, target {}, generation {}, why {why}",
            attempt.node, attempt.provider, attempt.target, attempt.generation
        ),
    );
    let times = [
        ("sent", attempt.sent_ms),
        ("head", attempt.head_ms),
        ("first", attempt.first_token_ms),
        ("ended", attempt.ended_ms),
    ];
    let times: Vec<_> = times
        .iter()
        .filter_map(|(name, ms)| Some(format!("{name} at {}", millis((*ms)?))))
        .collect();
    line("", times.join(", "));
    let Some(terminal) = &attempt.terminal else { return line("", "running".to_owned()) };
    line("", told(terminal));
    if let Some(stall) = &terminal.stall {
        line("", stalled(stall));
    }
    if terminal.kind == TerminalKind::Failed {
        match attempt.recovery_eligible {
            Some(true) => line("", "another attempt allowed".to_owned()),
            Some(false) => line("", "no other attempt allowed".to_owned()),
            None => {}
        }
    }
}

fn stalled(stall: &Stall) -> String {
    format!(
        "phase {}, ownership {}, provider {} ({}), silent {} of {} allowed",
        stall.phase.as_str(),
        stall.ownership.as_str(),
        stall.evidence.provider_health(),
        stall.evidence.liveness_classification(),
        millis(stall.silent_ms),
        millis(stall.stall_timeout_ms)
    )
}

/// Writes a value beside its name, broken between words where a terminal ends.
fn paragraph(text: &mut String, name: &str, value: &str) {
    let mut at = INDENT;
    let _ = write!(text, "{name:<INDENT$}");
    for (index, word) in printable(value).split_whitespace().enumerate() {
        let width = word.chars().count();
        if index > 0 && at + 1 + width > WIDTH {
            let _ = write!(text, "\n{:INDENT$}", "");
            at = INDENT;
        } else if index > 0 {
            text.push(' ');
            at += 1;
        }
        text.push_str(word);
        at += width;
    }
    text.push('\n');
}

fn state(shown: &Shown) -> String {
    shown.state.clone().unwrap_or_else(|| "running".to_owned())
}

fn end(terminal: &TerminalRecord) -> String {
    match (terminal.kind, terminal.code) {
        (_, Some(code)) => code.to_string(),
        (TerminalKind::Completed, None) => "completed".to_owned(),
        (TerminalKind::Cancelled, None) => "cancelled".to_owned(),
        (TerminalKind::Failed, None) => "failed".to_owned(),
    }
}

fn told(terminal: &TerminalRecord) -> String {
    match &terminal.message {
        Some(message) => format!("{}: {message}", end(terminal)),
        None => end(terminal),
    }
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(value: Value) -> Shown {
        serde_json::from_value(value).expect("a run")
    }

    /// A run whose first attempt stalled and whose second completed.
    fn recovered(id: &str) -> Value {
        json!({
            "run_id": id, "request_id": "req_1", "surface": "openai.chat",
            "route": "meta-llama/Llama-3.2-3B-Instruct", "form": "tunnel",
            "received_at": "2026-01-31T08:00:00.125Z", "queued_ms": 4,
            "attempts": [
                {
                    "attempt": 1, "node": "one-with-a-long-name", "provider": "lab", "target": "m",
                    "generation": 3, "why": "ordered", "sent_ms": 4, "ended_ms": 3_104,
                    "recovery_eligible": true,
                    "terminal": {
                        "kind": "failed", "code": "response_stalled", "message": "silent for 3 s",
                        "retryable": true, "stall_timeout_ms": 3_000, "silent_ms": 3_004,
                        "phase": "before_head", "ownership": "confirmed",
                        "provider_health": "unavailable",
                        "liveness_classification": "provider_unhealthy"
                    }
                },
                {
                    "attempt": 2, "node": "two-with-a-long-name", "provider": "lab", "target": "m",
                    "generation": 4, "why": "response_stalled", "sent_ms": 3_104, "head_ms": 3_120,
                    "first_token_ms": 3_140, "ended_ms": 3_400, "recovery_eligible": false,
                    "terminal": { "kind": "completed" }
                }
            ],
            "terminal": { "kind": "completed" },
            "usage": { "input_tokens": 1_600, "output_tokens": 512, "source": "provider" }
        })
    }

    const FIRST: &str = "01890a1b-2c3d-7e4f-8a5b-6c7d8e9f0a1b";
    const SECOND: &str = "01890a1b-2c3d-7e4f-8a5b-6c7d8e9f0a1c";
    const OTHER: &str = "01890a1b-2c3e-7e4f-8a5b-6c7d8e9f0a1b";

    #[test]
    fn a_page_has_all_of_a_stall_and_the_verdict_on_every_attempt() {
        let page = page(&shown(recovered(FIRST)));
        for told in [
            "attempt 1   one-with-a-long-name/lab, target m, generation 3, why ordered",
            "            sent at 4 ms, ended at 3.1 s\n",
            "            response_stalled: silent for 3 s\n",
            "phase before_head, ownership confirmed, provider unavailable",
            "(provider_unhealthy), silent 3.0 s of 3.0 s allowed\n",
            "            another attempt allowed\n",
            "why\n            response_stalled\n",
        ] {
            assert!(page.contains(told), "`{told}` is missing in:\n{page}");
        }
        assert!(page.lines().all(|line| line.chars().count() <= WIDTH), "{page}");
    }

    #[test]
    fn a_run_under_way_is_shown_as_it_stands() {
        let mut value = recovered(FIRST);
        for ended in ["terminal", "usage"] {
            value.as_object_mut().expect("a run").remove(ended);
        }
        value["state"] = json!("streaming");
        value["age_ms"] = json!(12_300);
        let run = shown(value);
        let page = page(&run);
        assert!(page.contains("state       streaming, for 12.3 s\n"), "{page}");
        assert!(lines(&[run]).contains("streaming"));
    }

    #[test]
    fn a_list_fits_a_terminal_and_tells_runs_apart() {
        let runs = [FIRST, OTHER].map(|id| shown(recovered(id)));
        let list = lines(&runs);
        assert!(list.lines().all(|line| line.chars().count() <= WIDTH), "{list}");
        assert!(list.contains(&format!("{}  01-31 08:00:00  ", &FIRST[..13])), "{list}");
        assert!(list.contains(&OTHER[..13]) && list.contains('…') && list.contains("1600+512"));
        // Runs of one moment are told apart whatever that takes.
        let runs = [FIRST, SECOND].map(|id| shown(recovered(id)));
        let list = lines(&runs);
        assert!(list.contains(FIRST) && list.contains(SECOND), "{list}");
    }
}
