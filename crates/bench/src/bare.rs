//! The same work without us, written by hand: what the database itself, or the network, can do on this machine.

pub mod postgres;
pub mod sqlite;
pub mod webhook;
