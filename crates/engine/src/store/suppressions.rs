//! Suppressions: addresses to which nothing is sent on a channel, until the suppression is removed or its time is over.

use postcommit::{Recipient, Timestamp};
use postcommit_channel::model::{ANY, DeliveryId, address, comparable, kind_of_channel};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::db::{DbError, Row, Statement, Value};
use crate::store::deliveries::masked;
use crate::store::edit::{EditError, field, text};
use crate::store::preferences::channel_or_any;
use crate::store::unreadable::{Reader, legible};
use crate::store::{AuditEntry, Store};

/// The maximum length of a suppression's reason in characters. The minimum is 1.
const REASON_CHARS: usize = 255;

/// A suppression to be created. It replaces an earlier suppression of the same channel and address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SuppressionDraft {
    /// The channel. `*` means every channel.
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 63, pattern = r"^(\*|[A-Za-z0-9_.-]+)$", example = "email")
    )]
    pub channel: String,
    /// The address, in the form that the channel needs. Case makes no difference in a mail address.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 2048, example = "guest@example.com"))]
    pub address: String,
    /// The reason why nothing is sent to the address, e.g. `hard bounce`.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255, example = "hard bounce"))]
    pub reason: String,
    /// When the suppression ends. `null` means never.
    #[serde(default)]
    pub until: Option<Timestamp>,
}

impl SuppressionDraft {
    /// Checks every field. `now` is the current time.
    ///
    /// # Errors
    /// Names the field, the problem and the allowed values.
    pub fn check(&self, now: Timestamp) -> Result<(), EditError> {
        check_address(&self.channel, &self.address)?;
        text("reason", Some(&self.reason), REASON_CHARS)?;
        match self.until {
            Some(at) if at <= now => Err(EditError::Refused(format!("until: is {at}; it must be later than now"))),
            _ => Ok(()),
        }
    }
}

/// Checks the address by the rules of its channel. For an unknown channel only the general rules for addresses apply.
fn check_address(channel: &str, to: &str) -> Result<(), EditError> {
    field("channel", channel_or_any(channel))?;
    let recipient = kind_of_channel(channel).and_then(|kind| address(kind, to));
    // Checking the address as a list's name applies only the rules that all addresses share.
    field("address", recipient.unwrap_or_else(|| Recipient::list(to)).check())?;
    let control = to.chars().find(|c| c.is_control());
    field("address", control.map_or(Ok(()), |c| Err(format!("holds {c:?}; control characters are not allowed"))))
}

/// A suppression: nothing is sent to an address on a channel.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SuppressionRow {
    /// The tenant that owns the suppression.
    pub tenant: String,
    /// The number of the tenant.
    #[serde(skip)]
    pub tenant_id: i32,
    /// The channel. `*` means every channel.
    pub channel: String,
    /// The suppressed address.
    pub address: String,
    /// The reason why nothing is sent to the address.
    pub reason: String,
    /// When the suppression was created.
    pub created_at: Timestamp,
    /// The actor that created the suppression.
    pub created_by: String,
    /// When the suppression ends. `null` means never.
    pub until: Option<Timestamp>,
    /// Whether the suppression is in force.
    pub active: bool,
}

/// The filter for a list of suppressions, ordered by tenant, channel and address.
#[derive(Debug, Clone, Default)]
pub struct SuppressionFilter {
    /// Only suppressions of this tenant. `None` means all tenants.
    pub tenant: Option<i32>,
    /// Only suppressions of this channel, and suppressions of all channels (`*`).
    pub channel: Option<String>,
    /// Only suppressions of this address.
    pub address: Option<String>,
    /// The tenant's number, the channel and the address of the last suppression on the previous page.
    pub after: Option<(i32, String, String)>,
    /// The maximum number of suppressions to return.
    pub limit: i64,
}

const SELECT: &str = "SELECT s.tenant, t.name, s.channel, s.address, s.reason, s.created_at, s.created_by, s.until,
      s.until IS NULL OR s.until > {now}
    FROM postcommit.suppression s
    JOIN postcommit.tenant t ON t.id = s.tenant";

const WRITE: &str =
    "INSERT INTO postcommit.suppression (tenant, channel, address, reason, created_at, created_by, until)
    VALUES ($1, $2, $3, $4, {now}, $5, $6)
    ON CONFLICT (tenant, channel, address) DO UPDATE
    SET reason = excluded.reason, created_at = excluded.created_at, created_by = excluded.created_by,
      until = excluded.until";

impl Store {
    /// Returns the statements that suppress an address without an end, with the entry in the audit log. A suppression
    /// that never ends keeps its reason. `delivery` shows that the address is dead. Run them in the transaction of the change that causes the suppression.
    pub(in crate::store) fn suppress_from_now(
        &self,
        (tenant, delivery): (i32, DeliveryId),
        channel: &str,
        to: &str,
        reason: &str,
    ) -> Vec<Statement> {
        let sql = format!("{WRITE} WHERE postcommit.suppression.until IS NOT NULL");
        let actor = self.actor.name.as_str();
        let parameters = vec![tenant.into(), channel.into(), to.into(), reason.into(), actor.into(), Value::Null];
        let entry = AuditEntry::new(tenant, "suppression.create", subject(channel, to));
        let details = json!({"reason": reason, "delivery": delivery.to_string()});
        vec![(sql, parameters), self.audit(entry.details(details))]
    }

