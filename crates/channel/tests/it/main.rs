//! The integration tests of the channel crate, one binary.
#![allow(clippy::unwrap_used, missing_docs)]

mod broker;
mod callbacks;
mod dkim;
mod egress;
mod event;
mod instructions;
mod recipes;
mod signers;
mod smtp;
mod templates;
mod web_push;
