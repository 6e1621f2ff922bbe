//! Client keys: how one looks, and how it is recognised without being kept.
//!
//! ```text
//! iop_<id, 12 digits>_<secret, 43 digits><check, 6 digits>       digits are 0-9 A-Z a-z
//! ```
//!
//! The check is the CRC-32 of what comes before it, so that a typing error, or a scanner that looks
//! for lost keys, needs nobody to ask. The secret has 256 random bits: a fast keyed hash is all that
//! keeping it takes. `HMAC-SHA256(pepper, id || secret)` is kept; with the id in it, hashes cannot be
//! exchanged between rows.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::mac::Keyed;
use crate::{base62, domain};

const PREFIX: &str = "iop_";
const ID: usize = 12;
const SECRET: usize = 43;
const CHECK: usize = 6;
const SECRET_AT: usize = PREFIX.len() + ID + 1;
const CHECK_AT: usize = SECRET_AT + SECRET;
const LEN: usize = CHECK_AT + CHECK;

/// Names a client key. Not secret.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId(Arc<str>);

impl KeyId {
    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for KeyId {
    type Err = MalformedKey;

    fn from_str(text: &str) -> Result<Self, MalformedKey> {
        if text.len() == ID && base62::is_digits(text) {
            Ok(Self(text.into()))
        } else {
            Err(MalformedKey::Shape)
        }
    }
}

impl TryFrom<String> for KeyId {
    type Error = MalformedKey;

    fn try_from(text: String) -> Result<Self, MalformedKey> {
        text.parse()
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// A new client key, in the clear: shown once to whoever made it.
pub struct ClientKey {
    text: Zeroizing<String>,
    presented: PresentedKey,
}

impl ClientKey {
    /// Random bytes that a key takes.
    pub const RANDOM_BYTES: usize = 16 + 32;

    /// Makes a key. `random` was never used before.
    pub fn new(random: &[u8; Self::RANDOM_BYTES]) -> Self {
        let mut text = Zeroizing::new([b'_'; LEN]);
        text[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&random[..16]);
        base62::write(id, &mut text[PREFIX.len()..SECRET_AT - 1]);
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(&random[16..]);
        base62::write(*secret, &mut text[SECRET_AT..CHECK_AT]);
        let check = crc32fast::hash(&text[..CHECK_AT]);
        base62::write(check.to_be_bytes(), &mut text[CHECK_AT..]);
        let text = std::str::from_utf8(text.as_ref()).expect("digits are ASCII");
        Self {
            presented: PresentedKey::parse(text).expect("made as it is parsed"),
            text: Zeroizing::new(text.to_owned()),
        }
    }

    /// Names the key.
    pub const fn id(&self) -> &KeyId {
        &self.presented.id
    }

    /// Shows the whole key. It is never shown again.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// The key as a client will present it.
    pub const fn presented(&self) -> &PresentedKey {
        &self.presented
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKey({})", self.id())
    }
}

/// What a client showed: it looks like a key and is free of typing errors. Whether it is one, only
/// [`Pepper::recognises`] tells.
pub struct PresentedKey {
    id: KeyId,
    secret: Zeroizing<[u8; SECRET]>,
}

impl PresentedKey {
    /// Reads a key from a header.
    ///
    /// # Errors
    /// Fails when `text` cannot be a key. That is known to everybody who has the text, so that how long
    /// it took tells nothing.
    pub fn parse(text: &str) -> Result<Self, MalformedKey> {
        if text.len() != LEN || !text.is_ascii() {
            return Err(MalformedKey::Shape);
        }
        let id = text.strip_prefix(PREFIX).ok_or(MalformedKey::Shape)?[..ID].parse()?;
        let (secret, check) = (&text[SECRET_AT..CHECK_AT], &text[CHECK_AT..]);
        if text.as_bytes()[SECRET_AT - 1] != b'_'
            || !base62::is_digits(secret)
            || !base62::is_digits(check)
        {
            return Err(MalformedKey::Shape);
        }
        let mut expected = [0; CHECK];
        base62::write(crc32fast::hash(&text.as_bytes()[..CHECK_AT]).to_be_bytes(), &mut expected);
        if expected != check.as_bytes() {
            return Err(MalformedKey::Check);
        }
        let mut kept = Zeroizing::new([0; SECRET]);
        kept.copy_from_slice(secret.as_bytes());
        Ok(Self { id, secret: kept })
    }

    /// The id to look up.
    pub const fn id(&self) -> &KeyId {
        &self.id
    }
}

impl fmt::Debug for PresentedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PresentedKey({})", self.id)
    }
}

/// Why a text cannot be a client key. Says nothing of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedKey {
    /// It does not look like one.
    #[error("a client key looks like `iop_<id>_<secret>`")]
    Shape,
    /// It looks like one, but for a typing error.
    #[error("the client key has a typing error, or a part of it is missing")]
    Check,
}

