//! Links over TLS: who comes in, who is turned away, and what either side says of it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use iop_identity::{
    Authority, IdentityKey, Kind, PeerIdentity, Serial, SpiffeId, TrustDomain, authority,
};
use iop_net::link::{BoxFuture, FatalLink, Gate};
use iop_net::socket::Socket;
use iop_net::tls::{EdgeTls, HandshakeError, Member, NodeTls, enrol};
use iop_types::CloseReason;
use iop_wire::v1;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::support::{Cut, Edge, LinkState, Node, Relay, collect, echo, soon, tunnel};

fn group(seed: u8) -> Authority {
    let domain = TrustDomain::new("home").expect("a group");
    let serial = Serial::from_random([seed; 16]);
    Authority::create(domain, &[seed; 32], &serial, SystemTime::now()).expect("a CA")
}

fn name(kind: Kind, id: &str) -> SpiffeId {
    SpiffeId::new(TrustDomain::new("home").expect("a group"), kind, id).expect("a name")
}

fn issue(
    group: &Authority,
    id: &SpiffeId,
    key: &IdentityKey,
    now: SystemTime,
) -> Vec<CertificateDer<'static>> {
    let serial = Serial::from_random([7; 16]);
    let leaf =
        group.issue(id, &key.public(), &serial, authority::NODE_LIFE, now).expect("a certificate");
    vec![leaf, group.root().der().clone()]
}

fn edge_tls(group: &Authority) -> Arc<EdgeTls> {
    let key = IdentityKey::from_seed(&[1; 32]);
    let chain = issue(group, &name(Kind::Edge, "den"), &key, SystemTime::now());
    let (domain, roots) = (group.domain(), group.root().clone().into());
    Arc::new(
        EdgeTls::new(&Member { domain, key: &key, chain: &chain, roots: &roots })
            .expect("they fit"),
    )
}

fn node_tls(group: &Authority, id: &str, now: SystemTime) -> Arc<NodeTls> {
    let key = IdentityKey::from_seed(&[2; 32]);
    let chain = issue(group, &name(Kind::Node, id), &key, now);
    let (domain, roots) = (group.domain(), group.root().clone().into());
    let member = Member { domain, key: &key, chain: &chain, roots: &roots };
    Arc::new(NodeTls::new(&member, name(Kind::Edge, "den")).expect("they fit"))
}

/// Lets in whom it is told to and keeps what it heard.
struct Door {
    heard: mpsc::UnboundedSender<&'static str>,
    refuse: Mutex<Option<CloseReason>>,
}

impl Gate for Door {
    fn admit(&self, _: SocketAddr, peer: &PeerIdentity) -> Result<(), v1::RegisterRefused> {
        assert_eq!(peer.id.kind(), Kind::Node);
        match *self.refuse.lock().expect("no test panics here") {
            None => Ok(()),
            Some(reason) => Err(v1::RegisterRefused {
                reason: v1::CloseReason::from(reason).into(),
                ..v1::RegisterRefused::default()
            }),
        }
    }

    fn enrol(&self, _: SocketAddr, mut socket: Socket) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut asked = Vec::new();
            let _ = socket.read_to_end(&mut asked).await;
            asked.reverse();
            let _ = socket.write_all(&asked).await;
            let _ = socket.shutdown().await;
        })
    }

    fn refused(&self, _: SocketAddr, error: &HandshakeError) {
        let _ = self.heard.send(error.as_str());
    }
}

/// An Edge that lets in members of `group` only.
struct Fort {
    edge: Edge,
    door: Arc<Door>,
    heard: mpsc::UnboundedReceiver<&'static str>,
}

