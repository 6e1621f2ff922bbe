//! The key that both ends of a grant share, and the seal of a lease under it.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use bytes::Bytes;
use iop_types::LeaseFault;
use zeroize::Zeroizing;

use crate::claims::lease_hash;
use crate::domain;
use crate::secret::{BLOCK, MAX_SECRET, UnfitSecret, pad, unpad};
use crate::transcript::{Hash, Transcript};

/// Bytes of the tag behind a sealed secret.
const TAG: usize = 16;

/// Bytes of the key in front of the nonce.
const KEY: usize = 32;

/// Longest sealed secret that is looked at.
pub(crate) const MAX_SEALED: usize = (2 + MAX_SECRET).next_multiple_of(BLOCK) + TAG;

/// The key of one grant. Its leases are sealed under keys derived from it, each under its own.
///
/// It can neither be copied nor printed, and is wiped when dropped.
pub struct GrantKey {
    key: Prk,
    /// Hash of the grant's claims: every lease authenticates it.
    hash: Hash,
}

impl GrantKey {
    pub(crate) fn new(key: &Zeroizing<[u8; KEY]>, hash: Hash) -> Self {
        Self { key: Prk::new_less_safe(HKDF_SHA256, &**key), hash }
    }

    /// Seals a secret with the claims of its lease.
    pub(crate) fn seal(&self, claims: &[u8], secret: &[u8]) -> Result<Bytes, UnfitSecret> {
        let mut padded = pad(secret, TAG)?;
        let (key, nonce) = self.once(claims);
        key.seal_in_place_append_tag(nonce, Aad::from(self.aad(claims)), &mut *padded)
            .expect("a secret is far shorter than what may be sealed at once");
        Ok(std::mem::take(&mut *padded).into())
    }

    /// Opens what was sealed with these claims and hands the secret to `take`.
    pub(crate) fn open<T>(
        &self,
        claims: &[u8],
        sealed: &[u8],
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, LeaseFault> {
        let (key, nonce) = self.once(claims);
        let mut buffer = Zeroizing::new(sealed.to_vec());
        let padded = key
            .open_in_place(nonce, Aad::from(self.aad(claims)), &mut buffer)
            .map_err(|_| LeaseFault::OpenFailed)?;
        unpad(padded).map(take)
    }

    /// Derives key and nonce of one lease. Two leases never have the same claims, so no key is used
    /// twice.
    fn once(&self, claims: &[u8]) -> (LessSafeKey, Nonce) {
        let mut okm = Zeroizing::new([0; KEY + NONCE_LEN]);
        self.key
            .expand(&[domain::LEASE_KEY, &lease_hash(claims)], OkmLength)
            .and_then(|derived| derived.fill(&mut *okm))
            .expect("44 bytes are within what HKDF gives");
        let (key, nonce) = okm.split_at(KEY);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("the key has 32 bytes");
        let nonce = Nonce::try_assume_unique_for_key(nonce).expect("the nonce has 12 bytes");
        (LessSafeKey::new(key), nonce)
    }

    fn aad(&self, claims: &[u8]) -> Vec<u8> {
        Transcript::new(domain::LEASE_AAD).fixed(&self.hash).part(claims).bytes()
    }
}

struct OkmLength;

impl KeyType for OkmLength {
    fn len(&self) -> usize {
        KEY + NONCE_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_with_its_own_claims_and_key_only() {
        let key = GrantKey::new(&Zeroizing::new([1; KEY]), [2; 32]);
        let sealed = key.seal(b"claims", b"secret").expect("sealed");
        assert_eq!(sealed.len(), BLOCK + TAG);
        let open = |key: &GrantKey, claims: &[u8]| key.open(claims, &sealed, <[u8]>::to_vec);
        assert_eq!(open(&key, b"claims"), Ok(b"secret".to_vec()));
        assert_eq!(open(&key, b"others"), Err(LeaseFault::OpenFailed));
        for (key, hash) in [([3; KEY], [2; 32]), ([1; KEY], [3; 32])] {
            let other = GrantKey::new(&Zeroizing::new(key), hash);
            assert_eq!(open(&other, b"claims"), Err(LeaseFault::OpenFailed));
        }
    }
}
