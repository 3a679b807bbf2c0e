//! Receipts: providers' reports about messages that they accepted earlier. A receipt is recorded in one commit, with
//! the fate `waiting`. Another transaction applies it: immediately if its delivery is ready for it, otherwise a duty
//! does so later.

mod apply;

use postcommit::Timestamp;
use postcommit_channel::model::{ErrorClass, Happened, Provider, Reported};
use serde::Serialize;
use uuid::Uuid;

use crate::db::{DbError, Row, Value};
use crate::store::Store;
use crate::store::unreadable::{Reader, legible};

/// How many receipts of one callback are applied before the callback is answered. The duty applies the other receipts
/// later, so that a provider never waits long for the answer.
const APPLIED_IMMEDIATELY: usize = 100;
/// How many waiting receipts the duty examines in one run. [`OF_ONE_TENANT`] limits how many of them belong to one
/// tenant.
const LOOKED_AT: i64 = 500;
const OF_ONE_TENANT: i64 = 100;

/// The state of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The delivery is not ready for the receipt yet.
    Waiting,
    /// The receipt changed the state of its delivery, or suppressed the address.
    Applied,
    /// The receipt changed nothing.
    Ignored,
}

impl Fate {
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Applied, Self::Ignored];

    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Applied => "applied",
            Self::Ignored => "ignored",
        }
    }
}

/// The result of recording the receipts of a callback.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Received {
    /// How many receipts were not known before.
    pub new: usize,
    /// The events and fates of the receipts that were tried immediately.
    pub fates: Vec<(Happened, Fate)>,
}

/// A receipt as a delivery shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReceiptRow {
    /// The name of the provider. `null` if it was deleted.
    pub provider: Option<String>,
    /// The provider's id of the event, or a hash of its content.
    pub event_id: String,
    /// What happened: `sent`, `delivered`, `failed`, `bounced` or `complained`.
    pub happened: String,
    /// When the reported event happened, by the provider's clock.
    pub happened_at: Option<Timestamp>,
    /// When the callback arrived.
    pub received_at: Timestamp,
    /// The provider's id of the message.
    pub provider_ref: Option<String>,
    /// The provider's code of the error.
    pub code: Option<String>,
    /// The provider's text, redacted.
    pub detail: Option<String>,
    /// The state of the receipt: `waiting`, `applied` or `ignored`.
    pub fate: String,
    /// Why the state of the delivery was not changed.
    pub reason: Option<String>,
    /// When the receipt was applied or ignored.
    pub applied_at: Option<Timestamp>,
}

/// A recorded receipt that is not applied yet.
#[derive(Debug, Clone)]
struct Waiting {
    tenant: i32,
    id: i64,
    /// The provider's id, which is its lane.
    lane: i32,
    provider: Option<String>,
    delivery: Option<(Uuid, i32)>,
    provider_ref: Option<String>,
    happened: Happened,
    code: Option<String>,
    class: Option<ErrorClass>,
    detail: Option<String>,
    received_at: Timestamp,
    looks: i64,
}

const WAITING: &str =
    "SELECT r.tenant, r.id, r.provider, p.name, r.notification_id, r.n, r.provider_ref, r.happened, r.code,
      r.error_class, r.detail, r.received_at, r.looks
    FROM postcommit.receipt r
    LEFT JOIN postcommit.provider p ON p.tenant = r.tenant AND p.id = r.provider
    WHERE r.fate = 'waiting'";

impl Store {
    /// Records the receipts of a callback, then applies the receipts whose deliveries are ready. A receipt that was
    /// recorded before changes nothing.
    ///
    /// # Errors
    /// On an error nothing was recorded, so the provider must repeat its callback. A receipt that was recorded but
    /// could not be applied is no error, because the duty applies it later.
    pub async fn receive(&self, provider: &Provider, reported: &[Reported]) -> Result<Received, DbError> {
        let new = self.record(provider, reported).await?;
        if new.is_empty() {
            return Ok(Received::default());
        }
        let among = match self.db.kind() {
            "postgres" => "r.event_id = ANY ($3)",
            _ => "r.event_id IN (SELECT value FROM json_each($3))",
        };
        let sql = format!("{WAITING} AND r.tenant = $1 AND r.provider = $2 AND {among} ORDER BY r.id");
        let ids = new.iter().take(APPLIED_IMMEDIATELY).cloned().collect();
        let parameters = vec![provider.tenant.into(), provider.id.into(), Value::Texts(ids)];
        let fates = match self.db.query(&sql, parameters).await {
            Ok(rows) => self.apply_all(&rows).await,
            Err(problem) => {
                tracing::warn!(%problem, "receipts were recorded, but could not be read again; they are applied later");
                vec![]
            }
        };
        Ok(Received { new: new.len(), fates })
    }

