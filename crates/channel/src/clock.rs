//! The one clock of this process. Leases and due times go by the database's clock; this one dates what happens in
//! between.

use std::time::{Instant, SystemTime};

use postcommit::Timestamp;

/// Now, in UTC, as this host sees it.
#[must_use]
pub fn now() -> Timestamp {
    SystemTime::now().into()
}

/// For measuring how long something took.
#[must_use]
pub fn monotonic() -> Instant {
    Instant::now()
}
