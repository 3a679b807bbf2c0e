//! KPIs: the current state of the queue, and the outcomes of the last interval. They are computed from the queue, the
//! index of parked rows and the roll-ups, and never from the whole history.

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit::Timestamp;
use serde::{Deserialize, Serialize};

use crate::db::{DbError, Row, Value};
use crate::store::numbers::groups::{DELETED, GroupName, Groups, KpiGroup, KpiGrouping};
use crate::store::numbers::rollups::of_tenant;
use crate::store::queue::row::first_due;
use crate::store::{ClosedCount, Store};

/// The settings section `[kpi]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KpiSettings {
    /// The number of seconds after its first due time when a delivery counts as stuck: 1 to 2,592,000. Default 600.
    pub stuck_after_s: u64,
    /// The number of seconds over which delivered and failed deliveries are counted: 60 to 172,800. Default 3,600.
    pub interval_s: u64,
    /// The number of hours for which roll-ups by minute are kept: 48 to 744. Default 48.
    pub minutes_kept_h: u64,
    /// The number of days for which roll-ups by hour are kept: 7 to 3,660. Default 400.
    pub hours_kept_d: u64,
}

impl Default for KpiSettings {
    fn default() -> Self {
        Self { stuck_after_s: 600, interval_s: 3600, minutes_kept_h: 48, hours_kept_d: 400 }
    }
}

impl KpiSettings {
    /// Checks the range of each setting.
    pub fn validate(&self) -> Result<(), String> {
        let in_range = |name: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(format!("kpi.{name}: is {value}; {low} to {high} are allowed"))
            }
        };
        in_range("stuck_after_s", self.stuck_after_s, 1, 2_592_000)?;
        in_range("interval_s", self.interval_s, 60, 172_800)?;
        in_range("minutes_kept_h", self.minutes_kept_h, 48, 744)?;
        in_range("hours_kept_d", self.hours_kept_d, 7, 3660)
    }

    /// Returns how long after its first due time a delivery counts as stuck.
    #[must_use]
    pub fn stuck_after(&self) -> Duration {
        Duration::from_secs(self.stuck_after_s)
    }

    /// Returns the interval over which delivered and failed deliveries are counted.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_s)
    }

    pub(in crate::store) fn minutes_kept(&self) -> Duration {
        Duration::from_secs(self.minutes_kept_h * 3600)
    }

    pub(in crate::store) fn hours_kept(&self) -> Duration {
        Duration::from_secs(self.hours_kept_d * 86_400)
    }
}

/// KPIs in total and by group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Kpis {
    /// When the KPIs were read, by the database's clock.
    pub at: Timestamp,
    /// The length in seconds of the period for which delivered and failed deliveries are counted.
    pub interval_s: u64,
    /// The number of seconds after its first due time when a delivery counts as stuck.
    pub stuck_after_s: u64,
    /// The KPIs of all groups together.
    pub total: Kpi,
    /// Lanes and hosts that are paused or held. Their deliveries are not sent.
    pub shut: ClosedCount,
    /// The property by which the KPIs are grouped, if the request asked for groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<KpiGrouping>,
    /// The groups, the busiest first. Empty unless the request asked for groups. At most 1,000 and `other`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<KpiGroup>,
}

/// The KPIs of one group or of all groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Kpi {
    /// The numbers of live deliveries, by state.
    pub queue: Depth,
    /// Deliveries that are pending or retrying and were first due longer ago than the threshold. The age of a delivery
    /// counts from its first due time, also after retries. An operator's retry of a parked delivery resets the age.
    pub stuck: i64,
    /// The numbers of parked deliveries, by reason.
    pub parked: Parked,
    /// Deliveries that were sent or delivered in the interval.
    pub delivered: i64,
    /// Deliveries that a driver for development recorded in the interval instead of sending them. They do not count as
    /// delivered.
    pub captured: i64,
    /// Deliveries that were parked in the interval.
    pub failed: i64,
    /// How many seconds ago the oldest unfinished delivery was first due. 0 if none is due.
    pub oldest_pending_s: i64,
}

