//! The crash proof: the real binary on real databases, ended, frozen and failed at every named place, its memory pulled out from under it,
//! its database taken away. After each, three records that know nothing of each other are compared: what the client was told, what
//! the database says, what the receiver journalled.
//!
//! - `crash`: every crash point × kill, stop, error × both databases × every guarantee; `scripts/sweep` runs the full form;
//! - `refusal`: every write of ours refused by the database × every class of answer × both databases × every guarantee;
//! - `kill_loop`: a load, and SIGKILL again and again at random moments;
//! - `frozen`: a worker that sleeps past its lease with a request out;
//! - `database_faults`: PostgreSQL crashes and cut connections under load;
//! - `installation`: what they stand on; `records`: what they compare.
//!
//! And beside it `api`, the HTTP API as its callers and its enemies meet it, `fuzz`, the API held to its own description, `inbox`, its pages in a real browser, `cli`, the commands as a person meets them,
//! `door`, the server as its enemies do, `clients`, the packages for other programs, `telling`, what it tells of itself, and
//! `docs`, the snippets people copy.
#![allow(clippy::unwrap_used)]

mod api;
mod cli;
mod clients;
mod clocks;
mod crash;
mod database_faults;
mod docs;
mod door;
mod durable;
mod frozen;
mod fuzz;
mod inbox;
mod installation;
mod kill_loop;
mod records;
mod refusal;
mod telling;
