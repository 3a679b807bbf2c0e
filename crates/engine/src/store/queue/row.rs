//! The columns of a delivery, each declared once. Add a new column to this file, to the migrations and to the model.

use std::sync::LazyLock;

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, DeliveryKey, Facts};
use uuid::Uuid;

use crate::db::columns::{Columns, arrays, columns, list_postgres, list_sqlite, places};
use crate::db::{Cells, DbError, FromValue, Value};

/// Declares the facts of a delivery. They have the same names in the queue and in the ledger, and are copied unchanged
/// from one to the other.
macro_rules! facts {
    ($($column:ident: $type:ty = $text:literal),* $(,)?) => {
        columns! { impl Facts { $($column: $text),* } }
        arrays! { struct LentFacts<'a>, FactArrays { $($column: &'a $type),* } }

        impl<'a> From<&'a Facts> for LentFacts<'a> {
            fn from(facts: &'a Facts) -> Self {
                Self { $($column: &facts.$column),* }
            }
        }

        /// Returns the facts as SQLite parameters.
        pub(in crate::store) fn fact_values(facts: &Facts) -> Vec<&dyn rusqlite::ToSql> {
            vec![$(&facts.$column),*]
        }
    };
}
facts! {
    channel: Option<String> = "q.channel",
    target: Option<String> = "q.target",
    provider: Option<String> = "q.provider",
    template: Option<String> = "q.template",
    template_version: Option<i32> = "q.template_version",
    language: Option<String> = "q.language",
    user_id: Option<String> = "q.user_id",
    context: Option<String> = "q.context",
    send_key: Option<String> = "q.send_key",
}

columns! {
    /// A row `q` of the queue as a claim returns it. The columns of the facts follow it. PostgreSQL reads the row after
    /// the lease is written and SQLite before, so some columns have a second expression for SQLite. PostgreSQL returns
    /// NULL for a value that nearly every first attempt has, because each other value costs it a call of a function.
    struct Claimed {
        tenant: i32 = "q.tenant",
        notification_id: Uuid = "q.notification_id",
        n: i32 = "q.n",
        lane: i32 = "q.lane",
        priority: i16 = "q.priority",
        due_at: Timestamp = "q.due_at",
        leased_at: Timestamp = "q.leased_at" | "?1",
        attempts: Option<u32> = "nullif(q.attempts, 0)" | "q.attempts",
        losses: Option<u32> = "nullif(q.losses, 0)" | "q.losses + (q.lease_token IS NOT NULL)",
        seq: Option<u32> = "nullif(q.seq, 0)" | "q.seq",
        moves: Option<u32> = "nullif(q.moves, 0)" | "q.moves",
        lost_since: Option<Timestamp> = "q.lost_since"
            | "CASE WHEN q.lease_token IS NOT NULL THEN coalesce(q.lost_since, q.leased_at) ELSE q.lost_since END",
        intent_stands: Option<bool> = "nullif(q.intent IS NOT NULL, false)" | "q.intent IS NOT NULL",
        unclear: Option<bool> = "nullif(q.unclear, false)" | "q.unclear",
        first_try_at: Option<Timestamp> = "q.first_try_at"
            | "coalesce(q.first_try_at, CASE WHEN q.lease_token IS NOT NULL THEN q.leased_at END)",
        providers: Value = "(SELECT version FROM postcommit.provider_version)"
            | "(SELECT version FROM postcommit_provider_version)",
    }
}

/// The SQL for the time at which a queue row was first due: when it was enqueued, the time it was scheduled for, or
/// when an operator retried it. Automatic retries do not change it. A row from before the column `first_due_at` existed
/// that was never postponed has only `due_at`.
pub(in crate::store) fn first_due(alias: &str) -> String {
    format!("coalesce({alias}.first_due_at, {alias}.due_at)")
}

/// A claimed row with the version of the provider table, or why the row could not be read.
pub(in crate::store) type Leased = Result<(Delivery, i64), DbError>;

