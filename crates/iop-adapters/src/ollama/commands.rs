//! Commands: Ollama's own operations that are no inference.
