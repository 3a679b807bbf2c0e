//! Layouts, into which templates are put, and partials, which templates include. A version of a template holds copies
//! of both, so a change of a layout creates new versions of the templates that use it.

use std::collections::BTreeMap;

use postcommit::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::db::{DbError, Row};
use crate::store::content_settings::{CURRENT, MadeFrom, USE_NEWEST, VERSION_COLUMNS, named};
use crate::store::lists::keyset::SqlParameters;
use crate::store::templates::TemplatePosition;
use crate::store::unreadable::legible;
use crate::store::{AuditEntry, Store};

/// The maximum number of layouts and partials of a tenant.
pub const LAYOUTS: usize = 200;

/// A layout or a partial.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LayoutRow {
    /// The tenant that owns the layout.
    pub tenant: String,
    /// The name, unique in the tenant.
    pub name: String,
    /// The kind. `layout`: the HTML of templates is put into it. `partial`: templates and layouts include it.
    pub kind: String,
    /// The source text, in the language of templates.
    pub source: String,
    /// The number of changes so far.
    pub revision: i32,
    /// When the layout was created.
    pub created_at: Timestamp,
    /// When the layout was last changed.
    pub updated_at: Timestamp,
    /// The number of the tenant.
    #[serde(skip)]
    pub tenant_id: i32,
}

/// A layout to be written.
#[derive(Debug, Clone)]
pub struct LayoutDraft {
    pub name: String,
    pub kind: String,
    pub source: String,
}

/// The effects of a change of a layout on templates.
#[derive(Debug, Clone, Default)]
pub struct LayoutUse {
    /// The parts that the new template versions get: the layout, and the partials that the layout includes.
    pub parts: BTreeMap<String, String>,
    /// The other layouts and partials among the parts. They must still have the revisions that were read.
    pub made_from: MadeFrom,
    /// The value of [`Store::last_template_change`] before the templates were read.
    pub last_change: i64,
    /// The ids of the templates that get a new version.
    pub templates: Vec<String>,
}

const COLUMNS: &str = "n.name, l.name, l.kind, l.source, l.revision, l.created_at, l.updated_at, l.tenant";
const TABLES: &str = "postcommit.layout l JOIN postcommit.tenant n ON n.id = l.tenant";

impl Store {
    /// Reads one page of layouts and partials, ordered by tenant and name. Without a tenant it reads the layouts of all
    /// tenants.
    pub async fn layout_rows(
        &self,
        tenant: Option<i32>,
        after: Option<&TemplatePosition>,
        limit: i64,
    ) -> Result<Vec<LayoutRow>, DbError> {
        let mut parameters = SqlParameters::default();
        let mut sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE 1 = 1");
        if let Some(tenant) = tenant {
            sql.push_str(&format!(" AND l.tenant = {}", parameters.add(tenant)));
        }
        let name = self.bytewise("l.name");
        if let Some(TemplatePosition(tenant, last)) = after {
            let (tenant, last) = (parameters.add(*tenant), parameters.add(last.as_str()));
            sql.push_str(&format!(" AND (l.tenant > {tenant} OR (l.tenant = {tenant} AND {name} > {last}))"));
        }
        sql.push_str(&format!(" ORDER BY l.tenant, {name} LIMIT {}", parameters.add(limit)));
        Ok(legible("layouts", self.db.query_once(&sql, parameters.0).await?.iter().map(layout)))
    }

