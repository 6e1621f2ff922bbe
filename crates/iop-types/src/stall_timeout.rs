//! How long a provider may stay silent.

use std::time::Duration;

/// A response stall timeout between 1 ms and 24 h.
///
/// Resolved from the provider's configuration for the candidate that finally wins, then carried
/// unchanged in the request. The Node reads it before anything else of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StallTimeout(u32);

impl StallTimeout {
    /// What an absent or zero wire field means: a cold 27B model loads in minutes without a byte.
    pub const DEFAULT: Self = Self(300_000);
    /// The longest accepted value, 24 h in milliseconds.
    pub const MAX_MS: i64 = 86_400_000;

    /// Reads the wire's `response_stall_timeout_ms`; zero stands for [`Self::DEFAULT`].
    ///
    /// # Errors
    /// Fails on a negative value and on one above 24 h.
    pub fn from_wire(ms: i64) -> Result<Self, StallTimeoutError> {
        match u32::try_from(ms) {
            Ok(0) => Ok(Self::DEFAULT),
            Ok(value) if ms <= Self::MAX_MS => Ok(Self(value)),
            Ok(_) | Err(_) => Err(StallTimeoutError { ms }),
        }
    }

    /// Accepts a configured duration; zero is refused here, unlike on the wire.
    ///
    /// # Errors
    /// Fails below 1 ms and above 24 h.
    pub fn from_config(timeout: Duration) -> Result<Self, StallTimeoutError> {
        let ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        match u32::try_from(ms) {
            Ok(value @ 1..) if ms <= Self::MAX_MS => Ok(Self(value)),
            Ok(_) | Err(_) => Err(StallTimeoutError { ms }),
        }
    }

    /// Returns the value for the wire, in milliseconds.
    pub const fn as_wire(self) -> i64 {
        self.0 as i64
    }

    /// Returns the allowed silence.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }
}

impl Default for StallTimeout {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A stall timeout outside 1 ms … 24 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("response stall timeout of {ms} ms is outside 1 ms … 24 h (86400000 ms)")]
pub struct StallTimeoutError {
    /// The refused value.
    pub ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_and_zero_on_the_wire_mean_five_minutes() {
        assert_eq!(StallTimeout::from_wire(0), Ok(StallTimeout::DEFAULT));
        assert_eq!(StallTimeout::DEFAULT.duration(), Duration::from_secs(300));
    }

    #[test]
    fn wire_values_outside_the_range_are_refused_with_their_value() {
        for ms in [-1, 86_400_001, i64::MIN, i64::MAX] {
            assert_eq!(StallTimeout::from_wire(ms), Err(StallTimeoutError { ms }));
        }
        for ms in [1, 86_400_000] {
            assert_eq!(StallTimeout::from_wire(ms).map(StallTimeout::as_wire), Ok(ms));
        }
    }

    #[test]
    fn zero_is_refused_in_configuration() {
        assert!(StallTimeout::from_config(Duration::ZERO).is_err());
        assert!(StallTimeout::from_config(Duration::from_micros(10)).is_err());
        assert!(StallTimeout::from_config(Duration::from_millis(1)).is_ok());
        assert!(StallTimeout::from_config(Duration::from_secs(86_401)).is_err());
    }
}
