//! What a seed means: who asks for what and when, how each provider behaves, what fails.
//!
//! Everything is drawn here and before the first step, or from a generator of its own for each request
//! of a provider, so that one more draw in one place changes nothing elsewhere.

use std::time::Duration;

use fastrand::Rng;

use crate::world::{CLIENT_HOST, EDGE, NODES, PROVIDERS};

/// What each provider is configured to do at once.
/// So little that calls wait for each other.
pub(crate) const CAPACITY: usize = 4;
/// What each mock is configured to do at once.
pub(crate) const STAGE_CAPACITY: usize = 4;
/// How long each provider may be silent, as it is configured.
pub(crate) const STALL: Duration = Duration::from_secs(3);
/// Calls in one simulation.
pub(crate) const CLIENTS: usize = 50;

/// The simulation of one seed.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The seed.
    pub(crate) seed: u64,
    /// How finely hosts take turns. Time within a host is exact; what is sent arrives in a later turn.
    pub(crate) tick: Duration,
    /// Longest way of one message.
    pub(crate) latency: Duration,
    /// Calls by the time at which they begin.
    pub(crate) calls: Vec<Call>,
    /// Faults by the time at which they begin; no two concern the same hosts at once.
    pub(crate) faults: Vec<Fault>,
    /// How often a provider misbehaves, in percent of its requests.
    pub(crate) misbehaviour: u32,
}

/// One call of a client.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Its number.
    pub(crate) number: usize,
    /// When it begins.
    pub(crate) at: Duration,
    /// The model that it names.
    pub(crate) model: &'static str,
    /// What it asks for.
    pub(crate) wish: Wish,
    /// Bytes that it sends beside what every call sends.
    pub(crate) bytes: usize,
    /// How the client behaves.
    pub(crate) manner: Manner,
}

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// A chat, piece by piece.
    Stream,
    /// A chat, whole.
    Whole,
    /// A vector.
    Vector,
    /// What is said in a recording, which is sent piece by piece.
    Transcript {
        /// Pause before each piece.
        pause: Duration,
        /// One pause in the middle.
        rest: Duration,
    },
}

/// How a client behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Reads to the end.
    Patient,
    /// Leaves after this long, wherever its call stands.
    Leaves(Duration),
    /// Pauses before each piece.
    ReadsSlowly(Duration),
    /// Reads the head and nothing more.
    StopsReading,
    /// Reads to the end; an operator cancels its call after this long.
    IsCancelled(Duration),
}

