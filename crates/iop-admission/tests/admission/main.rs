//! Scenarios of admission on a manual clock.

mod choice;
mod counting;
mod edge;
mod fences;
mod queue;
mod retries;
mod routes;
