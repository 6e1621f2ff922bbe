//! The usage object of OpenAI's answers.

use iop_types::Usage;
use serde::Deserialize;

/// Token counts as providers spell them; embeddings have no output, and some servers use the names
/// of the Responses API.
#[derive(Deserialize)]
struct Figures {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

/// Reads a usage object from the beginning of `text`, whatever follows it.
///
/// Returns `None` when it is malformed or says too little: unknown is better than wrong.
pub(crate) fn read_figures(text: &[u8]) -> Option<Usage> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let figures = Figures::deserialize(&mut deserializer).ok()?;
    let input = figures.prompt_tokens.or(figures.input_tokens);
    let output = figures.completion_tokens.or(figures.output_tokens);
    let (input_tokens, output_tokens) = match (input, output, figures.total_tokens) {
        (Some(input), Some(output), _) => (input, output),
        (Some(input), None, Some(total)) => (input, total.saturating_sub(input)),
        (Some(input), None, None) => (input, 0),
        (None, Some(output), Some(total)) => (total.checked_sub(output)?, output),
        (None, Some(_) | None, _) => return None,
    };
    Some(Usage { input_tokens, output_tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_in_each_spelling_and_never_guessed() {
        let read = |text: &str| {
            read_figures(text.as_bytes()).map(|usage| (usage.input_tokens, usage.output_tokens))
        };
        for (text, expected) in [
            (
                r#"{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"x":{}}}],"#,
                Some((3, 2)),
            ),
            (r#"{"prompt_tokens":8,"total_tokens":8}"#, Some((8, 0))),
            (r#"{"input_tokens":8,"output_tokens":1}"#, Some((8, 1))),
            (r#"{"prompt_tokens":8,"input_tokens":9,"completion_tokens":null}"#, Some((8, 0))),
            (r#"{"completion_tokens":2,"total_tokens":5}"#, Some((3, 2))),
            (r#"{"completion_tokens":9,"total_tokens":5}"#, None),
            (r#"{"completion_tokens":2}"#, None),
            (r#"{"total_tokens":5}"#, None),
            (r#"{"prompt_tokens":"3","completion_tokens":2}"#, None),
            (r#"{"prompt_tokens":-3,"completion_tokens":2}"#, None),
            (r#"{"prompt_tokens":3,"#, None),
            ("{}", None),
            ("null", None),
            ("7", None),
            ("", None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}
