//! The CA of an execution group.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;

use crate::certificate::Serial;
use crate::key::{IdentityKey, Pin, PublicKey};
use crate::roots::{Root, RootError};
use crate::spiffe::{Kind, SpiffeId, TrustDomain};

/// Life of a CA certificate: 10 years.
pub const ROOT_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Life of an Edge's certificate: 7 days.
pub const EDGE_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// Life of a Node's certificate unless configured: 24 hours.
pub const NODE_LIFE: Duration = Duration::from_secs(86_400);

/// Longest life of any certificate that the CA issues.
pub const LONGEST_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// How far a certificate begins in the past: 5 minutes, for clocks that are behind.
pub const BACK_DATED: Duration = Duration::from_secs(5 * 60);

/// The CA of one group: issues certificates and signs for the group.
#[derive(Debug)]
pub struct Authority {
    domain: TrustDomain,
    root: Root,
    issuer: Issuer<'static, IdentityKey>,
}

impl Authority {
    /// Makes the CA of a new group, or the next one of an old group.
    ///
    /// # Errors
    /// `now` is no time that a certificate can hold.
    pub fn create(
        domain: TrustDomain,
        seed: &[u8; 32],
        serial: &Serial,
        now: SystemTime,
    ) -> Result<Self, IssueError> {
        let key = IdentityKey::from_seed(seed);
        let mut params = blank(serial, now, ROOT_LIFE)?;
        // Each CA of a group has a name of its own, so that a verifier finds the right one.
        let name = format!("IOP {domain} {:.16}", key.public().pin().to_string());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok(Self::restore(domain, seed, certificate.into()).expect("the CA was made of this seed"))
    }

    /// Takes up a CA that was made before.
    ///
    /// # Errors
    /// `root` is no CA certificate, or not the one that belongs to `seed`.
    pub fn restore(
        domain: TrustDomain,
        seed: &[u8; 32],
        root: CertificateDer<'static>,
    ) -> Result<Self, RootError> {
        let key = IdentityKey::from_seed(seed);
        let root = Root::read(root)?;
        if root.pin() != key.public().pin() {
            return Err(RootError::OtherKey);
        }
        let issuer = Issuer::from_ca_cert_der(root.der(), key).map_err(|_| RootError::Malformed)?;
        Ok(Self { domain, root, issuer })
    }

    /// Returns the group's trust domain.
    pub fn domain(&self) -> &TrustDomain {
        &self.domain
    }

    /// Returns the CA's certificate.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the hash by which Nodes that join recognise this CA.
    pub fn pin(&self) -> Pin {
        self.root.pin()
    }

    /// Issues a certificate to whoever holds `key`, for as long as `life` from `now` on. The name is
    /// the Edge's choice; nothing of what a Node asked for gets in.
    ///
    /// # Errors
    /// `life` is nothing or longer than [`LONGEST_LIFE`], the CA's own certificate ends before, or
    /// `id` belongs to another group.
    pub fn issue(
        &self,
        id: &SpiffeId,
        key: &PublicKey,
        serial: &Serial,
        life: Duration,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, IssueError> {
        if id.domain() != &self.domain {
            return Err(IssueError::ForeignDomain(id.clone()));
        }
        if life < Duration::from_secs(1) || life > LONGEST_LIFE {
            return Err(IssueError::Life(life));
        }
        if now + life > self.root.not_after() {
            return Err(IssueError::RootEnds);
        }
        let mut params = blank(serial, now, life)?;
        params.subject_alt_names.push(SanType::URI(id.to_string().try_into()?));
        if id.kind() == Kind::Edge {
            params.subject_alt_names.push(SanType::DnsName(self.domain.edge_host().try_into()?));
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?.into())
    }

    /// Signs a small statement in the name of the group (which must begin with words of its own, as
    /// that of the lease signer does).
    pub fn sign(&self, statement: &[u8]) -> [u8; 64] {
        self.issuer.key().sign(statement)
    }

    /// Returns the key that [`Self::sign`] signs with.
    pub fn public_key(&self) -> [u8; 32] {
        self.issuer.key().public().0
    }
}

/// A certificate for `life` from `now` on, without a name.
fn blank(
    serial: &Serial,
    now: SystemTime,
    life: Duration,
) -> Result<CertificateParams, IssueError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
    params.not_before = date(now.checked_sub(BACK_DATED).ok_or(IssueError::Clock)?)?;
    params.not_after = date(now + life)?;
    Ok(params)
}

/// RFC 5280 ends with the year 9999.
fn date(at: SystemTime) -> Result<OffsetDateTime, IssueError> {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| IssueError::Clock)?;
    let seconds = i64::try_from(since.as_secs()).map_err(|_| IssueError::Clock)?;
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| IssueError::Clock)
}

/// Why no certificate was issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The life is out of range.
    #[error("a certificate lives 1 s to 7 days, not {0:?}")]
    Life(Duration),
    /// The CA would end first.
    #[error("the group's CA ends before this certificate would: roll the CA first")]
    RootEnds,
    /// The name belongs to another group.
    #[error("{0} belongs to another execution group than this CA")]
    ForeignDomain(SpiffeId),
    /// The clock is out of range.
    #[error("the clock shows no time that a certificate can hold: set it first")]
    Clock,
    /// The certificate could not be written.
    #[error("cannot write a certificate")]
    Encode(#[from] rcgen::Error),
}

#[cfg(test)]
mod tests;
