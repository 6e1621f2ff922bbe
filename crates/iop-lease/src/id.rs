//! What identifies grants, leases and keys.

use std::fmt;

use crate::transcript::sha256;

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(f, &self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(f, &self.0)
            }
        }
    };
}

random_id! {
    /// Identifies a grant: random, chosen by the Edge.
    GrantId
}
random_id! {
    /// Identifies a lease: random, chosen by the Edge.
    LeaseId
}

/// Names a public key by the beginning of the SHA-256 of its `SubjectPublicKeyInfo`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kid(pub [u8; 8]);

impl Kid {
    /// Names an Ed25519 key.
    pub fn of_ed25519(public: &[u8; 32]) -> Self {
        Self::of(0x70, public)
    }

    /// Names an X25519 key.
    pub fn of_x25519(public: &[u8; 32]) -> Self {
        Self::of(0x6e, public)
    }

    /// `algorithm` is the last byte of the object identifier 1.3.101.x (RFC 8410).
    fn of(algorithm: u8, public: &[u8; 32]) -> Self {
        let mut spki =
            vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, algorithm, 0x03, 0x21, 0];
        spki.extend_from_slice(public);
        let hash = sha256(&spki);
        Self(hash[..8].try_into().expect("8 of 32 bytes"))
    }
}

impl fmt::Debug for Kid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Display for Kid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}
