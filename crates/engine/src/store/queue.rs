//! The queue: from a due row to its outcome. This is the hot path; each database has its own text here, side by side.

pub(in crate::store) mod claim;
pub(in crate::store) mod closed;
pub(in crate::store) mod due_lanes;
pub(in crate::store) mod expand;
pub(in crate::store) mod limited;
pub(in crate::store) mod low_water;
pub(in crate::store) mod row;
pub(in crate::store) mod settle;
mod workers;