/// Something that fails for a while.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// When it begins.
    pub(crate) at: Duration,
    /// When it is over.
    pub(crate) until: Duration,
    /// What it is.
    pub(crate) kind: FaultKind,
}

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Nothing passes between two hosts; what is sent is lost.
    Partition(&'static str, &'static str),
    /// Nothing passes from the one to the other.
    OneWay(&'static str, &'static str),
    /// Nothing passes, and everything arrives in the end.
    Hold(&'static str, &'static str),
    /// What passes takes long.
    Slow(&'static str, &'static str, Duration),
    /// A Node's link is dead for the Node and alive for the Edge, which gets what was on its way at the
    /// end only: the Node is back on another link by then.
    HalfOpen(&'static str),
    /// A process is killed, and started again at the end.
    Crash(&'static str),
    /// A process is killed and started again at once.
    Bounce(&'static str),
    /// A process is told to stop in order, and started again once it has and the time is over.
    Drain(&'static str),
}

/// How long a Node writes on a link that is half open before it notices: so that there is something on
/// its way.
pub(crate) const LINGER: Duration = Duration::from_millis(200);

/// What a provider does with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Answers.
    Plain,
    /// Answers with a status that is no success.
    Status(u16),
    /// Resets before its head.
    ResetAtOnce,
    /// Resets after some pieces.
    ResetMidway,
    /// Ends the connection after some pieces, without the end of the body.
    CutShort,
    /// Ends the body after some pieces, in order but without a finish reason.
    NeverFinishes,
    /// Says that it failed, after some pieces, as an event of the stream.
    ErrorEvent,
    /// Answers, and goes on whatever its caller does.
    IgnoresCancel,
    /// Says nothing at all, and resets after [`SILENCE`].
    SilentBeforeHead,
    /// Falls silent after some pieces, and resets after [`SILENCE`].
    SilentMidway,
    /// Sends comments for [`SILENCE`] after some pieces, and resets.
    OnlyComments,
}

/// How long a provider that falls silent stays so: much longer than its configured stall timeout.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// One request at a provider.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// What it does.
    pub(crate) behaviour: Behaviour,
    /// How long it thinks before the head.
    pub(crate) thinks: Duration,
    /// Pieces of text in the whole answer.
    pub(crate) pieces: usize,
    /// Pieces before it misbehaves.
    pub(crate) good: usize,
    /// Pause before each piece.
    pub(crate) pause: Duration,
    /// Bytes of padding in each piece.
    pub(crate) padding: usize,
}

impl Plan {
    /// Draws the simulation of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Some simulations are calm, so that what only faults would break is told from what is broken.
        let (misbehaviour, most_faults) = match seed % 4 {
            0 => (0, 0),
            1 => (60, 0),
            2 => (0, 4),
            _ => (30, 3),
        };
        // Some of those without faults go on until links have sent heartbeats under load.
        let spread =
            if most_faults == 0 && (seed / 4).is_multiple_of(4) { SPREAD_LONG } else { SPREAD };
        let mut calls: Vec<_> = (0..CLIENTS).map(|_| call(&mut rng, spread)).collect();
        calls.sort_by_key(|call| call.at);
        for (number, call) in calls.iter_mut().enumerate() {
            call.number = number;
        }
        let faults = faults(&mut rng, most_faults);
        let has_long_fault = faults.iter().any(|fault| fault.until > LONG);
        let tick = match (has_long_fault, spread) {
            (true, _) => Duration::from_millis(20),
            (false, SPREAD_LONG) => millis(&mut rng, 6..12),
            (false, _) => millis(&mut rng, 2..8),
        };
        Self { seed, tick, latency: millis(&mut rng, 1..40), calls, faults, misbehaviour }
    }

    /// Returns within which time every call ends: 60 s to the first progress, 75 s until a link is
    /// given up, and the longest answer with the slowest reader. A client without a network has no
    /// reason to wait that long.
    pub(crate) fn bound(&self) -> Duration {
        Duration::from_secs(if self.loses_clients() { 110 } else { 240 })
    }

    /// Says whether clients lose their network for longer than TCP bears.
    pub(crate) fn loses_clients(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind.loses(CLIENT_HOST))
    }

    /// Returns a word of every prompt, which must not turn up anywhere but at providers.
    pub(crate) fn canary(&self) -> String {
        format!("canary-{:016x}", self.seed)
    }

    /// Draws how long a provider pauses before each read on a connection of this number. All pauses over
    /// what a connection holds are far from a stall.
    pub(crate) fn reading_pause(&self, provider: usize, connection: usize) -> Duration {
        let seed = self.seed ^ (provider as u64) << 56 ^ (connection as u64) << 24;
        let mut rng = Rng::with_seed(seed);
        if rng.u32(..4) == 0 { millis(&mut rng, 1..60) } else { Duration::ZERO }
    }

    /// Draws what a provider does with its request of this number.
    pub(crate) fn script(&self, provider: usize, request: usize) -> Script {
        let mut rng = Rng::with_seed(self.seed ^ (provider as u64) << 56 ^ (request as u64) << 32);
        let pieces = rng.usize(1..40);
        let is_bulky = rng.u32(..8) == 0;
        Script {
            behaviour: behaviour(&mut rng, self.misbehaviour),
            thinks: millis(&mut rng, 0..1500),
            pieces,
            good: rng.usize(..pieces),
            pause: millis(&mut rng, 0..200),
            padding: if is_bulky { rng.usize(4096..20_000) } else { 0 },
        }
    }
}

/// A fault that ends later than this makes a simulation long.
const LONG: Duration = Duration::from_secs(20);

/// Within how many milliseconds calls begin.
const SPREAD: u64 = 8000;
/// As [`SPREAD`]: beyond the first heartbeats.
const SPREAD_LONG: u64 = 32_000;

fn call(rng: &mut Rng, spread: u64) -> Call {
    let wish = match rng.u32(..20) {
        0..=2 => Wish::Whole,
        3 | 4 => Wish::Vector,
        5 => {
            // Longer than a provider may be silent: it is the client that is waited for.
            let rest = if rng.bool() { STALL + millis(rng, 200..1500) } else { Duration::ZERO };
            Wish::Transcript { pause: millis(rng, 0..100), rest }
        }
        _ => Wish::Stream,
    };
    let is_upload = matches!(wish, Wish::Transcript { .. });
    let is_long = is_upload || rng.u32(..12) == 0;
    Call {
        number: 0,
        at: millis(rng, 200..spread),
        model: if rng.u32(..4) == 0 && !is_upload { "play" } else { "tiny" },
        wish,
        // More than the first credit of a request's body, and than one of its frames.
        bytes: if is_long { rng.usize(10_000..400_000) } else { 0 },
        manner: match rng.u32(..12) {
            0 | 1 => Manner::Leaves(millis(rng, 1..4000)),
            2 => Manner::ReadsSlowly(millis(rng, 50..300)),
            3 => Manner::StopsReading,
            4 => Manner::IsCancelled(millis(rng, 1..2500)),
            _ => Manner::Patient,
        },
    }
}

