//! Making grants and leases, at an Edge.

use std::convert::Infallible;

use bytes::Bytes;
use hpke::aead::ExportOnlyAead;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::rand_core::{TryCryptoRng, TryRng};
use hpke::{OpModeS, Serializable, setup_sender_with_rng};
use iop_types::{SealedGrant, SealedLease};
use zeroize::Zeroizing;

use crate::claims::{GrantClaims, LeaseClaims, grant_hash};
use crate::domain;
use crate::grant_key::GrantKey;
use crate::recipient::RecipientPublic;
use crate::secret::UnfitSecret;
use crate::signer::Signer;
use crate::transcript::{Hash, Transcript};

/// Fills a buffer with bytes that nobody can guess: the operating system's randomness.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);

/// A grant or lease that cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The Node's key is none that anything can be sealed to.
    #[error("recipient key of the Node is of low order")]
    RecipientKey,
    /// The secret is none that a lease can carry.
    #[error(transparent)]
    Secret(#[from] UnfitSecret),
}

/// Makes a grant: signs its claims and agrees on a key with the Node.
///
/// # Errors
/// [`SealError::RecipientKey`] when the Node's key is of low order.
pub fn grant(
    claims: &GrantClaims,
    trust_domain: &str,
    recipient: &RecipientPublic,
    signer: &Signer,
    random: Random<'_>,
) -> Result<(SealedGrant, GrantKey), SealError> {
    let claims = claims.encode();
    let hash = grant_hash(&claims);
    let info = hpke_info(trust_domain, recipient, &hash);
    let (encapsulation, context) = setup_sender_with_rng::<
        ExportOnlyAead,
        HkdfSha256,
        X25519HkdfSha256,
    >(
        &OpModeS::Base, &recipient.hpke(), &info, &mut Source(random)
    )
    .map_err(|_| SealError::RecipientKey)?;
    let mut key = Zeroizing::new([0; 32]);
    context.export(domain::GRANT_KEY, &mut *key).expect("32 bytes are within what HPKE gives");
    let encapsulation = Bytes::copy_from_slice(&encapsulation.to_bytes());
    let signature = signer.sign(&signed_bytes(&hash, &encapsulation));
    let sealed =
        SealedGrant { claims, encapsulation, signature: Bytes::copy_from_slice(&signature) };
    Ok((sealed, GrantKey::new(&key, hash)))
}

/// Makes a lease: seals a secret for one attempt.
///
/// # Errors
/// Fails when the secret is none that a header can carry.
pub fn lease(
    claims: &LeaseClaims,
    secret: &[u8],
    key: &GrantKey,
) -> Result<SealedLease, UnfitSecret> {
    let bytes = claims.encode();
    Ok(SealedLease {
        principal: claims.subject.principal.clone(),
        route: claims.subject.route.clone(),
        sealed: key.seal(&bytes, secret)?,
        claims: bytes,
    })
}

/// What both ends of a grant's HPKE agree on.
pub(crate) fn hpke_info(trust_domain: &str, recipient: &RecipientPublic, claims: &Hash) -> Vec<u8> {
    Transcript::new(domain::GRANT_HPKE)
        .part(trust_domain.as_bytes())
        .part(recipient.bytes())
        .fixed(claims)
        .bytes()
}

/// What the signature of a grant is over.
pub(crate) fn signed_bytes(claims: &Hash, encapsulation: &[u8]) -> Vec<u8> {
    Transcript::new(domain::GRANT_SIGNATURE).fixed(claims).part(encapsulation).bytes()
}

/// The caller's randomness as HPKE takes it.
struct Source<'a>(Random<'a>);

impl TryRng for Source<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        (self.0)(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        (self.0)(&mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        (self.0)(bytes);
        Ok(())
    }
}

impl TryCryptoRng for Source<'_> {}
