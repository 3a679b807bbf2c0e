//! Generated history: many finished deliveries, as the engine would have left them, for demonstrations and
//! measurements. The same [`History`] always gives the same rows.

use postcommit::Timestamp;

use crate::db::{Db, DbError, Statement, Value};
use crate::store::Store;

/// How far the history goes back.
pub const HISTORY_DAYS: u64 = 28;
/// How many rows a part of a history has at most.
const PART_ROWS: u64 = 10_000;
const HOUR: i64 = 3_600_000_000;
const MINUTE: i64 = 60_000_000;
/// Roll-ups by minute are kept at least this long. Older rows of a generated history are counted by hour.
const MINUTES_KEPT: i64 = 48 * HOUR;
/// The relative load of each hour of the day (UTC).
const BUSY: [u64; 24] = [2, 1, 1, 1, 1, 2, 4, 7, 10, 12, 12, 11, 10, 10, 11, 12, 12, 11, 10, 9, 8, 6, 4, 3];

/// One kind of generated deliveries: their lane, their event type and their recipients.
#[derive(Debug, Clone)]
pub struct HistoryKind {
    pub tenant: i32,
    /// The number of the provider.
    pub lane: i32,
    pub provider: String,
    pub channel: String,
    pub event_type: String,
    /// The kind of the recipients: `email`, `phone`, `slack` or `webhook`.
    pub recipient: String,
    /// The beginning and the end of each generated address. A number comes between them.
    pub address: (String, String),
    /// The site of every row. With `None` each row gets one of the sites of the history.
    pub site: Option<String>,
}

/// The history to generate.
#[derive(Debug, Clone)]
pub struct History {
    pub rows: u64,
    /// The end of the history.
    pub until: Timestamp,
    pub seed: u32,
    pub kinds: Vec<HistoryKind>,
    pub sites: Vec<String>,
}

/// A part of a history: rows of one hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryPart {
    /// The number of the part's first row.
    pub from: u64,
    pub rows: u64,
    begins: i64,
    /// The time between two rows, in microseconds.
    step: i64,
}

impl History {
    /// Returns the parts, oldest first. Together they have exactly the rows of the history.
    #[must_use]
    pub fn parts(&self) -> Vec<HistoryPart> {
        let until = self.until.as_micros();
        let hours = HISTORY_DAYS * 24;
        let begins = |hour: u64| until - HOUR * i64::try_from(hours - hour).unwrap_or(0);
        let busy = |hour: u64| BUSY[usize::try_from(begins(hour).div_euclid(HOUR).rem_euclid(24)).unwrap_or(0)];
        let all: u64 = (0..hours).map(busy).sum();
        let (mut parts, mut weight, mut from) = (vec![], 0, 0);
        for hour in 0..hours {
            weight += busy(hour);
            let end = u64::try_from(u128::from(self.rows) * u128::from(weight) / u128::from(all)).unwrap_or(self.rows);
            let count = end - from;
            let step = HOUR / i64::try_from(count.max(1)).unwrap_or(HOUR);
            let first = from;
            while from < end {
                let rows = (end - from).min(PART_ROWS);
                let after = i64::try_from(from - first).unwrap_or(0) * step;
                parts.push(HistoryPart { from, rows, begins: begins(hour) + after, step });
                from += rows;
            }
        }
        parts
    }

