//! Operators' actions on one delivery, on several deliveries, or on all deliveries that match a filter.

pub(in crate::store) mod deliveries;
pub(in crate::store) mod job_draft;
mod job_outcome;
pub(in crate::store) mod jobs;
pub(in crate::store) mod resend;
