//! `iop runs`: what was asked, who answered and how it ended; and the end of one that is under way.

use std::fmt::Write as _;

use iop_store::{AttemptRecord, Run, TerminalKind, TerminalRecord};
use serde::Deserialize;
use serde_json::Value;

use crate::cli::{Asking, Output, Runs};
use crate::client::{AskError, Base, encoded};
use crate::table::{millis, table};

#[derive(Deserialize)]
struct List {
    runs: Vec<Run>,
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
    let rows: Vec<_> = runs.iter().map(row).collect();
    Ok(table(["RUN", "RECEIVED", "MODEL", "SERVED BY", "TOOK", "TOKENS", "END"], &rows))
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

fn row(run: &Run) -> [String; 7] {
    let last = run.attempts.last();
    [
        run.receipt.run_id.to_string(),
        format!("{:.0}", run.receipt.received_at),
        run.receipt.route.as_ref().map_or_else(dash, ToString::to_string),
        last.map_or_else(dash, |attempt| format!("{}/{}", attempt.node, attempt.provider)),
        last.and_then(|attempt| attempt.ended_ms).map_or_else(dash, millis),
        run.usage.as_ref().map_or_else(dash, |usage| {
            format!("{}+{}", usage.tokens.input_tokens, usage.tokens.output_tokens)
        }),
        run.terminal.as_ref().map_or_else(|| "running".to_owned(), end),
    ]
}

fn page(run: &Run) -> String {
    let receipt = &run.receipt;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
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
    line("end", run.terminal.as_ref().map_or_else(|| "running".to_owned(), told));
    if !run.attempts.is_empty() {
        text.push('\n');
        let rows: Vec<_> = run.attempts.iter().map(attempt_row).collect();
        let headings = [
            "ATTEMPT",
            "SERVED BY",
            "TARGET",
            "GENERATION",
            "WHY",
            "SENT",
            "HEAD",
            "FIRST",
            "ENDED",
            "END",
        ];
        text.push_str(&table(headings, &rows));
    }
    text
}

fn attempt_row(attempt: &AttemptRecord) -> [String; 10] {
    let at = |ms: Option<u64>| ms.map_or_else(dash, millis);
    [
        attempt.attempt.to_string(),
        format!("{}/{}", attempt.node, attempt.provider),
        attempt.target.to_string(),
        attempt.generation.to_string(),
        attempt.why.as_deref().map_or_else(dash, str::to_owned),
        at(attempt.sent_ms),
        at(attempt.head_ms),
        at(attempt.first_token_ms),
        at(attempt.ended_ms),
        attempt.terminal.as_ref().map_or_else(|| "running".to_owned(), end),
    ]
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
