//! Configuration files as typed, validated values.
