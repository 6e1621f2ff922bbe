//! Scenarios of one request on a manual clock.

mod aborts;
mod ends;
mod once;
mod races;
mod request;
mod second_tries;
