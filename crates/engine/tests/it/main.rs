//! The engine's integration tests, one binary. Whatever concerns the store runs on both databases.
#![allow(clippy::unwrap_used, missing_docs)]

#[macro_use]
mod world;

mod at_once;
mod audit;
mod dispatch;
mod egress;
mod enqueue;
mod gate;
mod health;
mod history;
mod inbox;
mod instructions;
mod isolation;
mod jobs;
mod keys;
mod kpis;
mod lists;
mod lost;
mod lost_again;
mod marks;
mod model;
mod operators;
mod planner;
mod providers;
mod rates;
mod routing;
mod schema;
mod sessions;
mod settle;
mod store;
mod telling;
mod tenants;
mod tidy;
mod trips;
mod turns;
mod upgrade;
mod webhook;