/// The numbers of live deliveries, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Depth {
    /// The number of all live deliveries.
    pub total: i64,
    /// Deliveries that are due and not tried yet. Includes deliveries that wait for a held or paused host.
    pub pending: i64,
    /// Deliveries that are being sent.
    pub sending: i64,
    /// Deliveries that were tried and will be tried again.
    pub retrying: i64,
    /// Deliveries that are scheduled for later.
    pub scheduled: i64,
}

/// The numbers of parked deliveries, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Parked {
    /// The number of all parked deliveries.
    pub total: i64,
    /// Deliveries that are parked because the provider rejected them.
    pub rejected: i64,
    /// Deliveries that are parked because all attempts of the policy are used up.
    pub exhausted: i64,
    /// Deliveries that are parked because they may have arrived and the outcome is unknown.
    pub outcome_unknown: i64,
    /// Deliveries that are parked because the account, settings or data are wrong.
    pub config: i64,
    /// Parked deliveries that may have arrived, whatever their reason. A retry sends them again only on request.
    pub unclear: i64,
}

impl Store {
    /// Computes the KPIs of a tenant, or of all tenants if `tenant` is `None`. Grouping by site or by event type looks
    /// up the notification of each live and parked row. The other groupings need no notification.
    pub async fn kpis(
        &self,
        tenant: Option<i32>,
        by: Option<KpiGrouping>,
        stuck_after: Duration,
        interval: Duration,
    ) -> Result<Kpis, DbError> {
        let now = self.now().await?;
        let (of, mut groups) = (KpiScope { tenant, by }, Groups::default());
        self.read_queue(&mut groups, of, now, stuck_after).await?;
        self.read_parked(&mut groups, of).await?;
        self.read_rollups(&mut groups, of, before(now, interval)).await?;
        let total = groups.total();
        let groups = match by {
            None => vec![],
            Some(KpiGrouping::Provider) => self.name_lanes(groups, tenant).await?.busiest(),
            Some(KpiGrouping::Tenant) => self.name_tenants(groups, tenant).await?.busiest(),
            Some(_) => groups.busiest(),
        };
        let (interval_s, stuck_after_s) = (interval.as_secs(), stuck_after.as_secs());
        let shut = self.count_closed(tenant).await?;
        Ok(Kpis { at: now, interval_s, stuck_after_s, total, shut, by, groups })
    }

    async fn read_queue(
        &self,
        groups: &mut Groups,
        of: KpiScope,
        now: Timestamp,
        stuck_after: Duration,
    ) -> Result<(), DbError> {
        for row in self.db.query(&queue(of), of.with([now.into(), before(now, stuck_after).into()])).await? {
            let queue = Depth {
                total: row.get(2)?,
                pending: row.get(3)?,
                sending: row.get(4)?,
                retrying: row.get(5)?,
                scheduled: row.get(6)?,
            };
            let oldest_pending_s = row.get::<Option<Timestamp>>(8)?.map_or(0, |since| seconds(now.since(since)));
            let more = Kpi { queue, stuck: row.get(7)?, oldest_pending_s, ..Kpi::default() };
            groups.add(row.get(0)?, row.get(1)?, &more);
        }
        Ok(())
    }

    async fn read_parked(&self, groups: &mut Groups, of: KpiScope) -> Result<(), DbError> {
        for row in self.db.query(&parked(of), of.with([])).await? {
            let (reason, count): (String, i64) = (row.get(2)?, row.get(3)?);
            let mut parked = Parked { total: count, unclear: row.get(4)?, ..Parked::default() };
            match reason.as_str() {
                "rejected" => parked.rejected = count,
                "exhausted" => parked.exhausted = count,
                "outcome_unknown" => parked.outcome_unknown = count,
                _ => parked.config = count,
            }
            groups.add(row.get(0)?, row.get(1)?, &Kpi { parked, ..Kpi::default() });
        }
        Ok(())
    }

