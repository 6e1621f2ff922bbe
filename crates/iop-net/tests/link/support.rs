//! A recording Edge host, a Node host that answers as it is told, and a proxy that cuts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use iop_net::link::{
    Answer, BoxFuture, EdgeHost, EdgeLink, FatalLink, Gate, LinkServer, LinkServerConfig,
    NodeCommand, NodeHost, NodeLink, NodeRequest, PlaintextRefused, RequestMessage, StreamError,
    SupervisorConfig, supervise_over, supervise_secured,
};
use iop_net::memory::Budget;
use iop_net::tls::{EdgeTls, NodeTls};
use iop_types::{CloseReason, CommandFrame, CommandId, EdgeBootId, Generation, InstanceId, NodeId};
use iop_wire::answer::command_frame;
use iop_wire::v1::{self, provider_tunnel_frame};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::network::CountingNet;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Awaits `future`, and says what was awaited when it does not come.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not come within {PATIENCE:?}"),
    }
}

/// What an Edge host was told.
#[derive(Debug)]
pub(crate) enum Told {
    Ready(EdgeLink),
    Status(v1::ProviderStatus),
    Observed(v1::HealthObservation),
    Draining,
    Closed(Generation, CloseReason),
}

/// Admits every Node and passes on what it is told.
pub(crate) struct RecordingEdge(mpsc::UnboundedSender<Told>);

impl EdgeHost for RecordingEdge {
    fn admit(
        &self,
        _: SocketAddr,
        request: &v1::RegisterRequest,
    ) -> Result<v1::NodeConfig, v1::RegisterRefused> {
        if request.node_id == "revoked" {
            return Err(v1::RegisterRefused {
                reason: v1::CloseReason::IdentityRevoked.into(),
                message: "revoked on Monday".into(),
                ..v1::RegisterRefused::default()
            });
        }
        Ok(v1::NodeConfig { revision: 1, providers: Vec::new(), discover: false })
    }

    fn ready(&self, link: EdgeLink, _: v1::NodeReadyRequest) {
        let _ = self.0.send(Told::Ready(link));
    }

    fn status(&self, _: &EdgeLink, status: v1::ProviderStatus) {
        let _ = self.0.send(Told::Status(status));
    }

    fn observed(&self, _: &EdgeLink, observation: v1::HealthObservation) {
        let _ = self.0.send(Told::Observed(observation));
    }

    fn draining(&self, _: &EdgeLink) {
        let _ = self.0.send(Told::Draining);
    }

    fn closed(&self, _: &NodeId, generation: Generation, reason: CloseReason) {
        let _ = self.0.send(Told::Closed(generation, reason));
    }
}

/// A link server at work.
pub(crate) struct Edge {
    pub(crate) address: SocketAddr,
    pub(crate) told: mpsc::UnboundedReceiver<Told>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<Result<(), PlaintextRefused>>,
    pub(crate) net: Arc<CountingNet>,
}

impl Edge {
    pub(crate) async fn start() -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.expect("a free port"))
    }

    pub(crate) fn start_on(listener: TcpListener) -> Self {
        Self::start_as(listener, |server| server)
    }

    pub(crate) fn start_secured(
        listener: TcpListener,
        tls: Arc<EdgeTls>,
        gate: Arc<dyn Gate>,
    ) -> Self {
        Self::start_as(listener, |server| server.secured(tls, gate))
    }

    fn start_as(listener: TcpListener, change: impl FnOnce(LinkServer) -> LinkServer) -> Self {
        let limits = v1::Limits::standard();
        let net = Arc::new(CountingNet::default());
        let address = listener.local_addr().expect("bound");
        let (sender, told) = mpsc::unbounded_channel();
        let shutdown = CancellationToken::new();
        let boot_id = EdgeBootId::from_slice(&[9; 16]).expect("16 bytes");
        let server = change(LinkServer::new(
            LinkServerConfig { boot_id, limits, memory: Budget::new(usize::MAX) },
            Arc::new(RecordingEdge(sender)),
        ));
        let task = tokio::spawn(server.serve(net.listener(listener), shutdown.clone(), PATIENCE));
        Self { address, told, shutdown, task, net }
    }

    pub(crate) async fn told(&mut self) -> Told {
        soon("news of a link", self.told.recv()).await.expect("the server lives")
    }

    pub(crate) async fn ready(&mut self) -> EdgeLink {
        match self.told().await {
            Told::Ready(link) => link,
            other => panic!("expected a ready link, was told {other:?}"),
        }
    }

    /// Waits for a link that is up at both ends, however many ended before.
    pub(crate) async fn joined(&mut self, node: &Node) -> EdgeLink {
        loop {
            let link = match self.told().await {
                Told::Ready(link) => link,
                Told::Closed(..) => continue,
                other => panic!("expected a ready link, was told {other:?}"),
            };
            tokio::select! {
                () = node.reached(|state| *state == LinkState::Up(link.generation())) => return link,
                told = self.told.recv() => assert!(matches!(told, Some(Told::Closed(..)))),
            }
        }
    }

    /// Waits for the end of a link whose Node said before that it drains.
    pub(crate) async fn closed_after_draining(&mut self) -> CloseReason {
        match self.told().await {
            Told::Draining => self.closed().await.1,
            other => panic!("expected a drain, was told {other:?}"),
        }
    }

    pub(crate) async fn closed(&mut self) -> (Generation, CloseReason) {
        match self.told().await {
            Told::Closed(generation, reason) => (generation, reason),
            other => panic!("expected the end of a link, was told {other:?}"),
        }
    }
}

