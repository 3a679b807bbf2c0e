//! Reads users, members of lists and suppressions for the expansion. Each method takes a whole batch and runs a fixed
//! number of queries, however large the batch is. Nothing is cached, so every change that is committed before the
//! expansion takes effect.
//!
//! On PostgreSQL the methods use the hot path's connections, so they work for all tenants, and not on a handle for one
//! tenant.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use postcommit_channel::model::{KnownUser, ListMember, Preference, Profile, comparable};
use serde_json::json;
use tokio_postgres::types::ToSql;

use crate::db::{Db, DbError, Row, Value, postgres, sqlite};
use crate::store::Store;
use crate::store::unreadable::legible;
use crate::store::users::quiet_hours;

/// The members of a list and of the lists inside it, each once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Members {
    /// Users and addresses, ordered. No member is a list.
    pub members: Vec<ListMember>,
    /// Whether the list has more members than requested.
    pub is_cut: bool,
}

const PROFILES: &str = "SELECT p.tenant, p.id, p.name, p.language, p.time_zone, p.quiet_hours, p.data
    FROM {given}
    JOIN postcommit.user_profile p ON p.tenant = ANY (ARRAY[g.tenant]) AND p.id = g.a";
const ADDRESSES: &str = "SELECT a.tenant, a.user_id, a.kind, a.address, a.position
    FROM {given}
    JOIN postcommit.user_address a ON a.tenant = ANY (ARRAY[g.tenant]) AND a.user_id = g.a
    WHERE a.disabled_reason IS NULL";
const PREFERENCES: &str = "SELECT p.tenant, p.user_id, p.event_type, p.channel, p.allowed
    FROM {given}
    JOIN postcommit.preference p ON p.tenant = ANY (ARRAY[g.tenant]) AND p.user_id = g.a";

/// Finds the lists inside the given lists. UNION leaves out lists that were found before, so a cycle ends.
pub(in crate::store) const INSIDE: &str = "RECURSIVE inside (tenant, root, list) AS (
      SELECT l.tenant, l.name, l.name
      FROM {given}
      JOIN postcommit.list l ON l.tenant = ANY (ARRAY[g.tenant]) AND l.name = g.a
      UNION
      SELECT g.tenant, g.root, m.member
      FROM inside g
      JOIN postcommit.list_member m ON m.tenant = ANY (ARRAY[g.tenant]) AND m.list = g.list AND m.kind = 'list')";

/// Finds each member of each requested list (`root`) once, at most `b` members per list. `b` is cast to int, because
/// all parameters are strings.
const MEMBERS: &str = "SELECT tenant, root, kind, member, channel
    FROM (SELECT tenant, root, kind, member, channel,
        row_number() OVER (PARTITION BY tenant, root ORDER BY kind, member, channel) AS place
      FROM (SELECT DISTINCT g.tenant, g.root, m.kind, m.member, m.channel
        FROM inside g
        JOIN postcommit.list_member m ON m.tenant = ANY (ARRAY[g.tenant]) AND m.list = g.list
        WHERE m.kind <> 'list') each) numbered
    WHERE place <= (SELECT CAST(max(g.b) AS int) FROM {given})
    ORDER BY tenant, root, place";
const ROOTS: &str = "SELECT l.tenant, l.name
    FROM {given}
    JOIN postcommit.list l ON l.tenant = ANY (ARRAY[g.tenant]) AND l.name = g.a";

const SUPPRESSED: &str = "SELECT g.tenant, g.a, g.b, min(s.reason)
    FROM {given}
    JOIN postcommit.suppression s ON s.tenant = ANY (ARRAY[g.tenant]) AND s.channel IN (g.a, '*') AND s.address = g.b
    WHERE s.until IS NULL OR s.until > {now}
    GROUP BY g.tenant, g.a, g.b";

impl Store {
    /// Reads users: profile, usable addresses, preferences. A user without stored data is not in the result.
    pub async fn users_by_id(&self, users: &[(i32, String)]) -> Result<HashMap<(i32, String), KnownUser>, DbError> {
        let mut known: HashMap<(i32, String), KnownUser> = HashMap::new();
        if users.is_empty() {
            return Ok(known);
        }
        let given = users.iter().map(|(tenant, id)| (*tenant, id.as_str(), "")).collect();
        let [profiles, addresses, preferences] = self.of_given([PROFILES, ADDRESSES, PREFERENCES], given).await?;
        for (key, profile) in legible("users", profiles.iter().map(|row| Ok((key(row)?, profile(row)?)))) {
            known.entry(key).or_default().profile = Some(profile);
        }
        let read = |row: &Row| Ok((key(row)?, row.get::<String>(2)?, row.get::<String>(3)?, row.get::<i32>(4)?));
        let mut addresses = legible("addresses", addresses.iter().map(read));
        addresses.sort_by_key(|(.., position)| *position);
        for (key, kind, address, _) in addresses {
            known.entry(key).or_default().addresses.entry(kind).or_insert(address);
        }
        for (key, preference) in legible("preferences", preferences.iter().map(|row| Ok((key(row)?, opinion(row)?)))) {
            known.entry(key).or_default().preferences.push(preference);
        }
        Ok(known)
    }

