//! Throttles and digests. Both are updated in the transaction that writes the targets, under the leases of their
//! notifications, so that a repeated expansion counts once and an event is in one digest or in none.
//!
//! A digest is a notification of its own, and it is open while its own row (n = 0) is in the queue. Whatever removes
//! this row closes the digest: its expansion, its expiry or an operator. The next event then opens a new digest. So
//! there is no state that could disagree with the queue (docs/decisions/0034).
//!
//! Locks are taken in one order: the notifications' own rows, throttles, digests, the digests' own rows, send keys. A
//! locked row of a digest is skipped without waiting.

mod sql;

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt;
use postcommit::Timestamp;
use postcommit_channel::model::{
    DIGEST_KEY, DIGESTED, DeliveryId, DeliveryKey, Digesting, Fate, FinishedState, OpenDigest, Pace, Pacing, Period,
    THROTTLED, Target,
};
use rusqlite::Connection;
use serde_json::{Value as Json, json};
use uuid::Uuid;

pub(in crate::store) use sql::{Dialect, PacingSql};

use super::expand::{DUPLICATE, Expanded, Written, sent_already};
use crate::crash_point;
use crate::db::{DbError, Row, Transaction, Value, postgres, sqlite};
use crate::store::NotificationRequest;
use crate::store::intake::accept::{Accepted, enter_one_postgres, enter_one_sqlite};

/// A transaction of either database.
pub(in crate::store) trait Session {
    /// Runs a statement that is written for both databases. Its only parameter is a JSON array of `rows`.
    async fn query(&self, sql: &str, rows: Vec<Json>) -> Result<Vec<Row>, DbError>;
    /// Enqueues a notification in this transaction.
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
    let paced = on_sqlite(pace(&connection, sql, &mut batch))?;
    Ok((batch, paced))
}

/// Runs the work of a [`Session`] on SQLite. The future is always ready, because calls of SQLite are synchronous.
pub(in crate::store) fn on_sqlite<T>(work: impl Future<Output = Result<T, DbError>>) -> Result<T, DbError> {
    let waited = || Err(DbError::Unreadable("a SQLite transaction had to wait; report it as a bug".into()));
    work.now_or_never().unwrap_or_else(waited)
}

type Hash = (i32, Uuid);

