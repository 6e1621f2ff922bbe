//! Shapes of client and provider dialects: SSE, JSON splice, OpenAI objects.
