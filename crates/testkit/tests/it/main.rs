//! The testkit's own tests. Only those of `postgres` need PostgreSQL.

mod browser;
mod client;
mod http;
mod postgres;
mod process;
mod proxy;
mod receiver;
mod wire;
