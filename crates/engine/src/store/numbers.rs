//! KPIs, and the roll-ups from which they are computed.

pub(in crate::store) mod groups;
pub(in crate::store) mod kpis;
pub(in crate::store) mod rollups;
