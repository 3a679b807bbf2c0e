//! Pages of lists, newest first, that cost the same whatever history there is.
//!
//! A list is walked along an index that leads with the tenant and goes on with the notification's id. One window after the other is cut off it by counting
//! rows, not by guessing times, and what matches in the window is read. A window has as many rows as it was cut for, in each tenant, whatever plan is made for it. When
//! enough was examined, the page ends where the walk stands, full or not, and says where to go on.

use std::fmt;
use std::str::FromStr;

use postcommit::Timestamp;
use postcommit_channel::model::DeliveryKey;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::db::{Db, DbError, Row, Value};
use crate::store::Store;
use crate::store::lists::rows::Shown;
use crate::store::unreadable::legible;

/// Rows of its index that one page examines at most, in each tenant.
pub const EXAMINED: i64 = 20_000;

/// Where a page ended: everything before it in the order of the list was given. Newest notification first, then the higher tenant number, then the lower target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The notification it stands at.
    pub notification: Uuid,
    /// Of this tenant.
    pub tenant: i32,
    /// At this target of it.
    pub n: i32,
}

impl Position {
    /// Where nothing was given yet.
    pub(in crate::store) const START: Self = Self::behind(Uuid::max());

    /// Where all of this notification was given, and everything newer, whoever owns it.
    #[must_use]
    pub const fn behind(notification: Uuid) -> Self {
        Self { notification, tenant: i32::MIN, n: i32::MAX }
    }

    /// Where nothing of this notification was given, but everything newer.
    #[must_use]
    pub const fn at(notification: Uuid) -> Self {
        Self { notification, tenant: i32::MAX, n: i32::MIN }
    }

    /// Where everything from then on was given.
    #[must_use]
    pub fn before(at: Timestamp) -> Self {
        Self::behind(first_id(Timestamp::from_micros(at.as_micros().saturating_add(999))))
    }

    /// Whichever is further down the list.
    pub(in crate::store) fn further(self, other: Self) -> Self {
        if other.order() < self.order() { other } else { self }
    }

    /// Further down is less.
    fn order(&self) -> (Uuid, i32, i64) {
        (self.notification, self.tenant, -i64::from(self.n))
    }

    /// Nothing of its notification is left.
    fn is_behind(&self) -> bool {
        self.tenant == i32::MIN
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_behind() { self.notification.fmt(f) } else { write!(f, "{}.{}.{}", self.notification, self.tenant, self.n) }
    }
}

impl FromStr for Position {
    type Err = String;

    /// A notification's id alone stands for the place behind it.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no place in a list; take it from the page before");
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
    /// What was found.
    pub rows: Vec<T>,
    /// Where to go on; none at the end. A page may end before it is full: then enough was examined for once.
    pub more: Option<Position>,
}

/// The lowest id that can have been made in that millisecond: ids are UUIDv7.
pub(in crate::store) fn first_id(at: Timestamp) -> Uuid {
    let millis = u128::try_from(at.as_micros().max(0) / 1000).unwrap_or(0);
    Uuid::from_u128((millis & 0xffff_ffff_ffff) << 80)
}

/// The parameters of a statement that is put together.
#[derive(Default)]
pub(in crate::store) struct Parameters(pub(in crate::store) Vec<Value>);

impl Parameters {
    /// One more; returns its name.
    pub(in crate::store) fn add(&mut self, value: impl Into<Value>) -> String {
        self.0.push(value.into());
        format!("${}", self.0.len())
    }
}

/// What a walk goes along: rows of `table k` for which `which` holds. There must be an index on (tenant, what `which` fixes, id).
pub(in crate::store) struct Way {
    pub table: &'static str,
    pub id: &'static str,
    pub which: String,
}

/// Names of the parameters that bound a window.
pub(in crate::store) struct Window {
    pub floor: String,
    pub upper: String,
}

impl Window {
    /// The column is inside.
    pub(in crate::store) fn holds(&self, column: &str) -> String {
        format!("{column} >= {} AND {column} <= {}", self.floor, self.upper)
    }
}

/// A list that can be walked.
pub(in crate::store) trait Walk {
    /// Only this tenant's.
    fn tenant(&self) -> Option<i32>;
    /// Not older than this.
    fn oldest(&self) -> Uuid;
    /// What it goes along; nothing when nothing can match.
    fn ways(&self, parameters: &mut Parameters) -> Vec<Way>;
    /// What matches in a window: tenant, notification, n and what [`Walk::keep`] wants to see. Begins with `from`, which is the tenants.
    fn matches(&self, dialect: Dialect, from: &str, window: &Window, parameters: &mut Parameters) -> String;
    /// Whether [`Walk::keep`] has something to say.
    fn sifts(&self) -> bool {
        false
    }
    /// What no statement can tell alike on both databases.
    fn keep(&self, row: &Row) -> bool {
        let _ = row;
        true
    }
    /// How many rows the first window has.
    fn first_window(&self, limit: i64) -> i64;
}

