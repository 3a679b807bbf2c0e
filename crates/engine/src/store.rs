//! What the product keeps, by noun. One meaning on two databases: the conformance suite in `tests/it/store` runs on both.
//!
//! The hot path is [`Store::claim`], [`Store::announce`], [`Store::expand`], [`Store::settle`]; there each database has
//! its own text, side by side. Everything else is written once.

mod claim;
mod deliveries;
mod duties;
mod enqueue;
mod expansion;
mod health;
mod idle;
mod marks;
mod notifications;
mod providers;
mod rates;
mod settle;

pub use claim::{Claim, Lease, Want};
pub use deliveries::{AttemptRow, DeliveryFilter, DeliveryRow, masked};
pub use duties::PARTITION_MONTHS_AHEAD;
pub use enqueue::EnqueueError;
pub use expansion::Expanded;
pub use health::{PartitionHealth, QueueHealth};
pub use notifications::{Conflict, NotificationFilter, NotificationRow};
pub use rates::{LimitedClaim, Metered};
pub use settle::{Attempted, Place, Settled, Settlement};

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::db::{Db, DbError};
use marks::Marks;

/// The store.
#[derive(Clone)]
pub struct Store {
    db: Db,
    marks: Arc<Mutex<Marks>>,
    /// Whether the last claim found something, on SQLite.
    found: Arc<AtomicBool>,
}

impl Store {
    /// Opens the database, whatever its schema.
    ///
    /// # Errors
    /// When it cannot be reached or the URL is not one of ours.
    pub async fn open(url: &str) -> Result<Self, DbError> {
        Ok(Self { db: Db::open(url).await?, marks: Arc::default(), found: Arc::default() })
    }

    /// The database below, for migrations.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// What is said to PostgreSQL on the hot path, for a test to look at the plans.
    #[doc(hidden)]
    #[must_use]
    pub fn hot_statements() -> [(&'static str, &'static str); 12] {
        [
            ("claim", &claim::CLAIM_POSTGRES),
            ("claim_reading", &claim::CLAIM_READING_POSTGRES),
            ("claim_notification", &claim::CLAIM_NOTIFICATION_POSTGRES),
            ("claim_limited", &rates::CLAIM_LIMITED_POSTGRES),
            ("claim_limited_notification", &rates::CLAIM_LIMITED_NOTIFICATION_POSTGRES),
            ("load", &notifications::LOAD_POSTGRES),
            ("load_of_many", &notifications::LOAD_OF_MANY_POSTGRES),
            ("expand", expansion::EXPAND_POSTGRES),
            ("announce", claim::INTENT_POSTGRES),
            ("renew", claim::RENEW_POSTGRES),
            ("settle_ended", settle::END_POSTGRES),
            ("settle_again", settle::AGAIN_POSTGRES),
        ]
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
