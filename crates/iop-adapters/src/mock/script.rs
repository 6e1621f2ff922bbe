//! The script of a mock provider: JSON text, checked once.
//!
//! ```json
//! {
//!   "targets": ["small", "slow"],
//!   "answer": { "text": "Hello there.", "chunk_delay_ms": 20 },
//!   "by_target": { "slow": { "silence": { "after_chunks": 3 } } }
//! }
//! ```
//!
//! Every member may be left out. `by_target` replaces `answer` as a whole for one target.

use std::collections::BTreeMap;
use std::time::Duration;

use iop_types::{ErrorCode, Failure, HealthEvidence, Target};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A checked script.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Script {
    pub(crate) targets: Vec<Target>,
    pub(crate) answer: Answer,
    pub(crate) by_target: BTreeMap<String, Answer>,
}

/// How one request is answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    /// Words to say; `None` introduces the demonstration and echoes the prompt.
    pub(crate) text: Option<String>,
    /// How often the text is said.
    pub(crate) repeat: usize,
    /// Words to think first.
    pub(crate) reasoning: Option<String>,
    /// A tool to call instead of, or after, the text.
    pub(crate) tool_call: Option<ToolCall>,
    /// Characters of one chunk; `None` sends word by word.
    pub(crate) chunk_chars: Option<usize>,
    /// Wait before the answer begins.
    pub(crate) first_delay: Duration,
    /// Wait before each chunk.
    pub(crate) chunk_delay: Duration,
    /// Upper bound of a random wait added to each chunk's.
    pub(crate) chunk_jitter: Duration,
    /// Seed of jitter and vectors.
    pub(crate) seed: u64,
    /// Whether figures are reported.
    pub(crate) usage: bool,
    /// Why the answer ends.
    pub(crate) finish: String,
    /// A failure instead of the end.
    pub(crate) error: Option<ScriptedError>,
    /// A pause, perhaps for ever.
    pub(crate) silence: Option<Silence>,
    /// Whether a cancelled call goes on to its end.
    pub(crate) ignore_cancel: bool,
    /// What a look at the target shows.
    pub(crate) health: HealthEvidence,
    /// Length of embedding vectors.
    pub(crate) dimensions: usize,
}

/// A scripted tool call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    /// JSON text.
    pub(crate) arguments: String,
}

/// A scripted failure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptedError {
    /// Before the answer begins where `None`.
    pub(crate) after_chunks: Option<usize>,
    pub(crate) failure: Failure,
}

/// A scripted pause.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Silence {
    /// Before the answer begins where `None`.
    pub(crate) after_chunks: Option<usize>,
    /// For ever where `None`.
    pub(crate) length: Option<Duration>,
}

/// A longer scripted answer is a mistake, and would be held in memory once per call.
const MAX_TEXT: usize = 16 << 20;
/// Larger than any served embedding model's vector.
const MAX_DIMENSIONS: usize = 16_384;

impl Script {
    /// Plays the demonstration: a short honest answer, word by word.
    pub(crate) fn demo() -> Self {
        let answer = Answer {
            first_delay: Duration::from_millis(120),
            chunk_delay: Duration::from_millis(25),
            ..Answer::default()
        };
        Self { targets: vec!["demo".into()], answer, by_target: BTreeMap::new() }
    }

    /// Reads a script.
    ///
    /// # Errors
    /// Names the member at fault by its path.
    pub(crate) fn parse(text: &str) -> Result<Self, ScriptError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| ScriptError::new("script", format!("not JSON: {error}")))?;
        let mut fields = Fields::of(value, "script")?;
        let targets: Vec<String> = fields.take("targets")?.unwrap_or_else(|| vec!["demo".into()]);
        if targets.is_empty() || targets.iter().any(String::is_empty) {
            return Err(fields.error("targets", "list at least one target, none of them empty"));
        }
        let answer = match fields.take::<Value>("answer")? {
            Some(value) => Answer::read(value, "script.answer")?,
            None => Answer::default(),
        };
        let mut by_target = BTreeMap::new();
        for (target, value) in
            fields.take::<BTreeMap<String, Value>>("by_target")?.unwrap_or_default()
        {
            let path = format!("script.by_target.{target}");
            if !targets.contains(&target) {
                return Err(ScriptError::new(&path, "not one of `script.targets`".into()));
            }
            by_target.insert(target, Answer::read(value, &path)?);
        }
        fields.finish()?;
        let targets = targets.into_iter().map(Target::from).collect();
        Ok(Self { targets, answer, by_target })
    }

    /// Returns how requests for a target are answered.
    pub(crate) fn answer_for(&self, target: &Target) -> &Answer {
        self.by_target.get(target.as_str()).unwrap_or(&self.answer)
    }
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            text: None,
            repeat: 1,
            reasoning: None,
            tool_call: None,
            chunk_chars: None,
            first_delay: Duration::ZERO,
            chunk_delay: Duration::ZERO,
            chunk_jitter: Duration::ZERO,
            seed: 0,
            usage: true,
            finish: "stop".to_owned(),
            error: None,
            silence: None,
            ignore_cancel: false,
            health: HealthEvidence::Available,
            dimensions: 8,
        }
    }
}

