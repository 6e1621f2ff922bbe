//! How many requests wait and run inside an engine, read off its metrics.
//!
//! The queue is a hint for the choice: as long as there is room none waits, and when there is none,
//! for whatever reason, they do. The requests that run say only one thing here: whether the engine
//! works at nothing, which ends what nobody saw return. The share of the cache that is taken says
//! nothing beyond these two.
//!
//! The text is Prometheus' exposition format. Of its thousands of lines two kinds are read, and that
//! strictly: a line of them that is malformed makes the whole hint absent rather than wrong. This is
//! less than any parser of the format does, so that none is used.

use super::Engine;

/// The gauges of each engine.
const GAUGES: [(Engine, Gauge, &str); 4] = [
    (Engine::Vllm, Gauge::Waiting, "vllm:num_requests_waiting"),
    (Engine::Vllm, Gauge::Running, "vllm:num_requests_running"),
    (Engine::Sglang, Gauge::Waiting, "sglang:num_queue_reqs"),
    (Engine::Sglang, Gauge::Running, "sglang:num_running_reqs"),
];

#[derive(Debug, Clone, Copy)]
enum Gauge {
    Waiting,
    Running,
}

/// What an engine says of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) engine: Engine,
    /// Over all of its replicas.
    pub(super) waiting: u32,
    /// The same of the requests that it works at, where it says so.
    pub(super) running: Option<u32>,
}

impl Queue {
    /// Says whether the engine has nothing to do.
    pub(super) fn is_idle(self) -> bool {
        self.waiting == 0 && self.running == Some(0)
    }
}

/// Adds up the gauges over the replicas of an engine; `None` where its queue is not exposed or a line
/// is not right.
pub(super) fn read(text: &[u8]) -> Option<Queue> {
    let (mut waiting, mut running) = (None, None);
    for line in std::str::from_utf8(text).ok()?.lines() {
        let Some((engine, gauge, rest)) = gauge(line) else { continue };
        let Sample::Counts(count) = sample(rest)? else { continue };
        let sum = match gauge {
            Gauge::Waiting => &mut waiting,
            Gauge::Running => &mut running,
        };
        let (_, before) = sum.unwrap_or((engine, 0_u32));
        *sum = Some((engine, before.saturating_add(count)));
    }
    let (engine, waiting) = waiting?;
    Some(Queue { engine, waiting, running: running.map(|(_, count)| count) })
}

/// Finds one of the gauges at the start of a line; a longer name is another metric.
fn gauge(line: &str) -> Option<(Engine, Gauge, &str)> {
    GAUGES.iter().find_map(|(engine, gauge, name)| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ', '\t']).then_some((*engine, *gauge, rest))
    })
}

enum Sample {
    Counts(u32),
    /// It says again what another series says.
    Repeats,
}

/// Reads labels and value.
fn sample(text: &str) -> Option<Sample> {
    let (repeats, rest) = match text.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (false, text),
    };
    let mut words = rest.split_ascii_whitespace();
    let value: f64 = words.next()?.parse().ok()?;
    // A time may follow.
    let is_time = |word: &str| word.parse::<i64>().is_ok();
    if !words.next().is_none_or(is_time) || words.next().is_some() {
        return None;
    }
    let counts = (0.0..=f64::from(u32::MAX)).contains(&value);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was checked, and half a request is none"
    )]
    counts.then_some(match repeats {
        true => Sample::Repeats,
        false => Sample::Counts(value as u32),
    })
}

/// Reads `name="value"` pairs up to the closing brace; says whether the series repeats another, and
/// returns what follows.
fn labels(mut text: &str) -> Option<(bool, &str)> {
    let mut repeats = false;
    loop {
        text = text.trim_start();
        if let Some(rest) = text.strip_prefix('}') {
            return Some((repeats, rest));
        }
        let (name, rest) = text.split_once('=')?;
        let rest = rest.trim_start().strip_prefix('"')?;
        let end = closing_quote(rest)?;
        repeats |= is_repeated(name.trim(), &rest[..end]);
        text = rest[end + 1..].trim_start();
        text = match text.strip_prefix(',') {
            Some(rest) => rest,
            None if text.starts_with('}') => text,
            None => return None,
        };
    }
}

/// Finds the quote that no backslash precedes.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !escaped => return Some(at),
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

