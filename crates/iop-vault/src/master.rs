//! The master key and what is derived from it.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hkdf::Hkdf;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::domain;

/// The one key that opens everything an Edge keeps. It never lies beside what it opens.
pub struct MasterKey(Zeroizing<[u8; 32]>);

impl MasterKey {
    /// Takes 32 bytes that somebody drew at random.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Reads the text form: base64 of 32 bytes. Space around it is ignored.
    ///
    /// # Errors
    /// Fails when `text` is anything else.
    pub fn from_text(text: &str) -> Result<Self, MasterKeyError> {
        let mut bytes = Zeroizing::new([0; 32]);
        // `decode_slice` wants room for what padding might have been.
        let mut room = Zeroizing::new([0; 36]);
        match BASE64_STANDARD.decode_slice(text.trim(), room.as_mut()) {
            Ok(32) => bytes.copy_from_slice(&room[..32]),
            Ok(_) | Err(_) => return Err(MasterKeyError),
        }
        Ok(Self(bytes))
    }

    /// Writes the text form.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(BASE64_STANDARD.encode(self.0.as_ref()))
    }

    /// Names this key without telling anything of it.
    pub fn id(&self) -> MasterKeyId {
        MasterKeyId(self.derive(domain::MASTER_KEY_ID))
    }

    /// Makes what a store keeps, to know this key again.
    pub fn check(&self) -> MasterKeyCheck {
        MasterKeyCheck(self.derive(domain::MASTER_KEY_CHECK))
    }

    /// Derives the keys under which data keys are wrapped.
    pub fn wrapping_keys(&self) -> WrappingKeys {
        WrappingKeys {
            id: self.id(),
            keys: Purpose::ALL.map(|purpose| Zeroizing::new(self.derive(purpose.sealing().derive))),
        }
    }

    fn derive<const N: usize>(&self, domain: &[u8]) -> [u8; N] {
        let mut derived = [0; N];
        Hkdf::<Sha256>::new(None, self.0.as_ref())
            .expand(domain, &mut derived)
            .expect("HKDF gives up to 8160 bytes");
        derived
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.id())
    }
}

/// A text that is not a master key. Says nothing of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a master key is 32 bytes in base64: make one with `head -c 32 /dev/urandom | base64`")]
pub struct MasterKeyError;

/// A short name of a master key, for people and for records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MasterKeyId(pub(crate) [u8; 8]);

impl MasterKeyId {
    /// Reads an id that was kept.
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes that are kept.
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Display for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Tells whether a master key is the one of before; 32 bytes, so that no other ever is.
#[derive(Clone)]
pub struct MasterKeyCheck([u8; 32]);

impl MasterKeyCheck {
    /// Reads a check that was kept.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes that are kept.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Says whether this check was made with `key`.
    pub fn is_of(&self, key: &MasterKey) -> bool {
        self.0.ct_eq(&key.check().0).into()
    }
}

impl fmt::Debug for MasterKeyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKeyCheck(..)")
    }
}

/// What a sealed record is for. One key has one purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The credential of a provider.
    Credential,
    /// The private key of a group's CA.
    CaKey,
    /// The private key of the Edge's own certificate.
    EdgeKey,
    /// The seed of a signer of credential grants.
    LeaseSigner,
    /// The key of the hashes of client keys.
    ClientKeyPepper,
    /// The key of the audit log's chain.
    AuditMac,
    /// The key of the fingerprints of credentials.
    Fingerprint,
}

impl Purpose {
    /// Every purpose, in the order of declaration.
    pub const ALL: [Self; 7] = [
        Self::Credential,
        Self::CaKey,
        Self::EdgeKey,
        Self::LeaseSigner,
        Self::ClientKeyPepper,
        Self::AuditMac,
        Self::Fingerprint,
    ];
}

/// One key per purpose, under which data keys are wrapped. Derived once from a master key.
pub struct WrappingKeys {
    id: MasterKeyId,
    keys: [Zeroizing<[u8; 32]>; Purpose::ALL.len()],
}

impl WrappingKeys {
    /// Names the master key.
    pub const fn id(&self) -> MasterKeyId {
        self.id
    }

    pub(crate) fn of(&self, purpose: Purpose) -> &[u8; 32] {
        // `ALL` is in the order of declaration.
        &self.keys[purpose as usize]
    }
}

impl fmt::Debug for WrappingKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrappingKeys({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_comes_back_and_nothing_else_is_a_key() {
        let key = MasterKey::from_bytes([7; 32]);
        let text = key.to_text();
        assert_eq!(MasterKey::from_text(&format!(" {}\n", *text)).expect("a key").id(), key.id());
        for bytes in [0, 16, 31, 33, 34, 35, 64] {
            let text = BASE64_STANDARD.encode(vec![7; bytes]);
            assert_eq!(MasterKey::from_text(&text).expect_err("no key"), MasterKeyError, "{bytes}");
        }
        MasterKey::from_text("not base64 at all, but as long as that").expect_err("no key");
    }

    #[test]
    fn a_check_knows_its_key_and_no_other() {
        let key = MasterKey::from_bytes([7; 32]);
        let check = MasterKeyCheck::from_bytes(*key.check().as_bytes());
        assert!(check.is_of(&key));
        for bit in 0..256 {
            let mut bytes = [7; 32];
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!check.is_of(&MasterKey::from_bytes(bytes)), "bit {bit}");
        }
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own() {
        let keys = MasterKey::from_bytes([7; 32]).wrapping_keys();
        let mut all: Vec<_> = Purpose::ALL.iter().map(|purpose| *keys.of(*purpose)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), Purpose::ALL.len());
        for (place, purpose) in Purpose::ALL.iter().enumerate() {
            assert_eq!(place, *purpose as usize);
        }
    }

    #[test]
    fn nothing_of_a_key_is_printed() {
        let key = MasterKey::from_bytes([7; 32]);
        let shown = format!("{key:?} {:?} {:?}", key.wrapping_keys(), key.check());
        assert!(!shown.contains("7, 7") && !shown.contains("0707"), "{shown}");
        assert!(shown.contains(&key.id().to_string()), "{shown}");
    }
}
