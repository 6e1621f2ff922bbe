//! The generated reference page.
