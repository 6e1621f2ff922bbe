//! When an identity gets a new key, how its Node proves that it holds it, and what tells a copy.
//!
//! A Node renews on its live link: it makes a fresh key, and signs with it what only the two ends of
//! this link know (the TLS exporter), so that the Edge knows that the fresh key is at the other end
//! of the link of this very identity.
//!
//! **Copies.** Node and Edge count renewals. Whoever copied a key renews as well, and from then on one
//! of the two is behind: the Edge locks the identity. An answer that was lost on the way must not look
//! like that: a Node keeps its fresh key until it is answered, and an Edge that is asked again for
//! *the same* key with the number before repeats its answer.

use std::time::{Duration, SystemTime};

use crate::authority::BACK_DATED;
use crate::certificate::PeerIdentity;
use crate::key::{IdentityKey, PublicKey};
use crate::spiffe::SpiffeId;
use crate::statement::{self, RENEWAL};

/// Returns when a certificate is to be renewed: at half of its life, 10 % of that sooner or later as
/// `seed` says, so that Nodes that joined together do not renew together.
pub fn due(not_before: SystemTime, not_after: SystemTime, seed: u64) -> SystemTime {
    let issued = not_before + BACK_DATED;
    let half = not_after.duration_since(issued).unwrap_or_default() / 2;
    // 0 … 1000: where in the tenth before and behind the half.
    let place = u32::try_from(mix(seed) % 1001).unwrap_or_default();
    issued + half.mul_f64(0.9) + (half / 5 * place) / 1000
}

/// Returns when an identity that could not be renewed has to be shown to a person: at two thirds of
/// its certificate's life.
pub fn overdue(not_before: SystemTime, not_after: SystemTime) -> SystemTime {
    let issued = not_before + BACK_DATED;
    issued + not_after.duration_since(issued).unwrap_or_default() / 3 * 2
}

/// Spreads seeds that are close to each other (the finaliser of SplitMix64).
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Signs, with the fresh key, that it is at this end of the link with this exporter value.
pub fn prove(
    fresh: &IdentityKey,
    exporter: &[u8; 32],
    id: &SpiffeId,
    renewal_seq: u64,
) -> [u8; 64] {
    fresh.sign(&proof(&fresh.public(), exporter, id, renewal_seq))
}

/// Says whether `signature` is the proof of `fresh` for this link and identity.
pub fn is_proved(
    fresh: &PublicKey,
    exporter: &[u8; 32],
    peer: &PeerIdentity,
    renewal_seq: u64,
    signature: &[u8],
) -> bool {
    fresh.verifies(&proof(fresh, exporter, &peer.id, renewal_seq), signature)
}

fn proof(fresh: &PublicKey, exporter: &[u8; 32], id: &SpiffeId, renewal_seq: u64) -> Vec<u8> {
    let mut bytes = RENEWAL.to_vec();
    statement::append(&mut bytes, exporter);
    statement::append(&mut bytes, id.to_string().as_bytes());
    statement::append(&mut bytes, &fresh.0);
    bytes.extend_from_slice(&renewal_seq.to_be_bytes());
    bytes
}

/// What an Edge remembers of the renewals of one identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewals {
    /// How often it was renewed.
    pub seq: u64,
    /// The key of the certificate that was issued last.
    pub key: PublicKey,
}

impl Renewals {
    /// Judges a renewal whose proof held.
    pub fn judge(&self, presented_seq: u64, fresh: &PublicKey) -> Verdict {
        if presented_seq == self.seq && *fresh != self.key {
            Verdict::Renew { seq: self.seq + 1 }
        } else if presented_seq.checked_add(1) == Some(self.seq) && *fresh == self.key {
            Verdict::Repeat { seq: self.seq }
        } else {
            Verdict::Copied
        }
    }
}

