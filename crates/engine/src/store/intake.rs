//! Intake: turns a request into a stored notification.

pub(in crate::store) mod accept;
pub(in crate::store) mod enqueue;
pub mod group_commit;
mod known;
pub(in crate::store) mod request;
