//! Lines of JSON read the same however they are cut.

#![no_main]

use iop_dialect::ndjson::Splitter;
use iop_fuzz::{cuts, segments};
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 128;

fn lines(segments: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
    let mut splitter = Splitter::new(LIMIT);
    let mut lines = Vec::new();
    for segment in segments {
        splitter.push(segment, |line| lines.push(line.ok().map(<[u8]>::to_vec)));
    }
    splitter.finish(|line| lines.push(line.ok().map(<[u8]>::to_vec)));
    lines
}

/// As a reader of the whole text would.
fn plainly(text: &[u8]) -> Vec<Option<Vec<u8>>> {
    text.split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| line.len() > LIMIT || !line.trim_ascii().is_empty())
        .map(|line| (line.len() <= LIMIT).then(|| line.to_vec()))
        .collect()
}

fuzz_target!(|input: &[u8]| {
    let (sizes, text) = cuts(input);
    assert_eq!(lines(&[text]), plainly(text));
    assert_eq!(lines(&segments(&sizes, text)), plainly(text));
});
