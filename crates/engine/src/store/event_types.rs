//! Declared event types: a sample payload, the placeholders that templates may use, and whether users can opt out.
//! Declaring an event type is optional.

use std::collections::{BTreeSet, HashSet};

use postcommit::{Recipient, Timestamp, check, limits};
use postcommit_channel::model::QuietRule;
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::db::{DbError, Row, Value};
use crate::store::edit::{EditError, Subject, TRIES, field, text};
use crate::store::unreadable::{Reader, legible};
use crate::store::{AuditEntry, Store};

/// How many placeholders an event type may have.
pub const PLACEHOLDERS: usize = 500;
/// The maximum length of a description in characters. The minimum is 1.
pub const DESCRIPTION_CHARS: usize = 1000;

/// The declaration of an event type.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventTypeDraft {
    /// The purpose of the event type.
    pub description: Option<String>,
    /// A payload as the application sends it, for previews: at most 262,144 bytes of JSON.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub sample: Option<Json>,
    /// The names that templates of this event type may use.
    pub placeholders: Vec<String>,
    /// Whether users cannot opt out of the event type. Suppressed addresses stay suppressed.
    pub mandatory: bool,
    /// The treatment of messages that fall into the quiet hours of a user: `delay`, `skip` or `ignore`.
    pub quiet_hours: QuietRule,
}

/// The fields to set. Other fields keep their values. `Some(None)` removes a value.
#[derive(Debug, Clone, Default)]
pub struct EventTypeChange {
    pub description: Option<Option<String>>,
    pub sample: Option<Option<Json>>,
    pub placeholders: Option<Vec<String>>,
    pub mandatory: Option<bool>,
    pub quiet_hours: Option<QuietRule>,
}

/// A declared event type.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventTypeRow {
    /// The tenant that owns the event type.
    pub tenant: String,
    /// The number of the tenant.
    #[serde(skip)]
    pub tenant_id: i32,
    /// The event type, as in notifications.
    pub name: String,
    #[serde(flatten)]
    pub event_type: EventTypeDraft,
    /// The number of changes so far.
    pub revision: i32,
    /// When the event type was declared.
    pub created_at: Timestamp,
    /// When the event type was last changed.
    pub updated_at: Timestamp,
}

impl EventTypeDraft {
    /// Checks a declaration and its name.
    ///
    /// # Errors
    /// Names the field, the problem and what is allowed.
    pub fn check_as(&self, name: &str) -> Result<(), EditError> {
        path_name(name)?;
        self.check()
    }

    fn check(&self) -> Result<(), EditError> {
        text("description", self.description.as_deref(), DESCRIPTION_CHARS)?;
        if let Some(sample) = &self.sample {
            if !sample.is_object() {
                return Err(EditError::Refused("sample: must be an object".into()));
            }
            field("sample", check::json(sample, limits::PAYLOAD_BYTES).map(drop))?;
        }
        let count = self.placeholders.len();
        if count > PLACEHOLDERS {
            return Err(EditError::Refused(format!(
                "placeholders: has {count} entries; at most {PLACEHOLDERS} are allowed"
            )));
        }
        let mut seen = BTreeSet::new();
        for (place, name) in self.placeholders.iter().enumerate() {
            text(&format!("placeholders[{place}]"), Some(name), limits::NAME_CHARS)?;
            if !seen.insert(name) {
                return Err(EditError::Refused(format!(
                    "placeholders[{place}]: {name:?} is given twice; give each name once"
                )));
            }
        }
        Ok(())
    }

    fn with(&self, change: &EventTypeChange) -> Self {
        let change = change.clone();
        Self {
            description: change.description.unwrap_or_else(|| self.description.clone()),
            sample: change.sample.unwrap_or_else(|| self.sample.clone()),
            placeholders: change.placeholders.unwrap_or_else(|| self.placeholders.clone()),
            mandatory: change.mandatory.unwrap_or(self.mandatory),
            quiet_hours: change.quiet_hours.unwrap_or(self.quiet_hours),
        }
    }
}