impl Fort {
    async fn start(group: &Authority) -> Self {
        let (sender, heard) = mpsc::unbounded_channel();
        let door = Arc::new(Door { heard: sender, refuse: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let edge = Edge::start_secured(listener, edge_tls(group), door.clone());
        Self { edge, door, heard }
    }

    async fn heard(&mut self) -> &'static str {
        soon("a refusal", self.heard.recv()).await.expect("the server lives")
    }
}

#[tokio::test]
async fn a_member_links_and_both_ends_know_the_same_secret() {
    let group = group(1);
    let mut fort = Fort::start(&group).await;
    let tls = node_tls(&group, "workstation", SystemTime::now());
    let node = Node::start_secured(fort.edge.address, "workstation", tls, echo());
    let link = fort.edge.joined(&node).await;
    let at_edge = link.channel().unwrap();
    assert_eq!(at_edge.peer.id, name(Kind::Node, "workstation"));
    let up = node.host.up.lock().unwrap().clone().unwrap();
    assert_eq!(up.channel().unwrap().exporter, at_edge.exporter);
    assert_eq!(up.channel().unwrap().peer.id, name(Kind::Edge, "den"));

    let mut stream = link.open(link.generation(), tunnel()).unwrap();
    let body = bytes::Bytes::from(vec![7; 3 << 20]);
    stream.queue_body(body.clone(), true);
    assert_eq!(collect(&mut stream).await.unwrap(), body);

    node.shutdown.cancel();
    soon("the node", node.task).await.unwrap().unwrap();
    assert_eq!(fort.edge.closed_after_draining().await, CloseReason::ShuttingDown);
}

#[tokio::test]
async fn a_link_that_breaks_is_dialled_again_under_a_larger_generation() {
    let group = group(1);
    let mut fort = Fort::start(&group).await;
    let relay = Relay::start(fort.edge.address, vec![Cut::Up(600), Cut::Down(900)]).await;
    let tls = node_tls(&group, "workstation", SystemTime::now());
    let node = Node::start_secured(relay.address, "workstation", tls, echo());
    fort.edge.joined(&node).await;
    assert_eq!(node.net.most(), 1, "never two dials");
}

#[tokio::test]
async fn whoever_is_no_member_is_closed_and_named_by_its_own_word() {
    let group = group(1);
    let mut fort = Fort::start(&group).await;
    let long_ago = SystemTime::now() - 2 * authority::NODE_LIFE;
    let expired = node_tls(&group, "workstation", long_ago);
    let node = Node::start_secured(fort.edge.address, "workstation", expired, echo());
    assert_eq!(fort.heard().await, "certificate_expired");

    let mut plain = TcpStream::connect(fort.edge.address).await.unwrap();
    plain.write_all(&[0, 0, 0, 4, 1, 8, 1, 0x12, 0]).await.unwrap();
    assert_eq!(fort.heard().await, "not_tls");
    drop(fort.edge.net.streams());
    let mut rest = Vec::new();
    let _ = soon("the end", plain.read_to_end(&mut rest)).await;
    assert!(rest.len() <= 7, "an alert at most: {rest:?}");
    assert!(fort.edge.told.try_recv().is_err(), "the host heard of nobody");
    // Refused for what it is: it does not come back before 5 min.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(290)).await;
    assert_eq!(node.net.dials(), 1);
}

#[tokio::test]
async fn a_revoked_member_is_told_so_before_it_has_said_anything_and_stops() {
    let group = group(1);
    let fort = Fort::start(&group).await;
    *fort.door.refuse.lock().unwrap() = Some(CloseReason::IdentityRevoked);
    let tls = node_tls(&group, "workstation", SystemTime::now());
    let node = Node::start_secured(fort.edge.address, "workstation", tls, echo());
    let ended = soon("the node", node.task).await.unwrap();
    assert!(matches!(ended, Err(FatalLink::IdentityRevoked(_))), "{ended:?}");
}

#[tokio::test]
async fn a_member_that_is_revoked_while_linked_loses_its_link_at_once() {
    let group = group(1);
    let mut fort = Fort::start(&group).await;
    let tls = node_tls(&group, "workstation", SystemTime::now());
    let node = Node::start_secured(fort.edge.address, "workstation", tls, echo());
    let link = fort.edge.joined(&node).await;
    link.fence(CloseReason::IdentityRevoked);
    assert_eq!(fort.edge.closed().await, (link.generation(), CloseReason::IdentityRevoked));
    let ended = soon("the node", node.task).await.unwrap();
    assert!(matches!(ended, Err(FatalLink::IdentityRevoked(_))), "{ended:?}");
}

#[tokio::test]
async fn a_member_registers_as_nobody_but_itself() {
    let group = group(1);
    let mut fort = Fort::start(&group).await;
    let tls = node_tls(&group, "lab", SystemTime::now());
    let node = Node::start_secured(fort.edge.address, "workstation", tls, echo());
    soon("a dial", async {
        while node.net.dials() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(fort.edge.told.try_recv().is_err(), "the host heard of nobody");
    assert!(!node.has_reached(|state| matches!(state, LinkState::Configured)));
}

#[tokio::test]
async fn a_node_with_an_identity_never_speaks_to_a_plaintext_edge() {
    let group = group(1);
    let mut edge = Edge::start().await;
    let tls = node_tls(&group, "workstation", SystemTime::now());
    let node = Node::start_secured(edge.address, "workstation", tls, echo());
    soon("a dial", async {
        while node.net.dials() < 1 || node.net.now() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(edge.told.try_recv().is_err(), "the edge heard of nobody");
}

#[tokio::test]
async fn who_wants_to_join_is_served_on_the_same_port() {
    let group = group(1);
    let fort = Fort::start(&group).await;
    let tcp = TcpStream::connect(fort.edge.address).await.unwrap();
    let mut edge = enrol(Socket::from_tcp(tcp).unwrap(), group.pin()).await.unwrap();
    assert_eq!(edge.edge, name(Kind::Edge, "den"));
    edge.socket.write_all(b"token").await.unwrap();
    edge.socket.shutdown().await.unwrap();
    let mut answer = Vec::new();
    soon("an answer", edge.socket.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer, b"nekot");
}
