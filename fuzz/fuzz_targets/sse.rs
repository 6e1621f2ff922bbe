//! Server-sent events read the same however they are cut, and no byte of a relayed stream changes.

#![no_main]

use bytes::Bytes;
use iop_dialect::sse::{ProgressScan, Splitter};
use iop_dialect::usage::{ChunkFilter, StreamObserver, Supplement};
use iop_fuzz::{cuts, segments};
use libfuzzer_sys::fuzz_target;

/// Small, so that the cap is reached.
const LIMIT: usize = 256;

fn events(segments: &[&[u8]]) -> Vec<Option<(Vec<u8>, Vec<u8>)>> {
    let mut splitter = Splitter::new(LIMIT);
    let mut events = Vec::new();
    for segment in segments {
        splitter.push(segment, |event| {
            events.push(event.ok().map(|event| (event.name.to_vec(), event.data.to_vec())));
        });
    }
    splitter.finish(|event| {
        events.push(event.ok().map(|event| (event.name.to_vec(), event.data.to_vec())));
    });
    for (name, data) in events.iter().flatten() {
        assert!(name.len() <= 64 && data.len() <= LIMIT);
    }
    events
}

fn progress(segments: &[&[u8]]) -> (bool, bool) {
    let mut scan = ProgressScan::default();
    let any = segments.iter().fold(false, |any, segment| scan.scan(segment) | any);
    (any, scan.is_done())
}

fn observed(segments: &[&[u8]]) -> String {
    let mut observer = StreamObserver::new();
    for segment in segments {
        observer.observe(segment);
    }
    observer.finish();
    let whole = (observer.is_done(), observer.has_finished(), observer.is_truncated());
    format!("{whole:?} {:?} {:?} {}", observer.usage(), observer.error(), observer.deltas())
}

fn filtered(segments: &[&[u8]]) -> Vec<u8> {
    let mut filter = ChunkFilter::new();
    let mut out = Vec::new();
    for segment in segments {
        filter.push(Bytes::copy_from_slice(segment), |bytes| out.extend_from_slice(&bytes));
    }
    filter.finish(|bytes| out.extend_from_slice(&bytes));
    out
}

fn supplemented(segments: &[&[u8]], chunk: &'static [u8]) -> Vec<u8> {
    let mut supplement = Supplement::new();
    let mut out = Vec::new();
    let add = || (!chunk.is_empty()).then(|| Bytes::from_static(chunk));
    for segment in segments {
        supplement.push(Bytes::copy_from_slice(segment), add, |bytes| {
            out.extend_from_slice(&bytes);
        });
    }
    supplement.finish(add, |bytes| out.extend_from_slice(&bytes));
    out
}

fuzz_target!(|input: &[u8]| {
    let (sizes, text) = cuts(input);
    let (whole, cut) = (&[text][..], &segments(&sizes, text)[..]);
    assert_eq!(events(whole), events(cut));
    assert_eq!(progress(whole), progress(cut));
    assert_eq!(observed(whole), observed(cut));
    assert_eq!(filtered(whole), filtered(cut));
    assert_eq!(supplemented(cut, b""), text, "nothing to add is nothing changed");
    assert_eq!(supplemented(cut, b"+").len(), text.len() + 1, "one chunk, once");
});
