//! Reads template data for the dispatcher: changes of the template index, and the sources of template versions.

use std::collections::HashMap;

use postcommit_channel::model::{QuietRule, TemplateEntry};
use postcommit_channel::template::Source;
use serde_json::json;

use crate::db::{Db, DbError, Row, Value};
use crate::store::Store;
use crate::store::templates::{source, stored_rule};
use crate::store::unreadable::legible;

/// A template's version: tenant, template and number.
pub type VersionKey = (i32, String, i32);

/// Changes of templates, event types and content settings. Their numbers come from the same counter as the changes of
/// providers.
#[derive(Debug, Clone, Default)]
pub struct ContentChanges {
    /// Templates with their tenants, and whether each template is active.
    pub templates: Vec<(i32, TemplateEntry, bool)>,
    /// Tenants, their event types, whether users cannot opt out of each, and how each is treated in quiet hours.
    pub event_types: Vec<(i32, String, bool, QuietRule)>,
    /// Tenants, their default languages and their time zones.
    pub defaults: Vec<(i32, Option<String>, Option<String>)>,
    /// Tenants that have preferences or suppressions.
    pub guarded: Vec<i32>,
}

impl Store {
    /// Reads the content changes since a version of the provider table. Without a version it reads everything.
    pub async fn content_changes(&self, since: Option<i64>) -> Result<ContentChanges, DbError> {
        let since = vec![Value::Int(since.unwrap_or(-1))];
        let templates = "SELECT tenant, id, event_type, channel, audience, language, scope_type, scope_id, version,
              once_per = 'entity', active_since, active AND deleted_at IS NULL, throttle, digest
            FROM postcommit.template
            WHERE changed > $1
            ORDER BY tenant, id";
        // Changes of event types, settings and guarded tenants are few and share a statement. The first column gives
        // the kind.
        let others = "SELECT 1, tenant, name, mandatory AND deleted_at IS NULL,
              CASE WHEN deleted_at IS NULL THEN quiet_hours END
            FROM postcommit.event_type
            WHERE changed > $1
            UNION ALL SELECT 2, tenant, language, false, time_zone FROM postcommit.content_settings WHERE changed > $1
            UNION ALL SELECT 3, tenant, NULL, false, NULL FROM postcommit.content_guard WHERE changed > $1";
        let (templates, others) =
            tokio::try_join!(self.db.query(templates, since.clone()), self.db.query(others, since))?;
        let templates = legible("templates", templates.iter().map(entry));
        let mut changes = ContentChanges { templates, ..ContentChanges::default() };
        type Other = (i32, i32, Option<String>, bool, Option<String>);
        let read = |row: &Row| -> Result<Other, DbError> {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        };
        for (kind, tenant, name, mandatory, more) in legible("content", others.iter().map(read)) {
            match kind {
                1 => {
                    let rule = more.and_then(|rule| QuietRule::named(&rule).ok()).unwrap_or_default();
                    changes.event_types.push((tenant, name.unwrap_or_default(), mandatory, rule));
                }
                2 => changes.defaults.push((tenant, name, more)),
                _ => changes.guarded.push(tenant),
            }
        }
        Ok(changes)
    }

    /// Reads the sources of template versions, all in one query. A version that does not exist is not in the result.
    pub async fn template_sources(&self, wanted: &[VersionKey]) -> Result<HashMap<VersionKey, Source>, DbError> {
        let given = match &self.db {
            Db::Postgres(_) => "jsonb_to_recordset($1::jsonb) AS g (tenant int, template text, version int)",
            Db::Sqlite(_) => {
                "(SELECT value ->> 'tenant' AS tenant, value ->> 'template' AS template, value ->> 'version' AS version
                  FROM json_each($1)) AS g"
            }
        };
        let sql = format!(
            "SELECT v.tenant, v.template, v.version, NULL, v.recipient, v.subject, v.text, v.html, v.data, v.layout, v.parts,
               v.brand, v.missing, v.date_format, v.time_zone
             FROM {given}
             JOIN postcommit.template_version v
               ON v.tenant = g.tenant AND v.template = g.template AND v.version = g.version"
        );
        let key = |(tenant, template, version): &VersionKey| json!({"tenant": tenant, "template": template, "version": version});
        let keys = Value::Json(json!(wanted.iter().map(key).collect::<Vec<_>>()).to_string());
        let rows = self.db.query(&sql, vec![keys]).await?;
        let read = |row: &Row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), source(row)?));
        Ok(legible("templates", rows.iter().map(read)).into_iter().collect())
    }
}

fn entry(row: &Row) -> Result<(i32, TemplateEntry, bool), DbError> {
    let entry = TemplateEntry {
        id: row.get(1)?,
        event_type: row.get(2)?,
        channel: row.get(3)?,
        audience: row.get(4)?,
        language: row.get(5)?,
        scope: (row.get(6)?, row.get(7)?),
        version: row.get(8)?,
        once_per_entity: row.get(9)?,
        throttle: stored_rule(row, 12)?,
        digest: stored_rule(row, 13)?,
        active_since: row.get(10)?,
    };
    Ok((row.get(0)?, entry, row.get(11)?))
}