    fn statements(&self, part: HistoryPart, is_postgres: bool) -> Vec<Statement> {
        let rows = self.rows_of(is_postgres);
        let is_old = part.begins < self.until.as_micros() - MINUTES_KEPT;
        let slot = if is_old { HOUR } else { MINUTE };
        let micros = |expression: &str| {
            if is_postgres { format!("to_timestamp(({expression}) / 1000000.0)") } else { expression.to_owned() }
        };
        let (at, ended) = (micros("r.us"), micros("r.ended"));
        let tried = |number: &str| micros(&format!("r.us + 2000000 * ({number} - 1)"));
        let slots = micros(&format!("(r.ended - r.ended % {slot})"));
        let (no, list, flag) =
            if is_postgres { ("false", "CAST('{}' AS text[])", "jsonb") } else { ("0", "'[]'", "TEXT") };
        [
            format!(
                "INSERT INTO postcommit.notification (tenant, id, event_type, entity, idempotency_key, payload, recipients,
                     channels, title, body, priority, due_at, expires_at, source, created_at)
                 {rows} SELECT r.tenant, r.id, r.event_type, 'booking-' || (r.i / 3), 'history:' || r.i,
                     CAST('{{\"bookingId\": ' || r.i || '}}' AS {flag}),
                     CAST('[{{\"' || r.recipient || '\": \"' || r.target || '\"}}]' AS {flag}), {list},
                     'Booking ' || (r.i / 3), 'A message of the past.', 5, {at}, {expires},
                     CAST('{{\"site\": \"' || r.site || '\"}}' AS {flag}), {at}
                 FROM rows r",
                expires = micros("r.us + 2592000000000"),
            ),
            format!(
                "INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, state, reason,
                     code, detail, error_class, attempts, seq, unclear, sent_at, finished_at, site,
                     attempted_at, attempted_by, outcome, latency_ms, token)
                 {rows} SELECT r.tenant, r.id, 1, r.lane, r.channel, r.target, r.state,
                     CASE WHEN r.state = 'parked' THEN 'exhausted' END, r.code,
                     CASE WHEN r.class IS NOT NULL THEN 'the connection was not opened in time' END, r.class, r.tries, r.tries, {no},
                     CASE WHEN r.state IN ('sent', 'delivered') THEN {ended} END, {ended}, r.site,
                     CASE WHEN {was_sent} THEN {last} END, CASE WHEN {was_sent} THEN r.provider END, CASE WHEN {was_sent} THEN 'sent' END,
                     CASE WHEN {was_sent} THEN 20 + r.x % 180 END, CASE WHEN {was_sent} THEN r.id END
                 FROM rows r",
                was_sent = "r.tries > 0 AND r.class IS NULL",
                last = tried("r.tries"),
            ),
            format!(
                "INSERT INTO postcommit.logged_attempt (tenant, notification_id, n, seq, at, provider, outcome, code, error_class,
                     latency_ms, token)
                 {rows} SELECT r.tenant, r.id, 1, t.seq, {each}, r.provider, 'deferred', 'connect_timeout', 'timeout', 20 + r.x % 180, r.id
                 FROM rows r
                 JOIN (SELECT 1 AS seq UNION ALL SELECT 2 UNION ALL SELECT 3) t
                   ON t.seq < r.tries OR (t.seq = r.tries AND r.class IS NOT NULL)",
                each = tried("t.seq"),
            ),
            format!(
                "INSERT INTO postcommit.rollup_fresh (tenant, slot, site, channel, state, count, event_type, lane, error_class)
                 {rows} SELECT r.tenant, {slots}, r.site, r.channel, r.state, count(*), r.event_type, r.lane, r.class
                 FROM rows r
                 GROUP BY 1, 2, 3, 4, 5, 7, 8, 9"
            ),
        ]
        .into_iter()
        .map(|sql| (sql, self.parameters(part)))
        .collect()
    }

    /// Returns the common table expression `rows`. All values of a row follow from its number: `x` and `y` are
    /// pseudo-random numbers computed from it.
    fn rows_of(&self, is_postgres: bool) -> String {
        let mut place = 5;
        let mut next = |as_type: &str| {
            place += 1;
            format!("CAST(${place} AS {as_type})")
        };
        let kinds: Vec<String> = (0..self.kinds.len())
            .map(|k| {
                let (tenant, lane) = (next("INTEGER"), next("INTEGER"));
                let texts: Vec<String> = (0..7).map(|_| next("TEXT")).collect();
                format!("({k}, {tenant}, {lane}, {})", texts.join(", "))
            })
            .collect();
        let sites: Vec<String> = (0..self.sites.len()).map(|s| format!("({s}, {})", next("TEXT"))).collect();
        let numbers = if is_postgres {
            "SELECT g AS i FROM generate_series(CAST($1 AS BIGINT), CAST($1 AS BIGINT) + CAST($2 AS BIGINT) - 1) g"
        } else {
            "SELECT $1 AS i UNION ALL SELECT i + 1 FROM numbers WHERE i < $1 + $2 - 1"
        };
        let id = if is_postgres {
            "CAST(lpad(to_hex(p.us / 1000), 12, '0') || '7' || lpad(to_hex(p.us % 1000), 3, '0') || '8000'
               || lpad(to_hex(p.i), 12, '0') AS uuid)"
        } else {
            "printf('%08x-%04x-7%03x-8000-%012x', p.us / 65536000, p.us / 1000 % 65536, p.us % 1000, p.i)"
        };
        format!(
            "WITH RECURSIVE numbers(i) AS ({numbers}),
             kinds(k, tenant, lane, provider, channel, event_type, recipient, head, tail, site) AS (VALUES {}),
             sites(s, name) AS (VALUES {}),
             placed AS (
               SELECT i, CAST($3 AS BIGINT) + (i - CAST($1 AS BIGINT)) * CAST($4 AS BIGINT) AS us,
                 ((i + CAST($5 AS BIGINT)) * 1103515245 + 12345) % 2147483648 / 65536 AS x,
                 ((i + CAST($5 AS BIGINT)) * 22695477 + 1) % 4294967296 / 65536 % 10000 AS y
               FROM numbers),
             told AS (
               SELECT p.i, p.us, p.x, {id} AS id, k.tenant, k.lane, k.provider, k.channel, k.event_type, k.recipient,
                 k.head || (p.x * 31 % 50000) || k.tail AS target, coalesce(k.site, s.name) AS site,
                 CASE WHEN p.y < 9500 THEN 'sent' WHEN p.y < 9800 THEN 'delivered' WHEN p.y < 9880 THEN 'skipped'
                   WHEN p.y < 9940 THEN 'cancelled' WHEN p.y < 9985 THEN 'discarded' WHEN p.y < 9995 THEN 'expired'
                   ELSE 'parked' END AS state,
                 CASE WHEN p.y < 9800 THEN 1 + (CASE WHEN p.y % 25 = 0 THEN 1 ELSE 0 END)
                   WHEN p.y >= 9940 AND (p.y < 9985 OR p.y >= 9995) THEN 3 ELSE 0 END AS tries
               FROM placed p
               JOIN kinds k ON k.k = p.x % {}
               JOIN sites s ON s.s = p.y % {}),
             rows AS (
               SELECT d.*, d.us + 200000 + 2000000 * (CASE WHEN d.tries > 1 THEN d.tries - 1 ELSE 0 END) AS ended,
                 CASE WHEN d.tries = 3 THEN 'timeout' END AS class,
                 CASE WHEN d.tries = 3 THEN 'connect_timeout' WHEN d.state = 'skipped' THEN 'opted_out'
                   WHEN d.state IN ('cancelled', 'expired') THEN d.state END AS code
               FROM told d)",
            kinds.join(", "),
            sites.join(", "),
            self.kinds.len(),
            self.sites.len()
        )
    }

    fn parameters(&self, part: HistoryPart) -> Vec<Value> {
        let number = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let mut all = vec![
            number(part.from),
            number(part.rows),
            Value::Int(part.begins),
            Value::Int(part.step),
            number(self.seed.into()),
        ];
        for kind in &self.kinds {
            all.extend([Value::from(kind.tenant), Value::from(kind.lane)]);
            let (before, after) = &kind.address;
            let texts = [&kind.provider, &kind.channel, &kind.event_type, &kind.recipient, before, after];
            all.extend(texts.map(|text| Value::from(text.as_str())));
            all.push(kind.site.as_deref().map_or(Value::Null, Value::from));
        }
        all.extend(self.sites.iter().map(|site| Value::from(site.as_str())));
        all
    }
}

