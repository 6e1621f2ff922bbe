//! Calls an adapter as a Node does: an outlet behind a fence, a signal that cancels.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_adapters::{ProviderSettings, Tools, build};
use iop_execution::emission::Output;
use iop_execution::{
    Body, BodyLost, BodySource, CallError, Cancelled, Completion, Emission, Fenced, Look, Outlet,
    Provider, cancellation,
};
use iop_net::egress::Egress;
use iop_net::memory::Budget;
use iop_net::net::TokioNet;
use iop_testkit::ScriptedProvider;
use iop_types::{
    AdapterType, Attempt, Event, EventKind, Failure, Header, Part, ProviderRevision, RequestHead,
    ResponseHead, RunId, RunKind, RunRequest, StallTimeout, TunnelFrame, TunnelId, TunnelRequest,
    WorkKey,
};

pub(crate) const CHAT: &str = "/v1/chat/completions";

pub(crate) fn tools() -> Tools {
    let memory = Budget::new(512 << 20);
    Tools { net: Arc::new(TokioNet), egress: Egress::loopback(), memory }
}

pub(crate) fn settings(endpoint: &str) -> ProviderSettings {
    let mut settings = ProviderSettings::new("lab".into(), AdapterType::OpenaiCompat);
    settings.endpoint = Some(endpoint.to_owned());
    settings
}

/// The adapter of a scripted provider.
pub(crate) fn adapter(provider: &ScriptedProvider) -> Arc<dyn Provider> {
    built(&settings(&provider.endpoint()))
}

pub(crate) fn built(settings: &ProviderSettings) -> Arc<dyn Provider> {
    build(settings, &tools()).expect("the settings are right")
}

fn head() -> RequestHead {
    let run_id = RunId::from_slice(&[7; 16]).expect("sixteen bytes");
    RequestHead {
        work: WorkKey { run_id, attempt: Attempt::FIRST },
        session_id: None,
        provider: "lab".into(),
        target: "served-model".into(),
        revision: ProviderRevision(1),
        stall_timeout: StallTimeout::DEFAULT,
        first_progress_within: None,
        ends_within: None,
        lease: None,
    }
}

pub(crate) fn run_request(kind: RunKind) -> RunRequest {
    RunRequest { head: head(), kind }
}

pub(crate) fn tunnel_request(path_and_query: &str, headers: &[(&str, &str)]) -> TunnelRequest {
    TunnelRequest {
        head: head(),
        tunnel_id: TunnelId::from_slice(&[9; 16]).expect("sixteen bytes"),
        method: "POST".to_owned(),
        path_and_query: path_and_query.to_owned(),
        headers: headers.iter().map(|(name, value)| header(name, value)).collect(),
        content_length: None,
    }
}

pub(crate) fn header(name: &str, value: &str) -> Header {
    Header {
        name: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    }
}

/// A look that may ask for a token.
pub(crate) fn look_at(target: &str) -> Look {
    Look { target: target.into(), may_generate: true, within: Duration::from_millis(600) }
}

/// What left a call, and how it returned.
pub(crate) struct Outcome<T, R> {
    pub(crate) items: Vec<T>,
    pub(crate) result: Result<R, CallError>,
}

/// Executes a run to its return.
pub(crate) async fn run(
    provider: &dyn Provider,
    kind: RunKind,
    input: &str,
) -> Outcome<Event, Completion> {
    run_until(provider, kind, input, std::future::pending()).await
}

/// Executes a run; fences and cancels it when `stop` completes, and waits for its return.
pub(crate) async fn run_until(
    provider: &dyn Provider,
    kind: RunKind,
    input: &str,
    stop: impl Future<Output = ()>,
) -> Outcome<Event, Completion> {
    let input = Bytes::copy_from_slice(input.as_bytes());
    let call = async |outlet: &mut dyn Outlet<Event>, cancelled: &mut Cancelled| {
        provider.run(run_request(kind), input, outlet, cancelled).await
    };
    watch(Items::default(), call, stop).await
}

/// Relays a request to its return.
pub(crate) async fn tunnel(
    provider: &dyn Provider,
    request: TunnelRequest,
    body: Body,
) -> Outcome<TunnelFrame, ()> {
    tunnel_until(provider, request, body, std::future::pending()).await
}

