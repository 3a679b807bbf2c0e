//! What the product keeps, by noun. One meaning on two databases: the conformance suite in `tests/it/store` runs on both.
//!
//! The hot path is [`Store::claim`], [`Store::announce`], [`Store::expand`], [`Store::settle`]; there each database has
//! its own text, side by side. Everything else is written once.

mod accept;
mod access;
mod audit;
mod claim;
mod deliveries;
mod delivery_walk;
mod duties;
mod enqueue;
mod expansion;
mod health;
mod hosts;
mod idle;
mod inbox;
mod incoming;
mod jobs;
mod keys;
mod known;
mod kpis;
mod legible;
mod marks;
mod notification_walk;
mod notifications;
mod operators;
mod providers;
mod rates;
mod resend;
mod rollups;
mod search;
mod sessions;
mod settle;
mod shown;
mod story;
mod surroundings;
mod tenants;
mod walk;

pub(crate) use accept::key_of;
pub use accept::{Accepted, BATCH as ACCEPT_BATCH};
pub use access::Access;
pub use audit::{AuditEntry, AuditFilter, AuditRow};
pub use claim::{Claim, Lease, Want};
pub use deliveries::{AttemptRow, DeliveryFilter, DeliveryRow, masked};
pub use duties::PARTITION_MONTHS_AHEAD;
pub(crate) use duties::PASSING_SAID;
pub use enqueue::EnqueueError;
pub use expansion::Expanded;
pub use health::{Attendance, KeyConflicts, PartitionHealth, QueueHealth, Standing};
pub use hosts::{HOST_HELD, HOST_PAUSED, HostChange, SHUT_HOSTS, Shut, ShutCount, ShutHost, waits_for};
pub use inbox::{Folder, InboxChange, InboxChanges, InboxPage, InboxRow, MAX_CHANGES, Mark, TokenKey};
pub use incoming::{Incoming, Refusal};
pub use jobs::{Job, JobDraft, PACE, PACE_MOST, SLICE, Sliced};
pub use keys::{KEY_NAME_CHARS, Key, KeyDraft, KeyError, KeyFilter, NewKey};
pub use kpis::{Depth, Kpi, KpiSettings, Kpis, Parked, SITES_LISTED, SiteKpi};
pub use legible::Unreadable;
pub use notifications::{Conflict, NotificationFilter, NotificationRow};
pub use operators::{AT_ONCE, Act, Acted};
pub use providers::ProviderChanges;
pub use rates::{LimitedClaim, Metered};
pub use resend::{Copied, Resend};
pub use rollups::{By, CHANNELS, LINES, Line, OTHER, Per, SITES, SLOTS, Series, Span};
pub use search::{Search, Searched};
pub use sessions::{Login, NewSession, SESSION_DAYS, Session, csrf_token};
pub use settle::{Attempted, Place, Settled, Settlement};
pub use story::{Provenance, Status, Story};
pub use surroundings::{Durability, HeldSnapshot, Holder, WeakCommit};
pub use tenants::{MAX_WEIGHT, REASON_CHARS, TenantError, TenantRow};
pub use walk::{EXAMINED, Page, Position};

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::db::{Db, DbError};
use crate::model::Actor;
use marks::Marks;

/// The store.
#[derive(Clone)]
pub struct Store {
    db: Db,
    /// In whose name it changes things.
    actor: Arc<Actor>,
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
        Ok(Self { db: Db::open(url).await?, actor: Actor::system().into(), marks: Arc::default(), found: Arc::default() })
    }

    /// The same store, in somebody's name: what is changed through it is in the audit log as theirs. Until this is called it is the system's own.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { actor: actor.into(), ..self.clone() }
    }

    /// The same store, for one tenant: on PostgreSQL its statements reach no row of another, whatever they say. They run in a transaction of the
    /// tenants' role. The first wall remains the tenant that every method is given; SQLite has no other. Enqueueing and the hot path are not
    /// for such a store: they go through functions and connections that are everybody's.
    #[must_use]
    pub fn of_tenant(&self, tenant: i32) -> Self {
        Self { db: self.db.of_tenant(tenant), ..self.clone() }
    }

    /// Whether the wall between tenants stands, for the start of a server: [`Db::check_isolation`].
    ///
    /// # Errors
    /// What is missing, and the SQL that mends it.
    pub async fn check_isolation(&self) -> Result<(), DbError> {
        self.db.check_isolation().await
    }

    /// The database below, for migrations.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// What is said to PostgreSQL on the hot path, for a test to look at the plans.
    #[doc(hidden)]
    #[must_use]
    pub fn hot_statements() -> [(&'static str, &'static str); 15] {
        [
            ("claim", &claim::CLAIM_POSTGRES),
            ("claim_searching", &search::CLAIM_SEARCHING_POSTGRES),
            ("claim_reading", &search::CLAIM_READING_POSTGRES),
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
            ("inbox_step", inbox::STEP_POSTGRES),
            ("inbox_receive", inbox::RECEIVE_POSTGRES),
        ]
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
