//! KPIs: the present state of the queue, and the outcomes of the last interval. They are read from the queue, the index
//! of parked rows and the roll-ups, and never from the history.

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::SITE_CHARS;
use serde::{Deserialize, Serialize};

use crate::db::{DbError, Value};
use crate::store::numbers::rollups::{OTHER, of_tenant};
use crate::store::{ClosedCount, Store};

/// The most sites of a list, the busiest first. The rest is added up as `other`.
pub const SITES_LISTED: usize = 1000;

/// The settings section `[kpi]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KpiSettings {
    /// After how many seconds a due delivery counts as stuck: 1 to 2,592,000. Default 600.
    pub stuck_after_s: u64,
    /// Over how many seconds delivered and failed are counted: 60 to 172,800. Default 3,600.
    pub interval_s: u64,
    /// For how many hours roll-ups by minute are kept: 48 to 744. Default 48.
    pub minutes_kept_h: u64,
    /// For how many days roll-ups by hour are kept: 7 to 3,660. Default 400.
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

    /// After how long a due delivery counts as stuck.
    #[must_use]
    pub fn stuck_after(&self) -> Duration {
        Duration::from_secs(self.stuck_after_s)
    }

    /// The interval over which delivered and failed are counted.
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

/// KPIs in total and by site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Kpis {
    /// When the KPIs were read, by the database's clock.
    pub at: Timestamp,
    /// Over how many seconds delivered and failed were counted.
    pub interval_s: u64,
    /// After how many seconds a delivery counts as stuck.
    pub stuck_after_s: u64,
    /// All sites together.
    pub total: Kpi,
    /// Lanes and hosts that are paused or held: their deliveries are not sent.
    pub shut: ClosedCount,
    /// By source site, the busiest first; empty unless asked for. At most 1,000 sites and `other`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<SiteKpi>,
}

/// The KPIs of one site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SiteKpi {
    /// The site. Empty for notifications without a site.
    pub site: String,
    /// KPIs.
    #[serde(flatten)]
    pub kpi: Kpi,
}

/// KPIs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Kpi {
    /// Live deliveries by state.
    pub queue: Depth,
    /// Deliveries that are pending or retrying and have been due for longer than the threshold.
    pub stuck: i64,
    /// Parked deliveries, by reason.
    pub parked: Parked,
    /// Sent or delivered in the interval. A later receipt does not count again.
    pub delivered: i64,
    /// Parked in the interval.
    pub failed: i64,
    /// For how many seconds the oldest delivery that is pending or retrying has been due; 0 if none is due.
    pub oldest_pending_s: i64,
}

/// Live deliveries by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Depth {
    /// The total.
    pub total: i64,
    /// Due and not tried yet.
    pub pending: i64,
    /// Being sent.
    pub sending: i64,
    /// Tried and to be tried again.
    pub retrying: i64,
    /// Scheduled for later.
    pub scheduled: i64,
}

/// Parked deliveries by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Parked {
    /// The total.
    pub total: i64,
    /// The provider rejected it.
    pub rejected: i64,
    /// All attempts of the policy are used up.
    pub exhausted: i64,
    /// It may have arrived; the outcome is unknown.
    pub outcome_unknown: i64,
    /// The account, settings or data are wrong.
    pub config: i64,
}

/// The condition that a row `q` of the queue is stuck (E11). `$2` is now minus the threshold. As in lists: due for
/// longer than that and not being sent. Deliveries on a paused lane count too, because an operator must act. Scheduled
/// deliveries and those that wait for their next attempt are not due.
const IS_STUCK: &str = "q.lease_token IS NULL AND q.due_at < $2";

