//! Keyset pagination, newest first. The cost of a page does not depend on the size of the history.
//!
//! A list reads an index on the tenant and the notification's id, one window after another. A window is limited by the
//! number of rows per tenant and not by time, so every plan reads a limited number of rows. After [`EXAMINED`] rows the
//! page ends even if it is not full, and returns the position where the next page begins.

use std::fmt;
use std::str::FromStr;

use postcommit::Timestamp;
use postcommit_channel::model::DeliveryKey;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::db::{Db, DbError, Row, Value};
use crate::store::Store;
use crate::store::lists::rows::RowQuery;
use crate::store::unreadable::legible;

/// How many index rows one page of a list examines at most in each tenant.
pub const EXAMINED: i64 = 20_000;

/// A position in a list. Newer notifications come first, then higher tenant numbers, then lower target numbers. A page
/// ends at a position: this page and the pages before it contain every match up to that position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The id of the notification.
    pub notification: Uuid,
    /// The number of the tenant.
    pub tenant: i32,
    /// The number of the target.
    pub n: i32,
}

impl Position {
    /// The start of a list.
    pub(in crate::store) const START: Self = Self::behind(Uuid::max());

    /// Returns the position after this notification, in all tenants.
    #[must_use]
    pub const fn behind(notification: Uuid) -> Self {
        Self { notification, tenant: i32::MIN, n: i32::MAX }
    }

    /// Returns the position before this notification, in all tenants.
    #[must_use]
    pub const fn at(notification: Uuid) -> Self {
        Self { notification, tenant: i32::MAX, n: i32::MIN }
    }

    /// Returns the position before all notifications that were enqueued before `at`.
    #[must_use]
    pub fn before(at: Timestamp) -> Self {
        Self::behind(first_id(Timestamp::from_micros(at.as_micros().saturating_add(999))))
    }

    /// Returns the position that is further down the list.
    pub(in crate::store) fn further(self, other: Self) -> Self {
        if other.order() < self.order() { other } else { self }
    }

    /// Returns a sort key. A position further down the list has a smaller key.
    fn order(&self) -> (Uuid, i32, i64) {
        (self.notification, self.tenant, -i64::from(self.n))
    }

    /// Returns whether the position is after the notification in all tenants.
    fn is_behind(&self) -> bool {
        self.tenant == i32::MIN
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_behind() {
            self.notification.fmt(f)
        } else {
            write!(f, "{}.{}.{}", self.notification, self.tenant, self.n)
        }
    }
}

impl FromStr for Position {
    type Err = String;

    /// Parses a position. A notification id alone means the position after that notification.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a position in a list; use the position that the previous page returned");
        let mut parts = text.split('.');
        let notification = parts.next().and_then(|id| id.parse().ok()).ok_or_else(wrong)?;
        let numbers: Option<Vec<i32>> = parts.map(|part| part.parse().ok()).collect();
        match numbers.as_deref() {
            Some([]) => Ok(Self::behind(notification)),
            Some(&[tenant, n]) => Ok(Self { notification, tenant, n }),
            _ => Err(wrong()),
        }
    }
}

