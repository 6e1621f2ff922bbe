//! Credential leases as passive data: what travels sealed with a request, and why one was refused.
//!
//! The bytes inside are made and checked by `iop-lease`; here they are opaque.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{Principal, RouteName, Slot};

/// How a credential is written into a request to its provider.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Profile {
    /// Name of the profile.
    pub name: String,
    /// Header that carries the credential, in lower case.
    pub header: String,
    /// Word before the secret (`Bearer`), empty where the header holds the secret alone.
    pub scheme: String,
}

/// A signed scope and what the Node needs to derive its key. Opens nothing alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedGrant {
    /// The claims as they were signed.
    pub claims: Bytes,
    /// Encapsulated key of the HPKE sender.
    pub encapsulation: Bytes,
    /// Signature of the Edge's lease signer.
    pub signature: Bytes,
}

/// A secret for one attempt, sealed under the key of its grant. Opens nothing alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedLease {
    /// Who asked; the lease is bound to it.
    pub principal: Principal,
    /// The route that was asked for; the lease is bound to it.
    pub route: RouteName,
    /// The claims as they were sealed.
    pub claims: Bytes,
    /// The padded secret, sealed.
    pub sealed: Bytes,
}

/// The key of one link under which a Node receives grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientKey {
    /// X25519 public key, 32 bytes.
    pub public: Bytes,
    /// Signature of the Node's identity over this key and the link it belongs to.
    pub proof: Bytes,
}

/// A key that signs grants, vouched for by the group's CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSigner {
    /// Ed25519 public key, 32 bytes.
    pub public: Bytes,
    /// When it begins to be valid, in milliseconds since the Unix epoch by the Edge's clock.
    pub not_before_ms: i64,
    /// When it is no longer valid.
    pub not_after_ms: i64,
    /// Signature of the CA over the Edge, the key and the times.
    pub signature: Bytes,
}

/// Which leases and grants are void from now on, whether or not they have arrived yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Revocation {
    /// One lease, by its id.
    Lease([u8; 16]),
    /// A grant and all its leases, by its id.
    Grant([u8; 16]),
    /// Everything of a slot.
    Slot(Slot),
    /// Everything under a profile, by its name.
    Profile(String),
    /// Everything for one caller.
    Principal(Principal),
    /// What a slot held before this credential revision.
    Below {
        /// The slot.
        slot: Slot,
        /// The first revision that stays valid.
        revision: u64,
    },
}

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident = $code:literal;)*) => {
        /// Why a credential lease was refused, declared in the order in which a Node checks.
        ///
        /// Every fault has the same outcome: no connection to the provider, no other credential, and
        /// `credential_unavailable` for the client. The code is for history and the audit log.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum LeaseFault {
            $($(#[$doc])* #[serde(rename = $code)] $variant,)*
        }

        impl LeaseFault {
            /// Every fault.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the stable code.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code),* }
            }
        }
    };
}

faults! {
    /// The provider's entry names a slot and the request brought no lease, or the reverse.
    Missing = "lease_missing";
    /// Too large, or of a version or suite that this Node does not know.
    Unsupported = "lease_unsupported";
    /// Not the bytes of a grant or lease.
    Malformed = "lease_malformed";
    /// The grant's signer is unknown, or out of date.
    UntrustedSigner = "lease_untrusted_signer";
    /// The grant's signature is wrong.
    BadSignature = "lease_bad_signature";
    /// The grant is for another Node or another recipient key.
    WrongRecipient = "lease_wrong_recipient";
    /// The grant is of another boot of the Edge or of another link.
    Stale = "lease_stale";
    /// A grant's id came before with other bytes.
    GrantConflict = "lease_grant_conflict";
    /// The lease names a grant that this link does not hold.
    UnknownGrant = "lease_unknown_grant";
    /// A claim differs from the request or from the provider's entry.
    Mismatch = "lease_mismatch";
    /// Its time has not come.
    NotYetValid = "lease_not_yet_valid";
    /// Its time is over.
    Expired = "lease_expired";
    /// The credential, its slot, its profile or its caller was revoked.
    Revoked = "lease_revoked";
    /// It was opened before.
    Replayed = "lease_replayed";
    /// The link remembers as many leases as it can.
    ReplayCacheFull = "lease_replay_cache_full";
    /// It does not open, or what it holds is no secret that fits a header.
    OpenFailed = "lease_open_failed";
}

impl LeaseFault {
    /// Finds a fault by its stable code.
    pub fn parse(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fault| fault.as_str() == code)
    }

    /// Says whether somebody may be tampering, so that an operator must hear of it.
    pub const fn is_alert(self) -> bool {
        matches!(
            self,
            Self::UntrustedSigner
                | Self::BadSignature
                | Self::WrongRecipient
                | Self::GrantConflict
                | Self::Mismatch
                | Self::Replayed
                | Self::OpenFailed
        )
    }
}

impl fmt::Display for LeaseFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_found_by_its_own_code() {
        for fault in LeaseFault::ALL {
            assert_eq!(LeaseFault::parse(fault.as_str()), Some(*fault));
        }
    }
}