/// Decides for every target of a batch with a throttle or digest whether it is sent, skipped or collected. Writes the
/// throttles and digests. The caller writes the targets.
async fn pace<S: Session>(session: &S, sql: &PacingSql, batch: &mut Vec<Expanded>) -> Result<Written, DbError> {
    let Some(now) = keep_leased(session, sql, batch).await? else { return Ok(Written::default()) };
    let mut pacer = Pacer { session, sql, now, ..Pacer::begin(session, sql, batch).await? };
    let holders = pacer.hold_keys(batch).await?;
    for one in batch.iter_mut() {
        let key = one.lease.key;
        for (n, target) in (one.first..).zip(&mut one.targets) {
            let key = DeliveryKey { n, ..key };
            if is_live(target) {
                pacer.judge(key, target, holders.get(&key).copied()).await?;
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

/// Removes the notifications whose lease is lost from the batch, and locks the rows of the others. Returns the
/// database's time, or `None` if the batch is empty now.
async fn keep_leased<S: Session>(
    session: &S,
    sql: &PacingSql,
    batch: &mut Vec<Expanded>,
) -> Result<Option<Timestamp>, DbError> {
    let of = |one: &Expanded| {
        let (key, token) = (one.lease.key, one.lease.token);
        json!({"tenant": key.tenant, "notification_id": key.notification, "n": key.n, "token": token})
    };
    let rows = session.query(&sql.leased, batch.iter().map(of).collect()).await?;
    let kept: BTreeSet<DeliveryKey> = rows.iter().map(key_in).collect::<Result<_, DbError>>()?;
    batch.retain(|one| kept.contains(&one.lease.key));
    rows.first().map(|row| row.get(3)).transpose()
}

fn key_in(row: &Row) -> Result<DeliveryKey, DbError> {
    Ok(DeliveryKey { tenant: row.get(0)?, notification: row.get(1)?, n: row.get(2)? })
}

/// The throttles and digests that one transaction has locked, and the changes to write.
struct Pacer<'a, S> {
    session: &'a S,
    sql: &'a PacingSql,
    now: Timestamp,
    periods: BTreeMap<Hash, Period>,
    /// The newest digest of each key. `None` if that digest is closed.
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

    /// Writes the send keys of targets with a throttle or digest. Returns the targets whose send key another delivery
    /// holds, each with that delivery.
    async fn hold_keys(&self, batch: &[Expanded]) -> Result<BTreeMap<DeliveryKey, DeliveryId>, DbError> {
        let (mut asked, mut first, mut hashes) = (vec![], vec![], BTreeSet::new());
        for (key, target, _) in live(batch) {
            let Some(hash) = target.once else { continue };
            let DeliveryKey { tenant, notification, n } = key;
            let row = json!({"tenant": tenant, "key_hash": hash, "notification_id": notification, "n": n});
            // Of several targets with the same send key, only the first asks for it, because a statement may not write
            // a row twice.
            first.extend(hashes.insert((tenant, hash)).then(|| row.clone()));
            asked.push(row);
        }
        let mut holders = BTreeMap::new();
        if asked.is_empty() {
            return Ok(holders);
        }
        self.session.query(&self.sql.hold_keys, first).await?;
        for row in &self.session.query(&self.sql.holders, asked).await? {
            let (key, holder) = (key_in(row)?, DeliveryId { notification: row.get(3)?, n: row.get(4)? });
            // A retried delivery may already hold its send key.
            if holder != key.id() {
                holders.insert(key, holder);
            }
        }
        Ok(holders)
    }

    /// Decides whether one target is sent, skipped or collected. `holder` is another delivery that holds its send key.
    async fn judge(
        &mut self,
        key: DeliveryKey,
        target: &mut Target,
        holder: Option<DeliveryId>,
    ) -> Result<(), DbError> {
        // The send key is already decided: this target has it, or another delivery holds it.
        let once = target.once.take();
        let Some(pacing) = target.pacing.take() else { return Ok(()) };
        if let Some(holder) = holder {
            target.fate = skipped(DUPLICATE, sent_already(holder));
            self.written.duplicates.push(key);
            return Ok(());
        }
        let mut period = pacing.throttle.as_ref().and_then(|(hash, _)| self.periods.get_mut(&(key.tenant, *hash)));
        let counted = Period::counted_until(target.facts.context.as_deref());
        let pace = pacing.decide(period.as_deref_mut(), self.now, counted);
        if let (Pace::Send, Some(period)) = (pace, period) {
            period.note_in(&mut target.facts.context);
        }
        match (pace, &pacing.digest) {
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

    /// Puts an event into its digest, and opens a digest if none is open. Returns the digest's id.
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
        let request = NotificationRequest::read(&said.to_string(), &digesting.tenant_name).map_err(|problem| {
            DbError::Unreadable(format!("a digest cannot be enqueued: {problem}; report it as a bug"))
        })?;
        let Accepted { id, duplicate, .. } = self.session.enqueue(&request).await?;
        if duplicate {
            // The error rolls the transaction back, and the expansion is repeated with a new key.
            return Err(DbError::Unreadable(format!(
                "the new digest's key {own_key:?} already belongs to notification {id}"
            )));
        }
        let pin = json!({"tenant": key.tenant, "notification_id": id, "channel": facts.channel(),
            "template": facts.template, "version": facts.template_version, "language": facts.language,
            "send_key": own_key});
        self.session.query(&self.sql.pin, vec![pin]).await?;
        Ok(id)
    }

    /// Writes the periods of throttles, the digests and their items, releases send keys, and makes full digests due.
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

/// Locks and reads the newest digest of each key, and finds out which digests are open.
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
