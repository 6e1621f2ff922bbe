//! Scenarios of one request on a manual clock.

mod aborts;
mod contract;
mod cross;
mod ends;
mod once;
mod races;
mod request;
mod retries;
mod second_tries;
