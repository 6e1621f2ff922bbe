//! Answers that the Edge writes itself, from the events of a run.

use bytes::{Bytes, BytesMut};
use iop_dialect::openai::{AnswerWriter, EmbeddingsRequest, EmbeddingsWriter, Head, StreamWriter};
use iop_types::{Event, EventKind, Part};

use iop_net::memory::{Budget, OverBudget, Share};

/// Writes one answer.
#[derive(Debug)]
pub(crate) struct Translation {
    writer: Writer,
    /// What a whole answer holds in memory until it is written.
    collected: Share,
    deltas: u64,
}

#[derive(Debug)]
enum Writer {
    Stream(StreamWriter),
    Text(AnswerWriter),
    Embeddings(EmbeddingsWriter),
}

/// Which answer the client wants.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    /// Server-sent events.
    Stream {
        /// Identity of the answer.
        head: Head,
        /// Whether the client asked for the usage chunk.
        usage: bool,
    },
    /// One object of text.
    Text(Head),
    /// One object of vectors.
    Embeddings {
        /// The model as the client named it.
        model: String,
        /// How it wants the vectors.
        request: EmbeddingsRequest,
    },
}

impl Translation {
    /// Begins an answer.
    pub(crate) fn new(wanted: Wanted, budget: &Budget) -> Self {
        let writer = match wanted {
            Wanted::Stream { head, usage } => Writer::Stream(StreamWriter::new(head, usage)),
            Wanted::Text(head) => Writer::Text(AnswerWriter::new(head)),
            Wanted::Embeddings { model, request } => {
                Writer::Embeddings(EmbeddingsWriter::new(model, request.format))
            }
        };
        Self { writer, collected: budget.share(), deltas: 0 }
    }

    /// Says whether the answer is sent piece by piece.
    pub(crate) const fn is_stream(&self) -> bool {
        matches!(self.writer, Writer::Stream(_))
    }

    /// Counts the pieces of text so far, for an estimate.
    pub(crate) const fn deltas(&self) -> u64 {
        self.deltas
    }

    /// Takes the next event; returns what is sent of it now.
    ///
    /// # Errors
    /// A whole answer grows beyond the memory that is left for buffered bodies.
    pub(crate) fn push(&mut self, event: &Event) -> Result<Bytes, OverBudget> {
        match &event.kind {
            EventKind::Delta { part: Part::Text(_) | Part::ToolCall { .. }, .. }
            | EventKind::ReasoningDelta { .. } => self.deltas += 1,
            EventKind::Start
            | EventKind::Delta { .. }
            | EventKind::Complete { .. }
            | EventKind::Error(_)
            | EventKind::Cancelled => {}
        }
        if !self.is_stream() {
            self.collected.grow(size(event))?;
        }
        match &mut self.writer {
            Writer::Stream(writer) => {
                let mut out = BytesMut::new();
                writer.write(event, &mut out);
                return Ok(out.freeze());
            }
            Writer::Text(writer) => writer.push(event),
            Writer::Embeddings(writer) => writer.push(event),
        }
        Ok(Bytes::new())
    }

    /// Writes the whole answer, `None` where it was sent piece by piece.
    pub(crate) fn into_whole(self) -> Option<Bytes> {
        match self.writer {
            Writer::Stream(_) => None,
            Writer::Text(writer) => Some(writer.into_json()),
            Writer::Embeddings(writer) => Some(writer.into_json()),
        }
    }
}

/// What an event adds to an answer in memory.
fn size(event: &Event) -> usize {
    match &event.kind {
        EventKind::Delta { part, .. } => match part {
            Part::Text(text) | Part::Logprobs(text) => text.len(),
            Part::ToolCall { arguments, .. } => arguments.len(),
            Part::Embedding(vector) => size_of_val(vector.as_slice()),
            Part::Score(_) => size_of::<f64>(),
        },
        EventKind::ReasoningDelta { text, .. } => text.len(),
        EventKind::Start
        | EventKind::Complete { .. }
        | EventKind::Error(_)
        | EventKind::Cancelled => 0,
    }
}
