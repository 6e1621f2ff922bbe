//! What a client may cost before it has said anything of value.

use std::time::Duration;

/// Limits of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections served at once; further ones wait to be accepted.
    pub max_connections: usize,
    /// Time without a complete request head after which a connection closes.
    pub idle: Duration,
    /// Size of a request head; larger ones are answered with 431. Also bounds the read and the write
    /// buffer of an HTTP/1.1 connection. At least 8 KiB.
    pub max_head_bytes: usize,
    /// Header lines of a request.
    pub max_headers: usize,
    /// Requests at once on one HTTP/2 connection.
    pub max_streams: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // As many as one link carries streams.
            max_connections: 4096,
            idle: Duration::from_secs(30),
            // Twice what other servers allow, since traces and long keys travel in headers.
            max_head_bytes: 64 * 1024,
            max_headers: 100,
            max_streams: 256,
        }
    }
}
