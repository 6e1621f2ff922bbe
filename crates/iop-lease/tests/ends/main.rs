//! Both ends of a link: what an Edge makes, and what a Node makes of it.

mod both;
mod grant;
mod lease;
