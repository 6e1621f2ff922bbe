//! Routes, candidates, permits and the queue of an Edge.
