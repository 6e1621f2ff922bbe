//! The end of a Node that wants to join: it knows a pin and nothing else.
//!
//! The pin stands for the CA that the Edge shows behind its own certificate; that CA is then the only
//! root that the Edge's certificate is verified against, by the stock verifier. The group's name is
//! read off the Edge's certificate, which a CA of another group cannot have issued.

use std::sync::Arc;

use iop_identity::{Kind, Pin, SpiffeId, certificate};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_rustls::TlsConnector;

use super::stream::Secure;
use super::{ENROL_PROTOCOL, HANDSHAKE_TIMEOUT, HandshakeError, provider};
use crate::socket::Socket;

/// An Edge whose CA has the pin of the token.
#[derive(Debug)]
pub struct Introduced {
    /// The connection; the token's secret may be sent over it.
    pub socket: Socket,
    /// Who it is.
    pub edge: SpiffeId,
}

/// Performs the handshake of a Node that holds a join token with this pin. Dropping the future closes
/// the connection.
///
/// # Errors
/// Whoever answered is no Edge of a group whose CA has this pin: it must not see the secret.
pub async fn enrol(socket: Socket, pin: Pin) -> Result<Introduced, HandshakeError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { pin }))
        .with_no_client_auth();
    config.alpn_protocols = vec![ENROL_PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    // Not sent: the Edge needs no name to choose a certificate by, and ours is not known yet.
    config.enable_sni = false;
    let name = ServerName::try_from("edge.invalid").expect("a host name");
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, socket);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(outcome) => outcome?,
        Err(_) => return Err(HandshakeError::Timeout(HANDSHAKE_TIMEOUT)),
    };
    let session = stream.get_ref().1;
    if session.alpn_protocol() != Some(ENROL_PROTOCOL) {
        return Err(HandshakeError::Protocol);
    }
    let leaf = session.peer_certificates().and_then(<[_]>::first);
    let edge = certificate::subject(leaf.ok_or(HandshakeError::NoCertificate)?)?;
    Ok(Introduced { socket: Socket::new(Secure::new(stream)), edge })
}

#[derive(Debug)]
struct Pinned {
    pin: Pin,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_pinned =
            |shown: &&CertificateDer<'_>| certificate::pin(shown).is_ok_and(|pin| pin == self.pin);
        let root = intermediates.iter().find(is_pinned).ok_or(CertificateError::UnknownIssuer)?;
        let edge = certificate::subject(leaf).map_err(|_| CertificateError::BadEncoding)?;
        if edge.kind() != Kind::Edge {
            return Err(CertificateError::InvalidPurpose.into());
        }
        let mut store = RootCertStore::empty();
        store.add(root.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let name = ServerName::try_from(edge.domain().edge_host())
            .map_err(|_| CertificateError::BadEncoding)?;
        verifier.verify_server_cert(leaf, &[], &name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
