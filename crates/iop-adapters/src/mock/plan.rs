//! What a mock provider will do for one request: a list of steps, decided before the first is taken.

use std::time::Duration;

use iop_execution::Completion;
use iop_types::{Event, EventKind, Failure, Finish, Part, RunKind, Usage};

use super::prompt::Prompt;
use super::script::Answer;

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Wait(Duration),
    WaitForever,
    Emit(Event),
    Fail(Failure),
}

/// Decides the steps and the completion that follows when none of them fails.
pub(super) fn plan(answer: &Answer, kind: RunKind, prompt: &Prompt) -> (Vec<Step>, Completion) {
    let (mut chunks, finish) = match kind {
        RunKind::Chat | RunKind::Completion => generated(answer, kind, prompt),
        RunKind::Embedding | RunKind::Rerank => (vectors(answer, prompt), None),
    };
    let finish = match prompt.max_chunks {
        Some(limit) if finish.is_some() && chunks.len() > limit => {
            chunks.truncate(limit);
            Some("length".to_owned())
        }
        Some(_) | None => finish,
    };
    let usage = answer.usage.then_some(Usage {
        input_tokens: prompt.words,
        output_tokens: if finish.is_some() { chunks.len() as u64 } else { 0 },
    });
    let finish = finish.map(|reason| Finish { choice: 0, reason }).into_iter().collect();
    (steps(answer, chunks), Completion { finish, usage })
}

/// Puts waits, the pause and the failure between the chunks.
fn steps(answer: &Answer, chunks: Vec<EventKind>) -> Vec<Step> {
    let mut random = fastrand::Rng::with_seed(answer.seed);
    let jitter = u64::try_from(answer.chunk_jitter.as_millis()).unwrap_or(u64::MAX - 1);
    let interruptions = |sent: Option<usize>, is_last: bool, steps: &mut Vec<Step>| {
        // A point after the last chunk is reached at the end: a script may say "after all of it".
        let is_here =
            |at: Option<usize>| at == sent || (is_last && at.is_some_and(|at| Some(at) > sent));
        if let Some(silence) = answer.silence.as_ref().filter(|it| is_here(it.after_chunks)) {
            steps.push(silence.length.map_or(Step::WaitForever, Step::Wait));
        }
        if let Some(error) = answer.error.as_ref().filter(|it| is_here(it.after_chunks)) {
            steps.push(Step::Fail(error.failure.clone()));
        }
    };
    let mut steps = Vec::with_capacity(chunks.len() * 2 + 3);
    let total = chunks.len();
    steps.push(Step::Wait(answer.first_delay));
    interruptions(None, false, &mut steps);
    steps.push(Step::Emit(EventKind::Start.into()));
    interruptions(Some(0), total == 0, &mut steps);
    for (index, chunk) in chunks.into_iter().enumerate() {
        let extra = Duration::from_millis(random.u64(0..=jitter));
        steps.push(Step::Wait(answer.chunk_delay + extra));
        steps.push(Step::Emit(chunk.into()));
        interruptions(Some(index + 1), index + 1 == total, &mut steps);
    }
    steps.retain(|step| *step != Step::Wait(Duration::ZERO));
    steps
}

/// The chunks of an answer in words, and why it ends.
fn generated(answer: &Answer, kind: RunKind, prompt: &Prompt) -> (Vec<EventKind>, Option<String>) {
    let mut chunks = Vec::new();
    let is_chat = kind == RunKind::Chat;
    if let Some(reasoning) = answer.reasoning.as_ref().filter(|_| is_chat) {
        let pieces = pieces(reasoning, answer.chunk_chars);
        chunks.extend(pieces.map(|text| EventKind::ReasoningDelta { choice: 0, text }));
    }
    let text = match (&answer.text, &answer.tool_call) {
        (Some(text), _) => text.repeat(answer.repeat),
        (None, Some(_)) if is_chat => String::new(),
        (None, _) => introduction(prompt.texts.first().map_or("", String::as_str)),
    };
    chunks.extend(pieces(&text, answer.chunk_chars).map(|text| delta(0, Part::Text(text))));
    if let Some(call) = answer.tool_call.as_ref().filter(|_| is_chat) {
        let first = Part::ToolCall {
            index: 0,
            id: Some("call_mock_0".to_owned()),
            name: Some(call.name.clone()),
            arguments: String::new(),
        };
        chunks.push(delta(0, first));
        chunks.extend(pieces(&call.arguments, answer.chunk_chars).map(|arguments| {
            delta(0, Part::ToolCall { index: 0, id: None, name: None, arguments })
        }));
    }
    (chunks, Some(answer.finish.clone()))
}

