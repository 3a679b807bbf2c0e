//! KPIs, and the roll-ups they are read from.

pub(in crate::store) mod kpis;
pub(in crate::store) mod rollups;
