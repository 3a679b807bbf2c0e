//! Roll-ups: outcomes are counted when deliveries end, summed up by minute and hour, and read as time series
//! (docs/decisions/0023).

use std::collections::BTreeMap;

use postcommit::Timestamp;
use serde::{Deserialize, Serialize};

use crate::db::{Db, DbError, Value};
use crate::store::Store;
use crate::store::numbers::groups::KpiGrouping;
use crate::store::numbers::kpis::KpiSettings;

/// How many sites of a tenant are counted separately: the sites that appeared first. All other sites count as
/// [`OTHER`].
pub const SITES: i64 = 1000;
/// How many channels of a tenant are counted separately.
pub const CHANNELS: i64 = 100;
/// How many event types of a tenant are counted separately. The same limit applies to providers and to error classes.
pub const GROUPS: i64 = 1000;
/// The label under which everything beyond a limit is counted.
pub const OTHER: &str = "other";
/// How many time slots a series may have: two days of minutes, or 120 days of hours.
pub const SLOTS: usize = 2880;
/// How many lines a series has at most. The smallest are added up as [`OTHER`].
pub const LINES: usize = 20;

/// Selects labels that are new and still within the limits. `{fresh}` is the table or CTE of new counts.
const NEW_LABELS: &str = "
    SELECT tenant, kind, label FROM (
      SELECT f.tenant, f.kind, f.label, row_number() OVER (PARTITION BY f.tenant, f.kind ORDER BY f.label)
        + (SELECT count(*) FROM postcommit.rollup_label k WHERE k.tenant = f.tenant AND k.kind = f.kind) AS place
      FROM (
        SELECT tenant, 'site' AS kind, site AS label FROM {fresh}
        UNION SELECT tenant, 'channel', channel FROM {fresh}
        UNION SELECT f.tenant, f.kind, f.label FROM ({groups}) f
      ) f
      WHERE f.label <> '' AND NOT EXISTS (SELECT 1
        FROM postcommit.rollup_label k
        WHERE k.tenant = f.tenant AND k.kind = f.kind AND k.label = f.label)
    ) ranked
    WHERE place <= CASE kind WHEN 'site' THEN {sites} WHEN 'channel' THEN {channels} ELSE {most} END";

/// Selects the new counts, with labels beyond the limits replaced by `other`. `{known}` contains the known labels.
const KEPT: &str = "
    SELECT f.tenant, {slot} AS slot, f.state,
      CASE WHEN f.channel = ''
          OR EXISTS (SELECT 1 FROM {known} k WHERE k.tenant = f.tenant AND k.kind = 'channel' AND k.label = f.channel)
        THEN f.channel ELSE '{other}' END AS channel,
      CASE WHEN f.site = ''
          OR EXISTS (SELECT 1 FROM {known} k WHERE k.tenant = f.tenant AND k.kind = 'site' AND k.label = f.site)
        THEN f.site ELSE '{other}' END AS site,
      CAST(sum(f.count) AS BIGINT) AS count
    FROM {fresh} f
    WHERE true
    GROUP BY 1, 2, 3, 4, 5";

/// Adds the new counts to a roll-up table. The rows are sorted, so that concurrent transactions do not deadlock.
const ADD: &str = "INSERT INTO postcommit.rollup_{per} AS r (tenant, slot, state, channel, site, count) {kept}
    ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (tenant, slot, state, channel, site) DO UPDATE SET count = r.count + excluded.count";

/// Adds the new counts by event type, provider and error class, which the roll-ups by minute do not contain.
const ADD_GROUPS: &str = "INSERT INTO postcommit.rollup_group AS r (tenant, slot, kind, state, label, count)
    SELECT f.tenant, f.slot, f.kind, f.state,
      CASE WHEN f.label = ''
          OR EXISTS (SELECT 1 FROM {known} k WHERE k.tenant = f.tenant AND k.kind = f.kind AND k.label = f.label)
        THEN f.label ELSE '{other}' END,
      CAST(sum(f.count) AS BIGINT)
    FROM ({groups}) f
    WHERE true
    GROUP BY 1, 2, 3, 4, 5
    ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (tenant, slot, kind, state, label) DO UPDATE SET count = r.count + excluded.count";

/// The length of a time slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SlotLength {
    /// One slot is a minute.
    Minute,
    /// One slot is an hour.
    Hour,
}

