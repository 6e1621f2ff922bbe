//! What a direction does to bytes.

use std::time::Duration;

use super::Towards;

/// One way in which a network is bad. Two of the same kind in one direction: the newer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toxic {
    /// Every byte arrives so much later; nothing is slower.
    Latency(Duration),
    /// So many bytes a second.
    Bandwidth(u32),
    /// Bytes arrive in pieces of this size with this pause between two of them.
    Slicer(usize, Duration),
    /// Nothing passes; this long after the first bytes that did not, both ends are closed.
    Timeout(Duration),
    /// So many bytes pass from now on, then both ends are closed.
    LimitData(usize),
    /// Both ends are reset this long after the next bytes come.
    ResetPeer(Duration),
    /// The end of the sender is passed on only after this time.
    SlowClose(Duration),
}

/// What both directions do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Toxics {
    edge: Shape,
    node: Shape,
}

/// What one direction does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub(super) latency: Duration,
    pub(super) bandwidth: Option<u32>,
    pub(super) slicer: Option<(usize, Duration)>,
    pub(super) timeout: Option<Duration>,
    pub(super) limit: Option<usize>,
    pub(super) reset_after: Option<Duration>,
    pub(super) slow_close: Duration,
}

impl Toxics {
    pub(super) fn add(&mut self, towards: Towards, toxic: Toxic) {
        let shape = match towards {
            Towards::Edge => &mut self.edge,
            Towards::Node => &mut self.node,
        };
        match toxic {
            Toxic::Latency(delay) => shape.latency = delay,
            Toxic::Bandwidth(rate) => shape.bandwidth = Some(rate),
            Toxic::Slicer(size, pause) => shape.slicer = Some((size.max(1), pause)),
            Toxic::Timeout(after) => shape.timeout = Some(after),
            Toxic::LimitData(bytes) => shape.limit = Some(bytes),
            Toxic::ResetPeer(after) => shape.reset_after = Some(after),
            Toxic::SlowClose(after) => shape.slow_close = after,
        }
    }

    pub(super) const fn towards(&self, towards: Towards) -> Shape {
        match towards {
            Towards::Edge => self.edge,
            Towards::Node => self.node,
        }
    }
}