/// Checks a name that is part of URL paths. The rules for users' ids apply.
pub(in crate::store) fn path_name(name: &str) -> Result<(), EditError> {
    field("name", Recipient::user(name).check())
}

/// The filter for a list of event types, ordered by tenant and name.
#[derive(Debug, Clone, Default)]
pub struct EventTypeFilter {
    /// Only event types of this tenant. `None` means all tenants.
    pub tenant: Option<i32>,
    /// The tenant's number and the name of the last event type on the previous page.
    pub after: Option<(i32, String)>,
    /// The maximum number of event types to return.
    pub limit: i64,
}

const SELECT: &str =
    "SELECT e.tenant, t.name, e.name, e.description, e.sample, e.placeholders, e.mandatory, e.revision,
      e.created_at, e.updated_at, e.quiet_hours
    FROM postcommit.event_type e
    JOIN postcommit.tenant t ON t.id = e.tenant
    WHERE e.deleted_at IS NULL";
/// Declares an event type, or a deleted event type again. The row of a deleted event type is kept, so that dispatchers
/// read the deletion as a change.
const DECLARE: &str =
    "INSERT INTO postcommit.event_type AS known (tenant, name, description, sample, placeholders, mandatory,
      quiet_hours, created_at, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, {now}, {now})
    ON CONFLICT (tenant, name) DO UPDATE
    SET description = excluded.description, sample = excluded.sample, placeholders = excluded.placeholders,
      mandatory = excluded.mandatory, quiet_hours = excluded.quiet_hours, created_at = excluded.created_at, updated_at = excluded.updated_at,
      revision = known.revision + 1, deleted_at = NULL
    WHERE known.deleted_at IS NOT NULL";
const UPDATE: &str = "UPDATE postcommit.event_type
    SET description = $3, sample = $4, placeholders = $5, mandatory = $6, quiet_hours = $7,
      revision = revision + 1, updated_at = {now}
    WHERE tenant = $1 AND name = $2 AND deleted_at IS NULL AND revision = $8";

impl Store {
    /// Declares an event type. Fails if it is declared already.
    pub async fn create_event_type(
        &self,
        tenant: i32,
        name: &str,
        draft: &EventTypeDraft,
    ) -> Result<EventTypeRow, EditError> {
        draft.check_as(name)?;
        let entry = AuditEntry::new(tenant, "event_type.create", name).details(audited(draft));
        if !self.change(DECLARE, columns(tenant, name, draft), entry).await? {
            return Err(Subject("event type", name).exists());
        }
        self.known_event_type(tenant, name).await
    }

    /// Changes the given fields. With a revision, it does so only if the event type still has that revision.
    pub async fn update_event_type(
        &self,
        tenant: i32,
        name: &str,
        revision: Option<i32>,
        change: &EventTypeChange,
    ) -> Result<EventTypeRow, EditError> {
        for _ in 0..TRIES {
            let from = self.known_event_type(tenant, name).await?;
            Subject("event type", name).is_still(revision, from.revision)?;
            let to = from.event_type.with(change);
            if to == from.event_type {
                return Ok(from);
            }
            to.check()?;
            let mut parameters = columns(tenant, name, &to);
            parameters.push(from.revision.into());
            let entry = AuditEntry::new(tenant, "event_type.update", name).details(audited(&to));
            if self.change(UPDATE, parameters, entry).await? {
                return self.known_event_type(tenant, name).await;
            }
        }
        Err(Subject("event type", name).overtaken())
    }

    /// Deletes the declaration. Notifications of the event type are still accepted.
    pub async fn delete_event_type(&self, tenant: i32, name: &str) -> Result<(), EditError> {
        path_name(name).map_err(|_| Subject("event type", name).unknown())?;
        let sql = "UPDATE postcommit.event_type
            SET deleted_at = {now}, updated_at = {now}, revision = revision + 1
            WHERE tenant = $1 AND name = $2 AND deleted_at IS NULL";
        let entry = AuditEntry::new(tenant, "event_type.delete", name);
        let is_deleted = self.change(sql, vec![tenant.into(), name.into()], entry).await?;
        if is_deleted { Ok(()) } else { Err(Subject("event type", name).unknown()) }
    }

