//! One Edge-Node link as a state machine: birth, heartbeat, classes, credit, fence, close.
