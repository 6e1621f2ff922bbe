//! A Node that takes requests over the real link and answers as its test says.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use iop_net::link::{
    Answer, AnswerSender, BodyReceiver, BoxFuture, Cancelled, NodeCommand, NodeHost, NodeLink,
    NodeRequest, RequestMessage, StreamError, SupervisorConfig, supervise,
};
use iop_types::{
    CloseReason, Event, EventKind, Failure, Finish, Generation, Header, InstanceId, Part,
    ProviderStatus, Refusal, RequestHead, ResponseHead, RunRequest, TunnelFrame, TunnelRequest,
};
use iop_wire::answer::{run_event, run_refusal, tunnel_frame, tunnel_refusal};
use iop_wire::v1;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::soon;

/// The Node.
pub(crate) struct FakeNode {
    taken: mpsc::UnboundedReceiver<Taken>,
    commands: mpsc::UnboundedReceiver<NodeCommand>,
    link: watch::Receiver<Option<NodeLink>>,
    takes_at_once: Arc<AtomicBool>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

/// What its link asks.
struct Host {
    providers: Mutex<Vec<ProviderStatus>>,
    taken: mpsc::UnboundedSender<Taken>,
    commands: mpsc::UnboundedSender<NodeCommand>,
    link: watch::Sender<Option<NodeLink>>,
    takes_at_once: Arc<AtomicBool>,
}

impl FakeNode {
    /// Dials and waits until the Edge may dispatch to it.
    pub(crate) async fn join(edge: SocketAddr, name: &str, providers: Vec<ProviderStatus>) -> Self {
        let (taken_in, taken) = mpsc::unbounded_channel();
        let (commands_in, commands) = mpsc::unbounded_channel();
        let (link_in, mut link) = watch::channel(None);
        let takes_at_once = Arc::<AtomicBool>::default();
        let host = Arc::new(Host {
            providers: Mutex::new(providers),
            taken: taken_in,
            commands: commands_in,
            link: link_in,
            takes_at_once: Arc::clone(&takes_at_once),
        });
        let config = SupervisorConfig {
            edge: edge.to_string(),
            node: name.into(),
            instance: InstanceId::from_uuid(Uuid::new_v4()),
            software_version: "test".to_owned(),
            drain: Duration::from_secs(1),
        };
        let shutdown = CancellationToken::new();
        let supervised = supervise(config, host, shutdown.clone());
        let task = tokio::spawn(async move { supervised.await.unwrap() });
        soon("the node is linked", link.wait_for(Option::is_some)).await.unwrap();
        Self { taken, commands, link, takes_at_once, shutdown, task }
    }

    /// Waits for the next command.
    pub(crate) async fn next_command(&mut self) -> NodeCommand {
        soon("a command reaches the node", self.commands.recv()).await.unwrap()
    }

    /// Says whether a command has arrived.
    pub(crate) fn has_command(&self) -> bool {
        !self.commands.is_empty()
    }

    /// From now on requests are taken with their head, their body still to come.
    pub(crate) fn take_at_once(&self) {
        self.takes_at_once.store(true, Ordering::Relaxed);
    }

    /// Waits for the next request and its whole body.
    pub(crate) async fn next(&mut self) -> Taken {
        soon("a request reaches the node", self.taken.recv()).await.unwrap()
    }

    /// Says whether a request has arrived.
    pub(crate) fn has_request(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Reports a provider.
    pub(crate) fn report(&self, status: ProviderStatus) {
        self.link.borrow().as_ref().unwrap().send_status(status.into());
    }

    /// Dies without a word.
    pub(crate) async fn die(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Leaves in order.
    pub(crate) async fn leave(self) {
        self.shutdown.cancel();
        soon("the node has left", self.task).await.unwrap();
    }

    /// Answers every request by itself from now on.
    pub(crate) fn serve<F>(mut self, answer: impl Fn(Taken) -> F + Send + 'static) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::spawn(async move {
            while let Some(taken) = self.taken.recv().await {
                tokio::spawn(answer(taken));
            }
        })
    }
}

impl NodeHost for Host {
    fn configure(&self, registered: v1::Registered) -> BoxFuture<'_, v1::NodeReadyRequest> {
        let providers = self.providers.lock().unwrap().iter().cloned().map(Into::into).collect();
        let revision = registered.config.map_or(0, |config| config.revision);
        let ready = v1::NodeReadyRequest { generation: registered.generation, revision, providers };
        Box::pin(async move { ready })
    }

