//! The engine's integration tests, one binary. Whatever concerns the store runs on both databases.
#![allow(clippy::unwrap_used, missing_docs)]

#[macro_use]
mod world;

mod at_once;
mod dispatch;
mod egress;
mod enqueue;
mod instructions;
mod lost;
mod lost_again;
mod marks;
mod model;
mod operators;
mod planner;
mod rates;
mod routing;
mod schema;
mod settle;
mod store;
mod tidy;
mod trips;
mod upgrade;
mod webhook;
