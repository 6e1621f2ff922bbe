//! Both ends of a link between members of a group.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use iop_identity::{
    IdentityError, IdentityKey, Kind, PeerIdentity, Roots, SpiffeId, TrustDomain, attempts,
};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{Acceptor, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, CommonState, RootCertStore, ServerConfig};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};

use super::stream::Secure;
use super::{
    ENROL_PROTOCOL, EXPORTER_LABEL, HANDSHAKE_TIMEOUT, HandshakeError, LINK_PROTOCOL, provider,
};
use crate::socket::Socket;

/// Connections of one address (or IPv6 network) that have not shown who they are. A machine with
/// many Nodes behind one address dials them one after the other within a second.
const MOST_UNVERIFIED: usize = 32;

/// What a member of a group shows, and whom it trusts.
#[derive(Debug)]
pub struct Member<'a> {
    /// The group.
    pub domain: &'a TrustDomain,
    /// The member's key.
    pub key: &'a IdentityKey,
    /// The member's certificate, and behind it, at an Edge, that of the CA: Nodes that join recognise
    /// it by its pin.
    pub chain: &'a [CertificateDer<'static>],
    /// The CAs that are trusted.
    pub roots: &'a Roots,
}

impl Member<'_> {
    fn root_store(&self) -> Result<Arc<RootCertStore>, TlsSetupError> {
        let mut store = RootCertStore::empty();
        for root in self.roots.iter() {
            store.add(root.der().clone())?;
        }
        Ok(Arc::new(store))
    }

    /// A certificate of somebody else would fail at the peer, where nobody looks.
    fn require_own(&self, kind: Kind) -> Result<(), TlsSetupError> {
        let leaf = self.chain.first().ok_or(TlsSetupError::NoCertificate)?;
        let own = PeerIdentity::read(leaf, self.domain, kind)?;
        if own.key == self.key.public() { Ok(()) } else { Err(TlsSetupError::OtherKey) }
    }
}

/// Why nothing can be secured with what a member has.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    /// There is no certificate.
    #[error("there is no certificate of this machine")]
    NoCertificate,
    /// The certificate is for another key.
    #[error("this machine's certificate does not belong to its key")]
    OtherKey,
    /// The certificate is not an identity's.
    #[error("this machine's own certificate does not serve: {0}")]
    Identity(#[from] IdentityError),
    /// rustls refuses it.
    #[error("cannot set TLS up")]
    Tls(#[from] rustls::Error),
    /// The CAs cannot be used to verify.
    #[error("cannot verify with the CAs of the group")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// What both ends of one link know of it. Its exporter is a secret of this link.
#[derive(Clone, PartialEq, Eq)]
pub struct Channel {
    /// Who is at the other end.
    pub peer: PeerIdentity,
    /// 32 bytes that only the two ends of this connection can know.
    pub exporter: [u8; 32],
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// A connection whose other end is a member of the group.
#[derive(Debug)]
pub struct Secured {
    /// The connection.
    pub socket: Socket,
    /// What is known of it.
    pub channel: Arc<Channel>,
}

/// Who came to an Edge's port for Nodes.
#[derive(Debug)]
pub enum Arrival {
    /// A member.
    Link(Secured),
    /// Somebody who wants to join. Nothing is known of it.
    Enrolment(Socket),
}

/// The Edge's end.
#[derive(Debug)]
pub struct EdgeTls {
    domain: TrustDomain,
    configs: ArcSwap<EdgeConfigs>,
    unverified: Unverified,
}

#[derive(Debug)]
struct EdgeConfigs {
    link: Arc<ServerConfig>,
    enrolment: Arc<ServerConfig>,
}

impl EdgeTls {
    /// Sets up with what `member` has.
    ///
    /// # Errors
    /// It is not an Edge's, or does not fit together.
    pub fn new(member: &Member<'_>) -> Result<Self, TlsSetupError> {
        Ok(Self {
            domain: member.domain.clone(),
            configs: ArcSwap::from_pointee(EdgeConfigs::new(member)?),
            unverified: Unverified::default(),
        })
    }

    /// Uses what `member` has from the next handshake on. Keeps what it had if that fails.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn replace(&self, member: &Member<'_>) -> Result<(), TlsSetupError> {
        self.configs.store(Arc::new(EdgeConfigs::new(member)?));
        Ok(())
    }

    /// Performs the handshake with a connection that came from `address`. Dropping the future closes it.
    ///
    /// # Errors
    /// The peer is nobody to talk to; it was told as TLS tells it.
    pub async fn accept(
        &self,
        socket: Socket,
        address: SocketAddr,
    ) -> Result<Arrival, HandshakeError> {
        let _counted = self.unverified.enter(address.ip())?;
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, self.handshake(socket)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(HandshakeError::Timeout(HANDSHAKE_TIMEOUT)),
        }
    }

    async fn handshake(&self, socket: Socket) -> Result<Arrival, HandshakeError> {
        let start = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
        let wants_to_join = start
            .client_hello()
            .alpn()
            .is_some_and(|mut offered| offered.any(|protocol| protocol == ENROL_PROTOCOL));
        let configs = self.configs.load_full();
        let config = if wants_to_join { &configs.enrolment } else { &configs.link };
        let stream = start.into_stream(Arc::clone(config)).await?;
        let session = stream.get_ref().1;
        if wants_to_join {
            return Ok(Arrival::Enrolment(Socket::new(Secure::new(stream))));
        }
        // rustls lets a client pass that offers nothing.
        if session.alpn_protocol() != Some(LINK_PROTOCOL) {
            return Err(HandshakeError::Protocol);
        }
        let mut exporter = [0; 32];
        session.export_keying_material(&mut exporter, EXPORTER_LABEL, None)?;
        let peer = PeerIdentity::read(leaf(session)?, &self.domain, Kind::Node)?;
        let socket = Socket::new(Secure::new(stream));
        Ok(Arrival::Link(Secured { socket, channel: Arc::new(Channel { peer, exporter }) }))
    }
}

impl EdgeConfigs {
    fn new(member: &Member<'_>) -> Result<Self, TlsSetupError> {
        member.require_own(Kind::Edge)?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(member.root_store()?, provider())
                .build()?;
        let builder = || {
            ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&rustls::version::TLS13])
        };
        let (chain, key) = (member.chain.to_vec(), || member.key.to_tls());
        let mut link = builder()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key())?;
        link.alpn_protocols = vec![LINK_PROTOCOL.to_vec()];
        let mut enrolment = builder()?.with_no_client_auth().with_single_cert(chain, key())?;
        enrolment.alpn_protocols = vec![ENROL_PROTOCOL.to_vec()];
        for config in [&mut link, &mut enrolment] {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self { link: Arc::new(link), enrolment: Arc::new(enrolment) })
    }
}