impl Answer {
    fn read(value: Value, path: &str) -> Result<Self, ScriptError> {
        let mut fields = Fields::of(value, path)?;
        let tool_call = fields.nested("tool_call", ToolCall::read)?;
        let finish = if tool_call.is_some() { "tool_calls" } else { "stop" };
        let default = Self { finish: finish.to_owned(), ..Self::default() };
        let answer = Self {
            text: fields.take("text")?,
            repeat: fields.take("repeat")?.unwrap_or(default.repeat),
            reasoning: fields.take("reasoning")?,
            tool_call,
            chunk_chars: fields.take("chunk_chars")?,
            first_delay: fields.millis("first_delay_ms")?.unwrap_or_default(),
            chunk_delay: fields.millis("chunk_delay_ms")?.unwrap_or_default(),
            chunk_jitter: fields.millis("chunk_jitter_ms")?.unwrap_or_default(),
            seed: fields.take("seed")?.unwrap_or(default.seed),
            usage: fields.take("usage")?.unwrap_or(default.usage),
            finish: fields.take("finish")?.unwrap_or(default.finish),
            error: fields.nested("error", ScriptedError::read)?,
            silence: fields.nested("silence", Silence::read)?,
            ignore_cancel: fields.take("ignore_cancel")?.unwrap_or(default.ignore_cancel),
            health: fields.take("health")?.unwrap_or(default.health),
            dimensions: fields.take("dimensions")?.unwrap_or(default.dimensions),
        };
        if answer.chunk_chars == Some(0) {
            return Err(fields.error("chunk_chars", "at least 1"));
        }
        let length = answer.text.as_ref().map_or(0, String::len).saturating_mul(answer.repeat);
        if length > MAX_TEXT {
            return Err(fields.error("repeat", "text times repeat is at most 16 MiB"));
        }
        if !(1..=MAX_DIMENSIONS).contains(&answer.dimensions) {
            return Err(fields.error("dimensions", "between 1 and 16384"));
        }
        fields.finish()?;
        Ok(answer)
    }
}

impl ToolCall {
    fn read(fields: &mut Fields) -> Result<Self, ScriptError> {
        let name = fields.take("name")?.ok_or_else(|| fields.error("name", "missing"))?;
        let arguments = match fields.take::<Value>("arguments")? {
            None => "{}".to_owned(),
            // A string is the text itself, so that broken arguments can be scripted.
            Some(Value::String(text)) => text,
            Some(value) => value.to_string(),
        };
        Ok(Self { name, arguments })
    }
}

impl ScriptedError {
    fn read(fields: &mut Fields) -> Result<Self, ScriptError> {
        let code = match fields.take::<String>("code")? {
            None => ErrorCode::ProviderError,
            Some(text) => ErrorCode::parse(&text)
                .ok_or_else(|| fields.error("code", "not one of the stable error codes"))?,
        };
        let message = fields.take("message")?.unwrap_or_else(|| "scripted error".to_owned());
        let failure = Failure {
            provider_status: fields.take("provider_status")?,
            retry_after_s: fields.take("retry_after_s")?,
            ..Failure::new(code, message)
        };
        Ok(Self { after_chunks: fields.take("after_chunks")?, failure })
    }
}

impl Silence {
    fn read(fields: &mut Fields) -> Result<Self, ScriptError> {
        Ok(Self { after_chunks: fields.take("after_chunks")?, length: fields.millis("for_ms")? })
    }
}