/// How a database is told to go from one table to the next, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Dialect {
    Postgres,
    Sqlite,
}

impl Dialect {
    /// From every row so far to those of `table` for which `on` holds. On both databases the order is not the planner's to choose: misled by statistics it would
    /// begin with the larger table.
    pub(in crate::store) fn step(self, table: &str, name: &str, on: &str) -> String {
        match self {
            Self::Postgres => format!(" CROSS JOIN LATERAL (SELECT {name}.* FROM postcommit.{table} {name} WHERE {on} OFFSET 0) {name}"),
            Self::Sqlite => format!(" CROSS JOIN postcommit.{table} {name} ON {on}"),
        }
    }

    /// Where in a text another begins; 0 is nowhere.
    pub(in crate::store) fn place_of(self) -> &'static str {
        if self == Self::Postgres { "strpos" } else { "instr" }
    }
}

impl Store {
    pub(in crate::store) fn dialect(&self) -> Dialect {
        if self.db.kind() == "postgres" { Dialect::Postgres } else { Dialect::Sqlite }
    }

    /// The keys of a page.
    pub(in crate::store) async fn walk(&self, walk: &impl Walk, from: Position, limit: i64) -> Result<Page<DeliveryKey>, DbError> {
        let page = self.walk_rows(walk, None, from, limit).await?;
        Ok(Page { rows: page.rows.into_iter().map(|(key, _)| key).collect(), more: page.more })
    }

    /// The keys of a page, and what is shown of each.
    pub(in crate::store) async fn walk_rows(
        &self,
        walk: &impl Walk,
        shown: Option<Shown>,
        from: Position,
        limit: i64,
    ) -> Result<Page<(DeliveryKey, Row)>, DbError> {
        let (mut rows, mut place, mut examined) = (Vec::new(), from, 0);
        let mut step = walk.first_window(limit).clamp(1, EXAMINED);
        let enough = usize::try_from(limit).unwrap_or(0);
        loop {
            let Some(floor) = self.floor(walk, place, step).await? else { return Ok(Page { rows, more: None }) };
            // One more than fits tells whether there is more.
            let wanted = enough.saturating_add(1) - rows.len();
            rows.extend(self.matches(walk, shown, place, floor.unwrap_or(walk.oldest()), wanted).await?);
            if rows.len() > enough {
                rows.truncate(enough);
                return Ok(Page { more: rows.last().map(|(key, _)| position_of(key)).or(Some(from)), rows });
            }
            let Some(floor) = floor else { return Ok(Page { rows, more: None }) };
            place = Position::behind(floor);
            examined += step;
            if examined >= EXAMINED {
                return Ok(Page { rows, more: Some(place) });
            }
            step = (step * 4).min(EXAMINED - examined);
        }
    }

    /// How many there are, or at least are when `most` were examined: then the second is false.
    pub(in crate::store) async fn count(&self, walk: &impl Walk, from: Position, most: i64) -> Result<(i64, bool), DbError> {
        let (mut count, mut place, mut examined) = (0, from, 0);
        while examined < most {
            let Some(floor) = self.floor(walk, place, EXAMINED).await? else { return Ok((count, true)) };
            let mut parameters = Parameters::default();
            let found = self.window(walk, place, floor.unwrap_or(walk.oldest()), &mut parameters);
            let rows = self.db.query_once(&format!("SELECT count(*) FROM ({found}) found"), parameters.0).await?;
            count += rows.first().map_or(Ok(0), |row| row.get::<i64>(0))?;
            let Some(floor) = floor else { return Ok((count, true)) };
            (place, examined) = (Position::behind(floor), examined + EXAMINED);
        }
        Ok((count, false))
    }

    /// The id down to which a window of so many rows reaches: in the tenant that gets least far. The inner none: all that is left fits. The outer: there is no way at all.
    async fn floor(&self, walk: &impl Walk, place: Position, step: i64) -> Result<Option<Option<Uuid>>, DbError> {
        let (sql, parameters) = floor_statement(walk, place, step);
        if sql.is_empty() {
            return Ok(None);
        }
        let rows = self.db.query_once(&sql, parameters).await?;
        // An id that is none ends the walk here: all that is left is looked at as one window.
        Ok(Some(rows.first().and_then(|row| row.get(0).unwrap_or_default())))
    }

    async fn matches(
        &self,
        walk: &impl Walk,
        shown: Option<Shown>,
        place: Position,
        floor: Uuid,
        wanted: usize,
    ) -> Result<Vec<(DeliveryKey, Row)>, DbError> {
        let (sql, parameters) = self.match_statement(walk, shown, place, floor, wanted);
        let rows = match (&self.db, shown) {
            (Db::Sqlite(db), Some(shown)) => shown.read(db, &sql, parameters).await?,
            _ => self.db.query_once(&sql, parameters).await?,
        };
        Ok(legible("keys of a list", rows.into_iter().filter(|row| walk.keep(row)).take(wanted).map(keyed)))
    }

