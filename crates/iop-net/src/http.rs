//! Calling providers: HTTP/1.1 over pooled connections, one call at a time on each.
//!
//! Decides how a request reaches the provider and how its connection ends; what to send, which
//! failures to try again and how long to wait for an answer is for the callers. No redirects, no
//! proxies (environment variables are not read), no total time limit, no TLS yet.
//!
//! ```text
//! Pool::call ─▶ connecting ─▶ sending ─▶ before head ─▶ mid-stream ─▶ ended
//!                   │            │            │             │         (back to the pool)
//!                   └── cancel ──┴──── cancel ┴── cancel ───┘
//!                   ended        FIN now, then `returned` reads on until the provider's end
//!                                dropped before that: RST
//! ```
//!
//! There is no task per connection: whoever polls the [`Call`] moves its bytes, so a connection is
//! always owned by exactly one call or by the pool.
//!
//! A pooled connection that turns out dead before the first byte of a request was written is replaced
//! once, unseen by the caller. After the first byte nothing is ever sent twice.

mod body;
mod call;
mod dial;
mod endpoint;
mod error;
mod lane;
mod pool;
mod wire;

pub use self::body::{Body, BodyLost, BodySource, Request};
pub use self::call::{Call, Frame, Head};
pub use self::endpoint::{Endpoint, EndpointError};
pub use self::error::{CallError, Cut, Phase, Sending};
pub use self::pool::{Options, Pool, PoolStats};

#[cfg(test)]
mod tests;