/// How a Node's host treats a request.
pub(crate) type Handler = Arc<dyn Fn(NodeRequest) -> BoxFuture<'static, ()> + Send + Sync>;

pub(crate) struct TestNode {
    handler: Handler,
    pub(crate) links: watch::Sender<VecDeque<LinkState>>,
    pub(crate) up: Mutex<Option<NodeLink>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Configured,
    Up(Generation),
    Down(Generation, CloseReason),
}

impl NodeHost for TestNode {
    fn configure(&self, registered: v1::Registered) -> BoxFuture<'_, v1::NodeReadyRequest> {
        self.links.send_modify(|links| links.push_back(LinkState::Configured));
        let revision = registered.config.map_or(0, |config| config.revision);
        Box::pin(
            async move { v1::NodeReadyRequest { revision, ..v1::NodeReadyRequest::default() } },
        )
    }

    fn link_up(&self, link: NodeLink) {
        let generation = link.generation();
        *self.up.lock().expect("no test panics here") = Some(link);
        self.links.send_modify(|links| links.push_back(LinkState::Up(generation)));
    }

    fn accept(&self, request: NodeRequest) {
        tokio::spawn((self.handler)(request));
    }

    fn command(&self, command: NodeCommand) {
        // Answers with what was asked.
        let id = CommandId::from_slice(&command.request.command_id).expect("16 bytes");
        let mut answers = command.answers;
        let part = CommandFrame::Part(command.request.body);
        let _ = answers.send(Answer::Command(command_frame(id, part, None)));
        let _ = answers.finish(Answer::Command(command_frame(id, CommandFrame::End, None)));
    }

    fn link_down(&self, generation: Generation, reason: CloseReason) {
        self.links.send_modify(|links| links.push_back(LinkState::Down(generation, reason)));
    }
}

/// A supervisor at work.
pub(crate) struct Node {
    pub(crate) host: Arc<TestNode>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<Result<(), FatalLink>>,
    pub(crate) net: Arc<CountingNet>,
}

impl Node {
    pub(crate) fn start(edge: SocketAddr, handler: Handler) -> Self {
        Self::start_as(edge, "workstation", [1; 16], handler)
    }

    pub(crate) fn start_as(
        edge: SocketAddr,
        name: &str,
        instance: [u8; 16],
        handler: Handler,
    ) -> Self {
        Self::start_over(edge, name, instance, handler, None)
    }

    pub(crate) fn start_secured(
        edge: SocketAddr,
        name: &str,
        tls: Arc<NodeTls>,
        handler: Handler,
    ) -> Self {
        Self::start_over(edge, name, [1; 16], handler, Some(tls))
    }

    fn start_over(
        edge: SocketAddr,
        name: &str,
        instance: [u8; 16],
        handler: Handler,
        tls: Option<Arc<NodeTls>>,
    ) -> Self {
        let host =
            Arc::new(TestNode { handler, links: watch::Sender::default(), up: Mutex::default() });
        let shutdown = CancellationToken::new();
        let config = SupervisorConfig {
            edge: edge.to_string(),
            node: NodeId::from(name),
            instance: InstanceId::from_slice(&instance).expect("16 bytes"),
            software_version: "test".into(),
            drain: PATIENCE,
        };
        let net = Arc::new(CountingNet::default());
        let (given, asked, stop) = (net.clone(), host.clone(), shutdown.clone());
        let task = match tls {
            None => tokio::spawn(supervise_over(given, config, asked, stop)),
            Some(tls) => tokio::spawn(supervise_secured(given, tls, config, asked, stop)),
        };
        Self { host, shutdown, task, net }
    }

    pub(crate) fn has_reached(&self, state: impl Fn(&LinkState) -> bool) -> bool {
        self.host.links.borrow().iter().any(state)
    }

