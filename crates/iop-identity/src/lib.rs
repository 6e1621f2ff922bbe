//! Who is who in an execution group.
//!
//! Decides what a certificate of the group looks like and whom one that a peer showed stands for; what
//! a join token is and whether an attempt to use one succeeds; when an identity renews and when a
//! renewal tells that a key was copied. Holds no socket, reads no clock and draws no randomness: keys,
//! serial numbers and `now` come in.
//!
//! Does not decide whether a peer's chain is valid (rustls does, in `iop-net`), stores nothing
//! (`iop-store` does) and knows nothing of credentials (`iop-lease`).
