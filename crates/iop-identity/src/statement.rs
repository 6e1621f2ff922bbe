//! Which statements the keys of a group make: every kind begins with words of its own, so that a
//! signature or hash made for one purpose is never one for another.

/// Begins what a fresh key signs to renew an identity.
pub(crate) const RENEWAL: &[u8] = b"IOP/identity-renew/v1\0";

/// Begins what is hashed of a join token's secret.
pub(crate) const JOIN_SECRET: &[u8] = b"IOP/join-secret/v1\0";

/// Appends `part` behind its own length, so that no two lists of parts make the same bytes.
pub(crate) fn append(statement: &mut Vec<u8>, part: &[u8]) {
    let length = u32::try_from(part.len()).expect("parts of a statement are small");
    statement.extend_from_slice(&length.to_be_bytes());
    statement.extend_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statement_can_be_read_as_another() {
        let all = [RENEWAL, JOIN_SECRET];
        for (at, one) in all.iter().enumerate() {
            assert!(one.starts_with(b"IOP/") && one.ends_with(b"\0"), "{one:?}");
            for other in &all[at + 1..] {
                assert!(!one.starts_with(other) && !other.starts_with(one), "{one:?} {other:?}");
            }
        }
    }
}
