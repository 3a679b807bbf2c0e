//! The HTTP API of the real binary, on both databases.
//!
//! - `app`: the test fixture;
//! - `walk`: every operation of `/openapi.json`, by permitted and forbidden callers, and across two tenants;
//! - `repeated`: one key many times, with the server killed in between; `hostile`: malicious bodies;
//! - `audience`, `callbacks`, `service_callbacks`, `stories`, `parked`, `lists`, `recipients`, `providers`, `templates`, `hosts`, `kpis`: requests and their answers; `tenants`,
//!   `sessions`, `limits`, `roles`: permissions and limits.

/// Runs each test on either database, which is passed to it.
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
mod audience;
mod callbacks;
mod hostile;
mod hosts;
mod kpis;

mod limits;
mod lists;
mod parked;
mod providers;
mod recipients;
mod repeated;
mod resend;
mod roles;
mod service_callbacks;
pub mod sessions;
mod stories;
mod templates;
mod tenants;
mod unreadable;
mod walk;
