//! Templates and their versions. A version is immutable and complete in itself: it holds copies of layouts, brand
//! values and settings, so that a delivery always renders to the same bytes.

use postcommit::Timestamp;
use postcommit_channel::model::{DigestRule, Throttle};
use postcommit_channel::template::Source;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use crate::db::{DbError, Row, Statement, Value};
use crate::store::content_settings::{CURRENT, MadeFrom, VERSION_COLUMNS, missing};
use crate::store::lists::keyset::SqlParameters;
use crate::store::lists::rows::RowQuery;
use crate::store::providers::turn;
use crate::store::unreadable::legible;
use crate::store::{AuditEntry, NotificationFilter, Store};

/// The maximum number of templates of a tenant. Deleted templates do not count.
pub const TEMPLATES: usize = 5000;
/// How many events of an undeclared event type are examined to collect the names in their payloads.
pub const EVENTS_EXAMINED: i64 = 100;

/// A template: where it applies and its sending rules. The text of a template is in its versions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateDraft {
    /// The id, unique in the tenant.
    pub id: String,
    /// The event type for which the template is used.
    pub event_type: String,
    /// The channel of the template.
    pub channel: String,
    /// The audience of the template, e.g. `guest` or `host`. Each audience gets its own message. Empty means anyone.
    pub audience: String,
    /// The language of the template, e.g. `pt-BR`. Empty means any language.
    pub language: String,
    /// The scope of the template, e.g. `listing` for `listingId`. The template is used only for notifications whose
    /// payload has this scope. Empty means all notifications.
    pub scope_type: String,
    /// The value of the scope, e.g. `10`.
    pub scope_id: String,
    /// Whether the template is active.
    pub active: bool,
    /// How often the template is sent. `entity`: once per entity and event type. `notification`: for each notification.
    pub once_per: String,
    /// The most messages for one recipient in a period, and the treatment of further messages. `null` means no limit.
    pub throttle: Option<Throttle>,
    /// Collects the events of a recipient, and sends one message with all of them. `null` means that each event is
    /// sent.
    pub digest: Option<DigestRule>,
}

/// A template as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateRow {
    /// The tenant that owns the template.
    pub tenant: String,
    #[serde(flatten)]
    pub draft: TemplateDraft,
    /// The number of the current version.
    pub version: i32,
    /// The number of changes so far, including changes that create no new version.
    pub revision: i32,
    /// When the template was created.
    pub created_at: Timestamp,
    /// When the template was last changed.
    pub updated_at: Timestamp,
    /// The number of the tenant.
    #[serde(skip)]
    pub tenant_id: i32,
}

/// A version of a template in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VersionRow {
    /// The number of the version, from 1.
    pub version: i32,
    /// When the version was created.
    pub created_at: Timestamp,
    /// The actor that created the version.
    pub created_by: String,
    /// The reason why the version was created.
    pub note: Option<String>,
}

/// The filter for a list of templates, ordered by tenant and id.
#[derive(Debug, Clone, Default)]
pub struct TemplateFilter {
    /// Only templates of this tenant. `None` means all tenants.
    pub tenant: Option<i32>,
    pub event_type: Option<String>,
    pub channel: Option<String>,
    pub audience: Option<String>,
    pub language: Option<String>,
    pub scope_type: Option<String>,
    pub scope_id: Option<String>,
    pub active: Option<bool>,
    /// Only templates that use this layout or partial.
    pub layout: Option<String>,
    /// Only templates with this text in their id, their event type, or a part of their current version. Case makes no
    /// difference in ASCII letters.
    pub words: Option<String>,
    /// The tenant's number and the id of the last template on the previous page.
    pub after: Option<TemplatePosition>,
    /// The maximum number of rows to return.
    pub limit: i64,
}

/// A position in a list of templates or layouts: the tenant's number, and the id or name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplatePosition(pub i32, pub String);

const COLUMNS: &str = "n.name, t.id, t.event_type, t.channel, t.audience, t.language, t.scope_type, t.scope_id,
    t.active, t.once_per, t.version, t.revision, t.created_at, t.updated_at, t.tenant, t.throttle, t.digest";
const TABLES: &str = "postcommit.template t JOIN postcommit.tenant n ON n.id = t.tenant";
const PAYLOAD: RowQuery =
    RowQuery { columns: "payload", of_one: "postcommit.notification WHERE tenant = $1 AND id = $2" };

