//! The bare side of a comparison: the same work written by hand without Postcommit, which shows what the database or
//! the network can do on this machine.

pub mod postgres;
pub mod sqlite;
pub mod webhook;