/// The members of one object, taken one by one; what is left over is an error.
struct Fields {
    path: String,
    members: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Fields {
    fn of(value: Value, path: &str) -> Result<Self, ScriptError> {
        let Value::Object(members) = value else {
            return Err(ScriptError::new(path, "must be a JSON object".into()));
        };
        Ok(Self { path: path.to_owned(), members, known: Vec::new() })
    }

    fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, ScriptError> {
        self.known.push(name);
        match self.members.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| self.error(name, &error.to_string())),
        }
    }

    fn millis(&mut self, name: &'static str) -> Result<Option<Duration>, ScriptError> {
        Ok(self.take(name)?.map(Duration::from_millis))
    }

    fn nested<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, ScriptError>,
    ) -> Result<Option<T>, ScriptError> {
        let Some(value) = self.take::<Value>(name)? else { return Ok(None) };
        let mut fields = Self::of(value, &format!("{}.{name}", self.path))?;
        let read = read(&mut fields)?;
        fields.finish()?;
        Ok(Some(read))
    }

    fn error(&self, name: &str, problem: &str) -> ScriptError {
        ScriptError::new(&format!("{}.{name}", self.path), problem.to_owned())
    }

    fn finish(&self) -> Result<(), ScriptError> {
        match self.members.keys().next() {
            None => Ok(()),
            Some(name) => {
                let known = self.known.join(", ");
                Err(self.error(name, &format!("unknown; known here are {known}")))
            }
        }
    }
}

/// A script that cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` of the mock provider: {problem}")]
pub struct ScriptError {
    /// Path of the member at fault, beginning with `script`.
    pub path: String,
    /// What is wrong with it.
    pub problem: String,
}

impl ScriptError {
    fn new(path: &str, problem: String) -> Self {
        Self { path: path.to_owned(), problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_at_fault(text: &str) -> String {
        Script::parse(text).unwrap_err().path
    }

    #[test]
    fn an_empty_script_answers_under_the_name_demo() {
        let script = Script::parse("{}").unwrap();
        assert_eq!(script.targets, [Target::from("demo")]);
        assert_eq!(script.answer, Answer::default());
    }

    #[test]
    fn a_mistake_is_named_by_its_path() {
        assert_eq!(path_at_fault("[]"), "script");
        assert_eq!(path_at_fault("{"), "script");
        assert_eq!(path_at_fault(r#"{"target":["a"]}"#), "script.target");
        assert_eq!(path_at_fault(r#"{"targets":[]}"#), "script.targets");
        assert_eq!(path_at_fault(r#"{"answer":{"txt":"a"}}"#), "script.answer.txt");
        assert_eq!(path_at_fault(r#"{"answer":{"usage":1}}"#), "script.answer.usage");
        assert_eq!(path_at_fault(r#"{"answer":{"chunk_chars":0}}"#), "script.answer.chunk_chars");
        assert_eq!(path_at_fault(r#"{"answer":{"seed":-1}}"#), "script.answer.seed");
        assert_eq!(path_at_fault(r#"{"answer":{"dimensions":0}}"#), "script.answer.dimensions");
        let nested = r#"{"answer":{"error":{"code":"nope"}}}"#;
        assert_eq!(path_at_fault(nested), "script.answer.error.code");
        let silence = r#"{"answer":{"silence":{"after":1}}}"#;
        assert_eq!(path_at_fault(silence), "script.answer.silence.after");
        let target = r#"{"targets":["a"],"by_target":{"b":{}}}"#;
        assert_eq!(path_at_fault(target), "script.by_target.b");
        let huge = r#"{"answer":{"text":"abcdefgh","repeat":4000000}}"#;
        assert_eq!(path_at_fault(huge), "script.answer.repeat");
    }

    #[test]
    fn an_unknown_member_is_told_which_ones_there_are() {
        let error = Script::parse(r#"{"answer":{"silence":{"after":1}}}"#).unwrap_err();
        assert!(error.to_string().contains("after_chunks, for_ms"), "{error}");
    }

    #[test]
    fn one_target_may_be_answered_differently() {
        let script =
            Script::parse(r#"{"targets":["a","b"],"by_target":{"b":{"text":"B"}}}"#).unwrap();
        assert_eq!(script.answer_for(&"b".into()).text.as_deref(), Some("B"));
        assert_eq!(script.answer_for(&"a".into()).text, None);
    }
}
