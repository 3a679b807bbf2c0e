//! The engine's integration tests, one binary.
#![allow(clippy::unwrap_used, missing_docs)]

mod egress;
mod model;