/// One vector of length 1 for each input, the same for the same text and seed.
fn vectors(answer: &Answer, prompt: &Prompt) -> Vec<EventKind> {
    (0_u32..)
        .zip(&prompt.texts)
        .map(|(choice, text)| {
            let seed = text.bytes().fold(answer.seed, |hash, byte| {
                // FNV-1a's step: spreads one byte over the word.
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            let mut random = fastrand::Rng::with_seed(seed);
            let raw: Vec<f32> = (0..answer.dimensions).map(|_| random.f32() - 0.5).collect();
            let length = raw.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
            delta(choice, Part::Embedding(raw.into_iter().map(|x| x / length).collect()))
        })
        .collect()
}

const fn delta(choice: u32, part: Part) -> EventKind {
    EventKind::Delta { choice, part }
}

/// Cuts a text into chunks that join to the same text: words with the blanks before them, or a
/// number of characters.
fn pieces(text: &str, chars: Option<usize>) -> impl Iterator<Item = String> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = match chars {
            Some(count) => rest.char_indices().nth(count).map_or(rest.len(), |(at, _)| at),
            None => {
                let word = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
                rest[word..].find(char::is_whitespace).map_or(rest.len(), |length| word + length)
            }
        };
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then(|| piece.to_owned())
    })
}

/// What the demonstration says: what it is, that no model is behind it, and what it was asked.
fn introduction(prompt: &str) -> String {
    /// Long prompts are echoed up to here, in characters.
    const ECHOED: usize = 200;
    let mut text = "Hello! This is the built-in demo provider of IOP: no model is running, and \
                    these words are a script. They came to you word by word through the Edge, the \
                    link and a Node, as a real answer would."
        .to_owned();
    let prompt = prompt.trim();
    if !prompt.is_empty() {
        let echo: String = prompt.chars().take(ECHOED).collect();
        let more = if prompt.chars().count() > ECHOED { " …" } else { "" };
        text.push_str(&format!(" You wrote: {echo}{more}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_join_to_the_text_and_none_is_empty(
            text in "(\\PC|\\s){0,60}", chars in proptest::option::of(1_usize..7)
        ) {
            let cut: Vec<_> = pieces(&text, chars).collect();
            prop_assert!(cut.iter().all(|piece| !piece.is_empty()));
            if let Some(chars) = chars {
                prop_assert!(cut.iter().all(|piece| piece.chars().count() <= chars));
            }
            prop_assert_eq!(cut.concat(), text);
        }
    }

    #[test]
    fn the_demonstration_says_what_it_is_and_echoes_the_prompt() {
        let said = introduction("  what are you?\n");
        assert!(said.contains("built-in demo provider"), "{said}");
        assert!(said.contains("no model is running"), "{said}");
        assert!(said.ends_with("You wrote: what are you?"), "{said}");
        let long = introduction(&"ä".repeat(500));
        assert!(long.ends_with(&format!("{} …", "ä".repeat(200))), "{long}");
    }

    #[test]
    fn equal_texts_have_equal_vectors_of_length_one() {
        let prompt =
            Prompt { texts: ["a", "b", "a"].map(str::to_owned).into(), words: 3, max_chunks: None };
        let (steps, completion) = plan(&Answer::default(), RunKind::Embedding, &prompt);
        let vectors: Vec<_> = steps
            .into_iter()
            .filter_map(|step| match step {
                Step::Emit(Event {
                    kind: EventKind::Delta { part: Part::Embedding(vector), .. },
                    ..
                }) => Some(vector),
                _ => None,
            })
            .collect();
        assert_eq!(vectors.len(), 3);
        assert_eq!(vectors[0], vectors[2]);
        assert_ne!(vectors[0], vectors[1]);
        assert!((vectors[0].iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
        assert_eq!(completion.usage, Some(Usage { input_tokens: 3, output_tokens: 0 }));
        assert!(completion.finish.is_empty());
    }
}
