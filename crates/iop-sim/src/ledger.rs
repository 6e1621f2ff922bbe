//! What happened in one simulation: a trace for people, a digest for comparison, broken rules.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// A cheap handle on what is written down of one simulation.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    digest: Fnv,
    lines: Vec<Line>,
    log: Vec<u8>,
    violations: Vec<String>,
    told: BTreeMap<String, u64>,
    /// The time between steps, when no host runs.
    clock: Duration,
}

/// One thing that happened.
struct Line {
    at: Duration,
    who: String,
    what: String,
}

impl Ledger {
    /// Tells the time between steps.
    pub(crate) fn set_clock(&self, now: Duration) {
        self.book().clock = now;
    }

    /// Notes what somebody did or saw.
    pub(crate) fn note(&self, who: &str, what: impl Into<String>) {
        let what = what.into();
        let mut book = self.book();
        let at = turmoil::sim_elapsed().unwrap_or(book.clock);
        (at, who, &what).hash(&mut book.digest);
        book.lines.push(Line { at, who: who.to_owned(), what });
    }

    /// Takes something into the digest that nobody wants to read.
    pub(crate) fn hash(&self, what: &impl Hash) {
        let at = now();
        let mut book = self.book();
        (at, what).hash(&mut book.digest);
    }

    /// Says whether this is new; what is told is for the comparison only and in no trace.
    pub(crate) fn is_new(&self, what: String, generation: u64) -> bool {
        self.book().told.insert(what, generation).is_none()
    }

    /// Returns the generation under which something was told.
    pub(crate) fn generation_of(&self, what: &str) -> Option<u64> {
        self.book().told.get(what).copied()
    }

    /// Notes a broken rule.
    pub(crate) fn violation(&self, who: &str, what: impl Into<String>) {
        let what = what.into();
        self.note(who, format!("VIOLATION {what}"));
        let mut book = self.book();
        let at = turmoil::sim_elapsed().unwrap_or(book.clock);
        book.violations.push(format!("{:>10.3} {who}: {what}", at.as_secs_f64()));
    }

    /// Returns what two runs of one seed have in common.
    pub(crate) fn digest(&self) -> u64 {
        self.book().digest.finish()
    }

    /// Returns the rules that were broken.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.book().violations.clone()
    }

    /// Says whether this text is in the logs or the trace.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        let book = self.book();
        let log = String::from_utf8_lossy(&book.log);
        log.contains(text) || book.lines.iter().any(|line| line.what.contains(text))
    }

    /// Returns what was noted, one line each, by time.
    pub(crate) fn trace(&self) -> String {
        let book = self.book();
        let mut trace = String::new();
        for Line { at, who, what } in &book.lines {
            let _ = writeln!(trace, "{:>10.3} {who:<9} {what}", at.as_secs_f64());
        }
        trace
    }

    /// Returns what the software logged.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.book().log).into_owned()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The simulation's time; its end where none runs.
pub(crate) fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}

/// FNV-1a: the same on every machine and in every version of Rust.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl<'a> MakeWriter<'a> for Ledger {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        self.clone()
    }
}

impl io::Write for Ledger {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.book().log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Stamps log lines with the simulation's time.
pub(crate) struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        write!(writer, "{:>10.3}", now().as_secs_f64())
    }
}
