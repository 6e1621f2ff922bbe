//! Handshakes over real loopback sockets: who is let in, and what is said of everybody else.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use iop_identity::{
    Authority, IdentityKey, Kind, Pin, Roots, Serial, SpiffeId, TrustDomain, authority,
};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::socket::Socket;

fn authority(seed: u8) -> Authority {
    let domain = TrustDomain::new("home").unwrap();
    let serial = Serial::from_random([seed; 16]);
    Authority::create(domain, &[seed; 32], &serial, SystemTime::now()).unwrap()
}

/// A member with the certificate that `authority` gave it.
struct Someone {
    domain: TrustDomain,
    key: IdentityKey,
    chain: Vec<CertificateDer<'static>>,
    roots: Roots,
}

impl Someone {
    fn new(authority: &Authority, kind: Kind, name: &str) -> Self {
        Self::at(authority, kind, name, SystemTime::now())
    }

    fn at(authority: &Authority, kind: Kind, name: &str, now: SystemTime) -> Self {
        let key = IdentityKey::from_seed(&[name.len().try_into().unwrap(); 32]);
        let id = SpiffeId::new(authority.domain().clone(), kind, name).unwrap();
        let serial = Serial::from_random([7; 16]);
        let life = authority::NODE_LIFE;
        let leaf = authority.issue(&id, &key.public(), &serial, life, now).unwrap();
        let root = authority.root().clone();
        let chain = vec![leaf, root.der().clone()];
        Self { domain: authority.domain().clone(), key, chain, roots: root.into() }
    }

    fn member(&self) -> Member<'_> {
        let Self { domain, key, chain, roots } = self;
        Member { domain, key, chain, roots }
    }
}

fn edge_id() -> SpiffeId {
    SpiffeId::new(TrustDomain::new("home").unwrap(), Kind::Edge, "den").unwrap()
}

fn edge(authority: &Authority) -> EdgeTls {
    EdgeTls::new(&Someone::new(authority, Kind::Edge, "den").member()).unwrap()
}

fn node(someone: &Someone) -> NodeTls {
    NodeTls::new(&someone.member(), edge_id()).unwrap()
}

/// Two ends of a connection.
async fn pair() -> (Socket, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (Socket::from_tcp(near.unwrap()).unwrap(), Socket::from_tcp(far.unwrap().0).unwrap())
}

async fn accept(edge: &EdgeTls, socket: Socket) -> Result<Arrival, HandshakeError> {
    edge.accept(socket, "127.0.0.1:1".parse().unwrap()).await
}

/// A handshake of both ends.
async fn meet(
    edge: &EdgeTls,
    node: &NodeTls,
) -> (Result<Arrival, HandshakeError>, Result<Secured, HandshakeError>) {
    let (near, far) = pair().await;
    tokio::join!(accept(edge, far), node.connect(near))
}

fn link(arrival: Result<Arrival, HandshakeError>) -> Secured {
    match arrival.unwrap() {
        Arrival::Link(secured) => secured,
        Arrival::Enrolment(_) => panic!("nobody asked to join"),
    }
}

/// What the Edge says of a client that is configured by hand.
async fn refused(edge: &EdgeTls, config: ClientConfig) -> &'static str {
    let (near, far) = pair().await;
    let name = ServerName::try_from("edge.home").unwrap();
    let client = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, near);
    let (arrival, _client) = tokio::join!(accept(edge, far), client);
    arrival.unwrap_err().as_str()
}