    pub async fn layout(&self, tenant: i32, name: &str) -> Result<Option<LayoutRow>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE l.tenant = $1 AND l.name = $2");
        self.db.query(&sql, vec![tenant.into(), name.into()]).await?.first().map(layout).transpose()
    }

    /// Reads all layouts and partials of a tenant, which are at most [`LAYOUTS`].
    pub async fn layouts_of(&self, tenant: i32) -> Result<Vec<LayoutRow>, DbError> {
        self.layout_rows(Some(tenant), None, i64::MAX).await
    }

    /// Writes a layout and the new versions of the templates that use it, in one transaction. `revision` is the
    /// revision that was read; 0 creates the layout. Returns false if the layout, a partial that it includes, or a
    /// template has changed since it was read.
    pub async fn save_layout(
        &self,
        tenant: i32,
        draft: &LayoutDraft,
        revision: i32,
        used: &LayoutUse,
    ) -> Result<bool, DbError> {
        let mut parameters = SqlParameters::default();
        let [tenant_, name] = [parameters.add(tenant), parameters.add(draft.name.as_str())];
        let [kind, source] = [parameters.add(draft.kind.as_str()), parameters.add(draft.source.as_str())];
        let last_change = parameters.add(used.last_change);
        let is_as_read = self.is_as_read(&used.made_from, &mut parameters);
        let conditions = format!(
            "(SELECT coalesce(max(changed), 0) FROM postcommit.template WHERE tenant = {tenant_}) = {last_change}
             AND {is_as_read}"
        );
        let write = if revision == 0 {
            let most = parameters.add(i64::try_from(LAYOUTS).unwrap_or(i64::MAX));
            format!(
                "INSERT INTO postcommit.layout (tenant, name, kind, source, created_at, updated_at)
                 SELECT {tenant_}, {name}, {kind}, {source}, {{now}}, {{now}}
                 WHERE (SELECT count(*) FROM postcommit.layout WHERE tenant = {tenant_}) < {most} AND {conditions}
                 ON CONFLICT (tenant, name) DO NOTHING"
            )
        } else {
            let revision = parameters.add(revision);
            format!(
                "UPDATE postcommit.layout SET kind = {kind}, source = {source}, revision = revision + 1, updated_at = {{now}}
                 WHERE tenant = {tenant_} AND name = {name} AND revision = {revision} AND {conditions}"
            )
        };
        let statements = vec![
            (write, parameters.0),
            self.copy_into_versions(tenant, &draft.name, &used.parts),
            (USE_NEWEST.to_owned(), vec![tenant.into()]),
        ];
        let action = if revision == 0 { "layout.create" } else { "layout.update" };
        let details = json!({"kind": draft.kind, "templates": named(&used.templates)});
        let entry = AuditEntry::new(tenant, action, draft.name.as_str()).details(details);
        self.change_content(tenant, statements, entry).await
    }

    /// Returns the statement that creates a new version of each template that uses the layout. The new version has
    /// these parts.
    fn copy_into_versions(&self, tenant: i32, name: &str, parts: &BTreeMap<String, String>) -> crate::db::Statement {
        let mut parameters = SqlParameters::default();
        let tenant = parameters.add(tenant);
        let uses = self.uses(name, &mut parameters);
        let given = parameters.add(json!(parts));
        let merged = match self.db.kind() {
            "postgres" => format!("v.parts || {given}"),
            _ => format!("json_patch(v.parts, {given})"),
        };
        let (by, note) = (parameters.add(self.actor.name.as_str()), parameters.add(format!("layout {name} changed")));
        let sql = format!(
            "INSERT INTO postcommit.template_version ({VERSION_COLUMNS})
             SELECT v.tenant, v.template, v.version + 1, v.recipient, v.subject, v.text, v.html, v.data, v.layout,
               {merged}, v.brand, v.missing, v.date_format, v.time_zone, {{now}}, {by}, {note}
             {CURRENT} WHERE t.tenant = {tenant} AND t.deleted_at IS NULL AND {uses}"
        );
        (sql, parameters.0)
    }

    /// Deletes a layout. Returns false if a template uses the layout, or if the layout has changed since it was read.
    pub async fn delete_layout(&self, layout: &LayoutRow) -> Result<bool, DbError> {
        let mut parameters = SqlParameters::default();
        let (tenant, name) = (parameters.add(layout.tenant_id), parameters.add(layout.name.as_str()));
        let (revision, uses) = (parameters.add(layout.revision), self.uses(&layout.name, &mut parameters));
        let sql = format!(
            "DELETE FROM postcommit.layout
             WHERE tenant = {tenant} AND name = {name} AND revision = {revision}
               AND NOT EXISTS (SELECT 1 {CURRENT} WHERE t.tenant = {tenant} AND t.deleted_at IS NULL AND {uses})"
        );
        let entry = AuditEntry::new(layout.tenant_id, "layout.delete", layout.name.as_str());
        self.change_content(layout.tenant_id, vec![(sql, parameters.0)], entry).await
    }
}

fn layout(row: &Row) -> Result<LayoutRow, DbError> {
    Ok(LayoutRow {
        tenant: row.get(0)?,
        name: row.get(1)?,
        kind: row.get(2)?,
        source: row.get(3)?,
        revision: row.get(4)?,
        created_at: row.get(5)?,
        updated_at: row.get(6)?,
        tenant_id: row.get(7)?,
    })
}