    /// Writes the receipts that are not known yet. Returns the event ids of these receipts.
    async fn record(&self, provider: &Provider, reported: &[Reported]) -> Result<Vec<String>, DbError> {
        let sql = "INSERT INTO postcommit.receipt (tenant, provider, event_id, notification_id, n, provider_ref,
              happened, happened_at, received_at, code, error_class, detail, look_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, {now}, $9, $10, $11, {now})
            ON CONFLICT DO NOTHING";
        let statement = |one: &Reported| {
            let parameters = vec![
                provider.tenant.into(),
                provider.id.into(),
                one.event_id.as_str().into(),
                one.delivery.map(|delivery| delivery.notification).into(),
                one.delivery.map(|delivery| delivery.n).into(),
                one.provider_ref.as_deref().into(),
                one.happened.name().into(),
                one.at.into(),
                one.code.as_deref().into(),
                one.class.or(one.happened.class()).map(ErrorClass::name).into(),
                one.detail.as_deref().into(),
            ];
            (sql.to_owned(), parameters)
        };
        if reported.is_empty() {
            return Ok(vec![]);
        }
        // The receipts are sorted by event, so that two callbacks with the same events do not deadlock.
        let mut reported: Vec<&Reported> = reported.iter().collect();
        reported.sort_by(|one, other| one.event_id.cmp(&other.event_id));
        let written = self.db.execute(reported.iter().copied().map(statement).collect()).await?;
        let new = reported.iter().zip(written).filter(|(_, rows)| *rows > 0);
        Ok(new.map(|(one, _)| one.event_id.clone()).collect())
    }

    /// Returns whether a receipt waits for its delivery.
    pub async fn any_receipt_waits(&self) -> Result<bool, DbError> {
        let sql = "SELECT 1 FROM postcommit.receipt WHERE fate = 'waiting' LIMIT 1";
        Ok(!self.db.query(sql, vec![]).await?.is_empty())
    }

    /// Applies waiting receipts whose next try is due. Returns the event and the fate of each, or `None` if no receipt
    /// waits.
    pub async fn apply_receipts_once(&self) -> Result<Option<Vec<(Happened, Fate)>>, DbError> {
        if !self.any_receipt_waits().await? {
            return Ok(None);
        }
        // Every tenant has a share of the run, so that many receipts of one tenant without a delivery do not delay
        // other tenants.
        let sql = format!(
            "WITH due AS (
               SELECT tenant, id, look_at, row_number() OVER (PARTITION BY tenant ORDER BY look_at) AS place
               FROM postcommit.receipt WHERE fate = 'waiting' AND look_at <= {{now}})
             {WAITING} AND (r.tenant, r.id) IN (
               SELECT tenant, id FROM due WHERE place <= $2 ORDER BY place, look_at LIMIT $1)"
        );
        let mut rows = self.db.query(&sql, vec![LOOKED_AT.into(), OF_ONE_TENANT.into()]).await?;
        // The rows are sorted by id, so that the receipts of a delivery are applied in the order of their arrival.
        rows.sort_by_key(|row| row.get::<i64>(1).unwrap_or(i64::MAX));
        Ok(Some(self.apply_all(&rows).await))
    }

    async fn apply_all(&self, rows: &[Row]) -> Vec<(Happened, Fate)> {
        let mut fates = Vec::with_capacity(rows.len());
        for receipt in legible("receipts", rows.iter().map(waiting)) {
            match self.apply_receipt(&receipt).await {
                Ok(fate) => fates.push((receipt.happened, fate)),
                Err(problem) => {
                    tracing::warn!(%problem, receipt = receipt.id, "a receipt could not be applied; it is tried again later");
                    if let Err(problem) = self.look_later(&receipt).await {
                        tracing::debug!(
                            %problem, receipt = receipt.id,
                            "could not postpone a receipt; the next run tries to apply it again"
                        );
                    }
                    fates.push((receipt.happened, Fate::Waiting));
                }
            }
        }
        fates
    }

    /// Reads the receipts of a delivery, oldest first, at most 1,000.
    pub async fn receipts(&self, tenant: i32, notification: Uuid, n: i32) -> Result<Vec<ReceiptRow>, DbError> {
        let sql =
            "SELECT p.name, r.event_id, r.happened, r.happened_at, r.received_at, r.provider_ref, r.code, r.detail,
              r.fate, r.reason, r.applied_at
            FROM postcommit.receipt r
            LEFT JOIN postcommit.provider p ON p.tenant = r.tenant AND p.id = r.provider
            WHERE r.tenant = $1 AND r.notification_id = $2 AND r.n = $3
            ORDER BY r.id LIMIT 1000";
        let rows = self.db.query(sql, vec![tenant.into(), notification.into(), n.into()]).await?;
        Ok(legible("receipts", rows.iter().map(listed)))
    }
}

fn waiting(row: &Row) -> Result<Waiting, DbError> {
    let unknown = || DbError::Unreadable("the column happened names no known event".to_owned());
    let (notification, n): (Option<Uuid>, Option<i32>) = (row.get(4)?, row.get(5)?);
    let class: Option<String> = row.get(9)?;
    Ok(Waiting {
        tenant: row.get(0)?,
        id: row.get(1)?,
        lane: row.get(2)?,
        provider: row.get(3)?,
        delivery: notification.zip(n),
        provider_ref: row.get(6)?,
        happened: Happened::from_name(&row.get::<String>(7)?).ok_or_else(unknown)?,
        code: row.get(8)?,
        class: class.and_then(|class| ErrorClass::ALL.into_iter().find(|known| known.name() == class)),
        detail: row.get(10)?,
        received_at: row.get(11)?,
        looks: row.get(12)?,
    })
}

fn listed(row: &Row) -> Result<ReceiptRow, DbError> {
    let mut read = Reader::of(row);
    let mut listed = ReceiptRow {
        provider: row.get(0)?,
        event_id: row.get(1)?,
        happened: row.get(2)?,
        happened_at: read.or(3, "happened_at", None),
        received_at: read.or(4, "received_at", Timestamp::from_micros(0)),
        provider_ref: row.get(5)?,
        code: row.get(6)?,
        detail: row.get(7)?,
        fate: row.get(8)?,
        reason: row.get(9)?,
        applied_at: read.or(10, "applied_at", None),
    };
    listed.detail = read.problem().or(listed.detail);
    Ok(listed)
}
