//! The fence of a call's output and its one terminal.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use iop_execution::provider::{Fenced, Outlet};
use iop_loom::emission::{Emission, Terminus};
use iop_types::TunnelFrame;
use loom::thread;

/// Collects what leaves; never has room where it is full.
#[derive(Clone, Default)]
struct Sent {
    items: Arc<Mutex<Vec<TunnelFrame>>>,
    is_full: bool,
}

impl Sent {
    fn items(&self) -> Vec<TunnelFrame> {
        self.items.lock().expect("no model panics here").clone()
    }
}

impl Outlet<TunnelFrame> for Sent {
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
        if self.is_full { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn put(&mut self, item: TunnelFrame) -> Result<(), Fenced> {
        self.items.lock().expect("no model panics here").push(item);
        Ok(())
    }
}

impl Terminus<TunnelFrame> for Sent {
    fn finish(mut self, terminal: TunnelFrame) -> Result<(), Fenced> {
        self.put(terminal)
    }
}

fn body() -> TunnelFrame {
    TunnelFrame::Body { data: Bytes::from_static(b"x"), progress: true }
}

/// The provider's end and the stall claim at the same instant, while output is still put.
#[test]
fn of_two_who_claim_one_ends_the_call_and_nothing_follows_the_claim() {
    loom::model(|| {
        let sent = Sent::default();
        let mut emission = Emission::new(sent.clone(), Instant::now);
        let (ender, log) = (emission.ender(), sent.clone());
        let watchdog = thread::spawn(move || ender.claim().map(|claim| (claim, log.items().len())));
        let put = emission.put(body());
        let own = emission.ender().claim().map(|claim| (claim, sent.items().len()));
        let late = emission.put(body());
        let other = watchdog.join().unwrap();

        assert_eq!(late, Err(Fenced));
        assert!(own.is_some() != other.is_some(), "exactly one claim");
        let (claim, before) = own.or(other).unwrap();
        assert_eq!(sent.items().len(), before, "nothing leaves behind a claim");
        assert_eq!(before, usize::from(put.is_ok()));
        claim.finish(TunnelFrame::End).unwrap();
        assert_eq!(sent.items().last(), Some(&TunnelFrame::End));
    });
}

#[test]
fn a_call_that_waits_for_room_never_misses_the_closing_of_its_fence() {
    loom::model(|| {
        let sent = Sent { is_full: true, ..Sent::default() };
        let mut emission = Emission::new(sent.clone(), Instant::now);
        let fence = emission.fence();
        let closing = thread::spawn(move || fence.close());
        let outlet: &mut dyn Outlet<TunnelFrame> = &mut emission;
        assert_eq!(loom::future::block_on(outlet.emit(body())), Err(Fenced));
        closing.join().unwrap();
        assert!(sent.items().is_empty());
    });
}

#[test]
fn progress_is_read_as_a_time_at_which_something_was_put() {
    loom::model(|| {
        let began = Instant::now();
        let mut emission = Emission::new(Sent::default(), Instant::now);
        let fence = emission.fence();
        let watching = thread::spawn(move || (fence.first_progress(), fence.last_progress()));
        emission.put(body()).unwrap();
        emission.put(body()).unwrap();
        let (first, last) = watching.join().unwrap();
        for seen in [first, last].into_iter().flatten() {
            assert!((began..=Instant::now()).contains(&seen));
        }
        let fence = emission.fence();
        assert!(fence.first_progress().unwrap() <= fence.last_progress().unwrap());
    });
}