impl SlotLength {
    /// Returns the name of the slot length, as it is used in the table's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
        }
    }

    pub(in crate::store) fn micros(self) -> i64 {
        match self {
            Self::Minute => 60_000_000,
            Self::Hour => 3_600_000_000,
        }
    }

    /// Returns the start of the slot that contains `at`.
    #[must_use]
    pub fn floor(self, at: Timestamp) -> Timestamp {
        let micros = at.as_micros();
        Timestamp::from_micros(micros - micros.rem_euclid(self.micros()))
    }

    /// Returns the SQL for the start of the slot that contains the minute of row `f`.
    fn of_minute(self, postgres: bool) -> &'static str {
        match (self, postgres) {
            (Self::Minute, _) => "f.slot",
            (Self::Hour, true) => "date_trunc('hour', f.slot)",
            (Self::Hour, false) => "f.slot - f.slot % 3600000000",
        }
    }
}

/// The property by which the lines of a series are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum GroupBy {
    /// One line for each state that deliveries entered.
    State,
    /// One line for each channel.
    Channel,
    /// One line for each site.
    Site,
}

impl GroupBy {
    fn column(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Channel => "channel",
            Self::Site => "site",
        }
    }
}

/// A range of at most [`SLOTS`] slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    per: SlotLength,
    from: Timestamp,
    slots: usize,
}

impl TimeRange {
    /// Creates the range from the slot that contains `from` to the last slot that begins before `to`.
    pub fn new(per: SlotLength, from: Timestamp, to: Timestamp) -> Result<Self, String> {
        let from = per.floor(from);
        let length = to.as_micros().saturating_sub(from.as_micros());
        if length <= 0 {
            return Err("until: must be later than the time in `from`".into());
        }
        let slots = usize::try_from(length.saturating_add(per.micros() - 1) / per.micros()).unwrap_or(usize::MAX);
        if slots > SLOTS {
            return Err(format!(
                "from: the range has {slots} slots of one {}; at most {SLOTS} are allowed",
                per.name()
            ));
        }
        Ok(Self { per, from, slots })
    }

    /// Creates the range of the last 60 slots before `to`.
    pub fn last(per: SlotLength, to: Timestamp) -> Result<Self, String> {
        Self::new(per, Timestamp::from_micros(to.as_micros().saturating_sub(60 * per.micros())), to)
    }

    fn end(&self) -> Timestamp {
        Timestamp::from_micros(self.from.as_micros() + self.per.micros() * i64::try_from(self.slots).unwrap_or(0))
    }
}

/// The number of deliveries that entered a state, by slot. A slot without deliveries has the count 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KpiSeries {
    /// The length of a slot.
    pub per: SlotLength,
    /// The property by which the lines are grouped.
    pub by: GroupBy,
    /// The starts of the slots.
    pub slots: Vec<Timestamp>,
    /// The lines, the largest first.
    pub lines: Vec<SeriesLine>,
}

/// One line of a series.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeriesLine {
    /// The state, channel or site. Empty for deliveries without one.
    pub label: String,
    /// The counts, one per slot.
    pub counts: Vec<i64>,
}

impl Store {
    /// Adds the new counts to the roll-ups by minute and hour in one transaction, so that a crash loses nothing and
    /// counts nothing twice. Then deletes slots that are too old.
    pub async fn fold_rollups_once(&self, settings: &KpiSettings) -> Result<u64, DbError> {
        let fold = match &self.db {
            Db::Postgres(_) => vec![fold_postgres()],
            Db::Sqlite(_) => fold_sqlite(),
        };
        let folded = self.db.execute(fold.into_iter().map(|sql| (sql, vec![])).collect()).await?;
        let now = self.now().await?;
        let (minutes, hours) = (settings.minutes_kept(), settings.hours_kept());
        for (table, kept) in [("minute", minutes), ("group", minutes), ("hour", hours)] {
            let old = now.as_micros() - i64::try_from(kept.as_micros()).unwrap_or(i64::MAX);
            // The condition lists all tenants, so that the key's index can be used: the tenant is its first column.
            let sql = format!(
                "DELETE FROM postcommit.rollup_{table}
                    WHERE tenant IN (SELECT id FROM postcommit.tenant) AND slot < $1"
            );
            self.db.execute_one(&sql, vec![Timestamp::from_micros(old).into()]).await?;
        }
        Ok(folded.iter().sum())
    }

