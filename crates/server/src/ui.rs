//! What browsers are given.

pub mod chart;