/// The Node's end.
#[derive(Debug)]
pub struct NodeTls {
    edge: SpiffeId,
    name: ServerName<'static>,
    config: ArcSwap<ClientConfig>,
}

impl NodeTls {
    /// Sets up with what `member` has, for links to `edge` alone.
    ///
    /// # Errors
    /// It is not a Node's, or does not fit together.
    pub fn new(member: &Member<'_>, edge: SpiffeId) -> Result<Self, TlsSetupError> {
        let name = ServerName::try_from(member.domain.edge_host())
            .expect("a trust domain can stand in a host name");
        Ok(Self { edge, name, config: ArcSwap::from_pointee(client_config(member)?) })
    }

    /// Uses what `member` has from the next handshake on. Keeps what it had if that fails.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn replace(&self, member: &Member<'_>) -> Result<(), TlsSetupError> {
        self.config.store(Arc::new(client_config(member)?));
        Ok(())
    }

    /// Performs the handshake with whoever answered at the Edge's address. Dropping the future closes
    /// the connection. An Edge that does not accept *this* end says so with the first read.
    ///
    /// # Errors
    /// It is not the Edge that this Node joined.
    pub async fn connect(&self, socket: Socket) -> Result<Secured, HandshakeError> {
        let connector = TlsConnector::from(self.config.load_full());
        let handshake = connector.connect(self.name.clone(), socket);
        let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(outcome) => outcome?,
            Err(_) => return Err(HandshakeError::Timeout(HANDSHAKE_TIMEOUT)),
        };
        let session = stream.get_ref().1;
        if session.alpn_protocol() != Some(LINK_PROTOCOL) {
            return Err(HandshakeError::Protocol);
        }
        let mut exporter = [0; 32];
        session.export_keying_material(&mut exporter, EXPORTER_LABEL, None)?;
        let peer = PeerIdentity::read(leaf(session)?, self.edge.domain(), Kind::Edge)?;
        if peer.id != self.edge {
            return Err(HandshakeError::OtherEdge { found: peer.id, wanted: self.edge.clone() });
        }
        let socket = Socket::new(Secure::new(stream));
        Ok(Secured { socket, channel: Arc::new(Channel { peer, exporter }) })
    }
}

fn client_config(member: &Member<'_>) -> Result<ClientConfig, TlsSetupError> {
    member.require_own(Kind::Node)?;
    let verifier =
        WebPkiServerVerifier::builder_with_provider(member.root_store()?, provider()).build()?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(member.chain.to_vec(), member.key.to_tls())?;
    config.alpn_protocols = vec![LINK_PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn leaf(session: &CommonState) -> Result<&CertificateDer<'static>, HandshakeError> {
    let chain = session.peer_certificates().unwrap_or_default();
    chain.first().ok_or(HandshakeError::NoCertificate)
}

/// Counts connections that have not shown who they are.
#[derive(Debug, Clone, Default)]
struct Unverified(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

impl Unverified {
    fn enter(&self, address: IpAddr) -> Result<Entered, HandshakeError> {
        let address = attempts::network(address);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= MOST_UNVERIFIED {
            return Err(HandshakeError::Crowded(*count));
        }
        *count += 1;
        drop(counts);
        Ok(Entered { counts: self.clone(), address })
    }
}

struct Entered {
    counts: Unverified,
    address: IpAddr,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}
