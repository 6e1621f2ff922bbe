//! An Edge that does what a test says, so that a real Node can be watched over a real link.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use iop_net::egress::Egress;
use iop_net::link::{
    Answer, EdgeCommand, EdgeHost, EdgeLink, EdgeStream, LinkServer, LinkServerConfig,
    RequestMessage,
};
use iop_net::memory::Budget;
use iop_net::net::TokioNet;
use iop_node::{LocalServer, Node, Secrets, Settings};
use iop_types::{
    CloseReason, Command, CommandFrame, CommandId, CommandRequest, EdgeBootId, Generation,
    InstanceId, NodeId, Patience, RunId,
};
use iop_wire::{CommandAnswer, v1};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Everything happens within this, or the test says what it last saw.
const BOUND: Duration = Duration::from_secs(15);

/// A scripted Edge and the Node that dials it.
pub(crate) struct Rig {
    pub edge: Arc<Edge>,
    pub node: Node,
    wire: Wire,
    _server: JoinHandle<()>,
}

/// A relay between Node and Edge that can be cut.
struct Wire {
    address: SocketAddr,
    cut: Arc<tokio::sync::Notify>,
}

impl Wire {
    async fn start(edge: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(tokio::sync::Notify::new());
        let told = Arc::clone(&cut);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let told = Arc::clone(&told);
                tokio::spawn(async move {
                    let mut far = tokio::net::TcpStream::connect(edge).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        () = told.notified() => {}
                    }
                });
            }
        });
        Self { address, cut }
    }
}

/// What the Edge has seen.
pub(crate) struct Edge {
    config: v1::NodeConfig,
    seen: watch::Sender<Seen>,
    links: Mutex<Vec<EdgeLink>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub generations: Vec<Generation>,
    pub closed: Vec<(Generation, CloseReason)>,
    pub providers: BTreeMap<String, v1::ProviderStatus>,
    pub observations: Vec<v1::HealthObservation>,
}

impl Rig {
    /// Starts both; the Node is given `providers` and `secrets`.
    pub(crate) async fn start(providers: Vec<v1::ProviderConfig>, secrets: Secrets) -> Self {
        let config = v1::NodeConfig { revision: 1, providers, discover: false };
        Self::with(config, secrets, Vec::new()).await
    }

