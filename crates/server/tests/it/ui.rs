//! The pages in a real browser, and as programs see them.
//!
//! - `desk`: a person at a browser, signed in to a server;
//! - `frame`: sign-in, themes, tenants and refusals; `notifications`: the list, its filters and acts; `notification`: one
//!   of them; `parked`: groups, and jobs; `overview`; `providers`; `entities`; `captured`; `script`: what the script adds; `accessible`: the rules of axe-core.

mod accessible;
mod captured;
mod desk;
mod entities;
mod frame;
mod notification;
mod notifications;
mod overview;
mod parked;
mod providers;
mod script;