    /// Reads the members of lists, and of the lists inside them, each once. At most `most` members of a list are read.
    /// A list that does not exist is not in the result.
    pub async fn members_of(
        &self,
        lists: &[(i32, String)],
        most: usize,
    ) -> Result<HashMap<(i32, String), Members>, DbError> {
        if lists.is_empty() {
            return Ok(HashMap::new());
        }
        // One member more than `most` is read, to find out whether the list is cut.
        let limit = (most + 1).to_string();
        let given = lists.iter().map(|(tenant, name)| (*tenant, name.as_str(), limit.as_str())).collect();
        let members = format!("WITH {INSIDE} {MEMBERS}");
        let [roots, rows] = self.of_given([ROOTS, &members], given).await?;
        let mut found: HashMap<(i32, String), Members> =
            legible("lists", roots.iter().map(key)).into_iter().map(|key| (key, Members::default())).collect();
        for (key, member) in legible("members", rows.iter().map(|row| Ok((key(row)?, member(row)?)))) {
            found.entry(key).or_default().members.push(member);
        }
        for list in found.values_mut() {
            list.is_cut = list.members.len() > most;
            list.members.truncate(most);
        }
        Ok(found)
    }

    /// Finds suppressed addresses among the given tenants, channels and addresses. Returns the reason for each. A
    /// suppression of channel `*` applies to every channel. An expired suppression does not apply.
    pub async fn suppressed(
        &self,
        targets: &[(i32, String, String)],
    ) -> Result<HashMap<(i32, String, String), String>, DbError> {
        if targets.is_empty() {
            return Ok(HashMap::new());
        }
        let compared: Vec<_> = targets.iter().map(|(_, _, address)| comparable(address)).collect();
        let given: HashSet<_> = targets
            .iter()
            .zip(&compared)
            .map(|((tenant, channel, _), to)| (*tenant, channel.as_str(), &**to))
            .collect();
        let [rows] = self.of_given([SUPPRESSED], given.into_iter().collect()).await?;
        let read = |row: &Row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?));
        let reasons: HashMap<(i32, String, String), String> =
            legible("suppressions", rows.iter().map(read)).into_iter().collect();
        let reason = |((tenant, channel, _), to): &(&(i32, String, String), Cow<'_, str>)| {
            reasons.get(&(*tenant, channel.clone(), to.to_string())).cloned()
        };
        let each = targets.iter().zip(compared);
        Ok(each.filter_map(|pair| Some((pair.0.clone(), reason(&pair)?))).collect())
    }

    /// Runs statements that look up the same keys. In their text `{given}` is a table `g` with the columns `tenant`,
    /// `a` and `b`.
    async fn of_given<const N: usize>(
        &self,
        statements: [&str; N],
        given: Vec<(i32, &str, &str)>,
    ) -> Result<[Vec<Row>; N], DbError> {
        let mut answers = [const { Vec::new() }; N];
        match &self.db {
            Db::Postgres(db) => {
                let client = db.hot().await?;
                let tenants: Vec<i32> = given.iter().map(|(tenant, ..)| *tenant).collect();
                let (a, b): (Vec<&str>, Vec<&str>) = given.iter().map(|(_, a, b)| (*a, *b)).unzip();
                let parameters: [&(dyn ToSql + Sync); 3] = [&tenants, &a, &b];
                for (sql, answer) in statements.into_iter().zip(&mut answers) {
                    let sql = sql.replace("{given}", "unnest($1::int[], $2::text[], $3::text[]) AS g (tenant, a, b)");
                    let sql = sql.replace("{now}", "clock_timestamp()");
                    let statement = client.prepare_cached(&sql).await.map_err(postgres::refused)?;
                    let rows = client.query(&statement, &parameters).await.map_err(postgres::refused)?;
                    *answer = rows.iter().map(Row::from_postgres).collect::<Result<_, _>>()?;
                }
            }
            Db::Sqlite(db) => {
                let keys = Value::Json(json!(given).to_string());
                let table =
                    "(SELECT value ->> 0 AS tenant, value ->> 1 AS a, value ->> 2 AS b FROM json_each($1)) AS g";
                let written = |sql: &str| {
                    sqlite::dialect(&sql.replace("{given}", table).replace("= ANY (ARRAY[g.tenant])", "= g.tenant"))
                };
                let statements = statements.map(written);
                answers = db
                    .read(move |connection| {
                        let mut answers = [const { Vec::new() }; N];
                        for (sql, answer) in statements.iter().zip(&mut answers) {
                            *answer = sqlite::query(connection, sql, std::slice::from_ref(&keys))?;
                        }
                        Ok(answers)
                    })
                    .await?;
            }
        }
        Ok(answers)
    }
}

/// Reads the tenant and the name from the first two columns.
fn key(row: &Row) -> Result<(i32, String), DbError> {
    Ok((row.get(0)?, row.get(1)?))
}

fn profile(row: &Row) -> Result<Profile, DbError> {
    Ok(Profile {
        name: row.get(2)?,
        language: row.get(3)?,
        time_zone: row.get(4)?,
        quiet_hours: quiet_hours(row, 5)?,
        data: row.get(6)?,
    })
}

fn opinion(row: &Row) -> Result<Preference, DbError> {
    Ok(Preference { event_type: row.get(2)?, channel: row.get(3)?, allowed: row.get(4)? })
}

fn member(row: &Row) -> Result<ListMember, DbError> {
    Ok(ListMember { kind: row.get(2)?, member: row.get(3)?, channel: row.get(4)? })
}
