//! Throttles and digests. Both are updated in the transaction that writes the targets, under the leases of their
//! notifications, so that a repeated expansion counts once and an event is in one digest or in none.
//!
//! A digest is a notification of its own, and it is open while its own row (n = 0) is in the queue. An expansion, an
//! expiry or an operator that removes this row closes the digest, and the next event opens a new one. So there is no
//! state that could disagree with the queue (docs/decisions/0034).
//!
//! Locks are taken in one order: the notifications' own rows, throttles, digests, the digests' own rows, send keys. A
//! locked row of a digest is skipped without waiting.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt;
use postcommit::Timestamp;
use postcommit_channel::model::{
    DIGEST_KEY, DIGESTED, DeliveryKey, Digesting, Fate, FinishedState, OpenDigest, Pace, Pacing, Period, THROTTLED,
    Target,
};
use rusqlite::Connection;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::expand::{DUPLICATE, Expanded, SENT_ALREADY, Written};
use crate::crash_point;
use crate::db::{DbError, Row, Transaction, Value, postgres, sqlite};
use crate::store::intake::accept::{Accepted, enter_one_postgres, enter_one_sqlite};
use crate::store::{NotificationRequest, Store};

/// A transaction of either database.
trait Session {
    /// Runs a statement that is written once for both databases. `rows` is its only parameter, a JSON array.
    async fn query(&self, sql: &str, rows: Vec<Json>) -> Result<Vec<Row>, DbError>;
    /// Enqueues a notification.
    async fn enqueue(&self, request: &NotificationRequest) -> Result<Accepted, DbError>;
}

impl Session for Transaction<'_> {
    async fn query(&self, sql: &str, rows: Vec<Json>) -> Result<Vec<Row>, DbError> {
        postgres::query(self, sql, &[Value::from(json!(rows))]).await
    }

    async fn enqueue(&self, request: &NotificationRequest) -> Result<Accepted, DbError> {
        enter_one_postgres(self, request).await
    }
}

impl Session for &Connection {
    async fn query(&self, sql: &str, rows: Vec<Json>) -> Result<Vec<Row>, DbError> {
        sqlite::query(self, &sqlite::dialect(sql), &[Value::from(json!(rows))])
    }

    async fn enqueue(&self, request: &NotificationRequest) -> Result<Accepted, DbError> {
        enter_one_sqlite(request)?(self)
    }
}

/// Returns whether the batch has a target that a throttle counts or a digest collects.
pub(in crate::store) fn is_paced(batch: &[Expanded]) -> bool {
    batch.iter().flat_map(|one| &one.targets).any(|target| target.pacing.is_some())
}

/// Applies throttles and digests on PostgreSQL. Notifications whose lease is lost are removed from the batch.
pub(in crate::store) async fn pace_postgres(
    transaction: &Transaction<'_>,
    sql: &PacingSql,
    batch: &mut Vec<Expanded>,
) -> Result<Written, DbError> {
    pace(transaction, sql, batch).await
}

/// Applies throttles and digests on SQLite. Returns the batch without the notifications whose lease is lost.
pub(in crate::store) fn pace_sqlite(
    connection: &Connection,
    sql: &PacingSql,
    batch: &[Expanded],
) -> Result<(Vec<Expanded>, Written), DbError> {
    let mut batch = batch.to_vec();
    // The future is ready on its first poll, because SQLite calls block.
    let paced = pace(&connection, sql, &mut batch).now_or_never();
    let waited = || {
        Err(DbError::Unreadable(
            "internal error: a SQLite transaction did not finish in one poll; report it as a bug".into(),
        ))
    };
    Ok((batch, paced.unwrap_or_else(waited)?))
}

/// The statements for throttles and digests. The only parameter of each is a JSON array of rows.
pub(in crate::store) struct PacingSql {
    leased: String,
    begin_periods: String,
    periods: String,
    note_periods: String,
    begin_digests: String,
    digests: String,
    open_digests: String,
    pin: String,
    note_digests: String,
    add_items: String,
    hold_keys: String,
    release_keys: String,
    make_due: String,
}

type Hash = (i32, Uuid);
type Column = (&'static str, &'static str);

const HASH: Column = ("key_hash", "uuid");
const ID: Column = ("notification_id", "uuid");
const N: Column = ("n", "int");

/// Writes the parts of the statements in which the databases differ.
struct Dialect<'a>(&'a Store);