impl Store {
    /// Reads the KPIs. `None` is all tenants. By site, the notification of each live and parked row is looked up;
    /// otherwise none is.
    pub async fn kpis(
        &self,
        tenant: Option<i32>,
        by_site: bool,
        stuck_after: Duration,
        interval: Duration,
    ) -> Result<Kpis, DbError> {
        let now = self.now().await?;
        let (of, mut sites) = (KpiScope { tenant, by_site }, Sites::new());
        self.read_queue(&mut sites, of, now, stuck_after).await?;
        self.read_parked(&mut sites, of).await?;
        self.read_rollups(&mut sites, of, before(now, interval)).await?;
        let total = sites.values().fold(Kpi::default(), Kpi::plus);
        let sites = if by_site { busiest(sites) } else { vec![] };
        let shut = self.count_closed(tenant).await?;
        Ok(Kpis { at: now, interval_s: interval.as_secs(), stuck_after_s: stuck_after.as_secs(), total, shut, sites })
    }

    async fn read_queue(
        &self,
        sites: &mut Sites,
        of: KpiScope,
        now: Timestamp,
        stuck_after: Duration,
    ) -> Result<(), DbError> {
        for row in self.db.query(&queue(of), of.with([now.into(), before(now, stuck_after).into()])).await? {
            let kpi = sites.entry(row.get(0)?).or_default();
            kpi.queue = Depth {
                total: row.get(1)?,
                pending: row.get(2)?,
                sending: row.get(3)?,
                retrying: row.get(4)?,
                scheduled: row.get(5)?,
            };
            kpi.stuck = row.get(6)?;
            kpi.oldest_pending_s = row.get::<Option<Timestamp>>(7)?.map_or(0, |since| seconds(now.since(since)));
        }
        Ok(())
    }

    async fn read_parked(&self, sites: &mut Sites, of: KpiScope) -> Result<(), DbError> {
        for row in self.db.query(&parked(of), of.with([])).await? {
            let parked = &mut sites.entry(row.get(0)?).or_default().parked;
            let (reason, count): (String, i64) = (row.get(1)?, row.get(2)?);
            parked.total += count;
            match reason.as_str() {
                "rejected" => parked.rejected += count,
                "exhausted" => parked.exhausted += count,
                "outcome_unknown" => parked.outcome_unknown += count,
                _ => parked.config += count,
            }
        }
        Ok(())
    }

    /// Adds the roll-ups of slots that began after `since`, including the present slot.
    async fn read_rollups(&self, sites: &mut Sites, of: KpiScope, since: Timestamp) -> Result<(), DbError> {
        for row in self.db.query(&ended(of), of.with([since.into()])).await? {
            let kpi = sites.entry(row.get(0)?).or_default();
            (kpi.delivered, kpi.failed) = (row.get(1)?, row.get(2)?);
        }
        Ok(())
    }

    /// The statements of KPIs, for a test that checks their plans. The parameters are times, then the tenant's number
    /// if it is for one tenant.
    #[doc(hidden)]
    #[must_use]
    pub fn kpi_statements(tenant: Option<i32>, by_site: bool) -> [(&'static str, String); 3] {
        let of = KpiScope { tenant, by_site };
        [("queue", queue(of)), ("parked", parked(of)), ("ended", ended(of))]
    }
}

/// KPIs by site. One entry with an empty name if they are not grouped by site.
type Sites = BTreeMap<String, Kpi>;

/// The tenant of the KPIs, and whether they are grouped by site.
#[derive(Clone, Copy)]
struct KpiScope {
    tenant: Option<i32>,
    by_site: bool,
}

impl KpiScope {
    /// The parameters of a statement, the tenant last.
    fn with<const N: usize>(self, others: [Value; N]) -> Vec<Value> {
        others.into_iter().chain(self.tenant.map(Value::from)).collect()
    }