/// What becomes of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Certify the fresh key and remember both.
    Renew {
        /// The count from now on.
        seq: u64,
    },
    /// The answer was lost: certify the same key once more.
    Repeat {
        /// The count, which stays.
        seq: u64,
    },
    /// Two processes renew the same identity: lock it until a person has looked.
    Copied,
}

/// Said when an identity is locked.
pub const COPIED: &str = "two processes renew this identity, so that its key was copied: \
     it is locked; remove the node and invite it anew (`iop nodes remove`, `iop nodes invite`)";

/// The shortest wait before a renewal that failed is tried again.
pub const RETRY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::certificate::Serial;
    use crate::spiffe::{Kind, TrustDomain};

    fn key(seed: u8) -> IdentityKey {
        IdentityKey::from_seed(&[seed; 32])
    }

    fn id(name: &str) -> SpiffeId {
        SpiffeId::new(TrustDomain::new("home").unwrap(), Kind::Node, name).unwrap()
    }

    fn peer(name: &str) -> PeerIdentity {
        PeerIdentity {
            id: id(name),
            serial: Serial::from_random([1; 16]),
            key: key(1).public(),
            not_before: SystemTime::UNIX_EPOCH,
            not_after: SystemTime::UNIX_EPOCH + Duration::from_secs(86_400),
        }
    }

    #[test]
    fn a_proof_holds_for_its_key_link_identity_and_number_only() {
        let signature = prove(&key(2), &[7; 32], &id("lab"), 4);
        let fresh = key(2).public();
        assert!(is_proved(&fresh, &[7; 32], &peer("lab"), 4, &signature));
        assert!(!is_proved(&key(3).public(), &[7; 32], &peer("lab"), 4, &signature));
        assert!(!is_proved(&fresh, &[8; 32], &peer("lab"), 4, &signature));
        assert!(!is_proved(&fresh, &[7; 32], &peer("den"), 4, &signature));
        assert!(!is_proved(&fresh, &[7; 32], &peer("lab"), 5, &signature));
        assert!(!is_proved(&fresh, &[7; 32], &peer("lab"), 4, &signature[1..]));
    }

    #[test]
    fn a_copy_and_its_original_cannot_both_renew() {
        let mut edge = Renewals { seq: 0, key: key(1).public() };
        let copy = edge.seq;
        let Verdict::Renew { seq } = edge.judge(0, &key(2).public()) else { panic!() };
        edge = Renewals { seq, key: key(2).public() };
        assert_eq!(edge.judge(copy, &key(3).public()), Verdict::Copied);
        assert_eq!(edge.judge(seq + 1, &key(3).public()), Verdict::Copied);
    }

    #[test]
    fn a_lost_answer_is_repeated_for_the_same_key() {
        let edge = Renewals { seq: 5, key: key(2).public() };
        assert_eq!(edge.judge(4, &key(2).public()), Verdict::Repeat { seq: 5 });
        assert_eq!(edge.judge(4, &key(3).public()), Verdict::Copied);
        assert_eq!(edge.judge(5, &key(2).public()), Verdict::Copied);
        assert_eq!(edge.judge(u64::MAX, &key(2).public()), Verdict::Copied);
    }

    proptest! {
        #[test]
        fn renewal_is_due_within_a_tenth_of_the_half(seed: u64, life in 1_u64..700_000) {
            let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
            let life = Duration::from_secs(life);
            let due = due(issued - BACK_DATED, issued + life, seed);
            let after = due.duration_since(issued).unwrap();
            let slack = Duration::from_micros(1);
            prop_assert!(after + slack >= life.mul_f64(0.45) && after <= life.mul_f64(0.55) + slack);
            prop_assert!(due < overdue(issued - BACK_DATED, issued + life));
        }
    }

    #[test]
    fn nodes_that_joined_together_renew_apart() {
        let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let dues: std::collections::BTreeSet<_> =
            (0..100).map(|seed| due(issued, issued + Duration::from_secs(86_400), seed)).collect();
        assert!(dues.len() > 90, "{} of 100 differ", dues.len());
    }
}