impl Serialize for Position {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page<T> {
    /// The rows of the page.
    pub rows: Vec<T>,
    /// The position of the next page, or `None` at the end of the list. A page that is not full can still have a next
    /// page, because a page ends after [`EXAMINED`] examined rows.
    pub more: Option<Position>,
}

/// Returns the lowest possible id of a notification that was enqueued in the millisecond of `at`. This works because
/// ids are UUIDv7.
pub(in crate::store) fn first_id(at: Timestamp) -> Uuid {
    let millis = u128::try_from(at.as_micros().max(0) / 1000).unwrap_or(0);
    Uuid::from_u128((millis & 0xffff_ffff_ffff) << 80)
}

/// The parameters of a statement whose text is built step by step.
#[derive(Default)]
pub(in crate::store) struct SqlParameters(pub(in crate::store) Vec<Value>);

impl SqlParameters {
    /// Adds a parameter and returns its name in the statement, such as `$3`.
    pub(in crate::store) fn add(&mut self, value: impl Into<Value>) -> String {
        self.0.push(value.into());
        format!("${}", self.0.len())
    }
}

/// The index rows that a list reads: the rows of `table` (alias `k`) that match the condition `which`. An index on the
/// tenant, the columns in `which` and the id must exist.
pub(in crate::store) struct IndexScan {
    pub table: &'static str,
    pub id: &'static str,
    pub which: String,
}

/// The names of the two parameters that bound a window in a statement.
pub(in crate::store) struct WindowBounds {
    pub floor: String,
    pub upper: String,
}

impl WindowBounds {
    /// Returns the condition that the column is within the window.
    pub(in crate::store) fn holds(&self, column: &str) -> String {
        format!("{column} >= {} AND {column} <= {}", self.floor, self.upper)
    }
}

/// A list: its filter, and how to find its rows.
pub(in crate::store) trait ListQuery {
    /// The tenant whose rows are listed. `None` means all tenants.
    fn tenant(&self) -> Option<i32>;
    /// The lowest notification id that the list can contain.
    fn oldest(&self) -> Uuid;
    /// The index scans that cover the list. Empty if no row can match.
    fn scans(&self, parameters: &mut SqlParameters) -> Vec<IndexScan>;
    /// Returns the statement for the matching rows of a window. Its columns are tenant, id, n and the columns that
    /// [`ListQuery::keep`] needs. `from` is the FROM clause, which yields the tenants as `t`.
    fn matches(&self, dialect: Dialect, from: &str, window: &WindowBounds, parameters: &mut SqlParameters) -> String;
    /// Returns whether [`ListQuery::keep`] can reject rows.
    fn filters_rows(&self) -> bool {
        false
    }
    /// Filters a row in Rust, for conditions that the two databases would evaluate differently.
    fn keep(&self, row: &Row) -> bool {
        let _ = row;
        true
    }
    /// Returns how many rows the first window has for a page of `limit` rows.
    fn first_window(&self, limit: i64) -> i64;
}

/// The database for which the SQL of a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Dialect {
    Postgres,
    Sqlite,
}

impl Dialect {
    /// Returns a join from the rows so far to the rows of `table` that match `on`. On both databases the syntax fixes
    /// the join order, because with misleading statistics the planner would begin with the larger table.
    pub(in crate::store) fn step(self, table: &str, name: &str, on: &str) -> String {
        match self {
            Self::Postgres => format!(
                " CROSS JOIN LATERAL (SELECT {name}.*
                 FROM postcommit.{table} {name}
                 WHERE {on} OFFSET 0) {name}"
            ),
            Self::Sqlite => format!(" CROSS JOIN postcommit.{table} {name} ON {on}"),
        }
    }

    /// Returns the name of the SQL function that finds one string in another. The function returns 0 if it finds
    /// nothing.
    pub(in crate::store) fn strpos(self) -> &'static str {
        if self == Self::Postgres { "strpos" } else { "instr" }
    }
}

impl Store {
    pub(in crate::store) fn dialect(&self) -> Dialect {
        if self.db.kind() == "postgres" { Dialect::Postgres } else { Dialect::Sqlite }
    }

    /// Reads one page of a list, only the keys.
    pub(in crate::store) async fn list_keys(
        &self,
        list: &impl ListQuery,
        from: Position,
        limit: i64,
    ) -> Result<Page<DeliveryKey>, DbError> {
        let page = self.list_rows(list, None, from, limit).await?;
        Ok(Page { rows: page.rows.into_iter().map(|(key, _)| key).collect(), more: page.more })
    }

    /// Reads one page of a list: the keys, each with the row that `row_query` reads for it.
    pub(in crate::store) async fn list_rows(
        &self,
        list: &impl ListQuery,
        row_query: Option<RowQuery>,
        from: Position,
        limit: i64,
    ) -> Result<Page<(DeliveryKey, Row)>, DbError> {
        let (mut rows, mut position, mut examined) = (Vec::new(), from, 0);
        let mut step = list.first_window(limit).clamp(1, EXAMINED);
        let enough = usize::try_from(limit).unwrap_or(0);
        loop {
            let Some(floor) = self.floor(list, position, step).await? else { return Ok(Page { rows, more: None }) };
            // One row more than the page holds is read, to find out whether there is a next page.
            let wanted = enough.saturating_add(1) - rows.len();
            rows.extend(self.matches(list, row_query, position, floor.unwrap_or(list.oldest()), wanted).await?);
            if rows.len() > enough {
                rows.truncate(enough);
                return Ok(Page { more: rows.last().map(|(key, _)| position_of(key)).or(Some(from)), rows });
            }
            let Some(floor) = floor else { return Ok(Page { rows, more: None }) };
            position = Position::behind(floor);
            examined += step;
            if examined >= EXAMINED {
                return Ok(Page { rows, more: Some(position) });
            }
            step = (step * 4).min(EXAMINED - examined);
        }
    }