/// Relays a request; fences and cancels it when `stop` completes, and waits for its return.
pub(crate) async fn tunnel_until(
    provider: &dyn Provider,
    request: TunnelRequest,
    body: Body,
    stop: impl Future<Output = ()>,
) -> Outcome<TunnelFrame, ()> {
    let tunnel = provider.tunnel().expect("the adapter has a tunnel");
    let call = async |outlet: &mut dyn Outlet<TunnelFrame>, cancelled: &mut Cancelled| {
        tunnel.tunnel(request, body, outlet, cancelled).await
    };
    watch(Items::default(), call, stop).await
}

/// Drives a call whose output goes to `items`.
pub(crate) async fn watch<T: Output + 'static, R>(
    items: Items<T>,
    call: impl AsyncFnOnce(&mut dyn Outlet<T>, &mut Cancelled) -> Result<R, CallError>,
    stop: impl Future<Output = ()>,
) -> Outcome<T, R> {
    let mut emission = Emission::new(items.clone(), Instant::now);
    let (canceller, mut cancelled) = cancellation();
    let fence = emission.fence();
    let stopping = async {
        stop.await;
        fence.close();
        canceller.cancel();
        std::future::pending::<()>().await;
    };
    let result = tokio::select! {
        result = call(&mut emission, &mut cancelled) => result,
        () = stopping => unreachable!("it never ends"),
    };
    Outcome { items: items.take(), result }
}

impl<R> Outcome<Event, R> {
    pub(crate) fn text(&self) -> String {
        self.items
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::Delta { part: Part::Text(text), .. } => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }
}

impl<R> Outcome<TunnelFrame, R> {
    pub(crate) fn head(&self) -> &ResponseHead {
        match self.items.first() {
            Some(TunnelFrame::Head(head)) => head,
            other => panic!("a tunnel begins with a head, not {other:?}"),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let headers = &self.head().headers;
        let found = headers.iter().find(|header| header.name == name.as_bytes());
        found.map(|header| std::str::from_utf8(&header.value).expect("the test sent ASCII"))
    }

    pub(crate) fn body(&self) -> Bytes {
        let mut body = Vec::new();
        for frame in &self.items {
            if let TunnelFrame::Body { data, .. } = frame {
                body.extend_from_slice(data);
            }
        }
        body.into()
    }
}

impl<T, R: std::fmt::Debug> Outcome<T, R> {
    pub(crate) fn failure(&self) -> &Failure {
        match &self.result {
            Err(CallError::Failed(failure)) => failure,
            other => panic!("expected a failure, not {other:?}"),
        }
    }
}

/// An outlet that remembers everything and has room for `room` items.
pub(crate) struct Items<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    items: Vec<T>,
    room: usize,
    waiting: Option<Waker>,
}

impl<T> Items<T> {
    pub(crate) fn with_room(room: usize) -> Self {
        Self(Arc::new(Mutex::new(State { items: Vec::new(), room, waiting: None })))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().expect("no test panics in here").items.len()
    }

    fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().expect("no test panics in here").items)
    }
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self::with_room(usize::MAX)
    }
}

impl<T> Clone for Items<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Output> Outlet<T> for Items<T> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
        let mut state = self.0.lock().expect("no test panics in here");
        if state.items.len() < state.room {
            return Poll::Ready(Ok(()));
        }
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    fn put(&mut self, item: T) -> Result<(), Fenced> {
        self.0.lock().expect("no test panics in here").items.push(item);
        Ok(())
    }
}

/// A request body whose parts come when the test sends them.
pub(crate) fn streamed() -> (tokio::sync::mpsc::UnboundedSender<Bytes>, Body) {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    (sender, Body::Stream(Box::new(Parts { receiver, is_cut_off: false })))
}

/// A request body that is lost once its sender is gone.
pub(crate) fn cut_off() -> (tokio::sync::mpsc::UnboundedSender<Bytes>, Body) {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    (sender, Body::Stream(Box::new(Parts { receiver, is_cut_off: true })))
}

struct Parts {
    receiver: tokio::sync::mpsc::UnboundedReceiver<Bytes>,
    is_cut_off: bool,
}

impl BodySource for Parts {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyLost>>> {
        match self.receiver.poll_recv(cx) {
            Poll::Ready(None) if self.is_cut_off => Poll::Ready(Some(Err(BodyLost))),
            Poll::Ready(part) => Poll::Ready(part.map(Ok)),
            Poll::Pending => Poll::Pending,
        }
    }
}
