//! The store: the data of the product, with one module per noun. Both databases must behave alike: the conformance
//! suite in `tests/it/store` runs on both.
//!
//! The hot path is [`Store::claim`], [`Store::announce`], [`Store::expand`] and [`Store::settle`]. Its statements are
//! written once for each database, side by side. All other statements are written once.

mod acts;
mod audience;
mod audit;
mod callbacks;
mod content;
mod content_settings;
mod deliveries;
mod details;
mod digests;
mod duties;
mod edit;
mod event_types;
mod health;
mod held;
mod history;
mod hosts;
mod inbox;
mod intake;
mod layouts;
mod lists;
mod member_lists;
mod notifications;
mod numbers;
mod people;
mod preferences;
mod providers;
mod queue;
mod receipts;
mod secret_key;
mod subjects;
mod suppressions;
mod templates;
mod tenants;
mod unreadable;
mod users;
mod waits;

pub use acts::deliveries::{Act, Acted, MAX_IDS};
pub use acts::job_draft::{JobCount, JobDraft};
pub use acts::jobs::{Job, PACE, PACE_MOST, SLICE, SliceOutcome};
pub use acts::resend::{Copied, Original, Resend};
pub use audience::Members;
pub use audit::{AuditEntry, AuditFilter, AuditNoise, AuditRow};
pub use callbacks::OLD_TOKEN_LASTS;
pub use content::{ContentChanges, VersionKey};
pub use content_settings::{ContentSettings, MadeFrom, WAITING_EXAMINED, Waiting};
pub use deliveries::{AttemptRow, DeliveryFilter, DeliveryRow, masked};
pub use details::{NotificationDetails, Provenance, StateCounts, Status};
pub use digests::{DigestItem, DigestKey};
pub use duties::PARTITION_MONTHS_AHEAD;
pub(crate) use duties::PASSING_SAID;
pub use edit::{EditError, TRIES};
pub use event_types::{EventTypeChange, EventTypeDraft, EventTypeFilter, EventTypeRow};
pub use health::access::Access;
pub use health::running::{HeldLeases, Space, TableSize, WorkerRow};
pub use health::server::{Durability, HeldSnapshot, Holder, WeakCommit};
pub use health::{Attendance, ChannelInUse, KeyConflicts, PartitionHealth, QueueHealth, Standing};
pub use history::{HISTORY_DAYS, History, HistoryKind, HistoryPart};
pub use hosts::{
    CloseOutcome, ClosedCount, ClosedHost, HOST_HELD, HOST_PAUSED, HostChange, MAX_CLOSED_HOSTS, waits_for,
};
pub use inbox::{Folder, InboxChange, InboxChanges, InboxPage, InboxRow, MAX_CHANGES, Mark, TokenKey};
pub use intake::accept::{Accepted, BATCH as ACCEPT_BATCH};
pub use intake::enqueue::EnqueueError;
pub use intake::group_commit;
pub use intake::request::{NotAccepted, NotificationRequest};
pub use layouts::{LAYOUTS, LayoutDraft, LayoutRow, LayoutUse};
pub use lists::keyset::{EXAMINED, Page, Position};
pub use member_lists::{
    LIST_MEMBERS, ListFilter, ListRow, MEMBERS_CHANGED, MemberDraft, MemberPlace, MemberRow, MembersChanged,
    check_list, check_members, cyclic_list, too_many_members, unknown_inner_list,
};
pub use notifications::{Conflict, NotificationFilter, NotificationRow};
pub use numbers::groups::{CODES_LISTED, CodeCount, DELETED, GROUPS_LISTED, KpiGroup, KpiGrouping};
pub use numbers::kpis::{Depth, Kpi, KpiSettings, Kpis, Parked};
pub use numbers::rollups::{
    CHANNELS, GroupBy, KpiSeries, LINES, OTHER, SITES, SLOTS, SeriesLine, SlotLength, TimeRange,
};
pub use people::keys::{KEY_NAME_CHARS, Key, KeyDraft, KeyError, KeyFilter, NewKey};
pub use people::sessions::{Login, NewSession, SESSION_DAYS, Session, SessionRow, csrf_token, masked_csrf_token};
pub use preferences::{PREFERENCES, PreferenceDraft, PreferenceRow};
pub use providers::ProviderChanges;
pub use queue::claim::{Claim, Lease, Want};
#[cfg(test)]
pub(crate) use queue::delivery_in;
pub use queue::due_lanes::{Search, Searched};
pub use queue::expand::{DUPLICATE, Expanded, Written};
pub use queue::failover::FAILED_OVER;
pub use queue::limited::{LimitedClaim, Metered};
pub use queue::parts::{NextPart, Part};
pub use queue::settle::{Attempted, DeadAddress, Place, Settled, Settlement};
pub use receipts::{Fate, ReceiptRow, Received};
pub use secret_key::{Lacking, Opener, Sealed, SealedWith, Unopened, UnopenedLane};
pub use subjects::SubjectData;
pub use suppressions::{SuppressionDraft, SuppressionFilter, SuppressionRow};
pub use templates::{
    EVENTS_EXAMINED, TEMPLATES, TemplateDraft, TemplateFilter, TemplatePosition, TemplateRow, VersionRow,
};
pub use tenants::{MAX_WEIGHT, REASON_CHARS, TenantError, TenantRow};
pub use unreadable::Unreadable;
pub use users::{USERS_EXAMINED, UserAddress, UserChange, UserDraft, UserFilter, UserRow, UsersFound, check_user_id};

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postcommit_channel::model::Actor;