impl Dialect<'_> {
    fn is_postgres(&self) -> bool {
        self.0.db.kind() == "postgres"
    }

    /// Returns the SQL for the given rows, which have a tenant and these columns.
    fn given(&self, columns: &[Column]) -> String {
        self.0.rows_given(1, &[&[("tenant", "int")], columns].concat())
    }

    /// Returns the SQL that locks the rows of a table. Empty on SQLite, which has one writer.
    fn lock(&self, table: &str, how: &str) -> String {
        if self.is_postgres() { format!(" FOR UPDATE OF {table}{how}") } else { String::new() }
    }

    /// The condition that a row belongs to the given tenant.
    fn tenant(&self, table: &str) -> String {
        match self.is_postgres() {
            // The tenant is compared with an array, so that the planner uses the primary key (tests/it/planner.rs).
            true => format!("{table}.tenant = ANY (ARRAY[g.tenant])"),
            false => format!("{table}.tenant = g.tenant"),
        }
    }

    fn by_hash(&self, table: &str) -> String {
        format!("{} AND {table}.key_hash = g.key_hash", self.tenant(table))
    }

    /// The condition that row `q` of the queue is the own row of the given notification.
    fn own_row(&self) -> String {
        format!("{} AND q.notification_id = g.notification_id AND q.n = 0", self.tenant("q"))
    }

    /// Returns the SQL that reads rows by their hashes, in a fixed order, and locks them.
    fn read(&self, table: &str, alias: &str, columns: &str) -> String {
        let (given, by_hash, lock) = (self.given(&[HASH]), self.by_hash(alias), self.lock(alias, ""));
        format!(
            "SELECT {alias}.tenant, {alias}.key_hash, {columns} FROM {given} JOIN postcommit.{table} {alias} ON {by_hash}
             ORDER BY {alias}.tenant, {alias}.key_hash{lock}"
        )
    }

    fn update(&self, table: &str, set: &str, columns: &[Column], place: &str) -> String {
        format!("UPDATE postcommit.{table} SET {set} FROM {} WHERE {place}", self.given(columns))
    }
}

impl Store {
    pub(in crate::store) fn pacing_sql(&self) -> PacingSql {
        let own = Dialect(self);
        let (own_row, until) = (own.own_row(), self.time_given("g.until_us"));
        let queue = "postcommit.delivery_queue q";
        let pinned = [
            ID,
            ("channel", "text"),
            ("template", "text"),
            ("version", "int"),
            ("language", "text"),
            ("send_key", "text"),
        ];
        PacingSql {
            leased: format!(
                "SELECT q.tenant, q.notification_id, {{now}} FROM {} JOIN {queue} ON {own_row}
                 WHERE q.lease_token = g.token{}",
                own.given(&[ID, ("token", "uuid")]),
                own.lock("q", "")
            ),
            begin_periods: format!(
                "INSERT INTO postcommit.throttle (tenant, key_hash, until, sent)
                 SELECT g.tenant, g.key_hash, {}, 0 FROM {} WHERE 1 = 1 ORDER BY g.tenant, g.key_hash
                 ON CONFLICT DO NOTHING",
                // The period ended in 1970, so that the first message begins a new period.
                self.time_given("0"),
                own.given(&[HASH])
            ),
            periods: own.read("throttle", "t", "t.until, t.sent"),
            note_periods: own.update(
                "throttle AS t",
                &format!("until = {until}, sent = g.sent"),
                &[HASH, ("until_us", "bigint"), ("sent", "int")],
                &own.by_hash("t"),
            ),
            begin_digests: format!(
                "INSERT INTO postcommit.digest (tenant, key_hash, notification_id, items, bytes)
                 SELECT g.tenant, g.key_hash, g.notification_id, 0, 0 FROM {} WHERE 1 = 1
                 ORDER BY g.tenant, g.key_hash ON CONFLICT DO NOTHING",
                own.given(&[HASH, ID])
            ),
            digests: own.read("digest", "d", "d.notification_id, d.items, d.bytes"),
            open_digests: format!(
                "SELECT q.tenant, q.notification_id FROM {} JOIN {queue} ON {own_row}{}",
                own.given(&[ID]),
                own.lock("q", " SKIP LOCKED")
            ),
            pin: own.update("delivery_queue AS q", PIN, &pinned, &own_row),
            note_digests: own.update(
                "digest AS d",
                "notification_id = g.notification_id, items = g.items, bytes = g.bytes",
                &[HASH, ID, ("items", "int"), ("bytes", "bigint")],
                &own.by_hash("d"),
            ),
            add_items: format!(
                "INSERT INTO postcommit.digest_item (tenant, digest_id, notification_id, n)
                 SELECT g.tenant, g.digest_id, g.notification_id, g.n FROM {}",
                own.given(&[("digest_id", "uuid"), ID, N])
            ),
            hold_keys: format!(
                "INSERT INTO postcommit.send_key (tenant, key_hash, notification_id, n, created_at)
                 SELECT g.tenant, g.key_hash, g.notification_id, g.n, {{now}} FROM {} WHERE 1 = 1
                 ORDER BY g.tenant, g.key_hash, g.notification_id, g.n
                 ON CONFLICT DO NOTHING RETURNING tenant, notification_id, n",
                own.given(&[HASH, ID, N])
            ),
            release_keys: format!(
                "DELETE FROM postcommit.send_key AS k WHERE EXISTS (SELECT 1 FROM {} WHERE {})",
                own.given(&[HASH]),
                own.by_hash("k")
            ),
            make_due: own.update(
                "delivery_queue AS q",
                "due_at = {now}, first_due_at = {now}",
                &[ID],
                &format!("{own_row} AND q.lease_token IS NULL"),
            ),
        }
    }
}