    fn link_up(&self, link: NodeLink) {
        self.link.send_replace(Some(link));
    }

    fn accept(&self, request: NodeRequest) {
        let taken = self.taken.clone();
        let takes_at_once = self.takes_at_once.load(Ordering::Relaxed);
        tokio::spawn(async move {
            let NodeRequest { message, mut body, answers, cancelled } = request;
            let mut whole = BytesMut::new();
            while !takes_at_once && let Some(Ok(part)) = body.recv().await {
                whole.extend_from_slice(&part);
            }
            let arriving = takes_at_once.then_some(body);
            let asked = match message {
                RequestMessage::Run(request) => Asked::Run(request.try_into().unwrap()),
                RequestMessage::Tunnel(request) => Asked::Tunnel(request.try_into().unwrap()),
            };
            let _ = taken.send(Taken { asked, body: whole.freeze(), arriving, answers, cancelled });
        });
    }

    fn command(&self, command: NodeCommand) {
        let _ = self.commands.send(command);
    }

    fn link_down(&self, _: Generation, _: CloseReason) {
        self.link.send_replace(None);
    }
}

/// A request that reached the Node.
pub(crate) struct Taken {
    pub(crate) asked: Asked,
    pub(crate) body: Bytes,
    /// What is still to come of it, where the Node takes requests at once.
    pub(crate) arriving: Option<BodyReceiver>,
    answers: AnswerSender,
    cancelled: Cancelled,
}

pub(crate) enum Asked {
    Run(RunRequest),
    Tunnel(TunnelRequest),
}

impl Taken {
    pub(crate) fn head(&self) -> &RequestHead {
        match &self.asked {
            Asked::Run(request) => &request.head,
            Asked::Tunnel(request) => &request.head,
        }
    }

    pub(crate) fn tunnel(&self) -> &TunnelRequest {
        match &self.asked {
            Asked::Tunnel(request) => request,
            Asked::Run(_) => panic!("the request came as a run"),
        }
    }

    pub(crate) fn run(&self) -> &RunRequest {
        match &self.asked {
            Asked::Run(request) => request,
            Asked::Tunnel(_) => panic!("the request came as a tunnel"),
        }
    }

    /// Reads the rest of the body; says whether it came to its end.
    pub(crate) async fn rest(&mut self) -> (Vec<u8>, bool) {
        let mut arriving = self.arriving.take().unwrap();
        let mut rest = Vec::new();
        loop {
            match soon("the body goes on", arriving.recv()).await {
                Some(Ok(part)) => rest.extend_from_slice(&part),
                Some(Err(_)) => return (rest, false),
                None => return (rest, true),
            }
        }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The value of a header that the provider would get.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let mut found = self.tunnel().headers.iter().filter(|header| header.name == name);
        let value = found.next().map(|header| String::from_utf8(header.value.to_vec()).unwrap());
        assert!(found.next().is_none(), "{name} came twice");
        value
    }

    // ---- answering a tunnel ----

    pub(crate) async fn respond(&mut self, status: u16, headers: &[(&'static str, &'static str)]) {
        let headers =
            headers.iter().map(|(name, value)| Header::from_static(name, value)).collect();
        self.frame(TunnelFrame::Head(ResponseHead { status, headers })).await.unwrap();
    }

    pub(crate) async fn begin_stream(&mut self) {
        self.respond(200, &[("content-type", "text/event-stream")]).await;
    }

    pub(crate) async fn data(&mut self, data: impl Into<Bytes>) {
        self.frame(TunnelFrame::Body { data: data.into(), progress: true }).await.unwrap();
    }

    /// Begins a stream unless the request is over.
    pub(crate) async fn try_head(&mut self) -> Result<(), StreamError> {
        let headers = vec![Header::from_static("content-type", "text/event-stream")];
        self.frame(TunnelFrame::Head(ResponseHead { status: 200, headers })).await
    }

