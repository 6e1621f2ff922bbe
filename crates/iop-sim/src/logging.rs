//! Where the software's logs and panics go.

use std::cell::RefCell;
use std::sync::Once;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer as _, Registry};

use crate::ledger::{Ledger, SimulatedTime};

/// Makes a subscriber that writes into the ledger, host by host and in simulated time.
pub(crate) fn subscriber(ledger: &Ledger, verbosity: Level) -> impl tracing::Subscriber + use<> {
    let filter = Targets::new()
        .with_default(verbosity)
        .with_target("turmoil", LevelFilter::OFF)
        // The span that names the host.
        .with_target("turmoil::sim", LevelFilter::INFO)
        .with_target("hyper", LevelFilter::WARN);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(ledger.clone())
        .with_timer(SimulatedTime)
        .with_ansi(false);
    Registry::default().with(lines.with_filter(filter))
}

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes every panic of this process from now on: tokio keeps those of tasks to itself.
pub(crate) fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(info.to_string().replace('\n', " ")));
            usual(info);
        }));
    });
}

/// Takes the panics of this thread.
pub(crate) fn take_panics() -> Vec<String> {
    PANICS.take()
}