/// Notes on a digest's own row that it is one, and by which template it is rendered, as `acts/resend.rs` does for a copy.
const PIN: &str = "channel = g.channel, template = g.template, template_version = g.version, language = g.language,
    send_key = g.send_key";

/// Decides about every target of a batch that has a throttle or digest. Writes the results, except the targets
/// themselves.
async fn pace<S: Session>(session: &S, sql: &PacingSql, batch: &mut Vec<Expanded>) -> Result<Written, DbError> {
    let Some(now) = keep_leased(session, sql, batch).await? else { return Ok(Written::default()) };
    let mut pacer = Pacer { session, sql, now, ..Pacer::begin(session, sql, batch).await? };
    let duplicates = pacer.hold_keys(batch).await?;
    for one in batch.iter_mut() {
        let key = one.lease.key;
        for (n, target) in (one.first..).zip(&mut one.targets) {
            let key = DeliveryKey { n, ..key };
            if is_live(target) {
                pacer.judge(key, target, duplicates.contains(&key)).await?;
            }
        }
    }
    crash_point!("expand.in_tx");
    pacer.finish().await
}

/// Returns whether a throttle or digest applies to the target and the target has not ended for another reason.
fn is_live(target: &Target) -> bool {
    target.pacing.is_some() && target.fate.ended().is_none()
}

fn live(batch: &[Expanded]) -> impl Iterator<Item = (DeliveryKey, &Target, &Pacing)> {
    batch.iter().flat_map(|one| {
        let keyed = (one.first..).zip(&one.targets).filter(|(_, target)| is_live(target));
        keyed.filter_map(|(n, target)| Some((DeliveryKey { n, ..one.lease.key }, target, target.pacing.as_deref()?)))
    })
}

/// Removes the notifications whose lease is lost, and locks the rows of the others. Returns the database's time, or `None`
/// if nothing is left.
async fn keep_leased<S: Session>(
    session: &S,
    sql: &PacingSql,
    batch: &mut Vec<Expanded>,
) -> Result<Option<Timestamp>, DbError> {
    let of = |one: &Expanded| {
        let (key, token) = (one.lease.key, one.lease.token);
        json!({"tenant": key.tenant, "notification_id": key.notification, "token": token})
    };
    let rows = session.query(&sql.leased, batch.iter().map(of).collect()).await?;
    let kept: BTreeSet<Hash> = rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, DbError>>()?;
    batch.retain(|one| kept.contains(&(one.lease.key.tenant, one.lease.key.notification)));
    rows.first().map(|row| row.get(2)).transpose()
}

/// The throttles and digests of one transaction, and their changes.
struct Pacer<'a, S> {
    session: &'a S,
    sql: &'a PacingSql,
    now: Timestamp,
    periods: BTreeMap<Hash, Period>,
    /// The newest digest of each key. `None` if it is closed.
    digests: BTreeMap<Hash, Option<OpenDigest>>,
    items: Vec<Json>,
    released: Vec<Json>,
    full: Vec<Json>,
    written: Written,
}

