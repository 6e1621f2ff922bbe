//! How often one address may try to join.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Attempts within [`WINDOW`].
const MOST: usize = 5;
const WINDOW: Duration = Duration::from_secs(60);

/// Addresses remembered at once: about 1 MiB. While all of them are busy, others are refused.
const MOST_ADDRESSES: usize = 4096;

/// Counts attempts: 5 a minute for each address. Whoever has a whole IPv6 network counts once.
#[derive(Debug, Default)]
pub struct Attempts {
    by_address: BTreeMap<IpAddr, VecDeque<Instant>>,
}

impl Attempts {
    /// Counts an attempt.
    ///
    /// # Errors
    /// It is one too many and is not counted; says how long to wait.
    pub fn admit(&mut self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let address = network(address);
        if !self.by_address.contains_key(&address) && self.by_address.len() >= MOST_ADDRESSES {
            self.by_address
                .retain(|_, tries| tries.back().is_some_and(|last| is_recent(*last, now)));
            if self.by_address.len() >= MOST_ADDRESSES {
                return Err(WINDOW);
            }
        }
        let tries = self.by_address.entry(address).or_default();
        while tries.front().is_some_and(|first| !is_recent(*first, now)) {
            tries.pop_front();
        }
        match tries.front() {
            Some(first) if tries.len() >= MOST => {
                Err(WINDOW.saturating_sub(now.saturating_duration_since(*first)))
            }
            Some(_) | None => {
                tries.push_back(now);
                Ok(())
            }
        }
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < WINDOW
}

/// A customer of IPv6 gets a /64 at least and can use every address in it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_sixth_attempt_within_a_minute_waits_until_the_first_is_a_minute_old() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        for second in 0..5 {
            attempts.admit(ip("10.0.0.1"), start + Duration::from_secs(second)).unwrap();
        }
        let fifty = start + Duration::from_secs(50);
        assert_eq!(attempts.admit(ip("10.0.0.1"), fifty), Err(Duration::from_secs(10)));
        assert_eq!(attempts.admit(ip("::ffff:10.0.0.1"), fifty), Err(Duration::from_secs(10)));
        assert_eq!(attempts.admit(ip("10.0.0.2"), fifty), Ok(()));
        assert_eq!(attempts.admit(ip("10.0.0.1"), start + WINDOW), Ok(()));
    }

    #[test]
    fn the_addresses_of_one_network_count_together() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        for host in 0..5 {
            attempts.admit(ip(&format!("2001:db8::{host}")), now).unwrap();
        }
        assert!(attempts.admit(ip("2001:db8::ffff"), now).is_err());
        assert!(attempts.admit(ip("2001:db8:0:1::1"), now).is_ok());
    }

    #[test]
    fn a_flood_of_addresses_is_bounded_and_forgotten() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        for host in 0..u32::try_from(MOST_ADDRESSES).unwrap() {
            attempts.admit(IpAddr::V4(host.into()), now).unwrap();
        }
        assert_eq!(attempts.admit(ip("192.168.0.1"), now), Err(WINDOW));
        assert_eq!(attempts.admit(ip("192.168.0.1"), now + WINDOW), Ok(()));
        assert_eq!(attempts.by_address.len(), 1);
    }
}
