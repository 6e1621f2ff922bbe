//! The bytes as `docs/lease.md` gives them, made a second time with other libraries.

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};
use ed25519_dalek::{Signer as _, SigningKey};
use hkdf::Hkdf;
use iop_types::SealedGrant;
use sha2::{Digest, Sha256};

/// Signs any bytes as the claims of a grant, with any encapsulation.
pub(crate) fn sign(claims: Bytes, encapsulation: &[u8; 32]) -> SealedGrant {
    let message = [&b"IOP/grant/sig/v1\0"[..], &grant_hash(&claims), &part(encapsulation)].concat();
    let signature = SigningKey::from_bytes(&[1; 32]).sign(&message).to_bytes();
    SealedGrant {
        claims,
        encapsulation: Bytes::copy_from_slice(encapsulation),
        signature: Bytes::copy_from_slice(&signature),
    }
}

pub(crate) fn grant_hash(claims: &[u8]) -> [u8; 32] {
    Sha256::digest([&b"IOP/grant/claims/v1\0"[..], &part(claims)].concat()).into()
}

/// What the two ends of a grant give to HPKE.
pub(crate) fn info(trust_domain: &str, recipient: &[u8], claims: &[u8]) -> Vec<u8> {
    let (domain, claims) = (part(trust_domain.as_bytes()), grant_hash(claims));
    [&b"IOP/grant/hpke/v1\0"[..], &domain, &part(recipient), &claims].concat()
}

/// Opens a lease with the grant key, and returns it padded.
pub(crate) fn open(
    grant_key: &[u8; 32],
    grant: &[u8],
    lease: &[u8],
    sealed: &[u8],
) -> Option<Vec<u8>> {
    let (cipher, nonce, aad) = parts(grant_key, grant, lease);
    cipher.decrypt((&nonce).into(), Payload { msg: sealed, aad: &aad }).ok()
}

/// Seals any padded bytes.
pub(crate) fn seal(grant_key: &[u8; 32], grant: &[u8], lease: &[u8], padded: &[u8]) -> Vec<u8> {
    let (cipher, nonce, aad) = parts(grant_key, grant, lease);
    cipher.encrypt((&nonce).into(), Payload { msg: padded, aad: &aad }).expect("sealed")
}

fn parts(
    grant_key: &[u8; 32],
    grant: &[u8],
    lease: &[u8],
) -> (ChaCha20Poly1305, [u8; 12], Vec<u8>) {
    let lease_hash = Sha256::digest([&b"IOP/lease/claims/v2\0"[..], &part(lease)].concat());
    let mut okm = [0; 44];
    Hkdf::<Sha256>::from_prk(grant_key)
        .expect("32 bytes")
        .expand(&[&b"IOP/lease/key/v2\0"[..], &lease_hash].concat(), &mut okm)
        .expect("44 bytes");
    let cipher = ChaCha20Poly1305::new_from_slice(&okm[..32]).expect("32 bytes");
    let nonce = okm[32..].try_into().expect("12 bytes");
    let aad = [&b"IOP/lease/aad/v2\0"[..], &grant_hash(grant), &part(lease)].concat();
    (cipher, nonce, aad)
}

fn part(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short");
    [&length.to_be_bytes()[..], bytes].concat()
}
