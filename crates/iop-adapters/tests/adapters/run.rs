//! Normalized runs: a provider's answers as events.
