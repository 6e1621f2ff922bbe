//! Join tokens: `iopj1_<pin of the CA>_<id>_<secret>`, each part in base32.
//!
//! The pin tells a Node whom it may give the secret to; the id finds the invitation; the secret is
//! the right to use it once.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD_NOCASE;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::key::Pin;
use crate::statement::JOIN_SECRET;

/// Begins every token, so that people and scanners recognise one.
const PREFIX: &str = "iopj1";

/// Names one invitation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InvitationId(pub [u8; 16]);

impl fmt::Display for InvitationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.0))
    }
}

impl fmt::Debug for InvitationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InvitationId({self})")
    }
}

/// The right to join once. Prints nothing of itself.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct JoinSecret([u8; 32]);

impl JoinSecret {
    /// Takes 32 bytes that were random or came from a peer.
    pub const fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// Returns the bytes, for sending to an Edge whose CA was recognised by the pin.
    pub const fn reveal(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns what an Edge stores of it.
    pub fn hash(&self) -> SecretHash {
        SecretHash(Sha256::new().chain_update(JOIN_SECRET).chain_update(self.0).finalize().into())
    }
}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret")
    }
}

/// What an Edge stores of a join secret: 256 random bits need no slow hash.
#[derive(Clone, Copy)]
pub struct SecretHash(pub [u8; 32]);

impl PartialEq for SecretHash {
    /// Takes the same time whatever the difference.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SecretHash {}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash")
    }
}

/// All that a new machine needs to join, besides the Edge's address.
#[derive(Clone, Debug)]
pub struct JoinToken {
    /// The CA that the Edge's certificate must come from.
    pub pin: Pin,
    /// Which invitation is used.
    pub id: InvitationId,
    /// The right to use it.
    pub secret: JoinSecret,
}

impl JoinToken {
    /// Makes a token of 48 random bytes.
    pub fn from_random(pin: Pin, random: &Zeroizing<[u8; 48]>) -> Self {
        let (id, secret) = random.split_at(16);
        Self {
            pin,
            id: InvitationId(id.try_into().expect("16 of 48 bytes")),
            secret: JoinSecret(secret.try_into().expect("32 of 48 bytes")),
        }
    }

    /// Writes the token, secret and all: for the eyes of whoever invited.
    pub fn reveal(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(encode(self.secret.reveal()));
        Zeroizing::new(format!("{PREFIX}_{}_{}_{}", encode(&self.pin.0), self.id, *secret))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let mut parts = text.trim().split('_');
        match parts.next() {
            Some(PREFIX) => {}
            Some(other) if is_newer(other) => return Err(TokenError::Version(other.to_owned())),
            Some(_) | None => return Err(TokenError::Prefix),
        }
        let mut part = |name| parts.next().ok_or(TokenError::Missing(name));
        let (pin, id, secret) = (part("pin of the CA")?, part("id")?, part("secret")?);
        if parts.next().is_some() {
            return Err(TokenError::TooLong);
        }
        Ok(Self {
            pin: Pin(decode(pin, "pin of the CA")?),
            id: InvitationId(decode(id, "id")?),
            secret: JoinSecret(decode(secret, "secret")?),
        })
    }
}

fn is_newer(prefix: &str) -> bool {
    prefix.strip_prefix("iopj").is_some_and(|version| version.parse::<u32>().is_ok())
}

fn encode(bytes: &[u8]) -> String {
    BASE32_NOPAD_NOCASE.encode(bytes).to_ascii_lowercase()
}

fn decode<const N: usize>(text: &str, name: &'static str) -> Result<[u8; N], TokenError> {
    // The length comes first: it bounds what is decoded, and most damage is a lost end.
    if text.len() != (N * 8).div_ceil(5) {
        return Err(TokenError::Length(name));
    }
    let bytes = BASE32_NOPAD_NOCASE.decode(text.as_bytes()).map(Zeroizing::new);
    let bytes = bytes.map_err(|_| TokenError::Letters(name))?;
    bytes.as_slice().try_into().map_err(|_| TokenError::Length(name))
}

/// Why a text is no join token. Never repeats it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is something else.
    #[error(
        "a join token begins with `iopj1_`: copy the whole line that `iop nodes invite` printed"
    )]
    Prefix,
    /// It is of a later version.
    #[error("the join token is of version `{0}`, which this version of iop does not know: upgrade")]
    Version(String),
    /// A part is not there.
    #[error("the join token has no {0}: its end is missing, copy the whole line")]
    Missing(&'static str),
    /// Something stands behind it.
    #[error("the join token has more than four parts")]
    TooLong,
    /// A part was cut or grew.
    #[error("the join token's {0} has a wrong length: copy the whole line")]
    Length(&'static str),
    /// A part is not base32.
    #[error("the join token's {0} holds letters that no token holds")]
    Letters(&'static str),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token() -> JoinToken {
        let random = Zeroizing::new(std::array::from_fn(|at| u8::try_from(at).unwrap()));
        JoinToken::from_random(Pin([0xa5; 32]), &random)
    }

    #[test]
    fn a_token_survives_being_written_and_read_in_any_case() {
        let (token, line) = (token(), token().reveal());
        for line in [line.to_string(), format!(" {}\n", *line)] {
            let read: JoinToken = line.parse().unwrap();
            assert_eq!((read.pin, read.id), (token.pin, token.id));
            assert_eq!(read.secret.reveal(), token.secret.reveal());
        }
        let (prefix, rest) = line.split_once('_').unwrap();
        let shouted = format!("{prefix}_{}", rest.to_uppercase());
        assert_eq!(shouted.parse::<JoinToken>().unwrap().secret.hash(), token.secret.hash());
    }

    #[test]
    fn a_damaged_token_says_what_is_wrong_and_never_repeats_it() {
        let line = token().reveal().to_string();
        let parts: Vec<_> = line.split('_').collect();
        for (text, error) in [
            (String::new(), TokenError::Prefix),
            ("iop_abc".to_owned(), TokenError::Prefix),
            (line.replace("iopj1", "iopj2"), TokenError::Version("iopj2".to_owned())),
            ("iopj1".to_owned(), TokenError::Missing("pin of the CA")),
            (parts[..3].join("_"), TokenError::Missing("secret")),
            (format!("{line}_x"), TokenError::TooLong),
            (line[..line.len() - 1].to_owned(), TokenError::Length("secret")),
            (line.replace(parts[2], &parts[2][1..]), TokenError::Length("id")),
            (format!("{}!", &line[..line.len() - 1]), TokenError::Letters("secret")),
        ] {
            let refused = text.parse::<JoinToken>().unwrap_err();
            assert_eq!(refused, error, "{text}");
            assert!(!refused.to_string().contains(parts[3]), "{refused}");
        }
    }

    #[test]
    fn neither_token_nor_hash_is_printed() {
        let token = token();
        let shown = format!("{token:?} {:?}", token.secret.hash());
        assert!(!shown.contains(&encode(token.secret.reveal())), "{shown}");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "(iopj1_)?[a-z2-7_é]{0,200}") {
            let _ = text.parse::<JoinToken>();
        }

        #[test]
        fn two_secrets_never_share_a_hash(one: [u8; 32], two: [u8; 32]) {
            let same = JoinSecret::new(one).hash() == JoinSecret::new(two).hash();
            prop_assert_eq!(same, one == two);
        }
    }
}
