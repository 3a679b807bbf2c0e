//! How a dispatcher goes about it.

use serde::{Deserialize, Serialize};

/// `[dispatch]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DispatchSettings {
    /// The longest a due delivery waits when no bell rings, in milliseconds: 10 to 60,000. Default 1,000.
    pub interval_ms: u64,
    /// How long a worker may hold a delivery before another takes over, in seconds: 2 to 3,600. Default 60. A lane whose sends may take longer holds
    /// for as long as that.
    pub lease_s: u64,
    /// Most deliveries claimed for one lane at once: 1 to 1,000. Default 500.
    pub batch: i32,
    /// How long a stop waits for sends under way, in seconds: 0 to 600. Default 30.
    pub stop_grace_s: u64,
}

impl Default for DispatchSettings {
    fn default() -> Self {
        Self { interval_ms: 1000, lease_s: 60, batch: 500, stop_grace_s: 30 }
    }
}

impl DispatchSettings {
    /// Holds each setting to its range.
    ///
    /// # Errors
    /// With the setting's name and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        let in_range = |name: &str, value: i64, low: i64, high: i64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(format!("dispatch.{name}: is {value}; {low} to {high} are allowed"))
            }
        };
        in_range("interval_ms", i64::try_from(self.interval_ms).unwrap_or(i64::MAX), 10, 60_000)?;
        in_range("lease_s", i64::try_from(self.lease_s).unwrap_or(i64::MAX), 2, 3600)?;
        in_range("batch", self.batch.into(), 1, 1000)?;
        in_range("stop_grace_s", i64::try_from(self.stop_grace_s).unwrap_or(i64::MAX), 0, 600)
    }
}
