//! Claims of credential grants and leases as bytes, read strictly.
//!
//! A signature or a seal covers the bytes as they were received. For these to have one meaning to
//! everybody, the part that this version knows must be exactly what it would write itself: fields in
//! ascending order, each once, numbers in their shortest form, nothing left out. Fields with larger
//! numbers may follow and are skipped.
//!
//! What the claims mean is `iop-lease`'s business.

use bytes::Bytes;
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};

#[expect(missing_docs, reason = "generated; the schema carries the documentation")]
mod schema {
    include!(concat!(env!("OUT_DIR"), "/iop.lease.v1.rs"));
}

pub use schema::{GrantClaims, LeaseClaims};

/// A message whose fields are numbered from 1 to [`FIELDS`](Self::FIELDS) and are all mandatory.
pub trait Claims: Message + Default {
    /// How many fields this version knows.
    const FIELDS: u32;
}

impl Claims for GrantClaims {
    const FIELDS: u32 = 18;
}

impl Claims for LeaseClaims {
    const FIELDS: u32 = 10;
}

/// Bytes that are not claims, or not in the one form that claims have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("claims are not in the one form that they have")]
pub struct MalformedClaims;

/// Writes claims. This happens once: a signature or a seal is over these very bytes.
pub fn encode<C: Claims>(claims: &C) -> Bytes {
    claims.encode_to_vec().into()
}

/// Reads claims. Byte fields share the memory of `bytes`.
///
/// # Errors
/// Fails when the part that this version knows is not exactly what it would write, lacks a field, or
/// when what follows is no message with ascending field numbers.
pub fn decode<C: Claims>(bytes: &Bytes) -> Result<C, MalformedClaims> {
    let known = bytes.slice(..known_part::<C>(bytes)?);
    let claims = C::decode(known.clone()).map_err(|_| MalformedClaims)?;
    if claims.encode_to_vec() == known { Ok(claims) } else { Err(MalformedClaims) }
}

/// Reads version and suite, the first two fields of a grant's claims in every version.
///
/// # Errors
/// Fails when the bytes do not begin with them.
pub fn version_and_suite(bytes: &[u8]) -> Result<(u32, u32), MalformedClaims> {
    let mut rest = bytes;
    let mut field = |number: u32| -> Result<u32, MalformedClaims> {
        let (found, _) = decode_key(&mut rest).map_err(|_| MalformedClaims)?;
        let value = prost::encoding::decode_varint(&mut rest).map_err(|_| MalformedClaims)?;
        let value = u32::try_from(value).map_err(|_| MalformedClaims)?;
        if found == number { Ok(value) } else { Err(MalformedClaims) }
    };
    Ok((field(1)?, field(2)?))
}

/// Returns where the fields end that this version knows.
fn known_part<C: Claims>(bytes: &[u8]) -> Result<usize, MalformedClaims> {
    let mut rest = bytes;
    let mut last = 0;
    let mut known = 0;
    while !rest.is_empty() {
        let (number, wire) = decode_key(&mut rest).map_err(|_| MalformedClaims)?;
        skip_field(wire, number, &mut rest, DecodeContext::default())
            .map_err(|_| MalformedClaims)?;
        let follows = if number <= C::FIELDS { number == last + 1 } else { number > last };
        if !follows {
            return Err(MalformedClaims);
        }
        if number <= C::FIELDS {
            known = bytes.len() - rest.len();
        }
        last = number;
    }
    if last >= C::FIELDS { Ok(known) } else { Err(MalformedClaims) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_as_they_were_written() {
        assert_eq!(decode(&Bytes::from(claims().encode_to_vec())), Ok(claims()));
    }

    #[test]
    fn unknown_fields_with_larger_numbers_are_skipped() {
        let mut bytes = claims().encode_to_vec();
        bytes.extend([0x58, 7, 0x62, 1, b'x']); // 11: 7, 12: "x"
        assert_eq!(decode(&Bytes::from(bytes)), Ok(claims()));
    }

    #[test]
    fn unknown_fields_out_of_order_are_refused() {
        let mut bytes = claims().encode_to_vec();
        bytes.extend([0x62, 1, b'x', 0x58, 7]);
        assert_eq!(decode::<LeaseClaims>(&Bytes::from(bytes)), Err(MalformedClaims));
    }

    #[test]
    fn no_field_may_be_missing() {
        for missing in 1..=LeaseClaims::FIELDS {
            let bytes: Vec<u8> = fields()
                .into_iter()
                .filter(|field| field.0 != missing)
                .flat_map(|field| field.1)
                .collect();
            assert_eq!(decode::<LeaseClaims>(&bytes.into()), Err(MalformedClaims), "{missing}");
        }
    }

    #[test]
    fn no_field_may_come_twice() {
        for twice in 0..fields().len() {
            let mut doubled = fields();
            doubled.insert(twice, fields()[twice].clone());
            let bytes: Vec<u8> = doubled.into_iter().flat_map(|field| field.1).collect();
            assert_eq!(decode::<LeaseClaims>(&bytes.into()), Err(MalformedClaims), "{twice}");
        }
    }

    #[test]
    fn fields_in_another_order_are_refused() {
        for at in 1..fields().len() {
            let mut swapped = fields();
            swapped.swap(at - 1, at);
            let bytes: Vec<u8> = swapped.into_iter().flat_map(|field| field.1).collect();
            assert_eq!(decode::<LeaseClaims>(&bytes.into()), Err(MalformedClaims), "{at}");
        }
    }

    #[test]
    fn an_empty_field_and_a_long_number_are_refused() {
        for (number, bytes) in [(3, vec![0x1a, 0]), (8, vec![0x40, 0]), (8, vec![0x40, 0x81, 0])] {
            let mut fields = fields();
            fields[number - 1].1 = bytes;
            let bytes: Vec<u8> = fields.into_iter().flat_map(|field| field.1).collect();
            assert_eq!(decode::<LeaseClaims>(&bytes.into()), Err(MalformedClaims), "{number}");
        }
    }

    #[test]
    fn truncated_claims_are_refused() {
        let whole = Bytes::from(claims().encode_to_vec());
        for end in 0..whole.len() {
            assert_eq!(decode::<LeaseClaims>(&whole.slice(..end)), Err(MalformedClaims), "{end}");
        }
    }

    #[test]
    fn version_and_suite_come_first_whatever_follows() {
        assert_eq!(version_and_suite(&[8, 2, 16, 7, 0xff, 0xff]), Ok((2, 7)));
        assert_eq!(version_and_suite(&[16, 7, 8, 2]), Err(MalformedClaims));
        assert_eq!(version_and_suite(&[8]), Err(MalformedClaims));
    }

    fn claims() -> LeaseClaims {
        let id = |byte| Bytes::from(vec![byte; 16]);
        LeaseClaims {
            lease_id: id(1),
            grant_id: id(2),
            principal: "caller".into(),
            route: "chat".into(),
            target: "llama3".into(),
            run_id: id(3),
            tunnel_id: id(4),
            attempt: 1,
            not_before_ms: 1,
            expires_ms: 300,
        }
    }

    /// The encoding in pieces, one for each field.
    fn fields() -> Vec<(u32, Vec<u8>)> {
        let whole = claims().encode_to_vec();
        let mut rest = &whole[..];
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let before = rest;
            let (number, wire) = decode_key(&mut rest).expect("a key");
            skip_field(wire, number, &mut rest, DecodeContext::default()).expect("a field");
            fields.push((number, before[..before.len() - rest.len()].to_vec()));
        }
        fields
    }
}
