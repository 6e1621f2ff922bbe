//! One direction of a connection that exists only in memory: delay, bandwidth, loss and cuts, all by a
//! manual clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::BytesMut;

/// What a direction of a connection is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Time that a byte travels.
    pub delay: Duration,
    /// Bytes a second; `None` is as fast as it is written.
    pub bandwidth: Option<u64>,
    /// Once this many bytes have not left yet, nothing more is accepted; a write that begins below
    /// is accepted whole, as a kernel does.
    pub unsent: usize,
}

impl Line {
    /// A fast line within one machine.
    pub const LOCAL: Self =
        Self { delay: Duration::from_micros(50), bandwidth: None, unsent: 16 * 1024 };

    /// 1 Mbit/s with 20 ms one way.
    pub const SLOW: Self =
        Self { delay: Duration::from_millis(20), bandwidth: Some(125_000), unsent: 16 * 1024 };
}

/// Bytes on their way in one direction.
#[derive(Debug)]
pub struct SimPipe {
    line: Line,
    /// When the last byte that was written will have left.
    free_at: Option<Instant>,
    segments: VecDeque<Segment>,
    loses: bool,
    ended: bool,
    written: u64,
    cut_after: Option<u64>,
}

#[derive(Debug)]
struct Segment {
    leaves: Instant,
    arrives: Instant,
    bytes: Vec<u8>,
}

/// A segment of Ethernet.
const SEGMENT: usize = 1448;

impl SimPipe {
    /// Makes an empty pipe.
    #[must_use]
    pub fn new(line: Line) -> Self {
        Self {
            line,
            free_at: None,
            segments: VecDeque::new(),
            loses: false,
            ended: false,
            written: 0,
            cut_after: None,
        }
    }

    /// Says whether a write would be accepted.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        !self.ended && self.unsent(now) < self.line.unsent
    }

    /// Writes everything. Bytes beyond a cut are lost and the pipe ends.
    pub fn write(&mut self, now: Instant, bytes: &[u8]) {
        let bytes = match self.cut_after {
            Some(cut) if self.written + bytes.len() as u64 > cut => {
                self.ended = true;
                let kept = usize::try_from(cut.saturating_sub(self.written)).unwrap_or(usize::MAX);
                &bytes[..kept.min(bytes.len())]
            }
            _ => bytes,
        };
        self.written += bytes.len() as u64;
        if self.loses {
            return;
        }
        for segment in bytes.chunks(SEGMENT) {
            let starts = self.free_at.map_or(now, |free| free.max(now));
            let takes = self.line.bandwidth.map_or(Duration::ZERO, |bandwidth| {
                Duration::from_nanos(segment.len() as u64 * 1_000_000_000 / bandwidth)
            });
            let leaves = starts + takes;
            self.free_at = Some(leaves);
            let arrives = leaves + self.line.delay;
            self.segments.push_back(Segment { leaves, arrives, bytes: segment.to_vec() });
        }
    }

    /// Moves what has arrived to `buffer`; says whether anything has.
    pub fn read(&mut self, now: Instant, buffer: &mut BytesMut) -> bool {
        let mut arrived = false;
        while let Some(segment) = self.segments.front()
            && segment.arrives <= now
        {
            buffer.extend_from_slice(&segment.bytes);
            self.segments.pop_front();
            arrived = true;
        }
        arrived
    }

    /// Says whether the end has arrived: nothing follows.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.ended && self.segments.is_empty()
    }

    /// Returns when something arrives or room is made next.
    #[must_use]
    pub fn next_event(&self, now: Instant) -> Option<Instant> {
        let arrival = self.segments.front().map(|segment| segment.arrives);
        let departure = self.segments.iter().map(|segment| segment.leaves).find(|at| *at > now);
        arrival.into_iter().chain(departure).filter(|at| *at > now).min()
    }

    /// From now on loses everything without a sign.
    pub fn lose(&mut self) {
        self.loses = true;
    }

    /// Ends the pipe behind what is on its way.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Ends the pipe once `bytes` were written in all.
    pub fn cut_after(&mut self, bytes: u64) {
        self.cut_after = Some(bytes);
        self.ended |= self.written >= bytes;
    }

    /// Returns how many bytes were written.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    fn unsent(&self, now: Instant) -> usize {
        self.segments
            .iter()
            .rev()
            .take_while(|segment| segment.leaves > now)
            .map(|segment| segment.bytes.len())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ManualClock;

    #[test]
    fn a_slow_line_takes_the_time_of_its_bandwidth_and_delay() {
        let mut clock = ManualClock::new();
        let mut pipe = SimPipe::new(Line::SLOW);
        pipe.write(clock.now(), &[7; 12_500]);
        let mut buffer = BytesMut::new();
        clock.advance(Duration::from_millis(119));
        pipe.read(clock.now(), &mut buffer);
        assert!(buffer.len() < 12_500);
        clock.advance(Duration::from_millis(1));
        pipe.read(clock.now(), &mut buffer);
        assert_eq!(buffer.len(), 12_500);
    }

    #[test]
    fn a_cut_keeps_what_came_before_it() {
        let clock = ManualClock::new();
        let mut pipe = SimPipe::new(Line { delay: Duration::ZERO, ..Line::LOCAL });
        pipe.cut_after(3);
        pipe.write(clock.now(), b"abcd");
        let mut buffer = BytesMut::new();
        assert!(pipe.read(clock.now(), &mut buffer));
        assert_eq!(&buffer[..], b"abc");
        assert!(pipe.is_at_end());
    }
}
