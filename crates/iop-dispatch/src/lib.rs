//! The life of one request at the Edge, as a state machine.
