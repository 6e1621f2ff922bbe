//! One stream: two halves that end on their own.
//!
//! Every message counts in its direction, whatever its class; a gap or a repetition breaks this stream
//! and no other. The answer half ends with its terminal, the request half with the last part of the body
//! or with a Cancel. An answer that ends before its request makes the Edge close the request half with an
//! empty last part, so that the Node knows when no more frames of the stream can come.

mod receiving;
mod sending;
mod table;

use iop_types::{CloseReason, Patience};

pub(crate) use receiving::Receiving;
pub(crate) use sending::Sending;
pub use table::StreamKey;
pub(crate) use table::Streams;

/// Why no stream was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The generation is fenced.
    #[error("the link ended ({0}) before the request was sent")]
    Fenced(CloseReason),
    /// The link drains.
    #[error("the node is draining")]
    Draining,
    /// The link carries as many streams as it may.
    #[error("the link already carries its limit of {limit} streams")]
    TooManyStreams {
        /// The limit.
        limit: u32,
    },
    /// The head does not fit a frame.
    #[error("the request head of {bytes} bytes is larger than a control frame")]
    HeadTooLarge {
        /// Its encoded length.
        bytes: usize,
    },
}

/// Why a stream yields nothing more without a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The link ended.
    #[error("the link to the node ended: {0}")]
    LinkClosed(CloseReason),
    /// The stream's messages were out of order; the other side was told to stop.
    #[error("the messages of the stream were out of order")]
    Protocol,
    /// Nothing of it was sent: it was cancelled in time, or the link ended first. It is safe to send
    /// the request elsewhere.
    #[error("ended before it was sent")]
    Unsent,
    /// The Edge cancelled the request before its body was complete.
    #[error("cancelled by the edge")]
    Cancelled,
    /// The Node took longer for a command than it may.
    #[error("the command has come to {0}")]
    TimedOut(Patience),
    /// An event of the answer came in parts, and the Edge has no memory left to join them.
    #[error("no memory is left to join the parts of an event")]
    NoMemory,
    /// The answer does not fit a frame (a response head beyond 47 KiB). It was not queued; the
    /// stream goes on.
    #[error("the answer of {bytes} bytes is larger than a data frame")]
    TooLarge {
        /// Its encoded length without the payload.
        bytes: usize,
    },
}
