//! The key of a link that grants are sealed to, and the proof that it is the Node's.
//!
//! A Node makes it anew for every link, in memory only. Whoever records a link and later steals the
//! Node's identity can read nothing of it.

use bytes::Bytes;
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable, Kem, Serializable};
use iop_types::RecipientKey;
use zeroize::Zeroizing;

use crate::domain;
use crate::id::Kid;
use crate::link::ThisLink;
use crate::signer::is_signed;
use crate::transcript::Transcript;

/// Keying material that TLS exports for this link, the same at both ends and on no other link.
pub type Exporter = [u8; 32];

/// The Node's key. It can neither be copied nor printed, and is wiped when dropped.
pub struct Recipient {
    secret: <X25519HkdfSha256 as Kem>::PrivateKey,
    public: RecipientPublic,
}

impl Recipient {
    /// Makes a key from a random seed.
    pub fn from_seed(seed: &Zeroizing<[u8; 32]>) -> Self {
        let (secret, public) = X25519HkdfSha256::derive_keypair(&**seed);
        Self { secret, public: RecipientPublic::new(public.to_bytes().into()) }
    }

    /// Returns the public half.
    pub const fn public(&self) -> RecipientPublic {
        self.public
    }

    pub(crate) const fn secret(&self) -> &<X25519HkdfSha256 as Kem>::PrivateKey {
        &self.secret
    }
}

/// A recipient key that is known to be the Node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecipientPublic {
    bytes: [u8; 32],
    kid: Kid,
}

impl RecipientPublic {
    fn new(bytes: [u8; 32]) -> Self {
        Self { bytes, kid: Kid::of_x25519(&bytes) }
    }

    /// Accepts the key of a Node, at the Edge, when the Node's identity signed it for this link.
    ///
    /// `node_public` is the Ed25519 key of the certificate at the other end.
    ///
    /// # Errors
    /// Fails on any other signature. The link is to be closed: somebody passes messages on.
    pub fn verify(
        key: &RecipientKey,
        link: &ThisLink,
        exporter: &Exporter,
        node_public: &[u8; 32],
    ) -> Result<Self, UnprovenKey> {
        let bytes: [u8; 32] = key.public[..].try_into().map_err(|_| UnprovenKey)?;
        let message = proof_message(&bytes, link, exporter);
        if is_signed(node_public, &message, &key.proof) {
            Ok(Self::new(bytes))
        } else {
            Err(UnprovenKey)
        }
    }

    /// Proves this key, at the Node, to the Edge of this link.
    ///
    /// `identity` signs the given bytes with the Ed25519 key of the Node's certificate.
    ///
    /// # Errors
    /// Fails as `identity` does.
    pub fn prove<E>(
        &self,
        link: &ThisLink,
        exporter: &Exporter,
        identity: impl FnOnce(&[u8]) -> Result<Vec<u8>, E>,
    ) -> Result<RecipientKey, E> {
        let proof = identity(&proof_message(&self.bytes, link, exporter))?;
        Ok(RecipientKey { public: Bytes::copy_from_slice(&self.bytes), proof: proof.into() })
    }

    /// Names the key.
    pub const fn kid(&self) -> Kid {
        self.kid
    }

    pub(crate) const fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    pub(crate) fn hpke(&self) -> <X25519HkdfSha256 as Kem>::PublicKey {
        Deserializable::from_bytes(&self.bytes).expect("an X25519 key is any 32 bytes")
    }
}

/// A recipient key without the proof that it belongs to the Node at the other end of this link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("recipient key is not proven by the identity of this link's Node")]
pub struct UnprovenKey;

fn proof_message(public: &[u8; 32], link: &ThisLink, exporter: &Exporter) -> Vec<u8> {
    Transcript::new(domain::NODE_RECIPIENT_KEY)
        .fixed(exporter)
        .fixed(link.boot.as_bytes())
        .fixed(&link.generation.0.to_be_bytes())
        .fixed(public)
        .bytes()
}
