//! Who signs grants: a key of the Edge that the group's CA vouches for.
//!
//! It is a key of its own, so that the one for TLS never signs anything else. An Edge makes one when it
//! starts and lets the CA sign a statement; a Node takes statements from the registration and believes
//! those that its CA signed for the Edge at the other end.

use bytes::Bytes;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use iop_types::LeaseSigner;

use crate::domain;
use crate::id::Kid;
use crate::time::Validity;
use crate::transcript::Transcript;

/// The signing end, at an Edge.
pub struct Signer {
    key: SigningKey,
    kid: Kid,
    statement: LeaseSigner,
}

impl Signer {
    /// Makes a signer from a random seed and lets the CA vouch for it.
    ///
    /// `ca` signs the given bytes with the CA's Ed25519 key, wherever that is.
    ///
    /// # Errors
    /// Fails as `ca` does.
    pub fn vouched<E>(
        seed: &[u8; 32],
        edge: &str,
        not_before_ms: i64,
        not_after_ms: i64,
        ca: impl FnOnce(&[u8]) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let key = SigningKey::from_bytes(seed);
        let public = key.verifying_key().to_bytes();
        let signature = ca(&statement(edge, &public, not_before_ms, not_after_ms))?;
        let statement = LeaseSigner {
            public: Bytes::copy_from_slice(&public),
            not_before_ms,
            not_after_ms,
            signature: signature.into(),
        };
        Ok(Self { key, kid: Kid::of_ed25519(&public), statement })
    }

    /// Returns what Nodes are told of it when they register.
    pub const fn statement(&self) -> &LeaseSigner {
        &self.statement
    }

    /// Names its key.
    pub const fn kid(&self) -> Kid {
        self.kid
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }
}

/// The verifying end, at a Node: a key that the CA vouched for.
#[derive(Debug, Clone)]
pub struct TrustedSigner {
    key: VerifyingKey,
    kid: Kid,
    validity: Validity,
}

impl TrustedSigner {
    /// Believes a statement when the CA signed it for this Edge.
    ///
    /// # Errors
    /// Fails on any other signature, and on keys that are no Ed25519 keys or weak ones.
    pub fn verify(
        statement: &LeaseSigner,
        edge: &str,
        ca_public: &[u8; 32],
    ) -> Result<Self, UntrustedSigner> {
        let LeaseSigner { public, not_before_ms, not_after_ms, signature } = statement;
        let public: [u8; 32] = public[..].try_into().map_err(|_| UntrustedSigner)?;
        let message = self::statement(edge, &public, *not_before_ms, *not_after_ms);
        if !is_signed(ca_public, &message, signature) {
            return Err(UntrustedSigner);
        }
        let key = VerifyingKey::from_bytes(&public).map_err(|_| UntrustedSigner)?;
        let validity = Validity { not_before_ms: *not_before_ms, expires_ms: *not_after_ms };
        Ok(Self { key, kid: Kid::of_ed25519(&public), validity })
    }

    pub(crate) const fn kid(&self) -> Kid {
        self.kid
    }

    pub(crate) fn is_in_date(&self, now_ms: i64) -> bool {
        self.validity.check(now_ms).is_ok()
    }

    pub(crate) fn is_signed(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        // Strict: the plain check accepts keys of small order, under which one signature fits many
        // messages.
        self.key.verify_strict(message, &Signature::from_bytes(signature)).is_ok()
    }
}

/// A statement about a lease signer that the CA did not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("lease signer is not vouched for by the group's CA")]
pub struct UntrustedSigner;

/// Checks a signature of a raw Ed25519 key, strictly.
pub(crate) fn is_signed(public: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
    let Ok(key) = VerifyingKey::from_bytes(public) else { return false };
    let Ok(signature) = Signature::from_slice(signature) else { return false };
    key.verify_strict(message, &signature).is_ok()
}

fn statement(edge: &str, public: &[u8; 32], not_before_ms: i64, not_after_ms: i64) -> Vec<u8> {
    Transcript::new(domain::LEASE_SIGNER)
        .part(edge.as_bytes())
        .fixed(public)
        .fixed(&not_before_ms.to_be_bytes())
        .fixed(&not_after_ms.to_be_bytes())
        .bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_believed_for_its_own_edge_and_ca_only() {
        let statement = signer().statement().clone();
        assert!(TrustedSigner::verify(&statement, "edge-1", &public(9)).is_ok());
        assert_eq!(trust(&statement, "edge-2", 9), Err(UntrustedSigner));
        assert_eq!(trust(&statement, "edge-1", 8), Err(UntrustedSigner));
    }

    #[test]
    fn no_part_of_a_statement_can_be_changed() {
        let good = signer().statement().clone();
        let LeaseSigner { public, not_before_ms, not_after_ms, signature } = good.clone();
        let changed = |bytes: &Bytes| {
            let mut bytes = bytes.to_vec();
            bytes[3] ^= 1;
            Bytes::from(bytes)
        };
        for wrong in [
            LeaseSigner { public: changed(&public), ..good.clone() },
            LeaseSigner { public: public.slice(..31), ..good.clone() },
            LeaseSigner { not_before_ms: not_before_ms - 1, ..good.clone() },
            LeaseSigner { not_after_ms: not_after_ms + 1, ..good.clone() },
            LeaseSigner { signature: changed(&signature), ..good.clone() },
            LeaseSigner { signature: signature.slice(..63), ..good.clone() },
            LeaseSigner { signature: Bytes::new(), ..good },
        ] {
            assert_eq!(trust(&wrong, "edge-1", 9), Err(UntrustedSigner), "{wrong:?}");
        }
    }

    #[test]
    fn a_ca_key_of_small_order_vouches_for_nobody() {
        // The neutral element: with the plain check this signature fits every message.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let mut signature = [0; 64];
        signature[0] = 1;
        let mut statement = signer().statement().clone();
        statement.signature = Bytes::copy_from_slice(&signature);
        assert_eq!(
            TrustedSigner::verify(&statement, "edge-1", &neutral).map(|_| ()),
            Err(UntrustedSigner)
        );
    }

    fn signer() -> Signer {
        let ca = SigningKey::from_bytes(&[9; 32]);
        let vouch = |bytes: &[u8]| Ok::<_, UntrustedSigner>(ca.sign(bytes).to_bytes().to_vec());
        Signer::vouched(&[1; 32], "edge-1", 1_000, 2_000, vouch).expect("vouched")
    }

    fn public(seed: u8) -> [u8; 32] {
        SigningKey::from_bytes(&[seed; 32]).verifying_key().to_bytes()
    }

    fn trust(statement: &LeaseSigner, edge: &str, ca: u8) -> Result<(), UntrustedSigner> {
        TrustedSigner::verify(statement, edge, &public(ca)).map(|_| ())
    }
}