    /// Adds the counts of time slots that began after `since`, including the current slot.
    async fn read_rollups(&self, groups: &mut Groups, of: KpiScope, since: Timestamp) -> Result<(), DbError> {
        for row in self.db.query(&ended(of), of.with([since.into()])).await? {
            let more = Kpi { delivered: row.get(1)?, failed: row.get(2)?, captured: row.get(3)?, ..Kpi::default() };
            groups.add(row.get(0)?, String::new(), &more);
        }
        Ok(())
    }

    /// Replaces lane numbers with the names of their providers. Over all tenants a group also has its tenant's name,
    /// because two tenants may use the same name for their providers.
    async fn name_lanes(&self, groups: Groups, tenant: Option<i32>) -> Result<Groups, DbError> {
        let sql = format!(
            "SELECT p.id, p.name, t.name
             FROM postcommit.provider p
             JOIN postcommit.tenant t ON t.id = p.tenant
             WHERE true {}",
            of_tenant("p", tenant, 1)
        );
        let rows = self.db.query(&sql, tenant.map(Value::from).into_iter().collect()).await?;
        let named = |row: &Row| {
            let owner = if tenant.is_none() { row.get::<Option<String>>(2).ok()? } else { None };
            Some((row.get::<i32>(0).ok()?, GroupName { label: row.get(1).ok()?, tenant: owner }))
        };
        Ok(groups.renamed(named_by(rows.iter().filter_map(named).collect())))
    }

    /// Replaces tenants' numbers with their names.
    async fn name_tenants(&self, groups: Groups, tenant: Option<i32>) -> Result<Groups, DbError> {
        let sql = "SELECT t.id, t.name FROM postcommit.tenant t WHERE t.id = coalesce($1, t.id)";
        let rows = self.db.query(sql, vec![tenant.into()]).await?;
        let named = |row: &Row| Some((row.get::<i32>(0).ok()?, row.get::<String>(1).ok()?.into()));
        Ok(groups.renamed(named_by(rows.iter().filter_map(named).collect())))
    }

    /// Returns the statements for the KPIs. A test checks their plans. Their parameters are times, followed by the
    /// tenant's number if there is one.
    #[doc(hidden)]
    #[must_use]
    pub fn kpi_statements(tenant: Option<i32>, by: Option<KpiGrouping>) -> [(&'static str, String); 3] {
        let of = KpiScope { tenant, by };
        [("queue", queue(of)), ("parked", parked(of)), ("ended", ended(of))]
    }
}

/// Returns the name of the group that has a number as its label. A label that is not a number stays: it is empty or
/// stands for the remaining groups.
fn named_by(names: BTreeMap<i32, GroupName>) -> impl Fn(&str) -> GroupName {
    move |label| match label.parse::<i32>() {
        Ok(number) => names.get(&number).cloned().unwrap_or_else(|| DELETED.to_owned().into()),
        Err(_) => label.to_owned().into(),
    }
}

/// The tenant whose KPIs are computed, and how they are grouped.
#[derive(Clone, Copy)]
struct KpiScope {
    tenant: Option<i32>,
    by: Option<KpiGrouping>,
}

impl KpiScope {
    /// Returns the parameters of a statement, with the tenant last.
    fn with<const N: usize>(self, others: [Value; N]) -> Vec<Value> {
        others.into_iter().chain(self.tenant.map(Value::from)).collect()
    }