    /// An expression for the site of a row; `known` is a column of the row that may hold it. It is looked up row by
    /// row: a join could make the planner scan the whole history.
    fn site(self, alias: &str, known: &str) -> String {
        if !self.by_site {
            return "''".into();
        }
        let note = format!(
            "FROM postcommit.notification note
             WHERE note.tenant = {alias}.tenant AND note.id = {alias}.notification_id"
        );
        format!("coalesce({known}, (SELECT substr(CAST(note.source ->> 'site' AS TEXT), 1, {SITE_CHARS}) {note}), '')")
    }
}

fn queue(of: KpiScope) -> String {
    let site = of.site("q", "NULL");
    let untried = "q.lease_token IS NULL AND q.attempts = 0 AND q.losses = 0";
    format!(
        "SELECT {site}, count(*), count(*) FILTER (WHERE {untried} AND q.due_at <= $1),
           count(*) FILTER (WHERE q.lease_token IS NOT NULL),
           count(*) FILTER (WHERE q.lease_token IS NULL AND (q.attempts > 0 OR q.losses > 0)),
           count(*) FILTER (WHERE {untried} AND q.due_at > $1), count(*) FILTER (WHERE {IS_STUCK}),
           min(q.due_at) FILTER (WHERE q.lease_token IS NULL AND q.due_at <= $1)
         FROM postcommit.delivery_queue q
         WHERE true {}
         GROUP BY 1",
        of_tenant("q", of.tenant, 3)
    )
}

fn parked(of: KpiScope) -> String {
    let site = of.site("l", "l.site");
    let of_tenant = of_tenant("l", of.tenant, 1);
    format!(
        "SELECT {site}, l.reason, count(*)
         FROM postcommit.delivery_ledger l
         WHERE l.state = 'parked' {of_tenant}
         GROUP BY 1, 2"
    )
}

fn ended(of: KpiScope) -> String {
    let site = if of.by_site { "f.site" } else { "''" };
    let of_tenant = of_tenant("f", of.tenant, 2);
    let part = |table: &str| {
        format!(
            "SELECT {site} AS site, f.state, f.count
             FROM postcommit.{table} f
             WHERE f.slot > $1 {of_tenant} AND f.state IN ('sent', 'delivered', 'parked')"
        )
    };
    format!(
        "SELECT site, CAST(coalesce(sum(count) FILTER (WHERE state <> 'parked'), 0) AS BIGINT),
           CAST(coalesce(sum(count) FILTER (WHERE state = 'parked'), 0) AS BIGINT)
         FROM ({} UNION ALL {}) both_of_them
         GROUP BY site",
        part("rollup_minute"),
        part("rollup_fresh")
    )
}

impl Kpi {
    fn plus(mut self, other: &Self) -> Self {
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
        self.stuck += other.stuck;
        self.delivered += other.delivered;
        self.failed += other.failed;
        self.oldest_pending_s = self.oldest_pending_s.max(other.oldest_pending_s);
        self
    }
}

fn busiest(sites: Sites) -> Vec<SiteKpi> {
    let mut listed: Vec<SiteKpi> = sites.into_iter().map(|(site, kpi)| SiteKpi { site, kpi }).collect();
    listed.sort_by_key(|s| std::cmp::Reverse((s.kpi.queue.total, s.kpi.parked.total, s.kpi.delivered)));
    if listed.len() > SITES_LISTED {
        let rest = listed.split_off(SITES_LISTED);
        let kpi = rest.iter().fold(Kpi::default(), |sum, one| sum.plus(&one.kpi));
        match listed.iter_mut().find(|s| s.site == OTHER) {
            Some(other) => other.kpi = std::mem::take(&mut other.kpi).plus(&kpi),
            None => listed.push(SiteKpi { site: OTHER.into(), kpi }),
        }
    }
    listed
}

pub(in crate::store) fn before(now: Timestamp, long: Duration) -> Timestamp {
    Timestamp::from_micros(now.as_micros().saturating_sub(i64::try_from(long.as_micros()).unwrap_or(i64::MAX)))
}

fn seconds(long: Duration) -> i64 {
    i64::try_from(long.as_secs()).unwrap_or(i64::MAX)
}
