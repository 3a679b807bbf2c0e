//! The engine's integration tests, one binary. Whatever concerns the store runs on both databases.
#![allow(clippy::unwrap_used, missing_docs)]

#[macro_use]
mod world;

mod at_once;
mod audit;
mod dispatch;
mod enqueue;
mod group_commit;
mod health;
mod history;
mod hosts;
mod identity;
mod inbox;
mod installations;
mod isolation;
mod jobs;
mod keys;
mod kpis;
mod lists;
mod lost;
mod lost_again;
mod marks;
mod migrating;
mod model;
mod operators;
mod planner;
mod providers;
mod rates;
mod refused_lane;
mod refused_result;
mod routing;
mod schema;
mod sessions;
mod settings;
mod settle;
mod store;
mod surroundings;
mod telling;
mod tenants;
mod tidy;
mod trips;
mod turns;
mod types;
mod unreadable;
mod webhook;
