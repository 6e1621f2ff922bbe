//! What a Node asks to have certified: its key, and nothing else.

use rcgen::CertificateParams;
use rustls_pki_types::CertificateSigningRequestDer;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::FromDer as _;

use crate::key::{IdentityKey, PublicKey};

/// Longer requests are not read: one with an Ed25519 key has about 150 bytes.
pub const MAX_REQUEST: usize = 4096;

/// A signing request whose sender was seen to hold the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SigningRequest {
    key: PublicKey,
}

impl SigningRequest {
    /// Writes a request (PKCS#10) for `key`. It names nobody: the Edge decides who that is.
    pub fn write(key: &IdentityKey) -> CertificateSigningRequestDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.serialize_request(key).expect("a request without names can be written").into()
    }

    /// Reads a request and checks that it was signed with its own key. Names and extensions that it
    /// asks for are not even looked at.
    ///
    /// # Errors
    /// It cannot be read, has another kind of key, or was not signed by it.
    pub fn read(request: &[u8]) -> Result<Self, RequestError> {
        if request.len() > MAX_REQUEST {
            return Err(RequestError::Malformed);
        }
        let (rest, parsed) =
            X509CertificationRequest::from_der(request).map_err(|_| RequestError::Malformed)?;
        if !rest.is_empty() {
            return Err(RequestError::Malformed);
        }
        let info = &parsed.certification_request_info;
        if info.subject_pki.algorithm.algorithm != OID_SIG_ED25519
            || parsed.signature_algorithm.algorithm != OID_SIG_ED25519
        {
            return Err(RequestError::KeyType);
        }
        let bytes: &[u8] = &info.subject_pki.subject_public_key.data;
        let key = PublicKey(bytes.try_into().map_err(|_| RequestError::KeyType)?);
        if key.verifies(info.raw, &parsed.signature_value.data) {
            Ok(Self { key })
        } else {
            Err(RequestError::Signature)
        }
    }

    /// Returns the key to certify.
    pub fn key(&self) -> PublicKey {
        self.key
    }
}

/// Why a signing request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It cannot be read.
    #[error("the signing request cannot be read")]
    Malformed,
    /// Its key has another algorithm.
    #[error("the signing request is for a key that is not Ed25519")]
    KeyType,
    /// The sender does not hold the key.
    #[error("the signing request is not signed by the key it is for")]
    Signature,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_yields_the_key_that_signed_it() {
        let key = IdentityKey::from_seed(&[3; 32]);
        let request = SigningRequest::read(&SigningRequest::write(&key)).unwrap();
        assert_eq!(request.key(), key.public());
    }

    /// The frame around the signed part has bits that DER readers ignore; they change nothing.
    #[test]
    fn no_damage_yields_another_key() {
        let key = IdentityKey::from_seed(&[3; 32]);
        let request = SigningRequest::write(&key).to_vec();
        let mut accepted = 0;
        for bit in 0..request.len() * 8 {
            let mut mutated = request.clone();
            mutated[bit / 8] ^= 1 << (bit % 8);
            if let Ok(read) = SigningRequest::read(&mutated) {
                assert_eq!(read.key(), key.public(), "bit {bit}");
                accepted += 1;
            }
        }
        assert!(accepted <= 32, "{accepted} bits changed nothing");
        for length in 0..request.len() {
            assert!(SigningRequest::read(&request[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_key_of_another_kind_is_refused() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let request = CertificateParams::default().serialize_request(&key).unwrap();
        assert_eq!(SigningRequest::read(request.der()), Err(RequestError::KeyType));
    }
}
