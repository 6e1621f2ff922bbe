//! Whom a certificate stands for.
//!
//! rustls has verified chain, time and signature before; what remains is the shape that SPIFFE asks
//! for. Each way to miss it is an error of its own, for the operator and the audit log.

use std::fmt;
use std::time::{Duration, SystemTime};

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::FromDer as _;
use x509_parser::time::ASN1Time;

use crate::key::{Pin, PublicKey};
use crate::spiffe::{Kind, SpiffeId, TrustDomain};

/// The number of one certificate, unique within its CA.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(Vec<u8>);

impl Serial {
    /// Makes a serial number of 16 random bytes; two bits are given so that it is positive and as long
    /// as any other.
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[0] = (bytes[0] & 0x3f) | 0x40;
        Self(bytes.to_vec())
    }

    /// Returns the number, most significant byte first.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serial({self})")
    }
}

/// A peer, as its verified certificate tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Who it is.
    pub id: SpiffeId,
    /// Which certificate it showed.
    pub serial: Serial,
    /// Its key.
    pub key: PublicKey,
    /// Since when the certificate counts.
    pub not_before: SystemTime,
    /// Until when the certificate counts.
    pub not_after: SystemTime,
}

impl PeerIdentity {
    /// Reads the leaf of a chain that was verified against the roots of `domain`.
    ///
    /// # Errors
    /// It is no certificate of an identity of this `kind` in this group.
    pub fn read(leaf: &[u8], domain: &TrustDomain, kind: Kind) -> Result<Self, IdentityError> {
        let (rest, certificate) =
            X509Certificate::from_der(leaf).map_err(|_| IdentityError::Malformed)?;
        if !rest.is_empty() {
            return Err(IdentityError::Malformed);
        }
        if certificate.is_ca() {
            return Err(IdentityError::Authority);
        }
        let id = name(&certificate)?;
        if id.domain() != domain {
            return Err(IdentityError::ForeignDomain(id));
        }
        if id.kind() != kind {
            return Err(IdentityError::WrongKind { id, wanted: kind });
        }
        require_usage(&certificate)?;
        Ok(Self {
            serial: Serial(certificate.serial.to_bytes_be()),
            key: public_key(&certificate)?,
            not_before: moment(certificate.validity().not_before)?,
            not_after: moment(certificate.validity().not_after)?,
            id,
        })
    }
}

/// Returns whom a certificate names, whatever its group and kind: what a Node that joins can know.
///
/// # Errors
/// It names no identity.
pub fn subject(leaf: &[u8]) -> Result<SpiffeId, IdentityError> {
    let (_, certificate) = X509Certificate::from_der(leaf).map_err(|_| IdentityError::Malformed)?;
    name(&certificate)
}

/// Returns the pin of a certificate's key.
///
/// # Errors
/// It is no certificate.
pub fn pin(certificate: &[u8]) -> Result<Pin, IdentityError> {
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|_| IdentityError::Malformed)?;
    Ok(Pin::of(certificate.public_key().raw))
}

fn name(certificate: &X509Certificate<'_>) -> Result<SpiffeId, IdentityError> {
    let names = certificate.subject_alternative_name().map_err(|_| IdentityError::Malformed)?;
    let mut uris =
        names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
    let uri = uris.next().ok_or(IdentityError::NoUri)?;
    if uris.next().is_some() {
        return Err(IdentityError::SeveralUris);
    }
    SpiffeId::parse(uri).map_err(|_| IdentityError::NotSpiffe(uri.to_owned()))
}

fn require_usage(certificate: &X509Certificate<'_>) -> Result<(), IdentityError> {
    let usage = certificate.key_usage().map_err(|_| IdentityError::Malformed)?;
    let usage = usage.ok_or(IdentityError::KeyUsage)?.value;
    if !usage.digital_signature() || usage.key_cert_sign() || usage.crl_sign() {
        return Err(IdentityError::KeyUsage);
    }
    let extended = certificate.extended_key_usage().map_err(|_| IdentityError::Malformed)?;
    let extended = extended.ok_or(IdentityError::ExtendedKeyUsage)?.value;
    if extended.server_auth && extended.client_auth {
        Ok(())
    } else {
        Err(IdentityError::ExtendedKeyUsage)
    }
}

fn public_key(certificate: &X509Certificate<'_>) -> Result<PublicKey, IdentityError> {
    let info = certificate.public_key();
    if info.algorithm.algorithm != OID_SIG_ED25519 {
        return Err(IdentityError::KeyType);
    }
    let bytes: &[u8] = &info.subject_public_key.data;
    Ok(PublicKey(bytes.try_into().map_err(|_| IdentityError::KeyType)?))
}

pub(crate) fn moment(time: ASN1Time) -> Result<SystemTime, IdentityError> {
    let seconds = u64::try_from(time.timestamp()).map_err(|_| IdentityError::Malformed)?;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Why a certificate stands for nobody here, although its chain is in order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It cannot be read.
    #[error("its certificate cannot be read")]
    Malformed,
    /// It is a CA's.
    #[error("it showed the certificate of a CA, which identifies nobody")]
    Authority,
    /// It has no URI name.
    #[error("its certificate has no URI name, so that it names no identity")]
    NoUri,
    /// It has several URI names.
    #[error("its certificate has several URI names, and an identity has exactly one")]
    SeveralUris,
    /// Its name is no identity's.
    #[error("its certificate names {0:?}, which is no identity of an execution group")]
    NotSpiffe(String),
    /// It belongs to another group.
    #[error("its certificate names {0}, an identity of another execution group")]
    ForeignDomain(SpiffeId),
    /// It is a Node's where an Edge's is needed, or the reverse.
    #[error("its certificate names {id}, which is no {wanted}")]
    WrongKind {
        /// Whom it names.
        id: SpiffeId,
        /// What was needed.
        wanted: Kind,
    },
    /// It may sign certificates, or may not sign.
    #[error("its certificate is not one for signatures only (key usage)")]
    KeyUsage,
    /// It is not for both ends of TLS.
    #[error("its certificate is not for both clients and servers (extended key usage)")]
    ExtendedKeyUsage,
    /// Its key has another algorithm.
    #[error("its certificate has a key that is not Ed25519")]
    KeyType,
}

impl IdentityError {
    /// Returns the stable word for the audit log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Malformed => "certificate_malformed",
            Self::Authority => "certificate_of_ca",
            Self::NoUri => "no_uri_name",
            Self::SeveralUris => "several_uri_names",
            Self::NotSpiffe(_) => "not_an_identity",
            Self::ForeignDomain(_) => "foreign_group",
            Self::WrongKind { .. } => "wrong_kind",
            Self::KeyUsage => "key_usage",
            Self::ExtendedKeyUsage => "extended_key_usage",
            Self::KeyType => "key_type",
        }
    }
}
