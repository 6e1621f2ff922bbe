//! A provider that counts what is done to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};

use bytes::Bytes;
use iop_execution::{
    Body, BoxFuture, CallError, Cancelled, Completion, DiscoverError, Discovery, Outlet, Provider,
    StartError, Tunnel,
};
use iop_types::{
    AdapterType, Attempt, Capabilities, ConfigRevision, EdgeBootId, Event, Operation, RunId,
    RunKind, RunRequest, TunnelFrame, TunnelRequest, WorkKey,
};

pub(crate) struct Counting {
    adapter: AdapterType,
    capabilities: Capabilities,
    refuses_to_start: bool,
    starts: AtomicU32,
    stops: AtomicU32,
    /// Calls of the adapter; each would open a socket.
    calls: AtomicU32,
}

impl Counting {
    pub(crate) fn new(adapter: AdapterType) -> Arc<Self> {
        Arc::new(Self::build(adapter, false))
    }

    pub(crate) fn that_refuses_to_start(adapter: AdapterType) -> Arc<Self> {
        Arc::new(Self::build(adapter, true))
    }

    fn build(adapter: AdapterType, refuses_to_start: bool) -> Self {
        let chat = Operation { method: "POST".into(), path: "/v1/chat/completions".into() };
        Self {
            adapter,
            capabilities: Capabilities {
                tunnel: vec![chat],
                runs: vec![RunKind::Chat],
                implicit_latest: false,
            },
            refuses_to_start,
            starts: AtomicU32::new(0),
            stops: AtomicU32::new(0),
            calls: AtomicU32::new(0),
        }
    }

    pub(crate) fn starts(&self) -> u32 {
        self.starts.load(Ordering::SeqCst)
    }

    pub(crate) fn stops(&self) -> u32 {
        self.stops.load(Ordering::SeqCst)
    }

    pub(crate) fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Provider for Counting {
    fn adapter(&self) -> AdapterType {
        self.adapter
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn start(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(async {
            if self.refuses_to_start {
                return Err(StartError("secret `lab` is not in the node's file".into()));
            }
            self.starts.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.stops.fetch_add(1, Ordering::SeqCst);
        })
    }

    fn discover(&self) -> BoxFuture<'_, Result<Discovery, DiscoverError>> {
        assert_eq!(self.stops(), 0, "called after it was stopped");
        Box::pin(async { Ok(Discovery::default()) })
    }

    fn run<'a>(
        &'a self,
        _: RunRequest,
        _: Bytes,
        _: &'a mut dyn Outlet<Event>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<Completion, CallError>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            cancelled.await;
            Err(CallError::Cancelled)
        })
    }

    fn tunnel(&self) -> Option<&dyn Tunnel> {
        (self.adapter != AdapterType::Mock).then_some(self)
    }
}

impl Tunnel for Counting {
    fn tunnel<'a>(
        &'a self,
        _: TunnelRequest,
        _: Body,
        _: &'a mut dyn Outlet<TunnelFrame>,
        _: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(()) })
    }
}

pub(crate) fn boot(number: u8) -> EdgeBootId {
    EdgeBootId::from_slice(&[number; 16]).expect("sixteen bytes")
}

pub(crate) fn configuration(counter: u64) -> ConfigRevision {
    ConfigRevision { boot: boot(1), counter }
}

pub(crate) fn work(run: u8, attempt: u32) -> WorkKey {
    let run_id = RunId::from_slice(&[run; 16]).expect("sixteen bytes");
    WorkKey { run_id, attempt: Attempt(attempt) }
}

/// Drives a future that never has to wait.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    poll(&mut std::pin::pin!(future)).expect("the future is ready at once")
}

/// Polls once.
pub(crate) fn poll<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