/// SGLang may expose one queue once for each rank that shares it, and again for each priority.
fn is_repeated(label: &str, value: &str) -> bool {
    match label {
        "tp_rank" | "pp_rank" => value != "0",
        "priority" => !value.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waiting(text: &str) -> Option<u32> {
        read(text.as_bytes()).map(|queue| queue.waiting)
    }

    #[test]
    fn the_replicas_of_an_engine_are_added_up_and_other_metrics_are_left_alone() {
        let text = "# HELP vllm:num_requests_waiting Number of requests waiting.\n\
            # TYPE vllm:num_requests_waiting gauge\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"org/m\"} 3.0\n\
            vllm:num_requests_waiting{engine=\"1\",model_name=\"org/m\"} 4 1700000000000\n\
            vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 7.0\n\
            vllm:num_requests_running{engine=\"0\"} 90.0\n\
            python_gc_objects_collected_total{generation=\"0\"} nonsense\n";
        let queue = Queue { engine: Engine::Vllm, waiting: 7, running: Some(90) };
        assert_eq!(read(text.as_bytes()), Some(queue));
        assert_eq!(waiting("vllm:num_requests_waiting 2\r\n"), Some(2));
        assert_eq!(waiting("vllm:num_requests_waiting{} 2"), Some(2));
    }

    #[test]
    fn a_queue_that_sglang_repeats_by_rank_and_priority_counts_once() {
        let text = "sglang:num_queue_reqs{dp_rank=\"0\",tp_rank=\"0\",priority=\"\"} 5.0\n\
            sglang:num_queue_reqs{dp_rank=\"0\",tp_rank=\"1\",priority=\"\"} 5.0\n\
            sglang:num_queue_reqs{dp_rank=\"0\",tp_rank=\"0\",priority=\"1\"} 5.0\n\
            sglang:num_queue_reqs{dp_rank=\"1\",tp_rank=\"0\",priority=\"\"} 2.0\n";
        let queue = Queue { engine: Engine::Sglang, waiting: 7, running: None };
        assert_eq!(read(text.as_bytes()), Some(queue));
    }

    #[test]
    fn an_engine_is_idle_only_if_it_says_so_of_both() {
        let idle = |text: &str| read(text.as_bytes()).is_some_and(Queue::is_idle);
        let (none_waits, none_runs) =
            ("vllm:num_requests_waiting 0\n", "vllm:num_requests_running{engine=\"0\"} 0\n");
        assert!(idle(&[none_waits, none_runs].concat()));
        assert!(!idle(none_waits));
        assert!(!idle(none_runs));
        let other = "vllm:num_requests_running{engine=\"1\"} 1\n";
        assert!(!idle(&[none_waits, none_runs, other].concat()));
    }

    #[test]
    fn a_name_with_quotes_braces_and_commas_is_a_name() {
        let text = r#"vllm:num_requests_waiting{model_name="a\"},b=\\",engine="0",} 6"#;
        assert_eq!(waiting(text), Some(6));
    }

    #[test]
    fn what_is_malformed_is_no_hint() {
        assert_eq!(waiting(""), None);
        assert_eq!(waiting("<html>"), None);
        for line in [
            "{engine=\"0\"}",
            "{engine=\"0\"} x",
            "{engine=\"0\"} NaN",
            "{engine=\"0\"} +Inf",
            "{engine=\"0\"} -1",
            "{engine=\"0\"} 1 2 3",
            "{engine=\"0} 1",
            "{engine=0} 1",
            "{engine=\"0\" model=\"m\"} 1",
            "{engine=\"0\" 1",
            " ",
        ] {
            let good = "vllm:num_requests_waiting{engine=\"1\"} 1\n";
            let text = format!("{good}vllm:num_requests_waiting{line}\n{good}");
            assert_eq!(waiting(&text), None, "{line}");
        }
        assert_eq!(read(b"vllm:num_requests_waiting 1\n\xff\xfe"), None);
    }

    proptest! {
        #[test]
        fn whatever_stands_behind_the_name_is_read_without_panic(rest in ".*") {
            let _ = read(format!("vllm:num_requests_waiting{rest}").as_bytes());
            let _ = read(format!("sglang:num_queue_reqs{{{rest}}} 1").as_bytes());
        }
    }
}