impl<'a, S: Session> Pacer<'a, S> {
    /// Locks and reads the throttles and digests of a batch.
    async fn begin(session: &'a S, sql: &'a PacingSql, batch: &[Expanded]) -> Result<Self, DbError> {
        let (mut throttles, mut digests) = (BTreeSet::new(), BTreeSet::new());
        for (key, _, pacing) in live(batch) {
            throttles.extend(pacing.throttle.as_ref().map(|(hash, _)| (key.tenant, *hash)));
            digests.extend(pacing.digest.as_ref().map(|digest| (key.tenant, digest.key_hash)));
        }
        Ok(Self {
            session,
            sql,
            now: Timestamp::from_micros(0),
            periods: periods(session, sql, &throttles).await?,
            digests: open_digests(session, sql, &digests).await?,
            items: vec![],
            released: vec![],
            full: vec![],
            written: Written::default(),
        })
    }

    /// Writes the send keys of targets with a throttle or digest. Returns the targets whose key another delivery holds.
    async fn hold_keys(&self, batch: &[Expanded]) -> Result<BTreeSet<DeliveryKey>, DbError> {
        let mut asked: BTreeMap<DeliveryKey, Json> = BTreeMap::new();
        for (key, target, _) in live(batch) {
            if let Some(hash) = target.once {
                let DeliveryKey { tenant, notification, n } = key;
                asked.insert(key, json!({"tenant": tenant, "key_hash": hash, "notification_id": notification, "n": n}));
            }
        }
        if asked.is_empty() {
            return Ok(BTreeSet::new());
        }
        let rows = self.session.query(&self.sql.hold_keys, asked.values().cloned().collect()).await?;
        for row in &rows {
            asked.remove(&DeliveryKey { tenant: row.get(0)?, notification: row.get(1)?, n: row.get(2)? });
        }
        Ok(asked.into_keys().collect())
    }

