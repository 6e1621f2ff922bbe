//! A sealed record: a secret at rest that opens only in its place.
//!
//! ```text
//! version 1 | master key id 8 | nonce 24 | data key, wrapped 48 | nonce 24 | secret, sealed n + 16
//! place  = group, name, profile, revision, row, each behind its length
//! sealed = XChaCha20-Poly1305(data key, secret,     "IOP/<purpose>/v1\0"      || place)
//! wrapped = XChaCha20-Poly1305(wrapping key, data key, "IOP/<purpose>/wrap/v1\0" || place || master key id)
//! ```
//!
//! A record in another row, under another slot or profile, or of another revision than the columns
//! beside it does not open: rows cannot be exchanged and no column can be put back alone. Putting
//! back a whole row, with its revision, is not seen here.
//!
//! The master key's id is authenticated with the data key only. Were it with the secret too, another
//! master key would mean sealing every secret again instead of wrapping 32 bytes.

use std::fmt;

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use iop_types::Slot;
use zeroize::Zeroizing;

use crate::domain::put;
use crate::master::{MasterKeyId, Purpose, WrappingKeys};
use crate::secret::Secret;

const VERSION: u8 = 1;
const NONCE: usize = 24;
const KEY: usize = 32;
const TAG: usize = 16;

const ID_AT: usize = 1;
const WRAP_NONCE_AT: usize = ID_AT + 8;
const WRAPPED_AT: usize = WRAP_NONCE_AT + NONCE;
const NONCE_AT: usize = WRAPPED_AT + KEY + TAG;
const SEALED_AT: usize = NONCE_AT + NONCE;

/// Where a record belongs, and what for.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    purpose: Purpose,
    group: &'a str,
    name: &'a str,
    profile: &'a str,
    revision: u64,
    row: &'a [u8; 16],
}

impl<'a> Place<'a> {
    /// The place of one revision of a provider's credential.
    pub fn credential(
        group: &'a str,
        slot: &'a Slot,
        profile: &'a str,
        revision: u64,
        row: &'a [u8; 16],
    ) -> Self {
        let name = slot.as_str();
        Self { purpose: Purpose::Credential, group, name, profile, revision, row }
    }

    /// The place of a key that is the group's own, by its purpose and name.
    pub const fn key(purpose: Purpose, group: &'a str, name: &'a str, row: &'a [u8; 16]) -> Self {
        Self { purpose, group, name, profile: "", revision: 0, row }
    }

    fn content_context(&self) -> Vec<u8> {
        self.context(self.purpose.sealing().content)
    }

    fn wrap_context(&self, id: MasterKeyId) -> Vec<u8> {
        let mut context = self.context(self.purpose.sealing().wrap);
        context.extend_from_slice(id.as_bytes());
        context
    }

    fn context(&self, domain: &[u8]) -> Vec<u8> {
        let mut context = domain.to_vec();
        for field in [self.group, self.name, self.profile] {
            put(&mut context, field.as_bytes());
        }
        context.extend_from_slice(&self.revision.to_be_bytes());
        context.extend_from_slice(self.row);
        context
    }
}

/// A record as it is kept. Its bytes may lie open.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed(Vec<u8>);

impl Sealed {
    /// Random bytes that sealing takes: the data key and two nonces.
    pub const RANDOM_BYTES: usize = KEY + 2 * NONCE;
    /// Random bytes that wrapping again takes: a nonce.
    pub const REWRAP_RANDOM_BYTES: usize = NONCE;

    /// Seals a secret for its place under a fresh data key. `random` was never used before.
    pub fn seal(
        keys: &WrappingKeys,
        place: &Place<'_>,
        secret: &[u8],
        random: &[u8; Self::RANDOM_BYTES],
    ) -> Self {
        let (data_key, nonces) = random.split_at(KEY);
        let (wrap_nonce, nonce) = nonces.split_at(NONCE);
        let wrapped =
            encrypt(keys.of(place.purpose), wrap_nonce, data_key, &place.wrap_context(keys.id()));
        let sealed = encrypt(data_key, nonce, secret, &place.content_context());
        Self([&[VERSION], &keys.id().as_bytes()[..], wrap_nonce, &wrapped, nonce, &sealed].concat())
    }

    /// Opens the record at its place.
    ///
    /// # Errors
    /// Fails when another master key sealed it, and when record or place are not as they were sealed.
    pub fn open(&self, keys: &WrappingKeys, place: &Place<'_>) -> Result<Secret, OpenError> {
        let data_key = self.unwrap(keys, place)?;
        let secret = decrypt(
            &data_key,
            &self.0[NONCE_AT..SEALED_AT],
            &self.0[SEALED_AT..],
            &place.content_context(),
        )?;
        Ok(Secret::new(secret))
    }