    /// Suppresses an address on a channel. An earlier suppression of that address on that channel is replaced. Returns
    /// whether the suppression is new.
    pub async fn suppress(&self, tenant: i32, draft: &SuppressionDraft) -> Result<(SuppressionRow, bool), EditError> {
        draft.check(self.now().await?)?;
        let (channel, to) = (draft.channel.as_str(), comparable(&draft.address));
        let known = self.suppression(tenant, channel, &to).await?;
        let parameters = vec![
            tenant.into(),
            channel.into(),
            to.as_ref().into(),
            draft.reason.as_str().into(),
            self.actor.name.as_str().into(),
            draft.until.into(),
        ];
        let details = json!({"reason": draft.reason, "until": draft.until});
        let entry = AuditEntry::new(tenant, "suppression.create", subject(channel, &to)).details(details);
        self.change(WRITE, parameters, entry).await?;
        let row = self.suppression(tenant, channel, &to).await?;
        let gone =
            || EditError::Conflict("the suppression was removed while it was being created; create it again".into());
        Ok((row.ok_or_else(gone)?, known.is_none()))
    }

    /// Removes a suppression. Returns whether the suppression existed.
    pub async fn remove_suppression(&self, tenant: i32, channel: &str, to: &str) -> Result<bool, EditError> {
        field("channel", channel_or_any(channel))?;
        field("address", Recipient::list(to).check())?;
        let to = comparable(to);
        let sql = "DELETE FROM postcommit.suppression WHERE tenant = $1 AND channel = $2 AND address = $3";
        let entry = AuditEntry::new(tenant, "suppression.delete", subject(channel, &to));
        Ok(self.change(sql, vec![tenant.into(), channel.into(), to.as_ref().into()], entry).await?)
    }

    /// Reads the suppression of a channel and an address.
    pub async fn suppression(&self, tenant: i32, channel: &str, to: &str) -> Result<Option<SuppressionRow>, DbError> {
        if channel.contains('\0') || to.contains('\0') {
            return Ok(None);
        }
        let to = comparable(to);
        let sql = format!("{SELECT} WHERE s.tenant = $1 AND s.channel = $2 AND s.address = $3");
        let parameters = vec![tenant.into(), channel.into(), to.as_ref().into()];
        self.db.query(&sql, parameters).await?.first().map(listed).transpose()
    }

    /// Reads one page of suppressions, ordered by tenant, channel and address.
    pub async fn suppression_rows(&self, filter: &SuppressionFilter) -> Result<Vec<SuppressionRow>, DbError> {
        let mut sql = format!("{SELECT} WHERE 1 = 1");
        let mut parameters: Vec<Value> = vec![filter.limit.into()];
        let mut wanted = |condition: &str, value: Value| {
            parameters.push(value);
            sql.push_str(&condition.replace("{}", &format!("${}", parameters.len())));
        };
        if let Some(tenant) = filter.tenant {
            wanted(" AND s.tenant = {}", tenant.into());
        }
        if let Some(channel) = &filter.channel {
            wanted(&format!(" AND s.channel IN ({{}}, '{ANY}')"), channel.as_str().into());
        }
        if let Some(to) = &filter.address {
            wanted(" AND s.address = {}", comparable(to).as_ref().into());
        }
        if let Some((tenant, channel, to)) = &filter.after {
            parameters.extend([Value::from(*tenant), channel.as_str().into(), to.as_str().into()]);
            let last = parameters.len();
            let after = format!(" AND (s.tenant, s.channel, s.address) > (${}, ${}, ${last})", last - 2, last - 1);
            sql.push_str(&after);
        }
        sql.push_str(" ORDER BY s.tenant, s.channel, s.address LIMIT $1");
        Ok(legible("suppressions", self.db.query(&sql, parameters).await?.iter().map(listed)))
    }
}

/// Returns the subject of audit entries. The address is masked, because the audit log is kept for a long time.
fn subject(channel: &str, to: &str) -> String {
    format!("{channel} {}", masked(to))
}

fn listed(row: &Row) -> Result<SuppressionRow, DbError> {
    let (mut read, never) = (Reader::of(row), Timestamp::from_micros(0));
    let mut listed = SuppressionRow {
        tenant_id: row.get(0)?,
        tenant: row.get(1)?,
        channel: row.get(2)?,
        address: row.get(3)?,
        reason: row.get(4)?,
        created_at: read.or(5, "created_at", never),
        created_by: row.get(6)?,
        until: read.or(7, "until", None),
        active: row.get(8)?,
    };
    listed.reason = read.problem().unwrap_or(listed.reason);
    Ok(listed)
}
