//! `iop chat`: a conversation in the terminal, over the same endpoint that every client uses.

use std::io::{self, IsTerminal as _, Write as _};

use http_body_util::BodyExt as _;
use iop_dialect::sse::Splitter;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::cli::Chat;
use crate::client::{AskError, Base};
use crate::table::printable;

/// Runs `iop chat`: one answer, or a conversation until the input ends.
///
/// # Errors
/// The Edge could not be asked, has no model, or ended an answer with an error.
pub(crate) async fn run(chat: Chat) -> Result<(), ChatError> {
    let base = Base::parse(&chat.endpoint, "--endpoint")?;
    let model = match chat.model {
        Some(model) => model,
        None => first_model(&base).await?,
    };
    let mut conversation = Conversation::new(base, model, chat.system);
    if let Some(text) = chat.text {
        conversation.say(text, &mut io::stdout()).await?;
        return Ok(());
    }
    let name = printable(&conversation.model);
    println!("Chatting with {name}. An empty line or Ctrl-D ends it.");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        print!("\n> ");
        io::stdout().flush()?;
        match lines.next_line().await? {
            Some(line) if !line.trim().is_empty() => {
                // A failed answer ends neither the conversation nor what was said before it.
                if let Err(error) = conversation.say(line, &mut io::stdout()).await {
                    eprintln!("{}", printable(&crate::chain(&error)));
                }
            }
            Some(_) | None => return Ok(()),
        }
    }
}

/// Returns the first model that can be used now.
///
/// # Errors
/// The Edge could not be asked, or lists none.
pub(crate) async fn first_model(base: &Base) -> Result<String, ChatError> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    let models: Models = base.get("/v1/models").await?;
    models.data.into_iter().next().map(|model| model.id).ok_or(ChatError::NoModel)
}

/// What was said so far.
pub(crate) struct Conversation {
    base: Base,
    model: String,
    messages: Vec<serde_json::Value>,
    /// Whether what the model says could speak to a terminal.
    is_shown: bool,
}

impl Conversation {
    /// Begins a conversation.
    pub(crate) fn new(base: Base, model: String, system: Option<String>) -> Self {
        let messages =
            system.map(|text| json!({ "role": "system", "content": text })).into_iter().collect();
        Self { base, model, messages, is_shown: io::stdout().is_terminal() }
    }

    /// Says something and writes the answer to `out` as it comes. What failed is forgotten, so that
    /// it can be said again.
    ///
    /// # Errors
    /// The Edge could not be asked, or the answer ended with an error.
    pub(crate) async fn say(
        &mut self,
        text: String,
        out: &mut impl io::Write,
    ) -> Result<(), ChatError> {
        self.messages.push(json!({ "role": "user", "content": text }));
        match self.answer(out).await {
            Ok(answer) => {
                self.messages.push(json!({ "role": "assistant", "content": answer }));
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    async fn answer(&self, out: &mut impl io::Write) -> Result<String, ChatError> {
        let body = json!({ "model": self.model, "stream": true, "messages": self.messages });
        let response =
            self.base.post("/v1/chat/completions", body.to_string().into_bytes()).await?;
        let mut stream = Answer::new();
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { break };
            if let Some(bytes) = frame.data_ref() {
                stream.push(bytes);
                self.show(&stream.take_new(), out)?;
                out.flush()?;
            }
        }
        stream.finish();
        self.show(&stream.take_new(), out)?;
        writeln!(out)?;
        stream.outcome()
    }

    /// Writes what the model said: as it is for programs, harmless for a terminal.
    fn show(&self, text: &str, out: &mut impl io::Write) -> io::Result<()> {
        match self.is_shown {
            true => out.write_all(printable(text).as_bytes()),
            false => out.write_all(text.as_bytes()),
        }
    }
}

/// An answer that is arriving.
struct Answer {
    splitter: Splitter,
    state: AnswerState,
    written: usize,
}

#[derive(Default)]
struct AnswerState {
    text: String,
    finished: bool,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    error: Option<ChunkError>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Deserialize, Default)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct ChunkError {
    message: String,
}

impl Answer {
    fn new() -> Self {
        Self { splitter: Splitter::default(), state: AnswerState::default(), written: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        let state = &mut self.state;
        self.splitter.push(bytes, |event| state.see(event.ok().map(|event| event.data)));
    }

    fn finish(&mut self) {
        let state = &mut self.state;
        self.splitter.finish(|event| state.see(event.ok().map(|event| event.data)));
    }

    fn take_new(&mut self) -> String {
        let new = self.state.text[self.written..].to_owned();
        self.written = self.state.text.len();
        new
    }

    fn outcome(self) -> Result<String, ChatError> {
        match self.state {
            AnswerState { error: Some(message), .. } => Err(ChatError::Failed(message)),
            AnswerState { finished: false, .. } => Err(ChatError::Unfinished),
            AnswerState { text, .. } => Ok(text),
        }
    }
}

impl AnswerState {
    fn see(&mut self, data: Option<&[u8]>) {
        let Some(chunk) = data.and_then(|data| serde_json::from_slice::<Chunk>(data).ok()) else {
            return;
        };
        for choice in chunk.choices {
            self.text.push_str(choice.delta.content.as_deref().unwrap_or_default());
            self.finished |= choice.finish_reason.is_some();
        }
        if let Some(error) = chunk.error {
            self.error = Some(error.message);
        }
    }
}

/// Why a chat did not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChatError {
    /// The Edge could not be asked.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// No model can be used.
    #[error("no model can be used yet: `iop status` says which providers were found")]
    NoModel,
    /// The answer ended with an error.
    #[error("the answer ended with an error: {0}")]
    Failed(String),
    /// The answer broke off.
    #[error("the answer broke off before it was finished")]
    Unfinished,
    /// The terminal is gone.
    #[error("the terminal cannot be used")]
    Terminal(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_says_cannot_speak_to_a_terminal_and_reaches_programs_as_it_is() {
        let base = Base::parse("http://127.0.0.1:1", "--endpoint").unwrap();
        let mut conversation = Conversation::new(base, "m".to_owned(), None);
        let said = "1\u{1b}]52;c;ZXZpbA==\u{7}\n2";
        for (is_shown, expected) in [(true, "1\\u{1b}]52;c;ZXZpbA==\\u{7}\n2"), (false, said)] {
            conversation.is_shown = is_shown;
            let mut out = Vec::new();
            conversation.show(said, &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    fn answer(parts: &[&str]) -> Answer {
        let mut answer = Answer::new();
        for part in parts {
            answer.push(part.as_bytes());
        }
        answer.finish();
        answer
    }

    #[test]
    fn text_is_handed_out_once_as_it_comes() {
        let mut answer = Answer::new();
        answer.push(b"data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n");
        assert_eq!(answer.take_new(), "Hel");
        answer.push(b"data: {\"choices\":[{\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\n");
        assert_eq!(answer.take_new(), "lo");
        assert_eq!(answer.outcome().unwrap(), "Hello");
    }

    #[test]
    fn an_answer_without_a_finish_reason_is_not_taken_for_whole() {
        let broken = answer(&["data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n"]);
        assert!(matches!(broken.outcome(), Err(ChatError::Unfinished)));
    }

    #[test]
    fn an_error_inside_the_stream_is_told_in_its_own_words() {
        let failed =
            answer(&["data: {\"error\":{\"message\":\"the link to the node ended\"}}\n\n"]);
        assert!(
            matches!(failed.outcome(), Err(ChatError::Failed(words)) if words == "the link to the node ended")
        );
    }
}
