//! The integration tests of the channel crate, one binary.
#![allow(clippy::unwrap_used, missing_docs)]

mod egress;
mod instructions;
mod recipes;
mod smtp;
mod templates;