    /// Returns how many deliveries entered each state, by slot. `None` means all tenants. Lines by channel and by site
    /// count only deliveries that were sent, delivered or parked, because a sum over all states would have no meaning.
    pub async fn series(&self, tenant: Option<i32>, span: TimeRange, by: GroupBy) -> Result<KpiSeries, DbError> {
        let TimeRange { per, from, slots } = span;
        let postgres = self.db.kind() == "postgres";
        let ends = if by == GroupBy::State { "" } else { "AND f.state IN ('sent', 'delivered', 'parked')" };
        let of_tenant = of_tenant("f", tenant, 3);
        let part = |table: &str, slot: &str| {
            let column = by.column();
            format!(
                "SELECT {slot} AS slot, f.{column} AS label, f.count
                 FROM postcommit.{table} f
                 WHERE f.slot >= $1 AND f.slot < $2 {of_tenant} {ends}"
            )
        };
        let sql = format!(
            "SELECT slot, label, CAST(sum(count) AS BIGINT) FROM ({} UNION ALL {}) both_of_them GROUP BY slot, label",
            part(&format!("rollup_{}", per.name()), "f.slot"),
            part("rollup_fresh", per.of_minute(postgres))
        );
        let mut parameters: Vec<Value> = vec![from.into(), span.end().into()];
        parameters.extend(tenant.map(Value::from));
        let mut lines: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for row in self.db.query(&sql, parameters).await? {
            // Unreadable counts are left out of the sums. `doctor` reports their column.
            let (Ok(slot), Ok(label), Ok(count)) = (row.get::<Timestamp>(0), row.get::<String>(1), row.get::<i64>(2))
            else {
                continue;
            };
            let place = (slot.as_micros() - from.as_micros()) / per.micros();
            let line = lines.entry(label).or_insert_with(|| vec![0; slots]);
            if let Some(cell) = usize::try_from(place).ok().and_then(|place| line.get_mut(place)) {
                *cell += count;
            }
        }
        let starts = (0..slots)
            .map(|place| Timestamp::from_micros(from.as_micros() + per.micros() * i64::try_from(place).unwrap_or(0)));
        Ok(KpiSeries { per, by, slots: starts.collect(), lines: largest(lines) })
    }
}

/// Returns the condition on the tenant. For all tenants the condition lists every tenant, because the tenant is the
/// first column of every key.
pub(in crate::store) fn of_tenant(alias: &str, tenant: Option<i32>, parameter: usize) -> String {
    match tenant {
        Some(_) => format!("AND {alias}.tenant = ${parameter}"),
        None => format!("AND {alias}.tenant IN (SELECT id FROM postcommit.tenant)"),
    }
}

fn largest(lines: BTreeMap<String, Vec<i64>>) -> Vec<SeriesLine> {
    let mut lines: Vec<SeriesLine> = lines.into_iter().map(|(label, counts)| SeriesLine { label, counts }).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.counts.iter().sum::<i64>()));
    if lines.len() > LINES {
        let rest = lines.split_off(LINES - 1);
        let add = |mut sum: Vec<i64>, line: &SeriesLine| {
            sum.iter_mut().zip(&line.counts).for_each(|(sum, count)| *sum += count);
            sum
        };
        // A site may itself be named `other`. Then the sum is added to its line.
        match lines.iter_mut().find(|line| line.label == OTHER) {
            Some(line) => line.counts = rest.iter().fold(std::mem::take(&mut line.counts), add),
            None => {
                let none = vec![0; rest[0].counts.len()];
                lines.push(SeriesLine { label: OTHER.into(), counts: rest.iter().fold(none, add) });
            }
        }
    }
    lines
}

fn new_labels(fresh: &str) -> String {
    NEW_LABELS
        .replace("{fresh}", fresh)
        .replace("{groups}", &groups(fresh))
        .replace("{sites}", &SITES.to_string())
        .replace("{channels}", &CHANNELS.to_string())
        .replace("{most}", &GROUPS.to_string())
}

/// Returns the SQL that repeats the new counts for each kind of group.
fn groups(fresh: &str) -> String {
    let of_kind = |by: KpiGrouping| {
        let (kind, label) = (by.name(), by.of_fresh());
        format!("SELECT f.tenant, f.slot, '{kind}' AS kind, f.state, {label} AS label, f.count FROM {fresh} f")
    };
    [KpiGrouping::EventType, KpiGrouping::Provider, KpiGrouping::Error].map(of_kind).join(" UNION ALL ")
}