/// The positions of a claim's columns in a result.
pub(in crate::store) struct Places {
    claimed: Vec<usize>,
    facts: Vec<usize>,
}

/// The positions on SQLite, where a claim returns exactly these columns in this order.
static IN_ORDER: LazyLock<Places> = LazyLock::new(|| {
    let (own, all) = (Claimed::COLUMNS.len(), width());
    Places { claimed: (0..own).collect(), facts: (own..all).collect() }
});

impl Places {
    pub(in crate::store) fn in_postgres(rows: &[tokio_postgres::Row]) -> Result<Self, DbError> {
        Ok(Self { claimed: places::<Claimed>(rows, "")?, facts: places::<Facts>(rows, "")? })
    }

    pub(in crate::store) fn in_sqlite() -> &'static Self {
        &IN_ORDER
    }

    pub(in crate::store) fn leased(&self, row: &mut impl Cells, token: Uuid) -> Leased {
        let mut claimed = Claimed::read(row, &self.claimed)?;
        // An unreadable version of the provider table becomes 0. No dispatcher knows that version, so the dispatcher
        // reads the providers again.
        let providers = i64::from_value(std::mem::replace(&mut claimed.providers, Value::Null)).unwrap_or_default();
        Ok((claimed.delivery(Facts::read(row, &self.facts)?, token), providers))
    }

    /// Returns a SQLite row's position in the claim's index: its due time and key. The values are not checked.
    pub(in crate::store) fn rank(row: &mut impl Cells) -> [Value; 4] {
        RANK.map(|place| row.take(place).unwrap_or(Value::Null))
    }
}

static RANK: LazyLock<[usize; 4]> = LazyLock::new(|| {
    let place = |name| Claimed::COLUMNS.iter().position(|column| column.name == name).unwrap_or(usize::MAX);
    ["due_at", "tenant", "notification_id", "n"].map(place)
});

/// Returns how many columns a claim returns.
pub(in crate::store) fn width() -> usize {
    Claimed::COLUMNS.len() + Facts::COLUMNS.len()
}

/// The columns that a claim on PostgreSQL returns for row `q`.
pub(in crate::store) fn claimed_postgres() -> String {
    format!("{}, {}", list_postgres::<Claimed>(), list_postgres::<Facts>())
}

/// The columns that a claim on SQLite reads of row `q`, with the values that the lease will give them. `?1` is the
/// current time.
pub(in crate::store) fn claimed_sqlite() -> String {
    format!("{}, {}", list_sqlite::<Claimed>(), list_sqlite::<Facts>())
}

impl Claimed {
    fn delivery(self, facts: Facts, token: Uuid) -> Delivery {
        Delivery {
            key: DeliveryKey { tenant: self.tenant, notification: self.notification_id, n: self.n },
            row: self.n,
            lane: self.lane,
            priority: self.priority,
            due_at: self.due_at,
            leased_at: self.leased_at,
            attempts: self.attempts.unwrap_or_default(),
            losses: self.losses.unwrap_or_default(),
            seq: self.seq.unwrap_or_default(),
            moves: self.moves.unwrap_or_default(),
            lost_since: self.lost_since,
            intent_stands: self.intent_stands.unwrap_or_default(),
            unclear: self.unclear.unwrap_or_default(),
            first_try_at: self.first_try_at.or(Some(self.leased_at)),
            facts,
            token,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_of_cancel_copy_every_fact() {
        for (cancel, alias) in [
            (include_str!("../../../migrations/postgres/functions/cancel.sql"), "t"),
            (include_str!("../../../migrations/sqlite/functions/cancel.sql"), "q"),
        ] {
            for column in Facts::COLUMNS {
                assert!(cancel.contains(&format!("{alias}.{},", column.name)), "cancel.sql leaves out {}", column.name);
            }
        }
    }
}
