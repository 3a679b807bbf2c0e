//! The HTTP API of the real binary, on both databases.
//!
//! - `app`: what every test here stands on;
//! - `walk`: every operation of `/openapi.json`, by those who may and those who may not, and across the wall between two tenants;
//! - `repeated`: one key many times, with the server killed in between; `hostile`: bodies that nobody sends by mistake;
//! - `stories`, `parked`, `lists`, `providers`, `hosts`: what is asked for and what comes back; `tenants`, `sessions`, `limits`, `roles`: who may, and when.

/// Each test once on either database; it is given which.
macro_rules! on_both {
    ($($(#[$meta:meta])* fn $name:ident($kind:ident) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn check($kind: crate::installation::Kind) $body

            #[test]
            fn on_postgres() {
                check(crate::installation::Kind::Postgres);
            }

            #[test]
            fn on_sqlite() {
                check(crate::installation::Kind::Sqlite);
            }
        }
    )*};
}

pub(crate) use on_both;

pub mod app;
pub use app::App;
mod hostile;
mod hosts;

mod limits;
mod lists;
mod pages;
mod parked;
mod providers;
mod repeated;
mod resend;
mod roles;
mod sessions;
mod stories;
mod tenants;
mod unreadable;
mod walk;