    /// Counts the rows of a list. Returns the count and whether it is exact. Counting stops after about `most` examined
    /// rows, and then the count is a lower bound.
    pub(in crate::store) async fn count(
        &self,
        list: &impl ListQuery,
        from: Position,
        most: i64,
    ) -> Result<(i64, bool), DbError> {
        let (mut count, mut position, mut examined) = (0, from, 0);
        while examined < most {
            let Some(floor) = self.floor(list, position, EXAMINED).await? else { return Ok((count, true)) };
            let mut parameters = SqlParameters::default();
            let found = self.window(list, position, floor.unwrap_or(list.oldest()), &mut parameters);
            let rows = self.db.query_once(&format!("SELECT count(*) FROM ({found}) found"), parameters.0).await?;
            count += rows.first().map_or(Ok(0), |row| row.get::<i64>(0))?;
            let Some(floor) = floor else { return Ok((count, true)) };
            (position, examined) = (Position::behind(floor), examined + EXAMINED);
        }
        Ok((count, false))
    }

    /// Returns the lowest id of a window that has at most about `step` rows in every tenant. `Some(None)` means that
    /// all remaining rows fit into the window. `None` means that no row can match.
    async fn floor(
        &self,
        list: &impl ListQuery,
        position: Position,
        step: i64,
    ) -> Result<Option<Option<Uuid>>, DbError> {
        let (sql, parameters) = floor_statement(list, position, step);
        if sql.is_empty() {
            return Ok(None);
        }
        let rows = self.db.query_once(&sql, parameters).await?;
        // If the window's lowest id is unreadable, all remaining rows are read as one window.
        Ok(Some(rows.first().and_then(|row| row.get(0).unwrap_or_default())))
    }

    async fn matches(
        &self,
        list: &impl ListQuery,
        row_query: Option<RowQuery>,
        position: Position,
        floor: Uuid,
        wanted: usize,
    ) -> Result<Vec<(DeliveryKey, Row)>, DbError> {
        let (sql, parameters) = self.match_statement(list, row_query, position, floor, wanted);
        let rows = match (&self.db, row_query) {
            (Db::Sqlite(db), Some(row_query)) => row_query.read(db, &sql, parameters).await?,
            _ => self.db.query_once(&sql, parameters).await?,
        };
        Ok(legible("keys of a list", rows.into_iter().filter(|row| list.keep(row)).take(wanted).map(keyed)))
    }

    fn match_statement(
        &self,
        list: &impl ListQuery,
        row_query: Option<RowQuery>,
        position: Position,
        floor: Uuid,
        wanted: usize,
    ) -> (String, Vec<Value>) {
        let mut parameters = SqlParameters::default();
        let found = self.window(list, position, floor, &mut parameters);
        // If [`ListQuery::keep`] can reject rows, the statement gets no limit. Only the window bounds the number of
        // rows.
        let limit =
            parameters.add(if list.filters_rows() { i64::MAX } else { i64::try_from(wanted).unwrap_or(i64::MAX) });
        let sql = format!("SELECT * FROM ({found}) found ORDER BY 2 DESC, 1 DESC, 3 LIMIT {limit}");
        match row_query {
            Some(row_query) if self.dialect() == Dialect::Postgres => (row_query.joined_to(&sql), parameters.0),
            _ => (sql, parameters.0),
        }
    }

