//! Adapters: one module per dialect of a model server.
