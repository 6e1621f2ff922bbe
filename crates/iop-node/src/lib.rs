//! The Node host: executes runs and tunnels for its Edge.
