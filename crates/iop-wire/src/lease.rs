//! Credentials on the wire. The sealed bytes pass as they are: `iop-lease` makes and checks them.

use bytes::Bytes;
use iop_types::{
    LeaseSigner, Principal, Profile, RecipientKey, Revocation, RouteName, SealedGrant, SealedLease,
    Slot,
};

use crate::v1;
use crate::v1::lease_revoke::By;

impl From<SealedGrant> for v1::CredentialGrant {
    fn from(grant: SealedGrant) -> Self {
        Self {
            claims: grant.claims,
            encapsulation: grant.encapsulation,
            signature: grant.signature,
        }
    }
}

impl From<v1::CredentialGrant> for SealedGrant {
    fn from(grant: v1::CredentialGrant) -> Self {
        Self {
            claims: grant.claims,
            encapsulation: grant.encapsulation,
            signature: grant.signature,
        }
    }
}

impl From<SealedLease> for v1::CredentialLease {
    fn from(lease: SealedLease) -> Self {
        Self {
            principal: lease.principal.as_str().to_owned(),
            route: lease.route.as_str().to_owned(),
            claims: lease.claims,
            sealed: lease.sealed,
        }
    }
}

impl From<v1::CredentialLease> for SealedLease {
    fn from(lease: v1::CredentialLease) -> Self {
        Self {
            principal: Principal::from(lease.principal),
            route: RouteName::from(lease.route),
            claims: lease.claims,
            sealed: lease.sealed,
        }
    }
}

impl From<RecipientKey> for v1::RecipientKey {
    fn from(key: RecipientKey) -> Self {
        Self { public: key.public, proof: key.proof }
    }
}

impl From<v1::RecipientKey> for RecipientKey {
    fn from(key: v1::RecipientKey) -> Self {
        Self { public: key.public, proof: key.proof }
    }
}

impl From<LeaseSigner> for v1::LeaseSigner {
    fn from(signer: LeaseSigner) -> Self {
        Self {
            public: signer.public,
            not_before_ms: signer.not_before_ms,
            not_after_ms: signer.not_after_ms,
            signature: signer.signature,
        }
    }
}

impl From<v1::LeaseSigner> for LeaseSigner {
    fn from(signer: v1::LeaseSigner) -> Self {
        Self {
            public: signer.public,
            not_before_ms: signer.not_before_ms,
            not_after_ms: signer.not_after_ms,
            signature: signer.signature,
        }
    }
}

impl From<Profile> for v1::Profile {
    fn from(profile: Profile) -> Self {
        Self { name: profile.name, header: profile.header, scheme: profile.scheme }
    }
}

impl From<v1::Profile> for Profile {
    fn from(profile: v1::Profile) -> Self {
        Self { name: profile.name, header: profile.header, scheme: profile.scheme }
    }
}

impl From<Revocation> for v1::LeaseRevoke {
    fn from(revocation: Revocation) -> Self {
        let by = match revocation {
            Revocation::Lease(id) => By::LeaseId(Bytes::copy_from_slice(&id)),
            Revocation::Grant(id) => By::GrantId(Bytes::copy_from_slice(&id)),
            Revocation::Slot(slot) => By::Slot(slot.as_str().to_owned()),
            Revocation::Profile(name) => By::Profile(name),
            Revocation::Principal(principal) => By::Principal(principal.as_str().to_owned()),
            Revocation::Below { slot, revision } => {
                By::Below(v1::SlotRevision { slot: slot.as_str().to_owned(), revision })
            }
        };
        Self { by: Some(by) }
    }
}

/// A revocation that cannot be understood. A Node that reads one closes the link: going on could let
/// a revoked credential be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a revocation of a kind that this version does not know")]
pub struct UnknownRevocation;

impl TryFrom<v1::LeaseRevoke> for Revocation {
    type Error = UnknownRevocation;

    fn try_from(message: v1::LeaseRevoke) -> Result<Self, UnknownRevocation> {
        let id = |bytes: &Bytes| <[u8; 16]>::try_from(&bytes[..]).map_err(|_| UnknownRevocation);
        match message.by.ok_or(UnknownRevocation)? {
            By::LeaseId(bytes) => Ok(Self::Lease(id(&bytes)?)),
            By::GrantId(bytes) => Ok(Self::Grant(id(&bytes)?)),
            By::Slot(slot) => Ok(Self::Slot(Slot::from(slot))),
            By::Profile(name) => Ok(Self::Profile(name)),
            By::Principal(principal) => Ok(Self::Principal(Principal::from(principal))),
            By::Below(below) => {
                Ok(Self::Below { slot: Slot::from(below.slot), revision: below.revision })
            }
        }
    }
}
