//! What a client's call asks of a route.

use std::sync::Arc;

use iop_types::{Capabilities, Form, RunKind, Target};

use crate::config::ProviderId;

/// One call, as far as admission needs to know it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The model name that the client sent.
    pub model: &'a str,
    /// What the winner must be able to do.
    pub need: Need,
    /// Ties calls that share a prompt to one provider, where the route's policy is affinity.
    pub affinity: Option<AffinityKey>,
}

/// What a provider must offer to take a call.
///
/// A call is relayed as it is where the provider allows its operation, and translated where the
/// provider executes its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Need {
    /// Method of the client's operation, in capitals.
    pub method: &'static str,
    /// Path of the client's operation, without query.
    pub path: &'static str,
    /// Kind of the run it can be translated into; `None` where it can only be relayed.
    pub run: Option<RunKind>,
}

impl Need {
    /// Returns the form in which a provider takes the call, `None` when it cannot.
    pub fn form(&self, capabilities: &Capabilities) -> Option<Form> {
        if capabilities.allows(self.method, self.path) {
            return Some(Form::Tunnel);
        }
        self.run.filter(|kind| capabilities.runs.contains(kind)).map(|_| Form::Run)
    }
}

/// Everything that decides which candidates can take a request. Requests with the same are
/// interchangeable to a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) need: Need,
    /// What the `*` of a pattern stood for.
    pub(crate) matched: Option<Arc<str>>,
    /// Candidates at which this request failed: the last choice.
    pub(crate) failed: Vec<Failed>,
    /// Whether those are no choice at all.
    pub(crate) elsewhere: bool,
}

/// A candidate that failed a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) provider: ProviderId,
    pub(crate) target: Target,
}

impl Ask {
    /// Says whether this request failed at the candidate before.
    pub(crate) fn has_failed_at(&self, provider: &ProviderId, target: &Target) -> bool {
        self.failed.iter().any(|failed| failed.provider == *provider && failed.target == *target)
    }
}

/// An opaque value that calls share which should meet the same cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AffinityKey(u64);

impl AffinityKey {
    /// Makes a key from what the client sent.
    pub fn new(bytes: &[u8]) -> Self {
        Self(fnv1a(bytes))
    }

    /// Ranks one candidate for this key: rendezvous hashing, the largest rank is its home. Keys move
    /// only away from a candidate that left or towards one that joined.
    pub(crate) const fn rank(self, candidate: u64) -> u64 {
        // The finalizer of SplitMix64: every input bit reaches every output bit.
        let mut x = self.0 ^ candidate;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// FNV-1a over 64 bits: stable over processes and releases, unlike the standard hasher.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use iop_types::Operation;

    const CHAT: Need =
        Need { method: "POST", path: "/v1/chat/completions", run: Some(RunKind::Chat) };

    #[test]
    fn a_call_is_relayed_where_its_operation_is_allowed_and_translated_otherwise() {
        let operation = Operation { method: "POST".into(), path: "/v1/chat/completions".into() };
        let both = Capabilities {
            tunnel: vec![operation],
            runs: vec![RunKind::Chat],
            ..Capabilities::default()
        };
        let runs = Capabilities { runs: vec![RunKind::Chat], ..Capabilities::default() };
        let other = Capabilities { runs: vec![RunKind::Embedding], ..Capabilities::default() };

        assert_eq!(CHAT.form(&both), Some(Form::Tunnel));
        assert_eq!(CHAT.form(&runs), Some(Form::Run));
        assert_eq!(CHAT.form(&other), None);
    }

    #[test]
    fn keys_spread_evenly_over_candidates() {
        let candidates = ["a", "b", "c", "d"].map(|name| fnv1a(name.as_bytes()));
        let mut homes = [0u32; 4];
        for key in 0..4_000u32 {
            let key = AffinityKey::new(&key.to_le_bytes());
            let home = (0..4).max_by_key(|i| key.rank(candidates[*i])).unwrap();
            homes[home] += 1;
        }
        assert!(homes.iter().all(|n| (850..1_150).contains(n)), "{homes:?}");
    }
}
