//! Scenarios of admission on a manual clock.

mod choice;
mod counting;
mod edge;
mod fences;
mod health;
mod queue;
mod retries;
mod routes;
