//! The engine's integration tests, one binary. Whatever concerns the store runs on both databases.
#![allow(clippy::unwrap_used, missing_docs)]

#[macro_use]
mod world;

mod dispatch;
mod egress;
mod instructions;
mod model;
mod operators;
mod planner;
mod routing;
mod schema;
mod store;
mod tidy;
mod trips;
mod webhook;