fn add_groups(fresh: &str, known: &str) -> String {
    ADD_GROUPS.replace("{groups}", &groups(fresh)).replace("{known}", known).replace("{other}", OTHER)
}

fn kept(fresh: &str, known: &str, slot: &str) -> String {
    KEPT.replace("{fresh}", fresh).replace("{known}", known).replace("{slot}", slot).replace("{other}", OTHER)
}

fn add(per: SlotLength, kept: &str) -> String {
    ADD.replace("{per}", per.name()).replace("{kept}", kept)
}

/// Returns the roll-up for PostgreSQL as one statement. Separate statements would not see the same rows if counts are
/// added concurrently.
fn fold_postgres() -> String {
    let known = "(SELECT * FROM postcommit.rollup_label UNION ALL SELECT * FROM new_label)";
    let [minute, hour] =
        [SlotLength::Minute, SlotLength::Hour].map(|per| add(per, &kept("gone", known, per.of_minute(true))));
    format!(
        "WITH gone AS MATERIALIZED (DELETE FROM postcommit.rollup_fresh RETURNING *), new_label AS MATERIALIZED ({}),
         noted AS (INSERT INTO postcommit.rollup_label (tenant, kind, label)
           SELECT tenant, kind, label
           FROM new_label
           ON CONFLICT DO NOTHING),
         minute AS ({minute}), grouped AS ({}) {hour}",
        new_labels("gone"),
        add_groups("gone", known)
    )
}

/// Returns the roll-up for SQLite as several statements. All of them see the same rows, because a write transaction on
/// SQLite is exclusive.
fn fold_sqlite() -> Vec<String> {
    let (fresh, known) = ("postcommit.rollup_fresh", "postcommit.rollup_label");
    let [minute, hour] =
        [SlotLength::Minute, SlotLength::Hour].map(|per| add(per, &kept(fresh, known, per.of_minute(false))));
    let labels = format!("INSERT INTO postcommit.rollup_label (tenant, kind, label) {}", new_labels(fresh));
    vec![labels, minute, hour, add_groups(fresh, known), format!("DELETE FROM {fresh}")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_span_takes_in_the_slots_it_touches() {
        let span = TimeRange::new(SlotLength::Hour, at("2026-07-01T10:30:00Z"), at("2026-07-01T12:00:01Z")).unwrap();
        assert_eq!((span.from, span.slots, span.end()), (at("2026-07-01T10:00:00Z"), 3, at("2026-07-01T13:00:00Z")));
        assert_eq!(
            TimeRange::new(SlotLength::Hour, at("2026-07-01T10:00:00Z"), at("2026-07-01T12:00:00Z")).unwrap().slots,
            2
        );
    }

    #[test]
    fn a_span_is_bounded_both_ways() {
        let from = at("2026-07-01T10:00:00Z");
        assert!(TimeRange::new(SlotLength::Minute, from, from).unwrap_err().starts_with("until: must be later"));
        assert!(TimeRange::new(SlotLength::Minute, from, at("2026-07-03T10:00:00Z")).is_ok());
        let problem = TimeRange::new(SlotLength::Minute, from, at("2026-07-03T10:00:01Z")).unwrap_err();
        assert_eq!(problem, "from: the range has 2881 slots of one minute; at most 2880 are allowed");
        assert!(
            TimeRange::new(
                SlotLength::Minute,
                Timestamp::from_micros(i64::MIN / 2),
                Timestamp::from_micros(i64::MAX / 2)
            )
            .is_err()
        );
    }

    #[test]
    fn small_lines_are_added_up() {
        let lines = (0..30_i64).map(|i| (format!("s{i:02}"), vec![i, 1])).collect();
        let drawn = largest(lines);
        assert_eq!((drawn.len(), drawn[0].label.as_str()), (LINES, "s29"));
        assert_eq!(drawn[LINES - 1], SeriesLine { label: OTHER.into(), counts: vec![(0..=10).sum(), 11] });
    }

    #[test]
    fn slots_fold_by_the_clock() {
        assert_eq!(SlotLength::Minute.floor(at("2026-07-01T10:30:59.9Z")), at("2026-07-01T10:30:00Z"));
        assert_eq!(SlotLength::Hour.floor(at("2026-07-01T10:30:59.9Z")), at("2026-07-01T10:00:00Z"));
        assert_eq!(SlotLength::Minute.floor(Timestamp::from_micros(-1)), Timestamp::from_micros(-60_000_000));
    }
}
