//! What happened in one simulation: a trace for people, a digest for comparison, broken rules.

use std::collections::{BTreeMap, BTreeSet};
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
    told: BTreeMap<String, (u64, Duration)>,
    /// Of each open end of a link: who it is, and how many answers it owes an end.
    owed: BTreeMap<u64, (&'static str, usize)>,
    seats: u64,
    /// The newest link of each Node: the Edge's process, and the generation.
    newest: BTreeMap<String, (Vec<u8>, u64)>,
    /// Attempts whose end came on a link after its Node had a newer one.
    late: BTreeSet<String>,
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
        self.book().told.insert(what, (generation, now())).is_none()
    }

    /// Returns the generation under which something was told, and when.
    pub(crate) fn telling_of(&self, what: &str) -> Option<(u64, Duration)> {
        self.book().told.get(what).copied()
    }

    /// A Node has a link.
    pub(crate) fn set_newest(&self, node: &str, link: (Vec<u8>, u64)) {
        self.book().newest.insert(node.to_owned(), link);
    }

    /// Says whether a Node has no newer link than this.
    pub(crate) fn is_newest(&self, node: &str, link: &(Vec<u8>, u64)) -> bool {
        self.book().newest.get(node) == Some(link)
    }

    /// The end of an attempt came too late.
    pub(crate) fn note_late(&self, attempt: String) {
        self.book().late.insert(attempt);
    }

    /// Says whether the end of an attempt came on a link after its Node had a newer one.
    pub(crate) fn came_late(&self, attempt: &str) -> bool {
        self.book().late.contains(attempt)
    }

    /// Counts what one end of a link owes as long as the seat is there.
    pub(crate) fn take_seat(&self, host: &'static str) -> Seat {
        let mut book = self.book();
        book.seats += 1;
        let number = book.seats;
        book.owed.insert(number, (host, 0));
        drop(book);
        Seat { ledger: self.clone(), number }
    }

    /// Says whose links carry answers that have not ended.
    pub(crate) fn debtors(&self) -> Vec<&'static str> {
        let book = self.book();
        let owing = book.owed.values().filter(|(_, answers)| *answers > 0);
        owing.map(|(host, _)| *host).collect()
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

/// The place of one end of a link in the count of answers that have not ended.
pub(crate) struct Seat {
    ledger: Ledger,
    number: u64,
}

impl Seat {
    /// A request came.
    pub(crate) fn began(&self) {
        if let Some((_, owed)) = self.ledger.book().owed.get_mut(&self.number) {
            *owed += 1;
        }
    }

    /// An answer ended.
    pub(crate) fn ended(&self) {
        if let Some((_, owed)) = self.ledger.book().owed.get_mut(&self.number) {
            *owed = owed.saturating_sub(1);
        }
    }

    /// The link is over: what it owes is owed no more.
    pub(crate) fn leave(&self) {
        self.ledger.book().owed.remove(&self.number);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
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