    /// Wraps the data key under another master key. The sealed secret stays as it is, and is opened
    /// first: a record that is damaged is not carried over as if it were whole.
    ///
    /// # Errors
    /// Fails when the record does not open at its place under `keys`.
    pub fn rewrap(
        &self,
        keys: &WrappingKeys,
        to: &WrappingKeys,
        place: &Place<'_>,
        random: &[u8; Self::REWRAP_RANDOM_BYTES],
    ) -> Result<Self, OpenError> {
        self.open(keys, place)?;
        let data_key = self.unwrap(keys, place)?;
        let wrapped =
            encrypt(to.of(place.purpose), random, &data_key, &place.wrap_context(to.id()));
        Ok(Self(
            [&[VERSION], &to.id().as_bytes()[..], random, &wrapped, &self.0[NONCE_AT..]].concat(),
        ))
    }

    /// Takes bytes that were kept.
    ///
    /// # Errors
    /// Fails when they are not those of a record.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, OpenError> {
        if bytes.len() < SEALED_AT + TAG || bytes[0] != VERSION {
            return Err(OpenError::Malformed);
        }
        Ok(Self(bytes))
    }

    /// Returns the bytes to keep.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Names the master key that opens the record.
    pub fn master_key_id(&self) -> MasterKeyId {
        let mut id = [0; 8];
        id.copy_from_slice(&self.0[ID_AT..WRAP_NONCE_AT]);
        MasterKeyId(id)
    }

    fn unwrap(
        &self,
        keys: &WrappingKeys,
        place: &Place<'_>,
    ) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let sealed_by = self.master_key_id();
        if sealed_by != keys.id() {
            return Err(OpenError::OtherMasterKey { sealed_by, at_hand: keys.id() });
        }
        decrypt(
            keys.of(place.purpose),
            &self.0[WRAP_NONCE_AT..WRAPPED_AT],
            &self.0[WRAPPED_AT..NONCE_AT],
            &place.wrap_context(sealed_by),
        )
        .map(Zeroizing::new)
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes by {})", self.0.len(), self.master_key_id())
    }
}

/// Why a record does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The master key at hand is another one.
    #[error("sealed with master key {sealed_by}, but the one at hand is {at_hand}")]
    OtherMasterKey {
        /// The key that opens the record.
        sealed_by: MasterKeyId,
        /// The key that was tried.
        at_hand: MasterKeyId,
    },
    /// The record, or what it is bound to, is not what was sealed.
    #[error("the sealed record was altered, moved or put back")]
    Altered,
    /// Not the bytes of a record.
    #[error("not a sealed record")]
    Malformed,
}

fn cipher(key: &[u8]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new_from_slice(key).expect("keys are 32 bytes long")
}

fn nonce(bytes: &[u8]) -> XNonce {
    XNonce::try_from(bytes).expect("nonces are 24 bytes long")
}

fn encrypt(key: &[u8], with: &[u8], msg: &[u8], aad: &[u8]) -> Vec<u8> {
    cipher(key)
        .encrypt(&nonce(with), Payload { msg, aad })
        .expect("a secret is far shorter than the cipher's limit of 256 GiB")
}

