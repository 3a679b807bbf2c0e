//! The settings of the dispatcher.

use serde::{Deserialize, Serialize};

/// The section `[dispatch]` of the settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DispatchSettings {
    /// How often the dispatcher polls for due deliveries when no commit wakes it, in milliseconds: 10 to 60,000.
    /// Default 1,000.
    pub interval_ms: u64,
    /// How long a worker may hold a delivery before another worker takes over, in seconds: 2 to 3,600. Default 20. A
    /// running worker renews its leases. A lane whose sends may take longer has a longer lease.
    pub lease_s: u64,
    /// The most deliveries of one lane in one claim: 1 to 1,000. Default 500.
    pub batch: i32,
    /// How long a stop waits for sends in flight, in seconds: 0 to 600. Default 30.
    pub stop_grace_s: u64,
}

impl Default for DispatchSettings {
    fn default() -> Self {
        Self { interval_ms: 1000, lease_s: 20, batch: 500, stop_grace_s: 30 }
    }
}

impl DispatchSettings {
    /// Checks that each setting is within its range.
    ///
    /// # Errors
    /// The error names a setting that is out of range, and the allowed range.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::lanes::MARGIN;
    use std::time::Duration;

    #[test]
    fn e9_the_default_lease_is_short_and_a_send_with_the_default_timeout_fits_into_it() {
        let lease = Duration::from_secs(DispatchSettings::default().lease_s);
        assert_eq!(lease, Duration::from_secs(20));
        for name in postcommit_channel::driver::names() {
            let kind = postcommit_channel::driver::kind(&name).unwrap();
            let timeout = Duration::from_millis(kind.draft("any").timeout_ms.unsigned_abs().into());
            assert!(timeout + 2 * MARGIN <= lease, "{}: {timeout:?}", kind.name);
        }
    }
}