fn behaviour(rng: &mut Rng, misbehaviour: u32) -> Behaviour {
    if rng.u32(..100) >= misbehaviour {
        return Behaviour::Plain;
    }
    const KINDS: [Behaviour; 12] = [
        Behaviour::Status(429),
        Behaviour::Status(500),
        Behaviour::Status(503),
        Behaviour::ResetAtOnce,
        Behaviour::ResetMidway,
        Behaviour::CutShort,
        Behaviour::NeverFinishes,
        Behaviour::ErrorEvent,
        Behaviour::IgnoresCancel,
        Behaviour::SilentBeforeHead,
        Behaviour::SilentMidway,
        Behaviour::OnlyComments,
    ];
    KINDS[rng.usize(..KINDS.len())]
}

fn faults(rng: &mut Rng, most: usize) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    for _ in 0..rng.usize(..=most) {
        let fault = fault(rng);
        if faults.iter().all(|other| !other.kind.meets(fault.kind)) {
            faults.push(fault);
        }
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

fn fault(rng: &mut Rng) -> Fault {
    let node = rng.usize(..NODES.len());
    let (a, b) = match rng.u32(..6) {
        0 | 1 => (NODES[node], PROVIDERS[node]),
        2 => (EDGE, CLIENT_HOST),
        _ => (EDGE, NODES[node]),
    };
    let at = millis(rng, 500..9000);
    let short = millis(rng, 100..5000);
    // Longer than a heartbeat and the wait for its answer.
    let long = Duration::from_secs(80) + millis(rng, 0..5000);
    // Who loses bytes: an Edge and a Node, a Node and its provider, or an Edge and its clients.
    let (near, far) = match rng.u32(..6) {
        0 => (EDGE, CLIENT_HOST),
        1 | 2 => (NODES[node], PROVIDERS[node]),
        _ => (EDGE, NODES[node]),
    };
    let (kind, lasts) = match rng.u32(..16) {
        0 => (FaultKind::Partition(near, far), long),
        1 => (FaultKind::OneWay(near, far), long),
        2 => (FaultKind::OneWay(far, near), long),
        3..=5 => (FaultKind::Hold(a, b), short),
        6 | 7 => (FaultKind::Slow(a, b, millis(rng, 100..1500)), short),
        8 => (FaultKind::Crash(EDGE), short),
        9 => (FaultKind::Crash(NODES[node]), short),
        10 => (FaultKind::Bounce(NODES[node]), Duration::ZERO),
        11 => (FaultKind::Drain(EDGE), short),
        12 => (FaultKind::Drain(NODES[node]), short),
        13 | 14 => (FaultKind::HalfOpen(NODES[node]), short + LINGER),
        _ => (FaultKind::Crash(PROVIDERS[node]), short),
    };
    Fault { at, until: at + lasts, kind }
}

impl Behaviour {
    /// Says whether it is a silence that only a watchdog ends.
    pub(crate) fn is_silence(self) -> bool {
        matches!(self, Self::SilentBeforeHead | Self::SilentMidway | Self::OnlyComments)
    }
}

impl FaultKind {
    /// Says whether bytes to or from a host are lost.
    fn loses(self, host: &str) -> bool {
        match self {
            Self::Partition(a, b) | Self::OneWay(a, b) => a == host || b == host,
            Self::Hold(..) | Self::Slow(..) | Self::HalfOpen(_) => false,
            Self::Crash(_) | Self::Bounce(_) | Self::Drain(_) => false,
        }
    }

    /// Says whether two faults concern the same hosts: turmoil does not combine them.
    fn meets(self, other: Self) -> bool {
        let hosts = |kind| match kind {
            Self::Partition(a, b) | Self::OneWay(a, b) | Self::Hold(a, b) | Self::Slow(a, b, _) => {
                [a, b]
            }
            Self::HalfOpen(a) | Self::Crash(a) | Self::Bounce(a) | Self::Drain(a) => [a, a],
        };
        let others = hosts(other);
        hosts(self).iter().any(|host| *host != EDGE && others.contains(host))
            || hosts(self) == [EDGE, EDGE] && others == [EDGE, EDGE]
    }
}

fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}
