//! Credential grants and leases: how a provider's secret travels from an Edge to the one request that
//! needs it.
//!
//! Decides the bytes of a grant and of a lease, the order in which a Node checks them, what a replay is
//! and what a revocation hits. Holds no socket, reads no clock and draws no randomness: `now` is an
//! argument, and so is whatever must be random.
//!
//! Does not decide whether a request may have a credential (the Edge's host does, from its store), nor
//! where the secret goes once open (an adapter's business).