/// A client that trusts the group and shows what it is given.
fn client(
    authority: &Authority,
    shown: Option<(Vec<CertificateDer<'static>>, &IdentityKey)>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ClientConfig {
    let mut store = RootCertStore::empty();
    store.add(authority.root().der().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(store);
    let mut config = match shown {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key.to_tls()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![LINK_PROTOCOL.to_vec()];
    config
}

const TLS13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

#[tokio::test]
async fn members_meet_know_each_other_and_share_a_secret() {
    let authority = authority(1);
    let (edge, lab) = (edge(&authority), Someone::new(&authority, Kind::Node, "lab"));
    let (arrival, secured) = meet(&edge, &node(&lab)).await;
    let (at_edge, at_node) = (link(arrival), secured.unwrap());
    assert_eq!(at_edge.channel.peer.id.to_string(), "spiffe://home/iop/node/lab");
    assert_eq!(at_node.channel.peer.id, edge_id());
    assert_eq!(at_edge.channel.exporter, at_node.channel.exporter);
    assert_ne!(at_edge.channel.exporter, [0; 32]);

    let (arrival, _secured) = meet(&edge, &node(&lab)).await;
    let other = link(arrival).channel.exporter;
    assert_ne!(other, at_node.channel.exporter, "a secret belongs to one connection");
}

#[tokio::test]
async fn bytes_a_half_close_and_the_end_pass_through() {
    let authority = authority(1);
    let (edge, lab) = (edge(&authority), Someone::new(&authority, Kind::Node, "lab"));
    let (arrival, secured) = meet(&edge, &node(&lab)).await;
    let (mut far, mut near) = (link(arrival).socket, secured.unwrap().socket);
    let sent = vec![0x5a; 1 << 20];
    let writing = async {
        near.write_all(&sent).await.unwrap();
        near.flush().await.unwrap();
        near.shutdown_write().unwrap();
    };
    let mut received = Vec::new();
    let (end, ()) = tokio::join!(far.read_to_end(&mut received), writing);
    assert_eq!((end.unwrap(), &received), (sent.len(), &sent));
    far.closed().await;

    far.write_all(b"still here").await.unwrap();
    far.shutdown().await.unwrap();
    let mut answer = Vec::new();
    near.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"still here");
}

#[tokio::test]
async fn the_peers_end_is_noticed_whatever_is_unread() {
    let authority = authority(1);
    let (edge, lab) = (edge(&authority), Someone::new(&authority, Kind::Node, "lab"));
    let (arrival, secured) = meet(&edge, &node(&lab)).await;
    let (far, mut near) = (link(arrival).socket, secured.unwrap().socket);
    assert!(!far.is_readable());
    near.write_all(b"unread").await.unwrap();
    near.flush().await.unwrap();
    drop(near);
    far.closed().await;
    assert!(far.is_readable());
}

/// Whoever looks takes records from the socket; the reader must not wait for them for ever.
#[tokio::test]
async fn looking_for_something_to_read_does_not_hide_it_from_the_reader() {
    let authority = authority(1);
    let (edge, lab) = (edge(&authority), Someone::new(&authority, Kind::Node, "lab"));
    let (arrival, secured) = meet(&edge, &node(&lab)).await;
    let (mut far, mut near) = (link(arrival).socket, secured.unwrap().socket);
    let looking = far.clone();
    let mut byte = [0];
    let mut reading = std::pin::pin!(far.read(&mut byte));
    assert!(futures_util::poll!(&mut reading).is_pending());
    near.write_all(b"x").await.unwrap();
    near.flush().await.unwrap();
    while !looking.is_readable() {}
    assert_eq!(reading.await.unwrap(), 1);
    assert_eq!(byte, *b"x");
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let authority = authority(1);
    let long_ago = SystemTime::now() - 2 * authority::NODE_LIFE;
    let lab = Someone::at(&authority, Kind::Node, "lab", long_ago);
    let (arrival, secured) = meet(&edge(&authority), &node(&lab)).await;
    assert_eq!(arrival.unwrap_err().as_str(), "certificate_expired");
    // In TLS 1.3 a client hears of it with its first read.
    let error = secured.unwrap().socket.read_u8().await.unwrap_err();
    let told = HandshakeError::from(error);
    assert_eq!(told.as_str(), "refused_by_peer");
    assert!(told.is_verdict() && told.to_string().contains("has expired"), "{told}");
}

#[tokio::test]
async fn a_certificate_from_the_future_is_refused() {
    let authority = authority(1);
    let ahead = SystemTime::now() + authority::NODE_LIFE;
    let lab = Someone::at(&authority, Kind::Node, "lab", ahead);
    let (arrival, _) = meet(&edge(&authority), &node(&lab)).await;
    assert_eq!(arrival.unwrap_err().as_str(), "certificate_not_yet_valid");
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused_by_either_end() {
    let (ours, other) = (authority(1), authority(2));
    let mut stranger = Someone::new(&other, Kind::Node, "lab");
    stranger.roots = ours.root().clone().into();
    let (arrival, _) = meet(&edge(&ours), &node(&stranger)).await;
    assert_eq!(arrival.unwrap_err().as_str(), "unknown_ca");

    let lab = Someone::new(&ours, Kind::Node, "lab");
    let (_, secured) = meet(&edge(&other), &node(&lab)).await;
    assert_eq!(secured.unwrap_err().as_str(), "unknown_ca");
}

#[tokio::test]
async fn another_edge_of_the_group_is_refused() {
    let authority = authority(1);
    let lab = Someone::new(&authority, Kind::Node, "lab");
    let other = EdgeTls::new(&Someone::new(&authority, Kind::Edge, "attic").member()).unwrap();
    let (_, secured) = meet(&other, &node(&lab)).await;
    let error = secured.unwrap_err();
    assert_eq!(error.as_str(), "other_edge");
    assert!(error.to_string().contains("edge/attic"), "{error}");
}

#[tokio::test]
async fn a_node_cannot_play_the_edge_nor_an_edge_a_node() {
    let authority = authority(1);
    let den = Someone::new(&authority, Kind::Edge, "den");
    let shown = Some((den.chain.clone(), &den.key));
    assert_eq!(refused(&edge(&authority), client(&authority, shown, TLS13)).await, "wrong_kind");
    let setup = NodeTls::new(&den.member(), edge_id()).unwrap_err();
    assert!(setup.to_string().contains("does not serve"), "{setup}");
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let authority = authority(1);
    let word = refused(&edge(&authority), client(&authority, None, TLS13)).await;
    assert_eq!(word, "no_certificate");
}

#[tokio::test]
async fn tls_1_2_is_refused() {
    let authority = authority(1);
    let lab = Someone::new(&authority, Kind::Node, "lab");
    let shown = Some((lab.chain.clone(), &lab.key));
    let old = client(&authority, shown, &[&rustls::version::TLS12]);
    assert_eq!(refused(&edge(&authority), old).await, "tls_version");
}

#[tokio::test]
async fn a_client_that_speaks_something_else_inside_tls_is_refused() {
    let authority = authority(1);
    let lab = Someone::new(&authority, Kind::Node, "lab");
    for offered in [vec![], vec![b"http/1.1".to_vec()]] {
        let mut config = client(&authority, Some((lab.chain.clone(), &lab.key)), TLS13);
        config.alpn_protocols = offered;
        assert_eq!(refused(&edge(&authority), config).await, "wrong_protocol");
    }
}

#[tokio::test]
async fn a_second_handshake_of_a_client_that_would_resume_is_whole_again() {
    let authority = authority(1);
    let (edge, lab) = (edge(&authority), Someone::new(&authority, Kind::Node, "lab"));
    let mut config = client(&authority, Some((lab.chain.clone(), &lab.key)), TLS13);
    config.resumption = Resumption::in_memory_sessions(8);
    config.enable_early_data = true;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    for _ in 0..2 {
        let (near, far) = pair().await;
        let name = ServerName::try_from("edge.home").unwrap();
        let (arrival, stream) = tokio::join!(accept(&edge, far), connector.connect(name, near));
        let mut socket = link(arrival).socket;
        let mut stream = stream.unwrap();
        // Tickets would come with the first bytes.
        socket.write_all(b"x").await.unwrap();
        stream.read_u8().await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
    }
}

#[tokio::test]
async fn plain_tcp_and_garbage_are_closed_unread() {
    let edge = edge(&authority(1));
    let register = [0, 0, 0, 9, 1, 8, 1, 0x12, 5, b'h', b'e', b'l', b'l'];
    for garbage in [&register[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 300]] {
        let (mut near, far) = pair().await;
        near.write_all(garbage).await.unwrap();
        assert_eq!(accept(&edge, far).await.unwrap_err().as_str(), "not_tls");
        let mut rest = Vec::new();
        let _ = near.read_to_end(&mut rest).await;
        assert!(rest.len() <= 7, "an alert at most: {rest:?}");
    }
}

#[tokio::test]
async fn a_peer_that_leaves_during_the_handshake_is_told_from_one_that_is_refused() {
    let (near, far) = pair().await;
    drop(near);
    let error = accept(&edge(&authority(1)), far).await.unwrap_err();
    assert_eq!(error.as_str(), "handshake_gone");
    assert!(!error.is_verdict());
}

#[tokio::test]
async fn a_silent_peer_is_given_up_after_five_seconds_and_one_address_holds_few_of_them() {
    let edge = Arc::new(edge(&authority(1)));
    let mut waiting = Vec::new();
    let mut silent = Vec::new();
    for _ in 0..32 {
        let (near, far) = pair().await;
        silent.push(near);
        let edge = Arc::clone(&edge);
        waiting.push(tokio::spawn(async move { accept(&edge, far).await.unwrap_err().as_str() }));
    }
    tokio::task::yield_now().await;
    let (_near, far) = pair().await;
    assert_eq!(accept(&edge, far).await.unwrap_err().as_str(), "too_many_unverified");
    tokio::time::pause();
    tokio::time::advance(HANDSHAKE_TIMEOUT - Duration::from_millis(1)).await;
    assert!(waiting.iter().all(|task| !task.is_finished()));
    tokio::time::advance(Duration::from_secs(1)).await;
    for task in waiting {
        assert_eq!(task.await.unwrap(), "handshake_timeout");
    }
}

#[tokio::test]
async fn a_replaced_certificate_counts_for_the_next_handshake() {
    let authority = authority(1);
    let edge = edge(&authority);
    let lab = Someone::new(&authority, Kind::Node, "lab");
    let node = node(&lab);
    let (first, _kept) = meet(&edge, &node).await;
    let renewed = Someone::new(&authority, Kind::Node, "renewed");
    node.replace(&renewed.member()).unwrap();
    let (second, _kept) = meet(&edge, &node).await;
    assert_eq!(link(first).channel.peer.id.id(), "lab");
    assert_eq!(link(second).channel.peer.id.id(), "renewed");
}

#[tokio::test]
async fn while_one_ca_follows_another_members_of_both_meet() {
    let (old, new) = (authority(1), authority(2));
    let both = Roots::new(vec![old.root().clone(), new.root().clone()]).unwrap();
    let mut den = Someone::new(&new, Kind::Edge, "den");
    let mut lab = Someone::new(&old, Kind::Node, "lab");
    (den.roots, lab.roots) = (both.clone(), both);
    let (arrival, secured) = meet(&EdgeTls::new(&den.member()).unwrap(), &node(&lab)).await;
    assert_eq!(link(arrival).channel.exporter, secured.unwrap().channel.exporter);
}

async fn join(
    edge: &EdgeTls,
    pin: Pin,
) -> (Result<Arrival, HandshakeError>, Result<Introduced, HandshakeError>) {
    let (near, far) = pair().await;
    tokio::join!(accept(edge, far), enrol(near, pin))
}

#[tokio::test]
async fn who_wants_to_join_recognises_the_edge_by_the_pin_and_shows_nothing() {
    let authority = authority(1);
    let (arrival, introduced) = join(&edge(&authority), authority.pin()).await;
    assert!(matches!(arrival, Ok(Arrival::Enrolment(_))), "{arrival:?}");
    assert_eq!(introduced.unwrap().edge, edge_id());
}

#[tokio::test]
async fn who_wants_to_join_talks_to_no_edge_with_another_ca() {
    let (ours, other) = (authority(1), authority(2));
    let (_, introduced) = join(&edge(&other), ours.pin()).await;
    assert_eq!(introduced.unwrap_err().as_str(), "unknown_ca");
    // The right CA is shown, and did not issue the certificate.
    let mut impostor = Someone::new(&other, Kind::Edge, "den");
    impostor.chain[1] = ours.root().der().clone();
    let (_, introduced) = join(&EdgeTls::new(&impostor.member()).unwrap(), ours.pin()).await;
    assert_eq!(introduced.unwrap_err().as_str(), "unknown_ca");
}
