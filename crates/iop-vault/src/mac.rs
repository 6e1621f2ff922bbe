//! HMAC-SHA256 under one key for one use.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A keyed hash that has taken in its key: making a tag hashes the message and no more.
#[derive(Clone)]
pub(crate) struct Keyed(Hmac<Sha256>);

impl Keyed {
    /// Begins every tag with the string of its use.
    pub(crate) fn new(key: &[u8; 32], domain: &[u8]) -> Self {
        let mut mac = Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
        mac.update(domain);
        Self(mac)
    }

    pub(crate) fn tag(&self, message: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(message).finalize().into_bytes().into()
    }
}