    /// Sends until the Edge asks to stop.
    pub(crate) async fn try_data(&mut self, data: impl Into<Bytes>) -> Result<(), StreamError> {
        if futures_util::poll!(&mut self.cancelled).is_ready() {
            return Err(StreamError::Cancelled);
        }
        self.frame(TunnelFrame::Body { data: data.into(), progress: true }).await
    }

    pub(crate) async fn frame(&mut self, frame: TunnelFrame) -> Result<(), StreamError> {
        let session = self.head().session_id.clone();
        std::future::poll_fn(|cx| self.answers.poll_ready(cx)).await?;
        self.answers.send(Answer::Frame(tunnel_frame(frame, session.as_ref())))
    }

    /// Ends a tunnel cleanly.
    pub(crate) fn end(self) {
        self.finish(TunnelFrame::End);
    }

    pub(crate) fn finish(self, frame: TunnelFrame) {
        let session = self.head().session_id.clone();
        let _ = self.answers.finish(Answer::Frame(tunnel_frame(frame, session.as_ref())));
    }

    /// Answers a whole stream.
    pub(crate) async fn stream(mut self, pieces: &[&'static str]) {
        self.begin_stream().await;
        for piece in pieces {
            self.data(*piece).await;
        }
        self.end();
    }

    /// Answers with one JSON object.
    pub(crate) async fn unary(mut self, status: u16, body: &'static str) {
        self.respond(status, &[("content-type", "application/json")]).await;
        self.data(body).await;
        self.end();
    }

    // ---- answering a run ----

    pub(crate) async fn event(&mut self, event: impl Into<Event>) {
        std::future::poll_fn(|cx| self.answers.poll_ready(cx)).await.unwrap();
        let session = self.head().session_id.clone();
        self.answers.send(Answer::Event(run_event(event.into(), session.as_ref()))).unwrap();
    }

    /// Sends an event that the Edge may not want any more.
    pub(crate) async fn try_event(&mut self, event: impl Into<Event>) {
        if std::future::poll_fn(|cx| self.answers.poll_ready(cx)).await.is_ok() {
            let session = self.head().session_id.clone();
            let _ = self.answers.send(Answer::Event(run_event(event.into(), session.as_ref())));
        }
    }

    pub(crate) async fn text(&mut self, text: &str) {
        let part = Part::Text(text.to_owned());
        self.event(EventKind::Delta { choice: 0, part }).await;
    }

    pub(crate) fn complete(self, usage: Option<iop_types::Usage>) {
        let finish = vec![Finish { choice: 0, reason: "stop".to_owned() }];
        self.conclude(Event { kind: EventKind::Complete { finish }, usage });
    }

    pub(crate) fn conclude(self, event: impl Into<Event>) {
        let session = self.head().session_id.clone();
        let _ = self.answers.finish(Answer::Event(run_event(event.into(), session.as_ref())));
    }

    // ---- both ----

    pub(crate) fn fail(self, failure: Failure) {
        match &self.asked {
            Asked::Run(_) => self.conclude(EventKind::Error(failure)),
            Asked::Tunnel(_) => self.finish(TunnelFrame::Error(failure)),
        }
    }

    pub(crate) fn refuse(self, refusal: &Refusal) {
        let session = self.head().session_id.clone();
        let answer = match &self.asked {
            Asked::Run(_) => Answer::Event(run_refusal(refusal, session.as_ref())),
            Asked::Tunnel(_) => Answer::Frame(tunnel_refusal(refusal, session.as_ref())),
        };
        let _ = self.answers.finish(answer);
    }

    /// Waits until the Edge asks to stop, and says that the provider has returned.
    pub(crate) async fn cancelled(mut self) -> v1::CancelReason {
        let reason = soon("the request is cancelled", &mut self.cancelled).await.unwrap();
        match &self.asked {
            Asked::Run(_) => self.conclude(EventKind::Cancelled),
            Asked::Tunnel(_) => self.finish(TunnelFrame::Cancelled),
        }
        reason
    }
}
