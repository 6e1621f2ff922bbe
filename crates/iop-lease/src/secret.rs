//! The secret in its padded form, and open.

use std::fmt;

use iop_types::{LeaseFault, Profile};
use zeroize::Zeroizing;

/// Longest secret that travels: more than any provider's key, within what servers take as a header.
pub const MAX_SECRET: usize = 8 * 1024 - LENGTH;

/// Padded secrets are a multiple of this long, so that their length does not tell whose key it is.
pub(crate) const BLOCK: usize = 256;

/// Bytes of the length in front.
const LENGTH: usize = 2;

/// A header with a provider's credential, good for one request.
///
/// It is wiped when dropped; the buffers of HTTP and TLS that it is copied into are not. Drop it when
/// the head of the request is written.
pub struct OpenSecret {
    header: String,
    value: Zeroizing<Vec<u8>>,
}

impl OpenSecret {
    pub(crate) fn new(profile: &Profile, secret: &[u8]) -> Self {
        let scheme = profile.scheme.as_bytes();
        // Room for all of it: a vector that grows leaves copies behind.
        let mut value = Zeroizing::new(Vec::with_capacity(scheme.len() + 1 + secret.len()));
        if !scheme.is_empty() {
            value.extend_from_slice(scheme);
            value.push(b' ');
        }
        value.extend_from_slice(secret);
        Self { header: profile.header.clone(), value }
    }

    /// Names the header, in lower case.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// Returns the value of the header, scheme and secret, to be marked as sensitive.
    pub fn expose(&self) -> &[u8] {
        &self.value
    }
}

impl fmt::Debug for OpenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenSecret").field("header", &self.header).finish_non_exhaustive()
    }
}

/// A secret that no lease can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnfitSecret {
    /// Nothing to send.
    #[error("secret is empty")]
    Empty,
    /// More than a lease carries.
    #[error("secret is {bytes} bytes long, at most {MAX_SECRET} are carried")]
    TooLong {
        /// Length of the secret.
        bytes: usize,
    },
    /// A line break would end the header and begin another.
    #[error("secret holds a control character, which no header can carry")]
    ControlCharacter,
}

/// Checks that a secret can be the value of a header.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_secret(secret: &[u8]) -> Result<(), UnfitSecret> {
    if secret.is_empty() {
        Err(UnfitSecret::Empty)
    } else if secret.len() > MAX_SECRET {
        Err(UnfitSecret::TooLong { bytes: secret.len() })
    } else if secret.iter().any(u8::is_ascii_control) {
        Err(UnfitSecret::ControlCharacter)
    } else {
        Ok(())
    }
}

/// Pads a secret, leaving room for `spare` more bytes.
pub(crate) fn pad(secret: &[u8], spare: usize) -> Result<Zeroizing<Vec<u8>>, UnfitSecret> {
    check_secret(secret)?;
    let length = u16::try_from(secret.len()).expect("MAX_SECRET fits");
    let padded = (LENGTH + secret.len()).next_multiple_of(BLOCK);
    let mut bytes = Zeroizing::new(Vec::with_capacity(padded + spare));
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(secret);
    bytes.resize(padded, 0);
    Ok(bytes)
}

/// Finds the secret in its padded form, which has exactly one spelling.
pub(crate) fn unpad(padded: &[u8]) -> Result<&[u8], LeaseFault> {
    let (length, rest) = padded.split_first_chunk::<LENGTH>().ok_or(LeaseFault::OpenFailed)?;
    let length = usize::from(u16::from_be_bytes(*length));
    let (secret, padding) = rest.split_at_checked(length).ok_or(LeaseFault::OpenFailed)?;
    let is_shortest = padded.len() == (LENGTH + length).next_multiple_of(BLOCK);
    if is_shortest && padding.iter().all(|byte| *byte == 0) && check_secret(secret).is_ok() {
        Ok(secret)
    } else {
        Err(LeaseFault::OpenFailed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_found_again() {
        for length in [1, 253, 254, 255, 256, 510, 511, MAX_SECRET] {
            let secret = vec![b's'; length];
            let padded = pad(&secret, 0).expect("a secret");
            assert_eq!(padded.len() % BLOCK, 0);
            assert_eq!(unpad(&padded), Ok(&secret[..]), "{length}");
        }
    }

    #[test]
    fn no_length_is_told_within_a_block() {
        let lengths = [1, 40, 254].map(|length| pad(&vec![b's'; length], 0).expect("fits").len());
        assert_eq!(lengths, [256; 3]);
    }

    #[test]
    fn a_secret_that_is_no_header_value_is_refused_at_both_ends() {
        for (secret, why) in [
            (&b""[..], UnfitSecret::Empty),
            (b"key\r\nx-evil: 1", UnfitSecret::ControlCharacter),
            (b"key\n", UnfitSecret::ControlCharacter),
            (b"\0", UnfitSecret::ControlCharacter),
            (b"\x7f", UnfitSecret::ControlCharacter),
            (&[b's'; MAX_SECRET + 1], UnfitSecret::TooLong { bytes: MAX_SECRET + 1 }),
        ] {
            assert_eq!(pad(secret, 0).map(|_| ()), Err(why));
            let mut padded = u16::try_from(secret.len()).expect("short").to_be_bytes().to_vec();
            padded.extend_from_slice(secret);
            padded.resize(padded.len().next_multiple_of(BLOCK), 0);
            assert_eq!(unpad(&padded), Err(LeaseFault::OpenFailed), "{why}");
        }
    }

    #[test]
    fn padding_has_one_spelling() {
        let padded = pad(b"secret", 0).expect("a secret");
        let mut longer = padded.to_vec();
        longer.resize(2 * BLOCK, 0);
        let mut marked = padded.to_vec();
        marked[BLOCK - 1] = 1;
        let mut beyond = padded.to_vec();
        beyond[0] = 0xff;
        for wrong in [longer, marked, beyond, padded[..BLOCK - 1].to_vec(), vec![0], Vec::new()] {
            assert_eq!(unpad(&wrong), Err(LeaseFault::OpenFailed), "{wrong:?}");
        }
    }

    #[test]
    fn an_open_secret_prints_nothing_of_itself() {
        let profile =
            Profile { name: "p".into(), header: "authorization".into(), scheme: "Bearer".into() };
        let open = OpenSecret::new(&profile, b"sk-1");
        assert_eq!(open.expose(), b"Bearer sk-1");
        assert_eq!(format!("{open:?}"), "OpenSecret { header: \"authorization\", .. }");
    }
}