/// What is kept of a client key's secret.
#[derive(Clone)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Reads a hash that was kept.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to keep.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

/// The key of the hashes.
#[derive(Clone)]
pub struct Pepper(Keyed);

impl Pepper {
    /// Takes the key that was opened.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Keyed::new(key, domain::CLIENT_KEY))
    }

    /// Hashes a key to keep.
    pub fn hash(&self, key: &PresentedKey) -> KeyHash {
        let mut message = Zeroizing::new([0; ID + SECRET]);
        message[..ID].copy_from_slice(key.id.as_str().as_bytes());
        message[ID..].copy_from_slice(key.secret.as_ref());
        KeyHash(self.0.tag(message.as_ref()))
    }

    /// Says whether `kept`, what was found under the key's id, is this key. The work is the same when
    /// nothing was found.
    pub fn recognises(&self, key: &PresentedKey, kept: Option<&KeyHash>) -> bool {
        // Against its own hash's opposite nothing can match, whatever is presented.
        let hash = self.hash(key);
        let mut opposite = hash.0;
        opposite.iter_mut().for_each(|byte| *byte = !*byte);
        let expected = kept.map_or(&opposite, |kept| &kept.0);
        hash.0.ct_eq(expected).into()
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pepper(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn random(byte: u8) -> [u8; ClientKey::RANDOM_BYTES] {
        std::array::from_fn(|place| byte.wrapping_add(u8::try_from(place).expect("small")))
    }

    #[test]
    fn a_key_reads_iop_id_secret_and_comes_back() {
        let key = ClientKey::new(&random(9));
        let parts: Vec<_> = key.reveal().split('_').collect();
        assert_eq!(parts.len(), 3, "{}", key.reveal());
        assert_eq!((parts[0], parts[1].len(), parts[2].len()), ("iop", 12, 49));
        let presented = PresentedKey::parse(key.reveal()).expect("a key");
        assert_eq!(presented.id(), key.id());
        let pepper = Pepper::new(&[5; 32]);
        assert!(pepper.recognises(&presented, Some(&pepper.hash(key.presented()))));
    }

    #[test]
    fn the_largest_and_the_smallest_randomness_make_keys() {
        for byte in [0, 255] {
            let key = ClientKey::new(&[byte; ClientKey::RANDOM_BYTES]);
            PresentedKey::parse(key.reveal()).expect("a key");
        }
    }

    #[test]
    fn any_changed_character_is_a_typing_error_or_no_key() {
        let key = ClientKey::new(&random(9));
        for place in 0..LEN {
            let mut text = key.reveal().as_bytes().to_vec();
            text[place] = if text[place] == b'x' { b'y' } else { b'x' };
            let text = String::from_utf8(text).expect("ASCII");
            PresentedKey::parse(&text).expect_err(&text);
        }
        assert_eq!(
            PresentedKey::parse(&key.reveal()[..LEN - 1]).expect_err("short"),
            MalformedKey::Shape
        );
    }

    #[test]
    fn no_other_secret_pepper_or_id_is_recognised() {
        let pepper = Pepper::new(&[5; 32]);
        let key = ClientKey::new(&random(9));
        let kept = pepper.hash(key.presented());
        let mut other = random(9);
        other[47] ^= 1;
        let other = ClientKey::new(&other);
        assert_eq!(other.id(), key.id());
        assert!(!pepper.recognises(other.presented(), Some(&kept)));
        assert!(!Pepper::new(&[6; 32]).recognises(key.presented(), Some(&kept)));
        // The same secret under another id, as when two rows exchange their hashes.
        let mut moved = random(9);
        moved[0] ^= 1;
        let moved = ClientKey::new(&moved);
        assert_ne!(moved.id(), key.id());
        assert!(!pepper.recognises(moved.presented(), Some(&kept)));
        assert!(!pepper.recognises(key.presented(), None));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let key = ClientKey::new(&random(9));
        let pepper = Pepper::new(&[5; 32]);
        let shown =
            format!("{key:?} {:?} {:?} {pepper:?}", key.presented(), pepper.hash(key.presented()));
        assert!(!shown.contains(&key.reveal()[SECRET_AT..CHECK_AT]), "{shown}");
        assert!(shown.contains(key.id().as_str()), "{shown}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,80}") {
            prop_assert!(PresentedKey::parse(&text).is_err());
        }

        #[test]
        fn text_of_the_right_length_is_read_without_a_panic(text in "iop_\\PC{61}") {
            prop_assert!(PresentedKey::parse(&text).is_err());
        }
    }
}
