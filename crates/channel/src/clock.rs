//! The only clock of this process. Leases and due times use the database's clock. This clock is for other times.

use std::time::{Instant, SystemTime};

use postcommit::Timestamp;

/// The current time of this host, in UTC.
pub fn now() -> Timestamp {
    SystemTime::now().into()
}

/// A monotonic time, to measure durations.
pub fn monotonic() -> Instant {
    Instant::now()
}
