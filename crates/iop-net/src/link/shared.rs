//! The machine of one link between its driver and its handles.

use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use iop_link::{Link, Role, Signal, StreamKey};

use crate::sync::{Mutex, MutexGuard};

/// One link, shared by the task that drives it and the handles of its streams.
pub(super) struct Shared<R: Role> {
    inner: Mutex<Inner<R>>,
}

pub(super) struct Inner<R: Role> {
    pub(super) link: Link<R>,
    /// Who waits on which stream, by slot.
    streams: Vec<Wakers>,
    driver: Option<Waker>,
    /// Whether the driver will run anyway.
    driver_awake: bool,
    /// Whether the driver waits for the socket to take more: nothing that is queued changes that.
    pub(super) write_blocked: bool,
}

#[derive(Default)]
struct Wakers {
    readable: Option<Waker>,
    writable: Option<Waker>,
    cancelled: Option<Waker>,
}

impl<R: Role> Shared<R> {
    pub(super) fn new(link: Link<R>) -> Self {
        Self {
            inner: Mutex::new(Inner {
                link,
                streams: Vec::new(),
                driver: None,
                driver_awake: true,
                write_blocked: false,
            }),
        }
    }

    /// Calls the machine on behalf of a handle and wakes whom that concerns.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut Link<R>) -> T) -> T {
        let mut inner = self.lock();
        let result = call(&mut inner.link);
        let driver = inner.driver_to_wake();
        let woken = inner.take_signalled();
        drop(inner);
        wake(woken);
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// As [`Self::with`], for what may change a timer: the driver always looks again.
    pub(super) fn with_driver<T>(&self, call: impl FnOnce(&mut Link<R>) -> T) -> T {
        let result = self.with(call);
        let driver = self.lock().driver.clone();
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// Polls the machine on behalf of a task that waits on a stream.
    pub(super) fn poll<T>(
        &self,
        key: StreamKey,
        wait: Wait,
        cx: &Context<'_>,
        call: impl FnOnce(&mut Link<R>) -> Poll<T>,
    ) -> Poll<T> {
        let mut inner = self.lock();
        let result = call(&mut inner.link);
        if result.is_pending() {
            inner.park(key, wait, cx.waker());
        }
        let driver = inner.driver_to_wake();
        drop(inner);
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// Nothing a machine does under the lock leaves it half done when it panics.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner<R>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Role> Inner<R> {
    /// Notes that the driver runs and whom to wake when it should run again.
    pub(super) fn driver_runs(&mut self, cx: &Context<'_>) {
        self.driver_awake = false;
        match &mut self.driver {
            Some(driver) if driver.will_wake(cx.waker()) => {}
            driver => *driver = Some(cx.waker().clone()),
        }
    }

    /// Says whether there is something that the socket would take. If so the driver runs again soon by
    /// itself, and what is queued until then needs no wake-up.
    pub(super) fn driver_gathers(&mut self) -> bool {
        let gathers = self.link.wants_write() && !self.write_blocked;
        self.driver_awake |= gathers;
        gathers
    }

    /// Takes the wakers of everybody the machine has news for.
    pub(super) fn take_signalled(&mut self) -> Woken {
        let mut woken = Woken::Nobody;
        while let Some(signal) = self.link.poll_signal() {
            let waker = match signal {
                Signal::Readable(slot) => {
                    self.streams.get_mut(slot).and_then(|wakers| wakers.readable.take())
                }
                Signal::Writable(slot) => {
                    self.streams.get_mut(slot).and_then(|wakers| wakers.writable.take())
                }
                Signal::Cancelled(slot) => {
                    self.streams.get_mut(slot).and_then(|wakers| wakers.cancelled.take())
                }
            };
            if let Some(waker) = waker {
                woken.add(waker);
            }
        }
        woken
    }

    fn driver_to_wake(&mut self) -> Option<Waker> {
        let news = self.link.has_output() || (self.link.wants_write() && !self.write_blocked);
        if !news || self.driver_awake {
            return None;
        }
        self.driver_awake = true;
        self.driver.clone()
    }

    fn park(&mut self, key: StreamKey, wait: Wait, waker: &Waker) {
        if self.streams.len() <= key.slot {
            self.streams.resize_with(key.slot + 1, Wakers::default);
        }
        let wakers = &mut self.streams[key.slot];
        let parked = match wait {
            Wait::Readable => &mut wakers.readable,
            Wait::Writable => &mut wakers.writable,
            Wait::Cancelled => &mut wakers.cancelled,
        };
        match parked {
            Some(parked) if parked.will_wake(waker) => {}
            parked => *parked = Some(waker.clone()),
        }
    }
}

/// What a task waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    Readable,
    Writable,
    Cancelled,
}

/// Wakers on their way out of the lock; mostly one.
pub(super) enum Woken {
    Nobody,
    One(Waker),
    Many(Vec<Waker>),
}

impl Woken {
    fn add(&mut self, waker: Waker) {
        *self = match std::mem::replace(self, Self::Nobody) {
            Self::Nobody => Self::One(waker),
            Self::One(first) => Self::Many(vec![first, waker]),
            Self::Many(mut wakers) => {
                wakers.push(waker);
                Self::Many(wakers)
            }
        };
    }
}

/// Wakes everybody, outside the lock: they will want it.
pub(super) fn wake(woken: Woken) {
    match woken {
        Woken::Nobody => {}
        Woken::One(waker) => waker.wake(),
        Woken::Many(wakers) => wakers.into_iter().for_each(Waker::wake),
    }
}

/// Tokio's clock, so that a simulation's time is ours too.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
