//! Both ends of a link under a manual clock.

mod birth;
mod cancel;
mod commands;
mod credit;
mod end;
mod fairness;
mod heartbeat;
mod observations;
mod order;
mod seats;
mod support;
