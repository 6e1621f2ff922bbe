//! What every hash, signature and derivation of this crate begins with.
//!
//! The rule for the whole product: bytes that are hashed, signed, authenticated or fed into a key
//! derivation begin with `IOP/<purpose>/v<n>` and a zero byte, and no such string is used for two
//! purposes. So nothing made for one purpose is ever good for another, even under the same key. Each
//! crate that has such strings holds them in one table and tests that table.

/// Claims of a grant, hashed.
pub(crate) const GRANT_CLAIMS: &[u8] = b"IOP/grant/claims/v1\0";
/// What both ends of a grant's HPKE agree on.
pub(crate) const GRANT_HPKE: &[u8] = b"IOP/grant/hpke/v1\0";
/// The grant key, exported from HPKE.
pub(crate) const GRANT_KEY: &[u8] = b"IOP/grant/key/v1\0";
/// A grant, signed.
pub(crate) const GRANT_SIGNATURE: &[u8] = b"IOP/grant/sig/v1\0";
/// Claims of a lease, hashed.
pub(crate) const LEASE_CLAIMS: &[u8] = b"IOP/lease/claims/v2\0";
/// Key and nonce of a lease, derived from its grant's key.
pub(crate) const LEASE_KEY: &[u8] = b"IOP/lease/key/v2\0";
/// What a lease's seal authenticates beside the secret.
pub(crate) const LEASE_AAD: &[u8] = b"IOP/lease/aad/v2\0";
/// A lease signer, vouched for by the group's CA.
pub(crate) const LEASE_SIGNER: &[u8] = b"IOP/lease-signer/v1\0";
/// A recipient key, proven by the Node's identity.
pub(crate) const NODE_RECIPIENT_KEY: &[u8] = b"IOP/node-rk/v1\0";

/// Every one of them.
#[cfg(test)]
const TABLE: &[&[u8]] = &[
    GRANT_CLAIMS,
    GRANT_HPKE,
    GRANT_KEY,
    GRANT_SIGNATURE,
    LEASE_CLAIMS,
    LEASE_KEY,
    LEASE_AAD,
    LEASE_SIGNER,
    NODE_RECIPIENT_KEY,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_string_begins_with_the_house_and_ends_with_its_only_zero() {
        for domain in TABLE {
            assert!(domain.starts_with(b"IOP/"), "{domain:?}");
            let zero = domain.iter().position(|byte| *byte == 0);
            assert_eq!(zero, Some(domain.len() - 1), "{domain:?}");
        }
    }

    #[test]
    fn no_string_begins_with_another() {
        for (at, one) in TABLE.iter().enumerate() {
            for (other_at, other) in TABLE.iter().enumerate() {
                assert!(at == other_at || !other.starts_with(one), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn the_table_holds_every_string_of_this_file() {
        let declared = include_str!("domain.rs").matches(": &[u8] = b\"IOP/").count();
        // The line above is counted too.
        assert_eq!(TABLE.len(), declared);
    }
}