    /// Returns the statement for the matching rows between a position and the lowest id of the window.
    fn window(&self, list: &impl ListQuery, position: Position, floor: Uuid, parameters: &mut SqlParameters) -> String {
        let window = WindowBounds { floor: parameters.add(floor), upper: parameters.add(position.notification) };
        let from = tenants(list.tenant(), parameters);
        let found = list.matches(self.dialect(), &from, &window, parameters);
        let (upper, tenant, n) = (&window.upper, parameters.add(position.tenant), parameters.add(position.n));
        format!(
            "SELECT *
             FROM ({found}) inside
             WHERE id < {upper} OR tenant < {tenant} OR (tenant = {tenant} AND n > {n})"
        )
    }

    /// Returns the statements for a window of `step` rows. A test checks their plans.
    pub(in crate::store) async fn statements(
        &self,
        list: &impl ListQuery,
        row_query: Option<RowQuery>,
        from: Position,
        step: i64,
        limit: i64,
    ) -> Result<Vec<(String, Vec<Value>)>, DbError> {
        let floor = self.floor(list, from, step).await?.flatten().unwrap_or(list.oldest());
        let wanted = usize::try_from(limit).unwrap_or(0).saturating_add(1);
        Ok(vec![floor_statement(list, from, step), self.match_statement(list, row_query, from, floor, wanted)])
    }
}

/// Splits a row into its key, which is the first three columns, and the rest.
fn keyed(mut row: Row) -> Result<(DeliveryKey, Row), DbError> {
    let key = DeliveryKey { tenant: row.get(0)?, notification: row.get(1)?, n: row.get(2)? };
    row.0.drain(..3);
    Ok((key, row))
}

fn position_of(key: &DeliveryKey) -> Position {
    Position { notification: key.notification, tenant: key.tenant, n: key.n }
}

fn tenants(tenant: Option<i32>, parameters: &mut SqlParameters) -> String {
    // The statement begins with the tenant table even for one tenant, because the table is small and every index begins
    // with the tenant.
    let which = tenant.map(|tenant| format!(" WHERE id = {}", parameters.add(tenant))).unwrap_or_default();
    format!("FROM (SELECT id FROM postcommit.tenant{which}) t")
}

fn floor_statement(list: &impl ListQuery, position: Position, step: i64) -> (String, Vec<Value>) {
    let mut parameters = SqlParameters::default();
    let (oldest, upper, step) =
        (parameters.add(list.oldest()), parameters.add(position.notification), parameters.add(step));
    let tenants = tenants(list.tenant(), &mut parameters);
    // If the previous page returned all rows of a notification, these rows are not counted, because they may be more
    // than a window.
    let below = if position.is_behind() { "<" } else { "<=" };
    let kth = |IndexScan { table, id, which }: IndexScan| {
        format!(
            "SELECT (SELECT k.{id}
             FROM postcommit.{table} k
             WHERE k.tenant = t.id AND k.{id} >= {oldest} AND k.{id} {below} {upper}{which}
             ORDER BY k.{id} DESC
             LIMIT 1 OFFSET {step}) AS id {tenants}"
        )
    };
    let scans: Vec<String> = list.scans(&mut parameters).into_iter().map(kth).collect();
    if scans.is_empty() {
        return (String::new(), vec![]);
    }
    (format!("SELECT f.id FROM ({}) f ORDER BY f.id DESC NULLS LAST LIMIT 1", scans.join(" UNION ALL ")), parameters.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_written_and_read() {
        let id = Uuid::from_u128(7);
        for position in [
            Position::behind(id),
            Position { notification: id, tenant: 3, n: 0 },
            Position { notification: id, tenant: 3, n: -1 },
        ] {
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        assert_eq!(id.to_string().parse(), Ok(Position::behind(id)));
        for text in ["", "1.2", "00000000-0000-0000-0000-000000000007.1", "00000000-0000-0000-0000-000000000007.1.2.3"]
        {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }

    #[test]
    fn later_is_older_then_the_lower_tenant_then_the_higher_target() {
        let place = |id, tenant, n| Position { notification: Uuid::from_u128(id), tenant, n };
        let down = [
            place(9, 1, 1),
            place(8, 2, 1),
            place(8, 1, 1),
            place(8, 1, 2),
            Position::behind(Uuid::from_u128(8)),
            place(7, 9, 0),
        ];
        for pair in down.windows(2) {
            assert_eq!((pair[0].further(pair[1]), pair[1].further(pair[0])), (pair[1], pair[1]));
        }
    }
}