impl Store {
    /// Reads one page of templates. Deleted templates are left out.
    pub async fn template_rows(&self, filter: &TemplateFilter) -> Result<Vec<TemplateRow>, DbError> {
        let mut parameters = SqlParameters::default();
        let mut sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE t.deleted_at IS NULL");
        let wanted: [(&str, Value); 8] = [
            ("tenant", filter.tenant.into()),
            ("event_type", filter.event_type.as_deref().into()),
            ("channel", filter.channel.as_deref().into()),
            ("audience", filter.audience.as_deref().into()),
            ("language", filter.language.as_deref().into()),
            ("scope_type", filter.scope_type.as_deref().into()),
            ("scope_id", filter.scope_id.as_deref().into()),
            ("active", filter.active.into()),
        ];
        for (column, value) in wanted.into_iter().filter(|(_, value)| *value != Value::Null) {
            sql.push_str(&format!(" AND t.{column} = {}", parameters.add(value)));
        }
        if let Some(name) = &filter.layout {
            let uses = self.uses(name, &mut parameters);
            sql.push_str(&format!(
                " AND EXISTS (SELECT 1
                   FROM postcommit.template_version v
                   WHERE v.tenant = t.tenant AND v.template = t.id AND v.version = t.version AND {uses})"
            ));
        }
        if let Some(words) = &filter.words {
            sql.push_str(&self.contains_words(words, &mut parameters));
        }
        let id = self.bytewise("t.id");
        if let Some(TemplatePosition(tenant, last)) = &filter.after {
            let (tenant, last) = (parameters.add(*tenant), parameters.add(last.as_str()));
            sql.push_str(&format!(" AND (t.tenant > {tenant} OR (t.tenant = {tenant} AND {id} > {last}))"));
        }
        sql.push_str(&format!(" ORDER BY t.tenant, {id} LIMIT {}", parameters.add(filter.limit)));
        Ok(legible("templates", self.db.query_once(&sql, parameters.0).await?.iter().map(listed)))
    }

    fn contains_words(&self, words: &str, parameters: &mut SqlParameters) -> String {
        // The database writes both sides in lower case, because its `lower` may change only A to Z.
        let words = format!("lower({})", parameters.add(words));
        let found = match self.db.kind() {
            "postgres" => "strpos",
            _ => "instr",
        };
        format!(
            " AND ({found}(lower(t.id || ' ' || t.event_type), {words}) > 0 OR EXISTS (
               SELECT 1
               FROM postcommit.template_version v
               WHERE v.tenant = t.tenant AND v.template = t.id AND v.version = t.version
                 AND {found}(lower(coalesce(v.subject, '') || ' ' || coalesce(v.text, '') || ' ' ||
                   coalesce(v.html, '')), {words}) > 0))"
        )
    }

    /// Returns the SQL that sorts names by bytes, so that both databases have the same order regardless of their
    /// collation.
    pub(in crate::store) fn bytewise(&self, column: &str) -> String {
        if self.db.kind() == "postgres" { format!("{column} COLLATE \"C\"") } else { column.to_owned() }
    }

    /// Returns the condition that version `v` holds a copy of this layout or partial.
    pub(in crate::store) fn uses(&self, name: &str, parameters: &mut SqlParameters) -> String {
        let name = parameters.add(name);
        match self.db.kind() {
            "postgres" => format!("jsonb_exists(v.parts, {name})"),
            _ => format!("EXISTS (SELECT 1 FROM json_each(v.parts) part WHERE part.key = {name})"),
        }
    }

    /// Reads a template. A deleted template is not found.
    pub async fn template(&self, tenant: i32, id: &str) -> Result<Option<TemplateRow>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE t.tenant = $1 AND t.id = $2 AND t.deleted_at IS NULL");
        self.db.query(&sql, vec![tenant.into(), id.into()]).await?.first().map(listed).transpose()
    }

    /// Counts the templates of a tenant.
    pub async fn count_templates(&self, tenant: i32) -> Result<i64, DbError> {
        let sql = "SELECT count(*) FROM postcommit.template WHERE tenant = $1 AND deleted_at IS NULL";
        self.db.query(sql, vec![tenant.into()]).await?.first().map_or(Ok(0), |row| row.get(0))
    }

    /// Returns the id of another active template at the same place: event type, channel, audience, language and scope.
    /// At most one template at a place may be active.
    pub async fn template_at(&self, tenant: i32, draft: &TemplateDraft) -> Result<Option<String>, DbError> {
        let sql = format!("SELECT o.id FROM postcommit.template o WHERE {AT_PLACE}");
        let mut parameters = place(tenant, draft);
        parameters.truncate(8);
        self.db.query(&sql, parameters).await?.first().map(|row| row.get(0)).transpose()
    }

    /// Creates a template with its first version. A deleted template of this id is restored, with one more version.
    /// Returns false if the id or the place is taken, if there are [`TEMPLATES`] templates, or if a source of the
    /// version has changed.
    pub async fn create_template(
        &self,
        tenant: i32,
        draft: &TemplateDraft,
        (source, note): (&Source, Option<&str>),
        made_from: &MadeFrom,
    ) -> Result<bool, DbError> {
        let mut parameters = SqlParameters(place(tenant, draft));
        let (active, once_per) = (parameters.add(draft.active), parameters.add(draft.once_per.as_str()));
        let (throttle, digest) = (parameters.add(rule(&draft.throttle)), parameters.add(rule(&draft.digest)));
        let most = parameters.add(i64::try_from(TEMPLATES).unwrap_or(i64::MAX));
        let is_as_read = self.is_as_read(made_from, &mut parameters);
        let insert = format!(
            "INSERT INTO postcommit.template AS t (tenant, id, event_type, channel, audience, language, scope_type,
               scope_id, active, once_per, throttle, digest, version, created_at, updated_at)
             SELECT $1, $2, $3, $4, $5, $6, $7, $8, {active}, {once_per}, {throttle}, {digest}, 1, {{now}}, {{now}}
             WHERE (SELECT count(*) FROM postcommit.template WHERE tenant = $1 AND deleted_at IS NULL) < {most}
               AND (NOT {active} OR NOT EXISTS (SELECT 1 FROM postcommit.template o WHERE {AT_PLACE}))
               AND {is_as_read}
             ON CONFLICT (tenant, id) DO UPDATE
               SET event_type = excluded.event_type, channel = excluded.channel, audience = excluded.audience,
                 language = excluded.language, scope_type = excluded.scope_type, scope_id = excluded.scope_id,
                 active = excluded.active, once_per = excluded.once_per, throttle = excluded.throttle,
                 digest = excluded.digest, version = t.version + 1,
                 revision = t.revision + 1, created_at = {{now}}, updated_at = {{now}}, deleted_at = NULL
               WHERE t.deleted_at IS NOT NULL"
        );
        let version = self.insert_version(tenant, &draft.id, source, note);
        let entry = AuditEntry::new(tenant, "template.create", draft.id.as_str()).details(json!(draft));
        let created = self.change_content(tenant, vec![(insert, parameters.0), version], entry).await?;
        if created && draft.active {
            self.note_use(tenant, &draft.id).await;
        }
        Ok(created)
    }

    /// Records that an activated template is used from now on. The recorded time must be after the commit of the
    /// activation, so that every claim that begins later knows the template (docs/decisions/0033). If recording fails,
    /// the time of the activation itself stays. On SQLite that time is right anyway, because claims and changes exclude
    /// each other.
    async fn note_use(&self, tenant: i32, id: &str) {
        if self.db.kind() != "postgres" {
            return;
        }
        let sql = "UPDATE postcommit.template SET active_since = {now}
            WHERE tenant = $1 AND id = $2 AND active AND deleted_at IS NULL";
        let noted = async {
            let _turn = turn().await?;
            self.db.execute_one(sql, vec![tenant.into(), id.into()]).await
        };
        if let Err(problem) = noted.await {
            tracing::warn!(%problem, template = id, "could not record since when the template is in use; it is in use nevertheless");
        }
    }

    /// Changes a template if it still has the revision that was read. With a source it gets a new version. Returns
    /// false if the template was changed or deleted in the meantime, if the place is taken, or if a source of the
    /// version has changed.
    pub async fn update_template(
        &self,
        (from, to): (&TemplateRow, &TemplateDraft),
        new_version: Option<(&Source, Option<&str>, &MadeFrom)>,
    ) -> Result<bool, DbError> {
        let tenant = from.tenant_id;
        let mut parameters = SqlParameters(place(tenant, to));
        let (active, once_per) = (parameters.add(to.active), parameters.add(to.once_per.as_str()));
        let (throttle, digest) = (parameters.add(rule(&to.throttle)), parameters.add(rule(&to.digest)));
        let (revision, step) = (parameters.add(from.revision), i32::from(new_version.is_some()));
        let is_as_read = match new_version {
            Some((_, _, made_from)) => self.is_as_read(made_from, &mut parameters),
            None => "1 = 1".to_owned(),
        };
        let update = format!(
            "UPDATE postcommit.template AS t
             SET event_type = $3, channel = $4, audience = $5, language = $6, scope_type = $7, scope_id = $8,
               active = {active}, once_per = {once_per}, throttle = {throttle}, digest = {digest},
               version = version + {step}, revision = revision + 1,
               updated_at = {{now}}
             WHERE t.tenant = $1 AND t.id = $2 AND t.revision = {revision} AND t.deleted_at IS NULL
               AND (NOT {active} OR NOT EXISTS (SELECT 1 FROM postcommit.template o WHERE {AT_PLACE}))
               AND {is_as_read}"
        );
        let mut statements = vec![(update, parameters.0)];
        statements
            .extend(new_version.map(|(source, note, _)| self.insert_version(tenant, &from.draft.id, source, note)));
        let action = match (from.draft.active, to.active, step) {
            (true, false, 0) => "template.deactivate",
            (false, true, 0) => "template.activate",
            _ => "template.update",
        };
        let details = json!({"fields": differing(&from.draft, to), "version": from.version + step});
        let entry = AuditEntry::new(tenant, action, from.draft.id.as_str()).details(details);
        let updated = self.change_content(tenant, statements, entry).await?;
        if updated && to.active && (!from.draft.active || !is_at_same_place(&from.draft, to)) {
            self.note_use(tenant, &to.id).await;
        }
        Ok(updated)
    }

    /// Marks a template as deleted if it is not active and has the revision that was read. The versions of the template
    /// stay, because deliveries refer to them. Returns false if the template was changed in the meantime.
    pub async fn delete_template(&self, template: &TemplateRow) -> Result<bool, DbError> {
        let sql = "UPDATE postcommit.template SET deleted_at = {now}, revision = revision + 1, updated_at = {now}
            WHERE tenant = $1 AND id = $2 AND revision = $3 AND NOT active AND deleted_at IS NULL";
        let (tenant, id) = (template.tenant_id, template.draft.id.as_str());
        let parameters = vec![tenant.into(), id.into(), template.revision.into()];
        let entry = AuditEntry::new(tenant, "template.delete", id);
        self.change_content(tenant, vec![(sql.to_owned(), parameters)], entry).await
    }

    /// Returns the statement that writes the source of a template's current version.
    fn insert_version(&self, tenant: i32, id: &str, source: &Source, note: Option<&str>) -> Statement {
        let sql = format!(
            "INSERT INTO postcommit.template_version ({VERSION_COLUMNS})
             SELECT tenant, id, version, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, {{now}}, $14, $15
             FROM postcommit.template
             WHERE tenant = $1 AND id = $2"
        );
        let parameters = vec![
            tenant.into(),
            id.into(),
            source.to.as_deref().into(),
            source.subject.as_deref().into(),
            source.text.as_deref().into(),
            source.html.as_deref().into(),
            source.data.clone().into(),
            source.layout.as_deref().into(),
            json!(source.parts).into(),
            source.brand.clone().into(),
            source.missing.name().into(),
            source.date_format.as_str().into(),
            source.time_zone.as_str().into(),
            self.actor.name.as_str().into(),
            note.into(),
        ];
        (sql, parameters)
    }

    /// Reads one page of a template's versions, newest first. With `before` only versions with a lower number.
    pub async fn template_versions(
        &self,
        tenant: i32,
        id: &str,
        before: Option<i32>,
        limit: i64,
    ) -> Result<Vec<VersionRow>, DbError> {
        let sql = "SELECT version, created_at, created_by, note
            FROM postcommit.template_version
            WHERE tenant = $1 AND template = $2 AND version < $3
            ORDER BY version DESC
            LIMIT $4";
        let parameters = vec![tenant.into(), id.into(), before.unwrap_or(i32::MAX).into(), limit.into()];
        Ok(legible("versions of templates", self.db.query(sql, parameters).await?.iter().map(version)))
    }

    /// Reads one version of a template, which may be deleted.
    pub async fn template_version(
        &self,
        tenant: i32,
        id: &str,
        number: i32,
    ) -> Result<Option<(VersionRow, Source)>, DbError> {
        let sql = "SELECT version, created_at, created_by, note, recipient, subject, text, html, data, layout, parts,
              brand, missing, date_format, time_zone
            FROM postcommit.template_version
            WHERE tenant = $1 AND template = $2 AND version = $3";
        let rows = self.db.query(sql, vec![tenant.into(), id.into(), number.into()]).await?;
        rows.first().map(|row| Ok((version(row)?, source(row)?))).transpose()
    }

    /// Returns the ids and event types of the templates whose current version holds a copy of this layout or partial.
    pub async fn templates_using(&self, tenant: i32, name: &str) -> Result<Vec<(String, String)>, DbError> {
        let mut parameters = SqlParameters::default();
        let (tenant, uses) = (parameters.add(tenant), self.uses(name, &mut parameters));
        let id = self.bytewise("t.id");
        let sql = format!(
            "SELECT t.id, t.event_type {CURRENT} WHERE t.tenant = {tenant} AND t.deleted_at IS NULL AND {uses}
             ORDER BY {id}"
        );
        let rows = self.db.query(&sql, parameters.0).await?;
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// Reads the payloads of the newest events of a type, newest first.
    pub async fn recent_payloads(
        &self,
        tenant: i32,
        event_type: &str,
        limit: i64,
    ) -> Result<Vec<Box<RawValue>>, DbError> {
        let filter = NotificationFilter {
            tenant: Some(tenant),
            event_type: Some(event_type.to_owned()),
            limit,
            ..NotificationFilter::default()
        };
        let list = self.notification_list(&filter).await?;
        let page = self.list_keys(&list, list.start(), limit).await?;
        let rows = self.read_rows(&page.rows, PAYLOAD).await?;
        Ok(legible("payloads", rows.iter().map(|row| row.get(0))))
    }
}

