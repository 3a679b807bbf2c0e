//! The clock of this process, the only one that its code reads. Leases and due times use the database's clock instead.

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