    /// Starts both.
    pub(crate) async fn with(
        config: v1::NodeConfig,
        secrets: Secrets,
        local_servers: Vec<LocalServer>,
    ) -> Self {
        let edge = Arc::new(Edge {
            config,
            seen: watch::Sender::default(),
            links: Mutex::new(Vec::new()),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let boot_id = EdgeBootId::from_uuid(Uuid::new_v4());
        let limits = v1::Limits::standard();
        let server = LinkServer::new(
            LinkServerConfig { boot_id, limits, memory: Budget::new(usize::MAX) },
            Arc::clone(&edge) as Arc<_>,
        );
        let serving = tokio::spawn(async move {
            let shutdown = CancellationToken::new();
            server.serve(listener, shutdown, Duration::ZERO).await.unwrap();
        });
        let wire = Wire::start(address).await;
        let address = wire.address;
        let settings = Settings {
            node: NodeId::from("box"),
            edge: address,
            instance: InstanceId::from_uuid(Uuid::new_v4()),
            egress: Egress::loopback(),
            secrets,
            manage_models: iop_node::ManageModels::AlsoWhereFound,
            local_servers,
            drain: Duration::from_secs(5),
        };
        let node = Node::start(settings, Arc::new(TokioNet), None);
        Self { edge, node, wire, _server: serving }
    }

    /// Waits until a provider is in this state.
    pub(crate) async fn wait_for_state(
        &self,
        provider: &str,
        state: v1::ProviderState,
    ) -> v1::ProviderStatus {
        let seen = self
            .wait_until(|seen| seen.providers.get(provider).is_some_and(|p| p.state() == state))
            .await;
        seen.providers[provider].clone()
    }

    /// Waits until the Edge has seen something.
    pub(crate) async fn wait_until(&self, is_so: impl FnMut(&Seen) -> bool) -> Seen {
        let mut seen = self.edge.seen.subscribe();
        let waited = tokio::time::timeout(BOUND, seen.wait_for(is_so)).await;
        match waited {
            Ok(found) => found.unwrap().clone(),
            Err(_) => {
                panic!("not within {BOUND:?}; the edge has seen {:#?}", *self.edge.seen.borrow())
            }
        }
    }

    /// Cuts the connection between Node and Edge; the next dial gets a new one.
    pub(crate) fn cut_wire(&self) {
        self.wire.cut.notify_waiters();
    }

    /// Sends a request on the newest link, body included.
    pub(crate) fn send(&self, message: RequestMessage, body: &str) -> EdgeStream {
        let mut stream = self.open(message);
        stream.queue_body(Bytes::copy_from_slice(body.as_bytes()), true);
        stream
    }

    /// Sends the head of a request on the newest link.
    pub(crate) fn open(&self, message: RequestMessage) -> EdgeStream {
        let link = self.edge.links.lock().unwrap().last().expect("a node has linked").clone();
        link.open(link.generation(), message).unwrap()
    }
}

impl Rig {
    /// Sends a command on the newest link.
    pub(crate) fn command(&self, command: Command) -> EdgeCommand {
        let link = self.edge.links.lock().unwrap().last().expect("a node has linked").clone();
        let id = CommandId::from_uuid(Uuid::new_v4());
        let patience = Patience::Whole(BOUND);
        link.command(CommandRequest { id, session_id: None, command }, patience).unwrap()
    }

    /// What the Edge knows of a provider now.
    pub(crate) fn known(&self, provider: &str) -> v1::ProviderStatus {
        self.edge.seen.borrow().providers[provider].clone()
    }
}

/// How a command ended: the text of its answer, or what it ended with.
pub(crate) async fn ended(mut command: EdgeCommand) -> (String, CommandAnswer) {
    let mut text = Vec::new();
    loop {
        let next = std::future::poll_fn(|cx| command.poll_recv(cx));
        let next = tokio::time::timeout(BOUND, next).await;
        let next = next.expect("the command ends").expect("the link lives");
        match CommandAnswer::try_from(next).unwrap() {
            CommandAnswer::Frame(CommandFrame::Part(part)) => text.extend_from_slice(&part),
            last => return (String::from_utf8(text).unwrap(), last),
        }
    }
}

impl EdgeHost for Edge {
    fn admit(
        &self,
        _: SocketAddr,
        _: &v1::RegisterRequest,
    ) -> Result<v1::NodeConfig, v1::RegisterRefused> {
        Ok(self.config.clone())
    }

    fn ready(&self, link: EdgeLink, ready: v1::NodeReadyRequest) {
        let generation = link.generation();
        self.links.lock().unwrap().push(link);
        self.seen.send_modify(|seen| {
            seen.generations.push(generation);
            seen.providers = ready.providers.into_iter().map(|p| (p.key.clone(), p)).collect();
        });
    }

    fn status(&self, _: &EdgeLink, status: v1::ProviderStatus) {
        self.seen.send_modify(|seen| {
            seen.providers.insert(status.key.clone(), status);
        });
    }

    fn observed(&self, _: &EdgeLink, observation: v1::HealthObservation) {
        self.seen.send_modify(|seen| seen.observations.push(observation));
    }

    fn draining(&self, _: &EdgeLink) {}

    fn closed(&self, _: &NodeId, generation: Generation, reason: CloseReason) {
        self.links.lock().unwrap().retain(|link| link.generation() != generation);
        self.seen.send_modify(|seen| seen.closed.push((generation, reason)));
    }
}

/// A provider's entry with everything else at its default.
pub(crate) fn provider(key: &str, adapter: &str, endpoint: &str) -> v1::ProviderConfig {
    v1::ProviderConfig {
        key: key.to_owned(),
        adapter: adapter.to_owned(),
        endpoint: endpoint.to_owned(),
        targets: vec!["*".to_owned()],
        revision: 1,
        ..v1::ProviderConfig::default()
    }
}

/// The head of a new run.
pub(crate) fn head(provider: &str, target: &str) -> v1::RequestHead {
    v1::RequestHead {
        run_id: Bytes::copy_from_slice(RunId::from_uuid(Uuid::new_v4()).as_bytes()),
        attempt: 1,
        adapter: provider.to_owned(),
        target: target.to_owned(),
        provider_revision: 1,
        ..v1::RequestHead::default()
    }
}

/// A chat as a normalized run.
pub(crate) fn run(head: v1::RequestHead) -> RequestMessage {
    RequestMessage::Run(v1::RunRequest { head: Some(head), kind: v1::RunKind::Chat.into() })
}

/// A chat as a tunnel.
pub(crate) fn tunnel(head: v1::RequestHead) -> RequestMessage {
    RequestMessage::Tunnel(v1::ProviderTunnelRequest {
        head: Some(head),
        tunnel_id: Bytes::copy_from_slice(Uuid::new_v4().as_bytes()),
        method: "POST".to_owned(),
        path_and_query: "/v1/chat/completions".to_owned(),
        ..v1::ProviderTunnelRequest::default()
    })
}

/// Everything that a stream yields up to its terminal.
pub(crate) async fn all(mut stream: EdgeStream) -> Vec<Answer> {
    let mut answers = Vec::new();
    loop {
        let answer = tokio::time::timeout(BOUND, stream.recv()).await;
        let answer = answer.unwrap_or_else(|_| panic!("no terminal after {answers:?}")).unwrap();
        let is_last = is_terminal(&answer);
        answers.push(answer);
        if is_last {
            return answers;
        }
    }
}

/// Says whether an answer ends its stream.
pub(crate) fn is_terminal(answer: &Answer) -> bool {
    use v1::provider_tunnel_frame::Kind as Frame;
    use v1::run_event::Kind as Event;
    match answer {
        Answer::Event(event) => {
            matches!(event.kind, Some(Event::Complete(_) | Event::Error(_) | Event::Cancelled(_)))
        }
        Answer::Frame(frame) => {
            matches!(frame.kind, Some(Frame::End(_) | Frame::Error(_) | Frame::Cancelled(_)))
        }
        Answer::Command(response) => response.is_terminal(),
    }
}

/// The reason of a stream that was refused before it began; panics on anything else.
pub(crate) async fn refusal(stream: EdgeStream) -> v1::RefusalReason {
    let answers = all(stream).await;
    assert_eq!(answers.len(), 1, "a refusal comes alone: {answers:?}");
    let refused = match answers.into_iter().next() {
        Some(Answer::Event(event)) => match event.kind {
            Some(v1::run_event::Kind::Error(error)) => match error.error {
                Some(v1::run_error::Error::Refused(refused)) => refused,
                other => panic!("not refused: {other:?}"),
            },
            other => panic!("not refused: {other:?}"),
        },
        Some(Answer::Frame(frame)) => match frame.kind {
            Some(v1::provider_tunnel_frame::Kind::Error(error)) => match error.error {
                Some(v1::tunnel_error::Error::Refused(refused)) => refused,
                other => panic!("not refused: {other:?}"),
            },
            other => panic!("not refused: {other:?}"),
        },
        Some(Answer::Command(_)) | None => unreachable!("the length was checked"),
    };
    refused.reason()
}
