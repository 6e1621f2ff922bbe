//! Run history in SQLite, batched off the hot path.
