//! The testkit's own tests. None needs PostgreSQL but those of `postgres`.

mod browser;
mod client;
mod http;
mod postgres;
mod process;
mod proxy;
mod receiver;
mod wire;