    /// Decides whether one target is sent, skipped or collected.
    async fn judge(&mut self, key: DeliveryKey, target: &mut Target, is_duplicate: bool) -> Result<(), DbError> {
        // The send key was written before this step, or another delivery has it.
        let once = target.once.take();
        let Some(pacing) = target.pacing.take() else { return Ok(()) };
        if is_duplicate {
            target.fate = skipped(DUPLICATE, SENT_ALREADY.to_owned());
            self.written.duplicates.push(key);
            return Ok(());
        }
        let period = pacing.throttle.as_ref().and_then(|(hash, _)| self.periods.get_mut(&(key.tenant, *hash)));
        match (pacing.decide(period, self.now), &pacing.digest) {
            (Pace::Collect, Some(digesting)) => {
                let digest = self.collect(key, target, digesting).await?;
                target.fate = skipped(DIGESTED, format!("the event is an item of the digest {digest}"));
                self.written.ended.push((key, DIGESTED));
            }
            (Pace::Skip, _) => {
                let detail = pacing.throttle.as_ref().map(|(_, throttle)| {
                    format!("the recipient had {} messages of the template within {} s", throttle.max, throttle.per_s)
                });
                target.fate = skipped(THROTTLED, detail.unwrap_or_default());
                self.written.ended.push((key, THROTTLED));
                // A throttled target is not sent, so its send key is released.
                self.released.extend(once.map(|hash| json!({"tenant": key.tenant, "key_hash": hash})));
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts an event into its digest, and opens one if there is none. Returns the digest's id.
    async fn collect(&mut self, key: DeliveryKey, target: &Target, digesting: &Digesting) -> Result<Uuid, DbError> {
        let place = (key.tenant, digesting.key_hash);
        let open = self.digests.get(&place).copied().flatten().filter(|open| open.has_room_for(digesting.bytes));
        let mut digest = match open {
            Some(open) => open,
            None => {
                // A digest without space for this event is sent without further waiting.
                let former = self.digests.get(&place).copied().flatten();
                self.full.extend(former.map(|former| json!({"tenant": key.tenant, "notification_id": former.id})));
                OpenDigest { id: self.open(key, target, digesting).await?, items: 0, bytes: 0 }
            }
        };
        digest.add(digesting.bytes);
        if digest.is_full() {
            self.full.push(json!({"tenant": key.tenant, "notification_id": digest.id}));
        }
        self.digests.insert(place, Some(digest));
        self.items.push(json!({"tenant": key.tenant, "digest_id": digest.id, "notification_id": key.notification,
            "n": key.n}));
        Ok(digest.id)
    }

    /// Opens a digest: enqueues its notification, due at the end of the window, and writes the template with which it
    /// is rendered.
    async fn open(&self, key: DeliveryKey, target: &Target, digesting: &Digesting) -> Result<Uuid, DbError> {
        let facts = &target.facts;
        let own_key = format!("{DIGEST_KEY}:{}", Uuid::new_v4());
        let said = json!({
            "event_type": digesting.event_type,
            "idempotency_key": own_key,
            "recipients": [digesting.recipient],
            "channels": [facts.channel()],
            "priority": digesting.priority,
            "due_at": self.now.plus(digesting.window),
            "source": {"rule": format!("digest of template {}", facts.template.as_deref().unwrap_or_default())},
        });
        let request = NotificationRequest::read(&said.to_string(), &digesting.tenant_name)
            .map_err(|problem| DbError::Unreadable(format!("a digest cannot be enqueued: {problem}")))?;
        let Accepted { id, duplicate, .. } = self.session.enqueue(&request).await?;
        if duplicate {
            // Nothing is written, and the expansion is repeated.
            return Err(DbError::Unreadable(format!(
                "the key {own_key:?} of a new digest is held by notification {id}"
            )));
        }
        let pin = json!({"tenant": key.tenant, "notification_id": id, "channel": facts.channel(),
            "template": facts.template, "version": facts.template_version, "language": facts.language,
            "send_key": own_key});
        self.session.query(&self.sql.pin, vec![pin]).await?;
        Ok(id)
    }

    /// Writes the counts, the digests and their items.
    async fn finish(self) -> Result<Written, DbError> {
        let period = |((tenant, hash), period): (&Hash, &Period)| json!({"tenant": tenant, "key_hash": hash, "until_us": period.until.as_micros(), "sent": period.sent});
        let digest = |((tenant, hash), digest): (&Hash, &Option<OpenDigest>)| {
            let OpenDigest { id, items, bytes } = (*digest)?;
            Some(json!({"tenant": tenant, "key_hash": hash, "notification_id": id, "items": items, "bytes": bytes}))
        };
        let writes = [
            (&self.sql.note_periods, self.periods.iter().map(period).collect()),
            (&self.sql.note_digests, self.digests.iter().filter_map(digest).collect()),
            (&self.sql.add_items, self.items),
            (&self.sql.release_keys, self.released),
            (&self.sql.make_due, self.full),
        ];
        for (sql, rows) in writes {
            if !Vec::is_empty(&rows) {
                self.session.query(sql, rows).await?;
            }
        }
        Ok(self.written)
    }
}

/// Locks and reads the periods of throttles. A missing period begins now.
async fn periods<S: Session>(
    session: &S,
    sql: &PacingSql,
    wanted: &BTreeSet<Hash>,
) -> Result<BTreeMap<Hash, Period>, DbError> {
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    session.query(&sql.begin_periods, hashes(wanted)).await?;
    let rows = session.query(&sql.periods, hashes(wanted)).await?;
    rows.iter()
        .map(|row| Ok(((row.get(0)?, row.get(1)?), Period { until: row.get(2)?, sent: row.get::<u32>(3)? })))
        .collect()
}

/// Locks and reads the newest digests of their keys, and finds out which of them are open.
async fn open_digests<S: Session>(
    session: &S,
    sql: &PacingSql,
    wanted: &BTreeSet<Hash>,
) -> Result<BTreeMap<Hash, Option<OpenDigest>>, DbError> {
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    session.query(&sql.begin_digests, hashes(wanted)).await?;
    let rows = session.query(&sql.digests, hashes(wanted)).await?;
    let read = |row: &Row| -> Result<(Hash, OpenDigest), DbError> {
        let bytes = u64::try_from(row.get::<i64>(4)?).unwrap_or_default();
        Ok(((row.get(0)?, row.get(1)?), OpenDigest { id: row.get(2)?, items: row.get(3)?, bytes }))
    };
    let newest: BTreeMap<Hash, OpenDigest> = rows.iter().map(read).collect::<Result<_, _>>()?;
    let ids = newest.iter().map(|((tenant, _), digest)| json!({"tenant": tenant, "notification_id": digest.id}));
    let rows = session.query(&sql.open_digests, ids.collect()).await?;
    let open: BTreeSet<Hash> = rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, DbError>>()?;
    let found = newest.into_iter().map(|(key, digest)| (key, Some(digest).filter(|it| open.contains(&(key.0, it.id)))));
    Ok(found.collect())
}

fn hashes(wanted: &BTreeSet<Hash>) -> Vec<Json> {
    let row = |(tenant, hash): &Hash| json!({"tenant": tenant, "key_hash": hash, "notification_id": Uuid::nil()});
    wanted.iter().map(row).collect()
}

fn skipped(code: &'static str, detail: String) -> Fate {
    Fate::Ended { state: FinishedState::Skipped, code, detail }
}
