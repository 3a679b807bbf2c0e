//! The pages in a real browser, and as programs see them.
//!
//! - `desk`: a person at a browser, signed in to a server;
//! - `by_filter`: acts on everything that matches a filter; `frame`: sign-in, themes, tenants and refusals; `notifications`: the list, its filters and acts; `notification`: one
//!   of them; `parked`: groups, and jobs; `overview`; `templates`: the editor; `audience`: users, lists and suppressions;
//!   `event_types`; `audit`; `system`; `keys`; `glossary`; `go_live`: the checklist; `providers`; `entities`; `captured`;
//!   `script`: what the script adds; `accessible`: the rules of axe-core; `subjects`: the subjects that templates render, in lists;
//!   `related`: what the page of a notification, a job and a tile say about others.

pub mod accessible;
mod audience;
mod audit;
mod by_filter;
mod captured;
mod desk;
mod entities;
mod event_types;
mod frame;
mod glossary;
mod go_live;
mod keys;
mod notification;
mod notifications;
mod overview;
mod parked;
mod providers;
mod related;
mod script;
mod subjects;
mod system;
mod templates;