    /// Returns the SQL for the label and the error code of a row in the queue or the ledger. The code is empty unless
    /// the KPIs are grouped by error.
    fn label_and_code(self, alias: &str, site: &str) -> String {
        let label = self.by.map_or("''".into(), |by| by.of_row(alias, site));
        match self.by {
            Some(KpiGrouping::Error) => format!("{label}, CAST(coalesce({alias}.code, '') AS TEXT)"),
            _ => format!("{label}, ''"),
        }
    }
}

/// Counts the queue by state. `$1` is now, and `$2` is now minus the threshold of stuck deliveries. A delivery that is
/// being sent is not stuck, as in lists. A delivery that waits for its next attempt, for a paused lane or for a closed
/// host can be stuck, because an operator should look at it.
fn queue(of: KpiScope) -> String {
    let (group, first_due) = (of.label_and_code("q", "NULL"), first_due("q"));
    let untried = "q.lease_token IS NULL AND q.attempts = 0 AND q.losses = 0";
    format!(
        "SELECT {group}, count(*), count(*) FILTER (WHERE {untried} AND {first_due} <= $1),
           count(*) FILTER (WHERE q.lease_token IS NOT NULL),
           count(*) FILTER (WHERE q.lease_token IS NULL AND (q.attempts > 0 OR q.losses > 0)),
           count(*) FILTER (WHERE {untried} AND {first_due} > $1),
           count(*) FILTER (WHERE q.lease_token IS NULL AND {first_due} < $2),
           min({first_due}) FILTER (WHERE {first_due} <= $1)
         FROM postcommit.delivery_queue q
         WHERE true {}
         GROUP BY 1, 2",
        of_tenant("q", of.tenant, 3)
    )
}

fn parked(of: KpiScope) -> String {
    let group = of.label_and_code("l", "l.site");
    let of_tenant = of_tenant("l", of.tenant, 1);
    format!(
        "SELECT {group}, l.reason, count(*), count(*) FILTER (WHERE l.unclear)
         FROM postcommit.delivery_ledger l
         WHERE l.state = 'parked' {of_tenant}
         GROUP BY 1, 2, 3"
    )
}

fn ended(of: KpiScope) -> String {
    let (minutes, label, of_kind) = of.by.map_or(("rollup_minute", "''", String::new()), KpiGrouping::of_minute);
    let fresh = of.by.map_or("''".into(), KpiGrouping::of_fresh);
    let of_tenant = of_tenant("f", of.tenant, 2);
    let part = |table: &str, label: &str, which: &str| {
        format!(
            "SELECT {label} AS label, f.state, f.count
             FROM postcommit.{table} f
             WHERE f.slot > $1 {of_tenant} {which} AND f.state IN ('sent', 'delivered', 'captured', 'parked')"
        )
    };
    format!(
        "SELECT label, CAST(coalesce(sum(count) FILTER (WHERE state IN ('sent', 'delivered')), 0) AS BIGINT),
           CAST(coalesce(sum(count) FILTER (WHERE state = 'parked'), 0) AS BIGINT),
           CAST(coalesce(sum(count) FILTER (WHERE state = 'captured'), 0) AS BIGINT)
         FROM ({} UNION ALL {}) both_of_them
         GROUP BY label",
        part(minutes, label, &of_kind),
        part("rollup_fresh", &fresh, "")
    )
}

impl Kpi {
    pub(in crate::store) fn plus(mut self, other: &Self) -> Self {
        let (queue, parked) = (&mut self.queue, &mut self.parked);
        queue.total += other.queue.total;
        queue.pending += other.queue.pending;
        queue.sending += other.queue.sending;
        queue.retrying += other.queue.retrying;
        queue.scheduled += other.queue.scheduled;
        parked.total += other.parked.total;
        parked.rejected += other.parked.rejected;
        parked.exhausted += other.parked.exhausted;
        parked.outcome_unknown += other.parked.outcome_unknown;
        parked.config += other.parked.config;
        parked.unclear += other.parked.unclear;
        self.stuck += other.stuck;
        self.delivered += other.delivered;
        self.captured += other.captured;
        self.failed += other.failed;
        self.oldest_pending_s = self.oldest_pending_s.max(other.oldest_pending_s);
        self
    }
}

pub(in crate::store) fn before(now: Timestamp, long: Duration) -> Timestamp {
    Timestamp::from_micros(now.as_micros().saturating_sub(i64::try_from(long.as_micros()).unwrap_or(i64::MAX)))
}

fn seconds(long: Duration) -> i64 {
    i64::try_from(long.as_secs()).unwrap_or(i64::MAX)
}