use crate::db::{Db, DbError, postgres};
use queue::low_water::Marks;

/// A handle on the store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    db: Db,
    /// The actor that the audit log names for changes through this handle.
    actor: Arc<Actor>,
    marks: Arc<Mutex<Marks>>,
    /// Whether the last claim found deliveries. While claims find none, PostgreSQL uses a claim that also reads the
    /// notifications, and SQLite checks on a read connection first.
    found: Arc<AtomicBool>,
}

impl Store {
    /// Opens the database, with [`postgres::CONNECT_TIMEOUT`]. The schema version is not checked.
    pub async fn open(url: &str) -> Result<Self, DbError> {
        Self::open_within(url, postgres::CONNECT_TIMEOUT).await
    }

    /// Opens the database. A new connection to PostgreSQL may take `connect_timeout` until its first answer.
    pub async fn open_within(url: &str, connect_timeout: Duration) -> Result<Self, DbError> {
        Ok(Self {
            db: Db::open(url, connect_timeout).await?,
            actor: Actor::system().into(),
            marks: Arc::default(),
            found: Arc::default(),
        })
    }

    /// Returns a handle whose changes the audit log attributes to `actor`. Without this call they are attributed to the
    /// system.
    pub fn by(&self, actor: Actor) -> Self {
        Self { actor: actor.into(), ..self.clone() }
    }

    /// Returns a handle for one tenant. On PostgreSQL its statements run as the tenant role, and row-level security
    /// hides rows of other tenants. The first protection is the tenant that every method takes as a parameter; SQLite
    /// has only this one. Enqueueing and the hot path do not work on such a handle, because they use functions and
    /// connections of all tenants.
    pub fn of_tenant(&self, tenant: i32) -> Self {
        Self { db: self.db.of_tenant(tenant), ..self.clone() }
    }

    /// Checks row-level security at the start of a server: [`Db::check_isolation`].
    ///
    /// # Errors
    /// The error names what is missing, and the SQL that repairs it.
    pub async fn check_isolation(&self) -> Result<(), DbError> {
        self.db.check_isolation().await
    }

    /// Returns the database below the store, for migrations.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Returns the PostgreSQL statements of the hot path, for a test that checks their plans.
    #[doc(hidden)]
    pub fn hot_statements() -> [(&'static str, &'static str); 20] {
        [
            ("claim", &queue::claim::CLAIM_POSTGRES),
            ("claim_searching", &queue::due_lanes::CLAIM_SEARCHING_POSTGRES),
            ("claim_reading", &queue::due_lanes::CLAIM_READING_POSTGRES),
            ("claim_notification", &queue::claim::CLAIM_NOTIFICATION_POSTGRES),
            ("claim_limited", &queue::limited::CLAIM_LIMITED_POSTGRES),
            ("claim_limited_notification", &queue::limited::CLAIM_LIMITED_NOTIFICATION_POSTGRES),
            ("load", &notifications::LOAD_POSTGRES),
            ("load_of_many", &notifications::LOAD_OF_MANY_POSTGRES),
            ("expand", &queue::expand::EXPAND_POSTGRES),
            ("expand_once", &queue::expand::EXPAND_ONCE_POSTGRES),
            ("expand_held", &queue::expand::EXPAND_HELD_POSTGRES),
            ("expand_only", &queue::expand::EXPAND_ONLY_POSTGRES),
            ("expand_only_held", &queue::expand::EXPAND_ONLY_HELD_POSTGRES),
            ("expand_part", &queue::expand::EXPAND_PART_POSTGRES),
            ("announce", queue::claim::INTENT_POSTGRES),
            ("renew", queue::claim::RENEW_POSTGRES),
            ("settle_ended", &queue::settle::END_POSTGRES),
            ("settle_again", &queue::settle::AGAIN_POSTGRES),
            ("inbox_step", inbox::STEP_POSTGRES),
            ("inbox_receive", &inbox::RECEIVE_POSTGRES),
        ]
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