impl Store {
    /// Prepares the database for a generated history. On PostgreSQL this creates the monthly partitions for its rows,
    /// where they do not exist. On SQLite it does nothing.
    pub async fn begin_history(&self, history: &History) -> Result<(), DbError> {
        let Db::Postgres(_) = &self.db else { return Ok(()) };
        let first =
            Timestamp::from_micros(history.until.as_micros() - HOUR * 24 * i64::try_from(HISTORY_DAYS).unwrap_or(0));
        let months = "SELECT to_char(m, 'YYYY_MM'), CAST(postcommit.id_at(m AT TIME ZONE 'UTC') AS text),
              CAST(postcommit.id_at((m + interval '1 month') AT TIME ZONE 'UTC') AS text)
            FROM generate_series(date_trunc('month', CAST($1 AS timestamptz) AT TIME ZONE 'UTC'),
              CAST($2 AS timestamptz) AT TIME ZONE 'UTC', interval '1 month') m";
        let mut tables = vec![];
        for row in self.db.query(months, vec![first.into(), history.until.into()]).await? {
            let (month, low, high): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            for parent in ["notification", "delivery_ledger", "logged_attempt"] {
                let sql = format!(
                    "CREATE TABLE IF NOT EXISTS postcommit.{parent}_{month} PARTITION OF postcommit.{parent}
                     FOR VALUES FROM ('{low}') TO ('{high}')"
                );
                tables.push((sql, vec![]));
            }
        }
        self.db.execute(tables).await.map(drop)
    }

    /// Writes parts of a history, and their roll-up counts, in one transaction. Call [`Store::fold_rollups_once`] from
    /// time to time and at the end.
    pub async fn write_history(&self, history: &History, parts: &[HistoryPart]) -> Result<(), DbError> {
        let is_postgres = self.db.kind() == "postgres";
        let statements = parts.iter().flat_map(|part| history.statements(*part, is_postgres)).collect();
        self.db.execute(statements).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_have_all_rows_and_follow_each_other() {
        let until = Timestamp::from_micros(1_800_000_000_000_000);
        for rows in [0, 1, 671, 20_000, 3_000_001] {
            let history = History { rows, until, seed: 1, kinds: vec![], sites: vec![] };
            let parts = history.parts();
            let (mut from, mut at) = (0, i64::MIN);
            for part in &parts {
                assert!(part.from == from && part.begins >= at && (1..=PART_ROWS).contains(&part.rows), "{part:?}");
                from += part.rows;
                at = part.begins + part.step * i64::try_from(part.rows).unwrap();
            }
            assert_eq!((from, at <= until.as_micros()), (rows, true));
        }
    }
}
