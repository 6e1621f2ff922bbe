//! The keys of identities: Ed25519, made from a seed that the caller drew and keeps.

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rcgen::{PKCS_ED25519, PublicKeyData, SignatureAlgorithm, SigningKey};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// PKCS#8 and RFC 8410: what stands before the 32 bytes of a private key.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// RFC 8410: what stands before the 32 bytes of a public key.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// A private key. Prints nothing of itself.
pub struct IdentityKey {
    pair: Ed25519KeyPair,
    pkcs8: Zeroizing<Vec<u8>>,
    public: PublicKey,
}

impl IdentityKey {
    /// Makes the key that belongs to `seed`, which must be 32 random bytes that nobody else knows.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("every 32 bytes are a seed");
        let public = pair.public_key().as_ref().try_into().expect("an Ed25519 key is 32 bytes");
        let pkcs8 = Zeroizing::new([&PKCS8_PREFIX[..], seed].concat());
        Self { pair, pkcs8, public: PublicKey(public) }
    }

    /// Returns the public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs a statement, which must begin with words that no other kind of statement begins with.
    pub fn sign(&self, statement: &[u8]) -> [u8; 64] {
        self.pair.sign(statement).as_ref().try_into().expect("an Ed25519 signature is 64 bytes")
    }

    /// Returns the key as TLS takes it.
    pub fn to_tls(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.pkcs8.to_vec()).into()
    }
}

impl fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityKey").field("public", &self.public).finish_non_exhaustive()
    }
}

impl PublicKeyData for IdentityKey {
    fn der_bytes(&self) -> &[u8] {
        &self.public.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

impl SigningKey for IdentityKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(Self::sign(self, message).to_vec())
    }
}

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Says whether `signature` is this key's over `statement`.
    pub fn verifies(&self, statement: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(statement, signature).is_ok()
    }

    /// Returns the SHA-256 of the key as it stands in certificates.
    pub fn pin(&self) -> Pin {
        Pin(Sha256::new().chain_update(SPKI_PREFIX).chain_update(self.0).finalize().into())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

/// The SHA-256 of a certificate's public key (its SubjectPublicKeyInfo): by it a Node that joins knows
/// its group before it knows any certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pin(pub [u8; 32]);

impl Pin {
    /// Hashes a SubjectPublicKeyInfo.
    pub fn of(public_key_info: &[u8]) -> Self {
        Self(Sha256::digest(public_key_info).into())
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_its_statement_and_its_key_only() {
        let (key, other) = (IdentityKey::from_seed(&[1; 32]), IdentityKey::from_seed(&[2; 32]));
        let signature = key.sign(b"statement");
        assert!(key.public().verifies(b"statement", &signature));
        assert!(!key.public().verifies(b"Statement", &signature));
        assert!(!other.public().verifies(b"statement", &signature));
        assert!(!key.public().verifies(b"statement", &signature[..63]));
    }

    #[test]
    fn the_pin_is_the_hash_of_the_key_as_certificates_hold_it() {
        let key = IdentityKey::from_seed(&[1; 32]);
        assert_eq!(key.public().pin(), Pin::of(&key.subject_public_key_info()));
    }

    #[test]
    fn a_private_key_prints_only_its_public_half() {
        let key = IdentityKey::from_seed(&[7; 32]);
        let shown = format!("{key:?}");
        assert!(!shown.contains("07070707") && !shown.contains("7, 7"), "{shown}");
    }
}