    fn match_statement(&self, walk: &impl Walk, shown: Option<Shown>, place: Position, floor: Uuid, wanted: usize) -> (String, Vec<Value>) {
        let mut parameters = Parameters::default();
        let found = self.window(walk, place, floor, &mut parameters);
        // What is sifted afterwards is bounded by the window alone.
        let limit = parameters.add(if walk.sifts() { i64::MAX } else { i64::try_from(wanted).unwrap_or(i64::MAX) });
        let sql = format!("SELECT * FROM ({found}) found ORDER BY 2 DESC, 1 DESC, 3 LIMIT {limit}");
        match shown {
            Some(shown) if self.dialect() == Dialect::Postgres => (shown.joined_to(&sql), parameters.0),
            _ => (sql, parameters.0),
        }
    }

    /// What matches between a place and a floor.
    fn window(&self, walk: &impl Walk, place: Position, floor: Uuid, parameters: &mut Parameters) -> String {
        let window = Window { floor: parameters.add(floor), upper: parameters.add(place.notification) };
        let from = tenants(walk.tenant(), parameters);
        let found = walk.matches(self.dialect(), &from, &window, parameters);
        let (upper, tenant, n) = (&window.upper, parameters.add(place.tenant), parameters.add(place.n));
        format!("SELECT * FROM ({found}) inside WHERE id < {upper} OR tenant < {tenant} OR (tenant = {tenant} AND n > {n})")
    }

    /// The statements behind a window of so many rows, for a test to look at their plans.
    pub(in crate::store) async fn statements(
        &self,
        walk: &impl Walk,
        shown: Option<Shown>,
        from: Position,
        step: i64,
        limit: i64,
    ) -> Result<Vec<(String, Vec<Value>)>, DbError> {
        let floor = self.floor(walk, from, step).await?.flatten().unwrap_or(walk.oldest());
        let wanted = usize::try_from(limit).unwrap_or(0).saturating_add(1);
        Ok(vec![floor_statement(walk, from, step), self.match_statement(walk, shown, from, floor, wanted)])
    }
}

/// The first three columns say whose it is.
fn keyed(mut row: Row) -> Result<(DeliveryKey, Row), DbError> {
    let key = DeliveryKey { tenant: row.get(0)?, notification: row.get(1)?, n: row.get(2)? };
    row.0.drain(..3);
    Ok((key, row))
}

fn position_of(key: &DeliveryKey) -> Position {
    Position { notification: key.notification, tenant: key.tenant, n: key.n }
}

fn tenants(tenant: Option<i32>, parameters: &mut Parameters) -> String {
    // A list of one: a table of tenants is short, and leads into every index.
    let which = tenant.map(|tenant| format!(" WHERE id = {}", parameters.add(tenant))).unwrap_or_default();
    format!("FROM (SELECT id FROM postcommit.tenant{which}) t")
}

fn floor_statement(walk: &impl Walk, place: Position, step: i64) -> (String, Vec<Value>) {
    let mut parameters = Parameters::default();
    let (oldest, upper, step) = (parameters.add(walk.oldest()), parameters.add(place.notification), parameters.add(step));
    let tenants = tenants(walk.tenant(), &mut parameters);
    // Where nothing is left of a notification it must not be counted: it may have more rows than a window.
    let below = if place.is_behind() { "<" } else { "<=" };
    let kth = |Way { table, id, which }: Way| {
        format!(
            "SELECT (SELECT k.{id} FROM postcommit.{table} k WHERE k.tenant = t.id AND k.{id} >= {oldest} AND k.{id} {below} {upper}{which}
             ORDER BY k.{id} DESC LIMIT 1 OFFSET {step}) AS id {tenants}"
        )
    };
    let ways: Vec<String> = walk.ways(&mut parameters).into_iter().map(kth).collect();
    if ways.is_empty() {
        return (String::new(), vec![]);
    }
    (format!("SELECT f.id FROM ({}) f ORDER BY f.id DESC NULLS LAST LIMIT 1", ways.join(" UNION ALL ")), parameters.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_written_and_read() {
        let id = Uuid::from_u128(7);
        for position in
            [Position::behind(id), Position { notification: id, tenant: 3, n: 0 }, Position { notification: id, tenant: 3, n: -1 }]
        {
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        assert_eq!(id.to_string().parse(), Ok(Position::behind(id)));
        for text in ["", "1.2", "00000000-0000-0000-0000-000000000007.1", "00000000-0000-0000-0000-000000000007.1.2.3"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }

    #[test]
    fn further_down_is_older_then_the_lower_tenant_then_the_higher_target() {
        let place = |id, tenant, n| Position { notification: Uuid::from_u128(id), tenant, n };
        let down = [place(9, 1, 1), place(8, 2, 1), place(8, 1, 1), place(8, 1, 2), Position::behind(Uuid::from_u128(8)), place(7, 9, 0)];
        for pair in down.windows(2) {
            assert_eq!((pair[0].further(pair[1]), pair[1].further(pair[0])), (pair[1], pair[1]));
        }
    }
}