fn decrypt(key: &[u8], with: &[u8], msg: &[u8], aad: &[u8]) -> Result<Vec<u8>, OpenError> {
    cipher(key).decrypt(&nonce(with), Payload { msg, aad }).map_err(|_| OpenError::Altered)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::master::MasterKey;

    const RANDOM: [u8; Sealed::RANDOM_BYTES] = [3; Sealed::RANDOM_BYTES];
    const ROW: [u8; 16] = [1; 16];

    fn keys(byte: u8) -> WrappingKeys {
        MasterKey::from_bytes([byte; 32]).wrapping_keys()
    }

    fn slot() -> Slot {
        Slot::from("openrouter")
    }

    #[test]
    fn a_record_opens_in_its_place_and_shows_nothing_outside() {
        let (keys, slot) = (keys(1), slot());
        let place = Place::credential("home", &slot, "bearer", 4, &ROW);
        let sealed = Sealed::seal(&keys, &place, b"sk-canary", &RANDOM);
        let kept = Sealed::from_bytes(sealed.as_bytes().to_vec()).expect("a record");
        assert_eq!(kept.open(&keys, &place).expect("opens").expose(), b"sk-canary");
        assert!(!sealed.as_bytes().windows(9).any(|part| part == b"sk-canary"));
        assert!(!format!("{sealed:?} {:?}", kept.open(&keys, &place)).contains("canary"));
    }

    #[test]
    fn a_record_opens_in_no_other_place() {
        let (keys, slot) = (keys(1), slot());
        let sealed = Sealed::seal(
            &keys,
            &Place::credential("home", &slot, "bearer", 4, &ROW),
            b"secret",
            &RANDOM,
        );
        let other = Slot::from("openrouter2");
        for (what, place) in [
            ("group", Place::credential("home2", &slot, "bearer", 4, &ROW)),
            ("slot", Place::credential("home", &other, "bearer", 4, &ROW)),
            ("profile", Place::credential("home", &slot, "header", 4, &ROW)),
            ("revision", Place::credential("home", &slot, "bearer", 3, &ROW)),
            ("row", Place::credential("home", &slot, "bearer", 4, &[2; 16])),
            ("split", Place::credential("homeo", &Slot::from("penrouter"), "bearer", 4, &ROW)),
            ("purpose", Place::key(Purpose::CaKey, "home", "openrouter", &ROW)),
        ] {
            assert_eq!(sealed.open(&keys, &place).expect_err(what), OpenError::Altered, "{what}");
        }
    }

    #[test]
    fn halves_of_two_records_of_one_place_do_not_make_a_third() {
        let keys = keys(1);
        let place = Place::key(Purpose::LeaseSigner, "home", "signer", &ROW);
        let old = Sealed::seal(&keys, &place, b"old", &RANDOM);
        let new = Sealed::seal(&keys, &place, b"new", &[4; Sealed::RANDOM_BYTES]);
        let mixed = [&new.as_bytes()[..NONCE_AT], &old.as_bytes()[NONCE_AT..]].concat();
        let mixed = Sealed::from_bytes(mixed).expect("looks like a record");
        assert_eq!(mixed.open(&keys, &place).expect_err("mixed"), OpenError::Altered);
    }

    #[test]
    fn another_master_key_is_named_before_anything_is_tried() {
        let place = Place::key(Purpose::CaKey, "home", "ca", &ROW);
        let sealed = Sealed::seal(&keys(1), &place, b"secret", &RANDOM);
        assert_eq!(
            sealed.open(&keys(2), &place).expect_err("another key"),
            OpenError::OtherMasterKey { sealed_by: keys(1).id(), at_hand: keys(2).id() }
        );
    }

    #[test]
    fn wrapping_again_hands_the_record_to_the_new_key_alone() {
        let place = Place::key(Purpose::CaKey, "home", "ca", &ROW);
        let sealed = Sealed::seal(&keys(1), &place, b"secret", &RANDOM);
        let moved =
            sealed.rewrap(&keys(1), &keys(2), &place, &[9; NONCE]).expect("wraps for the new key");
        assert_eq!(moved.open(&keys(2), &place).expect("opens").expose(), b"secret");
        assert!(matches!(moved.open(&keys(1), &place), Err(OpenError::OtherMasterKey { .. })));
        // The old wrapping under the new key's name is no way back.
        let mut renamed = sealed.as_bytes().to_vec();
        renamed[ID_AT..WRAP_NONCE_AT].copy_from_slice(keys(2).id().as_bytes());
        let renamed = Sealed::from_bytes(renamed).expect("looks like a record");
        assert_eq!(renamed.open(&keys(2), &place).expect_err("renamed"), OpenError::Altered);
        let damaged = {
            let mut bytes = sealed.as_bytes().to_vec();
            *bytes.last_mut().expect("not empty") ^= 1;
            Sealed::from_bytes(bytes).expect("looks like a record")
        };
        damaged.rewrap(&keys(1), &keys(2), &place, &[9; NONCE]).expect_err("damaged");
    }

    #[test]
    fn any_single_bit_flip_and_any_shortening_is_refused() {
        let (keys, slot) = (keys(1), slot());
        let place = Place::credential("home", &slot, "bearer", 1, &ROW);
        let sealed = Sealed::seal(&keys, &place, b"a secret of some length", &RANDOM);
        let opens = |bytes: Vec<u8>| {
            Sealed::from_bytes(bytes).is_ok_and(|sealed| sealed.open(&keys, &place).is_ok())
        };
        for bit in 0..sealed.as_bytes().len() * 8 {
            let mut bytes = sealed.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(bytes), "bit {bit}");
        }
        for len in 0..sealed.as_bytes().len() {
            assert!(!opens(sealed.as_bytes()[..len].to_vec()), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn bytes_from_anywhere_are_refused_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300)
        ) {
            let place = Place::key(Purpose::CaKey, "home", "ca", &ROW);
            let opened = Sealed::from_bytes(bytes).and_then(|sealed| sealed.open(&keys(1), &place));
            prop_assert!(opened.is_err());
        }

        #[test]
        fn whatever_is_sealed_is_opened(
            secret in prop::collection::vec(any::<u8>(), 0..2000),
            random in prop::array::uniform32(any::<u8>()),
        ) {
            let mut all = [0; Sealed::RANDOM_BYTES];
            all[..32].copy_from_slice(&random);
            let place = Place::key(Purpose::CaKey, "home", "ca", &ROW);
            let sealed = Sealed::seal(&keys(1), &place, &secret, &all);
            let opened = sealed.open(&keys(1), &place).expect("opens");
            prop_assert_eq!(opened.expose(), secret);
        }
    }
}
