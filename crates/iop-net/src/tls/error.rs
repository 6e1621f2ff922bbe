//! How a handshake fails, in words for an operator.

use std::fmt;
use std::io;
use std::time::Duration;

use iop_identity::{IdentityError, SpiffeId};
use rustls::{AlertDescription, CertificateError};

/// Why a connection was not secured. Nothing of the protocol above was read or written.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// What came is no TLS.
    #[error("the peer does not speak TLS: it sent something else")]
    NotTls,
    /// It took too long.
    #[error("the TLS handshake was not over within {0:?}")]
    Timeout(Duration),
    /// The peer left.
    #[error("the peer closed the connection in the middle of the TLS handshake")]
    Gone,
    /// The versions of TLS do not meet.
    #[error("the peer does not offer what is needed here, TLS 1.3: {0}")]
    Incompatible(String),
    /// The peer wants to speak something else.
    #[error("the peer does not speak the protocol of IOP's links inside TLS (ALPN)")]
    Protocol,
    /// The peer showed no certificate.
    #[error("the peer showed no certificate, and only members of the group are let in")]
    NoCertificate,
    /// The peer's certificate is out of date.
    #[error("the peer's certificate has expired: it must join again, or a clock is wrong")]
    Expired,
    /// The peer's certificate is ahead of the clock.
    #[error("the peer's certificate is not valid yet: a clock is wrong")]
    NotYetValid,
    /// The peer's certificate is of another CA.
    #[error("the peer's certificate does not come from a CA that is trusted here")]
    UnknownAuthority,
    /// The peer's certificate names another host.
    #[error("the peer's certificate is not for the host name that was asked for")]
    WrongName,
    /// Something else is wrong with the peer's certificate.
    #[error("the peer's certificate is not valid: {0}")]
    Certificate(String),
    /// The peer's certificate stands for nobody here.
    #[error("the peer is no member: {0}")]
    Identity(#[from] IdentityError),
    /// Another Edge answered.
    #[error("another edge answered: {found}, and this node belongs to {wanted}")]
    OtherEdge {
        /// Who answered.
        found: SpiffeId,
        /// Whom the Node joined.
        wanted: SpiffeId,
    },
    /// The peer does not accept us.
    #[error("the peer refused the TLS handshake: {}", told(*.0))]
    Refused(AlertDescription),
    /// Nobody can be verified.
    #[error(
        "this machine has no CA certificates to verify with ({0}): install them (`ca-certificates`) \
         or name a file in SSL_CERT_FILE"
    )]
    NoRoots(String),
    /// Too many connections of this address have not shown who they are.
    #[error("this address has {0} connections that have not shown who they are")]
    Crowded(usize),
    /// The connection failed.
    #[error("the connection failed during the TLS handshake")]
    Io(#[source] io::Error),
    /// Anything else.
    #[error("the TLS handshake failed")]
    Other(#[source] rustls::Error),
}

impl HandshakeError {
    /// Returns the stable word for the audit log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::Timeout(_) => "handshake_timeout",
            Self::Gone => "handshake_gone",
            Self::Incompatible(_) => "tls_version",
            Self::Protocol => "wrong_protocol",
            Self::NoCertificate => "no_certificate",
            Self::Expired => "certificate_expired",
            Self::NotYetValid => "certificate_not_yet_valid",
            Self::UnknownAuthority => "unknown_ca",
            Self::WrongName => "wrong_host_name",
            Self::Certificate(_) => "bad_certificate",
            Self::Identity(error) => error.as_str(),
            Self::OtherEdge { .. } => "other_edge",
            Self::Refused(_) => "refused_by_peer",
            Self::NoRoots(_) => "no_roots",
            Self::Crowded(_) => "too_many_unverified",
            Self::Io(_) => "handshake_lost",
            Self::Other(_) => "handshake_failed",
        }
    }

    /// Says whether trying again soon is pointless: what failed is who the two are, not the network.
    pub const fn is_verdict(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Gone | Self::Crowded(_) | Self::Io(_) => false,
            Self::NotTls
            | Self::Incompatible(_)
            | Self::Protocol
            | Self::NoCertificate
            | Self::Expired
            | Self::NotYetValid
            | Self::UnknownAuthority
            | Self::WrongName
            | Self::Certificate(_)
            | Self::Identity(_)
            | Self::OtherEdge { .. }
            | Self::NoRoots(_)
            | Self::Refused(_)
            | Self::Other(_) => true,
        }
    }

    /// Says whether the peer let us know that our certificate was revoked.
    pub const fn is_revoked(&self) -> bool {
        matches!(self, Self::Refused(AlertDescription::CertificateRevoked))
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        let kind = error.kind();
        match error.downcast::<rustls::Error>() {
            Ok(error) => error.into(),
            Err(_) if matches!(kind, io::ErrorKind::UnexpectedEof) => Self::Gone,
            Err(error) => Self::Io(error),
        }
    }
}

impl From<rustls::Error> for HandshakeError {
    fn from(error: rustls::Error) -> Self {
        use rustls::Error;
        match error {
            Error::InvalidMessage(_)
            | Error::InappropriateMessage { .. }
            | Error::PeerSentOversizedRecord => Self::NotTls,
            Error::PeerIncompatible(what) => Self::Incompatible(format!("{what:?}")),
            Error::NoApplicationProtocol => Self::Protocol,
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::AlertReceived(alert) => Self::Refused(alert),
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    Self::Expired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    Self::NotYetValid
                }
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    Self::UnknownAuthority
                }
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => Self::WrongName,
                other => Self::Certificate(other.to_string()),
            },
            other => Self::Other(other),
        }
    }
}

/// What a peer's alert means for us.
fn told(alert: AlertDescription) -> impl fmt::Display {
    match alert {
        AlertDescription::CertificateExpired => {
            "our certificate has expired, join again or check the clocks".to_owned()
        }
        AlertDescription::CertificateRevoked => "our certificate was revoked".to_owned(),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "our certificate comes from another CA than its own".to_owned()
        }
        AlertDescription::CertificateRequired => "it wants a certificate".to_owned(),
        AlertDescription::NoApplicationProtocol => "it speaks other protocols".to_owned(),
        AlertDescription::ProtocolVersion => "it speaks other versions of TLS".to_owned(),
        other => format!("{other:?}"),
    }
}