    pub(crate) async fn reached(&self, state: impl Fn(&LinkState) -> bool) {
        let mut links = self.host.links.subscribe();
        soon("a state of the link", links.wait_for(|seen| seen.iter().any(&state)))
            .await
            .expect("the host lives");
    }
}

/// Reads the whole body and sends it back, as a tunnel or as one text event.
pub(crate) fn echo() -> Handler {
    Arc::new(|mut request| {
        Box::pin(async move {
            let mut body = BytesMut::new();
            while let Some(part) = request.body.recv().await {
                match part {
                    Ok(part) => body.extend_from_slice(&part),
                    Err(_) => return,
                }
            }
            let body = body.freeze();
            let is_run = matches!(request.message, RequestMessage::Run(_));
            let first = if is_run { event(text(body)) } else { frame_body(body) };
            let _ = request.answers.send(first);
            let _ = request.answers.finish(if is_run { event(complete()) } else { end() });
        })
    })
}

pub(crate) fn run() -> RequestMessage {
    RequestMessage::Run(v1::RunRequest::default())
}

pub(crate) fn tunnel() -> RequestMessage {
    RequestMessage::Tunnel(v1::ProviderTunnelRequest::default())
}

pub(crate) fn event(event: v1::RunEvent) -> Answer {
    Answer::Event(event)
}

pub(crate) fn text(payload: Bytes) -> v1::RunEvent {
    v1::RunEvent {
        payload,
        kind: Some(v1::run_event::Kind::Text(v1::TextDelta {})),
        ..v1::RunEvent::default()
    }
}

pub(crate) fn complete() -> v1::RunEvent {
    v1::RunEvent {
        kind: Some(v1::run_event::Kind::Complete(v1::Complete::default())),
        ..v1::RunEvent::default()
    }
}

pub(crate) fn frame_body(data: Bytes) -> Answer {
    let kind = provider_tunnel_frame::Kind::Body(v1::TunnelBody { data, progress: true });
    Answer::Frame(v1::ProviderTunnelFrame { session_id: String::new(), kind: Some(kind) })
}

pub(crate) fn end() -> Answer {
    let kind = provider_tunnel_frame::Kind::End(v1::TunnelEnd {});
    Answer::Frame(v1::ProviderTunnelFrame { session_id: String::new(), kind: Some(kind) })
}

/// A relay between a Node and its Edge that cuts each connection after some bytes.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

/// Where a relay cuts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// After this many bytes from the Node.
    Up(u64),
    /// After this many bytes from the Edge.
    Down(u64),
    Never,
}

impl Relay {
    /// Cuts the first connection by the first cut and so on; later ones never. Dropping the relay
    /// cuts them all.
    pub(crate) async fn start(edge: SocketAddr, cuts: Vec<Cut>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::start_on(listener, edge, cuts)
    }

    pub(crate) fn start_on(listener: TcpListener, edge: SocketAddr, cuts: Vec<Cut>) -> Self {
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move {
            let mut cuts = cuts.into_iter();
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((node, _)) = listener.accept().await {
                let cut = cuts.next().unwrap_or(Cut::Never);
                connections.spawn(async move {
                    if let Ok(edge) = TcpStream::connect(edge).await {
                        relay(node, edge, cut).await;
                    }
                });
            }
        });
        Self { address, task }
    }

    /// Cuts every connection and returns the address to whoever wants it.
    pub(crate) async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(mut node: TcpStream, mut edge: TcpStream, cut: Cut) {
    let (up, down) = match cut {
        Cut::Up(bytes) => (bytes, u64::MAX),
        Cut::Down(bytes) => (u64::MAX, bytes),
        Cut::Never => (u64::MAX, u64::MAX),
    };
    let (node_read, mut node_write) = node.split();
    let (edge_read, mut edge_write) = edge.split();
    let (mut node_read, mut edge_read) = (node_read.take(up), edge_read.take(down));
    tokio::select! {
        _ = tokio::io::copy(&mut node_read, &mut edge_write) => {}
        _ = tokio::io::copy(&mut edge_read, &mut node_write) => {}
    }
}

/// Reads a stream to its terminal; yields the payload.
pub(crate) async fn collect(
    stream: &mut iop_net::link::EdgeStream,
) -> Result<Vec<u8>, StreamError> {
    let mut collected = Vec::new();
    loop {
        let answer = soon("an answer", stream.recv()).await?;
        if answer.is_terminal() {
            return Ok(collected);
        }
        match answer {
            Answer::Event(event) => collected.extend_from_slice(&event.payload),
            Answer::Command(_) => unreachable!("no command was asked for"),
            Answer::Frame(frame) => {
                if let Some(provider_tunnel_frame::Kind::Body(body)) = frame.kind {
                    collected.extend_from_slice(&body.data);
                }
            }
        }
    }
}
