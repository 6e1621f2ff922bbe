//! The strings that keep one use of cryptography from being passed for another.
//!
//! Everything that is derived, sealed or authenticated begins with one of them. They are distinct and
//! none is the beginning of another, so that no two uses ever see the same bytes under one key.

use crate::master::Purpose;

pub(crate) const MASTER_KEY_ID: &[u8] = b"IOP/master-key-id/v1\0";
pub(crate) const MASTER_KEY_CHECK: &[u8] = b"IOP/master-key-check/v1\0";
pub(crate) const CLIENT_KEY: &[u8] = b"IOP/client-key/v1\0";
pub(crate) const FINGERPRINT: &[u8] = b"IOP/fingerprint/v1\0";
pub(crate) const AUDIT_ENTRY: &[u8] = b"IOP/audit-entry/v1\0";
pub(crate) const AUDIT_HEAD: &[u8] = b"IOP/audit-head/v1\0";

/// The strings of one purpose.
pub(crate) struct Sealing {
    /// Derives the wrapping key.
    pub(crate) derive: &'static [u8],
    /// Begins what is authenticated with a secret.
    pub(crate) content: &'static [u8],
    /// Begins what is authenticated with a data key.
    pub(crate) wrap: &'static [u8],
}

macro_rules! sealing {
    ($name:literal) => {
        Sealing {
            derive: concat!("IOP/wrapping-key/", $name, "/v1\0").as_bytes(),
            content: concat!("IOP/", $name, "/v1\0").as_bytes(),
            wrap: concat!("IOP/", $name, "/wrap/v1\0").as_bytes(),
        }
    };
}

impl Purpose {
    pub(crate) const fn sealing(self) -> Sealing {
        match self {
            Self::Credential => sealing!("cred"),
            Self::CaKey => sealing!("ca-key"),
            Self::EdgeKey => sealing!("edge-key"),
            Self::LeaseSigner => sealing!("lease-signer"),
            Self::ClientKeyPepper => sealing!("client-key-pepper"),
            Self::AuditMac => sealing!("audit-mac"),
            Self::Fingerprint => sealing!("fingerprint-key"),
        }
    }
}

/// Appends `bytes` behind their length, so that no two lists of fields have one encoding.
pub(crate) fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    to.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<&'static [u8]> {
        let mut table =
            vec![MASTER_KEY_ID, MASTER_KEY_CHECK, CLIENT_KEY, FINGERPRINT, AUDIT_ENTRY, AUDIT_HEAD];
        for purpose in Purpose::ALL {
            let Sealing { derive, content, wrap } = purpose.sealing();
            table.extend([derive, content, wrap]);
        }
        table
    }

    #[test]
    fn no_string_is_the_beginning_of_another() {
        let table = table();
        for (number, one) in table.iter().enumerate() {
            for (other, two) in table.iter().enumerate() {
                assert!(number == other || !two.starts_with(one), "{one:?} {two:?}");
            }
        }
    }

    #[test]
    fn every_string_names_product_purpose_and_version_and_ends_where_nothing_else_can() {
        for string in table() {
            let text = std::str::from_utf8(string).expect("text");
            let inner = text.strip_suffix('\0').expect("ends with a zero byte");
            assert!(inner.starts_with("IOP/") && inner.ends_with("/v1"), "{inner}");
            assert!(!inner.contains('\0'), "{inner}");
        }
    }

    #[test]
    fn two_lists_of_fields_never_look_alike() {
        let join = |fields: &[&[u8]]| {
            let mut all = Vec::new();
            for field in fields {
                put(&mut all, field);
            }
            all
        };
        assert_ne!(join(&[b"ab", b"c"]), join(&[b"a", b"bc"]));
        assert_ne!(join(&[b"", b"a"]), join(&[b"a", b""]));
    }
}
