//! The SDK's integration tests, one binary. Every case of `enqueue`, `keys`, `cancel` and `testing` runs on all four
//! adapters.
#![allow(clippy::unwrap_used, missing_docs)]

mod adapter;
mod cancel;
mod enqueue;
mod http;
mod keys;
mod light;
mod pool;
mod testing;
mod vectors;
mod world;
