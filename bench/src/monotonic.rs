//! The kernel's monotonic clock as a number, comparable between processes of one machine.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since an arbitrary point that all processes of this machine share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("the monotonic clock is not negative");
    let nanos = u64::try_from(now.tv_nsec).expect("nanoseconds are not negative");
    seconds * 1_000_000_000 + nanos
}
