//! The pages in a real browser, and as programs see them.
//!
//! - `desk`: a person at a browser, signed in to a server;
//! - `by_filter`: acts on everything that matches a filter; `frame`: sign-in, themes, tenants and refusals; `notifications`: the list, its filters and acts; `notification`: one
//!   of them; `parked`: groups, and jobs; `overview`; `templates`: the editor; `audience`: users, lists and suppressions; `script`: what the script adds; `accessible`: the rules of axe-core.

mod accessible;
mod audience;
mod by_filter;
mod desk;
mod frame;
mod notification;
mod notifications;
mod overview;
mod parked;
mod script;
mod templates;
