//! The crash proof: the real binary on real databases, killed, frozen and failed at every crash point, and with failing
//! databases. After each case three independent records are compared: the client's answers, the database, and the
//! receiver's journal.
//!
//! - `crash`: every crash point × kill, stop, error × both databases × every guarantee; `scripts/sweep` runs the full form;
//! - `refusal`: every write of the product refused by the database × every class of answer × both databases × every
//!   guarantee;
//! - `digests`: a digest of five events, killed at every step;
//! - `kill_loop`: a load, and SIGKILL repeatedly at random moments;
//! - `brokers`: a load of events to each real broker, and SIGKILL repeatedly;
//! - `mail`: a mail, killed at every step of the SMTP dialogue, and through a real mail server;
//! - `large_list`: a list that is expanded in parts by servers that are killed on the way;
//! - `frozen`: a worker that is frozen past its lease while a request is in flight;
//! - `failover`: one of two servers dies;
//! - `database_faults`: PostgreSQL crashes and cut connections under load;
//! - `silent_database`: a port that accepts connections and never answers;
//! - `installation`: the test fixture; `records`: the three records and their comparison.
//!
//! Beside it: `api`, the HTTP API for permitted, forbidden and malicious callers; `fuzz`, the API against its OpenAPI
//! document; `ui` and `inbox`, their pages in a real browser; `cli`, the commands; `door`, slow, large and ambiguous requests;
//! `demo`, the demo as a newcomer meets it; `clients`, the packages for other languages; `observability`, metrics, traces and logs; and `docs`, the snippets of
//! the documentation, and its list of requirements.
#![allow(clippy::unwrap_used)]

mod api;
mod brokers;
mod cli;
mod clients;
mod clocks;
mod crash;
mod database_faults;
mod demo;
mod digests;
mod docs;
mod door;
mod durable;
mod failover;
mod frozen;
mod fuzz;
mod inbox;
mod installation;
mod kill_loop;
mod large_list;
mod mail;
mod observability;
mod records;
mod refusal;
mod silent_database;
mod ui;