    async fn known_event_type(&self, tenant: i32, name: &str) -> Result<EventTypeRow, EditError> {
        self.event_type(tenant, name).await?.ok_or_else(|| Subject("event type", name).unknown())
    }

    /// Reads one declared event type.
    pub async fn event_type(&self, tenant: i32, name: &str) -> Result<Option<EventTypeRow>, DbError> {
        if name.contains('\0') {
            return Ok(None);
        }
        let sql = format!("{SELECT} AND e.tenant = $1 AND e.name = $2");
        self.db.query(&sql, vec![tenant.into(), name.into()]).await?.first().map(listed).transpose()
    }

    /// Returns the mandatory event types among the given pairs of tenant and event type.
    pub async fn mandatory_among(&self, names: &BTreeSet<(i32, String)>) -> Result<HashSet<(i32, String)>, DbError> {
        let given = match self.db.kind() {
            "postgres" => "jsonb_to_recordset($1::jsonb) AS g (tenant int, name text)",
            _ => "(SELECT value ->> 'tenant' AS tenant, value ->> 'name' AS name FROM json_each($1)) AS g",
        };
        let sql = format!(
            "SELECT e.tenant, e.name
             FROM {given}
             JOIN postcommit.event_type e ON e.tenant = g.tenant AND e.name = g.name
             WHERE e.mandatory AND e.deleted_at IS NULL"
        );
        let names: Vec<Json> = names.iter().map(|(tenant, name)| json!({"tenant": tenant, "name": name})).collect();
        let rows = self.db.query(&sql, vec![Value::Json(json!(names).to_string())]).await?;
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// Reads one page of declared event types, ordered by tenant and name.
    pub async fn event_type_rows(&self, filter: &EventTypeFilter) -> Result<Vec<EventTypeRow>, DbError> {
        let mut sql = SELECT.to_owned();
        let mut parameters: Vec<Value> = vec![filter.limit.into()];
        if let Some(tenant) = filter.tenant {
            parameters.push(tenant.into());
            sql.push_str(&format!(" AND e.tenant = ${}", parameters.len()));
        }
        if let Some((tenant, name)) = &filter.after {
            parameters.extend([Value::from(*tenant), name.as_str().into()]);
            sql.push_str(&format!(" AND (e.tenant, e.name) > (${}, ${})", parameters.len() - 1, parameters.len()));
        }
        sql.push_str(" ORDER BY e.tenant, e.name LIMIT $1");
        Ok(legible("event types", self.db.query(&sql, parameters).await?.iter().map(listed)))
    }
}

fn audited(draft: &EventTypeDraft) -> Json {
    json!({"mandatory": draft.mandatory, "quiet_hours": draft.quiet_hours})
}

fn columns(tenant: i32, name: &str, draft: &EventTypeDraft) -> Vec<Value> {
    vec![
        tenant.into(),
        name.into(),
        draft.description.as_deref().into(),
        draft.sample.clone().into(),
        Value::Texts(draft.placeholders.clone()),
        draft.mandatory.into(),
        draft.quiet_hours.name().into(),
    ]
}

fn listed(row: &Row) -> Result<EventTypeRow, DbError> {
    let (mut read, never) = (Reader::of(row), Timestamp::from_micros(0));
    let event_type = EventTypeDraft {
        description: row.get(3)?,
        sample: row.get(4)?,
        placeholders: row.get(5)?,
        mandatory: read.or(6, "mandatory", false),
        quiet_hours: QuietRule::named(&row.get::<String>(10)?).map_err(DbError::Unreadable)?,
    };
    let mut listed = EventTypeRow {
        tenant_id: row.get(0)?,
        tenant: row.get(1)?,
        name: row.get(2)?,
        event_type,
        revision: read.or(7, "revision", 0),
        created_at: read.or(8, "created_at", never),
        updated_at: read.or(9, "updated_at", never),
    };
    listed.event_type.description = read.problem().or(listed.event_type.description);
    Ok(listed)
}