/// The condition that row `o` is another active template at the place of parameters `$1` to `$8`.
const AT_PLACE: &str = "o.tenant = $1 AND o.id <> $2 AND o.active AND o.deleted_at IS NULL AND o.event_type = $3
    AND o.channel = $4 AND o.audience = $5 AND o.language = $6 AND o.scope_type = $7 AND o.scope_id = $8";

fn place(tenant: i32, draft: &TemplateDraft) -> Vec<Value> {
    let texts = [
        &draft.id,
        &draft.event_type,
        &draft.channel,
        &draft.audience,
        &draft.language,
        &draft.scope_type,
        &draft.scope_id,
    ];
    std::iter::once(tenant.into()).chain(texts.map(|text| text.as_str().into())).collect()
}

/// Returns whether a template keeps its event type, channel, audience and scope. The triggers in
/// `functions/content.sql` compare the same fields.
fn is_at_same_place(from: &TemplateDraft, to: &TemplateDraft) -> bool {
    let place = |of: &TemplateDraft| {
        [&of.event_type, &of.channel, &of.audience, &of.scope_type, &of.scope_id].map(String::clone)
    };
    place(from) == place(to)
}

/// Returns the fields in which two drafts differ, with the values before and after.
fn differing(from: &TemplateDraft, to: &TemplateDraft) -> Json {
    let (from, to) = (json!(from), json!(to));
    let fields = from.as_object().into_iter().flatten().filter(|(name, was)| to[name.as_str()] != **was);
    fields
        .map(|(name, was)| (name.clone(), json!({"from": was, "to": to[name.as_str()]})))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn listed(row: &Row) -> Result<TemplateRow, DbError> {
    let draft = TemplateDraft {
        id: row.get(1)?,
        event_type: row.get(2)?,
        channel: row.get(3)?,
        audience: row.get(4)?,
        language: row.get(5)?,
        scope_type: row.get(6)?,
        scope_id: row.get(7)?,
        active: row.get(8)?,
        once_per: row.get(9)?,
        throttle: stored_rule(row, 15)?,
        digest: stored_rule(row, 16)?,
    };
    Ok(TemplateRow {
        tenant: row.get(0)?,
        draft,
        version: row.get(10)?,
        revision: row.get(11)?,
        created_at: row.get(12)?,
        updated_at: row.get(13)?,
        tenant_id: row.get(14)?,
    })
}

/// Returns a throttle or digest rule as a parameter.
fn rule(rule: &Option<impl Serialize>) -> Value {
    rule.as_ref().map(|rule| json!(rule)).into()
}

/// Reads a throttle or digest rule. An unreadable rule is ignored.
pub(in crate::store) fn stored_rule<T: DeserializeOwned>(row: &Row, place: usize) -> Result<Option<T>, DbError> {
    let stored: Option<Json> = row.get(place)?;
    Ok(stored.and_then(|json| serde_json::from_value(json).ok()))
}

fn version(row: &Row) -> Result<VersionRow, DbError> {
    Ok(VersionRow { version: row.get(0)?, created_at: row.get(1)?, created_by: row.get(2)?, note: row.get(3)? })
}

/// Reads the source of a template version from a row, from column 4 on.
pub(in crate::store) fn source(row: &Row) -> Result<Source, DbError> {
    let parts: Json = row.get(10)?;
    Ok(Source {
        to: row.get(4)?,
        subject: row.get(5)?,
        text: row.get(6)?,
        html: row.get(7)?,
        data: row.get(8)?,
        layout: row.get(9)?,
        parts: serde_json::from_value(parts).map_err(|e| DbError::Unreadable(format!("the column parts: {e}")))?,
        brand: row.get(11)?,
        missing: missing(row, 12)?,
        date_format: row.get(13)?,
        time_zone: row.get(14)?,
    })
}
