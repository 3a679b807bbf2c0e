//! What an operator does: to one delivery, to several, or to all that match a filter.

pub(in crate::store) mod deliveries;
pub(in crate::store) mod jobs;
pub(in crate::store) mod resend;
