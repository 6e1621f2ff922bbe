//! Which CAs a member of a group trusts, and how one CA follows another.
//!
//! ```text
//! settled ── new root handed out ──▶ announced ── a leaf's life later ──▶ issuing ── once more ──▶ over
//!  old CA signs                       old CA signs                        new CA signs          new root only
//! ```
//!
//! Whoever holds a certificate has renewed it while the new root was announced, and was told of the
//! root then; so that nobody meets a signature of a CA it does not know.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::certificate::moment;
use crate::key::Pin;

/// One CA's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    der: CertificateDer<'static>,
    pin: Pin,
    not_after: SystemTime,
}

impl Root {
    /// Reads a CA's certificate.
    ///
    /// # Errors
    /// It is none.
    pub fn read(der: CertificateDer<'static>) -> Result<Self, RootError> {
        let (rest, certificate) =
            X509Certificate::from_der(&der).map_err(|_| RootError::Malformed)?;
        if !rest.is_empty() {
            return Err(RootError::Malformed);
        }
        if !certificate.is_ca() {
            return Err(RootError::NoAuthority);
        }
        let not_after =
            moment(certificate.validity().not_after).map_err(|_| RootError::Malformed)?;
        let pin = Pin::of(certificate.public_key().raw);
        Ok(Self { der, pin, not_after })
    }

    /// Returns the certificate.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// Returns the hash of its key.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// Returns until when it counts.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }
}

/// What a member trusts: one CA, or two while one follows the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots(Vec<Root>);

impl Roots {
    /// Trusts these.
    ///
    /// # Errors
    /// There are none, more than two, or one twice.
    pub fn new(roots: Vec<Root>) -> Result<Self, RootError> {
        match roots.as_slice() {
            [_] => Ok(Self(roots)),
            [one, other] if one.pin != other.pin => Ok(Self(roots)),
            [_, _] => Err(RootError::Twice),
            _ => Err(RootError::Count(roots.len())),
        }
    }

    /// Reads and trusts these.
    ///
    /// # Errors
    /// As [`Self::new`] and [`Root::read`].
    pub fn read(
        certificates: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> Result<Self, RootError> {
        Self::new(certificates.into_iter().map(Root::read).collect::<Result<_, _>>()?)
    }

    /// Yields the CAs.
    pub fn iter(&self) -> impl Iterator<Item = &Root> {
        self.0.iter()
    }

    /// Says whether a CA with this key is trusted.
    pub fn contains(&self, pin: Pin) -> bool {
        self.0.iter().any(|root| root.pin == pin)
    }
}

impl From<Root> for Roots {
    fn from(root: Root) -> Self {
        Self(vec![root])
    }
}

/// One CA following another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roll {
    /// When members were first handed the new root.
    pub announced: SystemTime,
    /// The longest life of a certificate in this group.
    pub leaf_life: Duration,
}

/// How far a [`Roll`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Both are trusted, the old one signs.
    Announced,
    /// Both are trusted, the new one signs.
    Issuing,
    /// Nothing that the old one signed counts any more.
    Over,
}

impl Roll {
    /// Says how far it is.
    pub fn stage(&self, now: SystemTime) -> Stage {
        let since = now.duration_since(self.announced).unwrap_or_default();
        if since < self.leaf_life {
            Stage::Announced
        } else if since < 2 * self.leaf_life {
            Stage::Issuing
        } else {
            Stage::Over
        }
    }
}

/// Why a CA cannot be trusted or taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RootError {
    /// It is no certificate.
    #[error("the CA's certificate cannot be read")]
    Malformed,
    /// It is no CA's.
    #[error("the certificate that should be the CA's is none of a CA")]
    NoAuthority,
    /// It belongs to another key.
    #[error("the CA's certificate does not belong to the CA's key")]
    OtherKey,
    /// One CA stands there twice.
    #[error("the same CA is listed twice")]
    Twice,
    /// There are too few or too many.
    #[error("a group has one CA, or two while one follows the other, not {0}")]
    Count(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;
    use crate::certificate::Serial;
    use crate::spiffe::TrustDomain;

    fn root(seed: u8) -> Root {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let domain = TrustDomain::new("home").unwrap();
        let serial = Serial::from_random([seed; 16]);
        Authority::create(domain, &[seed; 32], &serial, now).unwrap().root().clone()
    }

    #[test]
    fn one_or_two_different_cas_are_trusted_at_once() {
        let [one, two, three] = [1, 2, 3].map(root);
        assert!(Roots::new(vec![one.clone(), two.clone()]).unwrap().contains(two.pin()));
        assert_eq!(Roots::new(vec![]), Err(RootError::Count(0)));
        assert_eq!(Roots::new(vec![one.clone(), one.clone()]), Err(RootError::Twice));
        assert_eq!(Roots::new(vec![one, two, three]), Err(RootError::Count(3)));
    }

    #[test]
    fn a_new_ca_signs_once_every_member_has_renewed_and_the_old_one_goes_when_all_have_again() {
        let announced = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let day = Duration::from_secs(86_400);
        let roll = Roll { announced, leaf_life: day };
        let second = Duration::from_secs(1);
        for (now, stage) in [
            (announced - second, Stage::Announced),
            (announced, Stage::Announced),
            (announced + day - second, Stage::Announced),
            (announced + day, Stage::Issuing),
            (announced + 2 * day - second, Stage::Issuing),
            (announced + 2 * day, Stage::Over),
        ] {
            assert_eq!(roll.stage(now), stage, "{now:?}");
        }
    }
}
