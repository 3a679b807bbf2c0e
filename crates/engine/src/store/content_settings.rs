//! The settings that the templates of a tenant share, and the order of changes to a tenant's content.
//!
//! A version of a template holds copies of layouts, brand values and settings. So a save must not miss a concurrent
//! change of its sources: changes of one tenant's content run one after another, and each checks that its sources are
//! still unchanged.

use postcommit::Timestamp;
use postcommit_channel::template::Missing;
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::db::{DbError, Row, Statement, Value};
use crate::store::lists::keyset::SqlParameters;
use crate::store::providers::turn;
use crate::store::{AuditEntry, Store};

/// How many waiting notifications are examined to count the notifications of an event type.
pub const WAITING_EXAMINED: i64 = 10_000;
/// How many template ids an audit entry lists at most.
const NAMED: usize = 100;

/// The content settings of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ContentSettings {
    /// The language of users who have none, as a tag such as `pt-BR`.
    pub language: Option<String>,
    /// The time zone in which times are shown, by its IANA name. Default: UTC.
    pub time_zone: String,
    /// The format of dates, as a `strftime` pattern. Default: `%d-%b-%Y`.
    pub date_format: String,
    /// The treatment of a placeholder without a value. Default: empty.
    pub missing: Missing,
    /// Values that templates read as `brand.name`.
    pub brand: Json,
    /// The number of changes so far. 0 means that no setting was ever changed.
    pub revision: i32,
    /// When the settings were last changed.
    pub updated_at: Option<Timestamp>,
}

impl Default for ContentSettings {
    fn default() -> Self {
        Self {
            language: None,
            time_zone: "UTC".into(),
            date_format: "%d-%b-%Y".into(),
            missing: Missing::Empty,
            brand: json!({}),
            revision: 0,
            updated_at: None,
        }
    }
}

/// The layouts and settings from which a template version is made. The version is saved only if they are unchanged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MadeFrom {
    /// The names of the layouts and partials that were looked up, each with its revision, or `None` if the tenant does
    /// not have it.
    pub layouts: Vec<(String, Option<i32>)>,
    /// The revision of the content settings.
    pub settings: i32,
}

/// The number of notifications of certain event types that are not expanded yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Waiting {
    pub count: i64,
    /// Whether all waiting notifications were examined. If not, `count` may be too low.
    pub is_exact: bool,
}

/// The columns of a new template version, in the order of the table.
pub(in crate::store) const VERSION_COLUMNS: &str = "tenant, template, version, recipient, subject, text, html, data,
    layout, parts, brand, missing, date_format, time_zone, created_at, created_by, note";

impl Store {
    /// Reads the content settings of a tenant.
    pub async fn content_settings(&self, tenant: i32) -> Result<ContentSettings, DbError> {
        let sql = "SELECT language, time_zone, date_format, missing, brand, revision, updated_at
            FROM postcommit.content_settings
            WHERE tenant = $1";
        let rows = self.db.query(sql, vec![tenant.into()]).await?;
        rows.first().map_or_else(|| Ok(ContentSettings::default()), settings)
    }

    /// Changes the content settings, and creates new versions of the templates that follow them. Returns false if the
    /// settings or a template have changed since they were read.
    pub async fn update_content_settings(
        &self,
        tenant: i32,
        (from, to): (&ContentSettings, &ContentSettings),
        last_change: i64,
        followers: &[String],
    ) -> Result<bool, DbError> {
        let write = "INSERT INTO postcommit.content_settings AS s
              (tenant, language, time_zone, date_format, missing, brand, updated_at)
            SELECT $1, $2, $3, $4, $5, $6, {now}
            WHERE coalesce((SELECT revision FROM postcommit.content_settings WHERE tenant = $1), 0) = $7
              AND (SELECT coalesce(max(changed), 0) FROM postcommit.template WHERE tenant = $1) = $8
            ON CONFLICT (tenant) DO UPDATE
              SET language = excluded.language, time_zone = excluded.time_zone, date_format = excluded.date_format,
                missing = excluded.missing, brand = excluded.brand, revision = s.revision + 1, updated_at = {now}";
        let parameters = vec![
            tenant.into(),
            to.language.as_deref().into(),
            to.time_zone.as_str().into(),
            to.date_format.as_str().into(),
            to.missing.name().into(),
            to.brand.clone().into(),
            from.revision.into(),
            last_change.into(),
        ];
        let mut copy = SqlParameters::default();
        let (tenant_, by) = (copy.add(tenant), copy.add(self.actor.name.as_str()));
        let note = copy.add("content settings changed");
        let follows = self.follows(from, to, &mut copy);
        let [missing, date_format, time_zone] = [
            ("missing", from.missing.name(), to.missing.name()),
            ("date_format", from.date_format.as_str(), to.date_format.as_str()),
            ("time_zone", from.time_zone.as_str(), to.time_zone.as_str()),
        ]
        .map(|(column, from, to)| {
            let (from, to) = (copy.add(from), copy.add(to));
            format!("CASE WHEN v.{column} = {from} THEN {to} ELSE v.{column} END")
        });
        let brand = format!("CASE WHEN {} THEN {} ELSE v.brand END", self.mentions_brand(), copy.add(to.brand.clone()));
        let versions = format!(
            "INSERT INTO postcommit.template_version ({VERSION_COLUMNS})
             SELECT v.tenant, v.template, v.version + 1, v.recipient, v.subject, v.text, v.html, v.data, v.layout,
               v.parts, {brand}, {missing}, {date_format}, {time_zone}, {{now}}, {by}, {note}
             {CURRENT} WHERE t.tenant = {tenant_} AND t.deleted_at IS NULL AND {follows}"
        );
        let statements =
            vec![(write.to_owned(), parameters), (versions, copy.0), (USE_NEWEST.to_owned(), vec![tenant.into()])];
        let details = json!({"settings": changed_settings(from, to), "templates": named(followers)});
        let entry = AuditEntry::new(tenant, "content.update", "content").details(details);
        self.change_content(tenant, statements, entry).await
    }

    /// Returns the ids of the templates that follow a change of the settings: templates whose current version has the
    /// same value as the settings before the change, and templates that use brand values.
    pub async fn templates_following(
        &self,
        tenant: i32,
        from: &ContentSettings,
        to: &ContentSettings,
    ) -> Result<Vec<(String, String)>, DbError> {
        let mut parameters = SqlParameters::default();
        let tenant = parameters.add(tenant);
        let follows = self.follows(from, to, &mut parameters);
        let sql = format!(
            "SELECT t.id, t.event_type {CURRENT} WHERE t.tenant = {tenant} AND t.deleted_at IS NULL AND {follows}
             ORDER BY t.id"
        );
        let rows = self.db.query(&sql, parameters.0).await?;
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    fn follows(&self, from: &ContentSettings, to: &ContentSettings, parameters: &mut SqlParameters) -> String {
        let mut conditions = vec!["1 = 0".to_owned()];
        for (column, from, to) in [
            ("missing", from.missing.name(), to.missing.name()),
            ("date_format", from.date_format.as_str(), to.date_format.as_str()),
            ("time_zone", from.time_zone.as_str(), to.time_zone.as_str()),
        ] {
            if from != to {
                conditions.push(format!("v.{column} = {}", parameters.add(from)));
            }
        }
        if from.brand != to.brand {
            conditions.push(self.mentions_brand().to_owned());
        }
        format!("({})", conditions.join(" OR "))
    }

    /// Returns the SQL condition that template version `v` may read brand values. Each database has its own function to
    /// search a string.
    fn mentions_brand(&self) -> &'static str {
        match self.db.kind() {
            "postgres" => {
                "strpos(lower(concat_ws(' ', v.recipient, v.subject, v.text, v.html, v.data, v.parts)), 'brand') > 0"
            }
            _ => {
                "instr(lower(coalesce(v.recipient, '') || ' ' || coalesce(v.subject, '') || ' ' || coalesce(v.text, '')
                  || ' ' || coalesce(v.html, '') || ' ' || coalesce(v.data, '') || ' ' || v.parts), 'brand') > 0"
            }
        }
    }

    /// Returns the number of the last change of a tenant's templates. It grows with every change of a template.
    pub async fn last_template_change(&self, tenant: i32) -> Result<i64, DbError> {
        let sql = "SELECT coalesce(max(changed), 0) FROM postcommit.template WHERE tenant = $1";
        self.db.query(sql, vec![tenant.into()]).await?.first().map_or(Ok(0), |row| row.get(0))
    }

    /// Counts notifications of these event types that are not expanded yet. An expanded notification keeps its version.
    pub async fn waiting_of_types(&self, tenant: i32, event_types: &[String]) -> Result<Waiting, DbError> {
        let mut parameters = SqlParameters::default();
        let (tenant_, lane) = (parameters.add(tenant), parameters.add(-tenant));
        let most = parameters.add(WAITING_EXAMINED + 1);
        let wanted = self.among("note.event_type", event_types, &mut parameters);
        let sql = format!(
            "SELECT count(*), coalesce(sum(CASE WHEN {wanted} THEN 1 ELSE 0 END), 0)
             FROM (SELECT q.notification_id
                 FROM postcommit.delivery_queue q
                 WHERE q.lane = {lane} AND q.tenant = {tenant_} AND q.n = 0
                 LIMIT {most}) waiting
             JOIN postcommit.notification note ON note.tenant = {tenant_} AND note.id = waiting.notification_id"
        );
        let rows = self.db.query_once(&sql, parameters.0).await?;
        let Some(row) = rows.first() else { return Ok(Waiting { count: 0, is_exact: true }) };
        Ok(Waiting { count: row.get(1)?, is_exact: row.get::<i64>(0)? <= WAITING_EXAMINED })
    }

    /// Returns the SQL condition that a column has one of these strings.
    pub(in crate::store) fn among(&self, column: &str, texts: &[String], parameters: &mut SqlParameters) -> String {
        let texts = parameters.add(Value::Texts(texts.to_vec()));
        match self.db.kind() {
            "postgres" => format!("{column} = ANY ({texts})"),
            _ => format!("{column} IN (SELECT value FROM json_each({texts}))"),
        }
    }

    /// Returns the SQL condition that layouts and settings are unchanged since they were read. The tenant is parameter
    /// `$1`.
    pub(in crate::store) fn is_as_read(&self, from: &MadeFrom, parameters: &mut SqlParameters) -> String {
        let names: Vec<String> = from.layouts.iter().map(|(name, _)| name.clone()).collect();
        let of = |(name, revision): &(String, Option<i32>)| revision.map(|revision| format!("{name} {revision}"));
        let revisions: Vec<String> = from.layouts.iter().filter_map(of).collect();
        let count = parameters.add(i64::try_from(revisions.len()).unwrap_or(i64::MAX));
        let named = self.among("l.name", &names, parameters);
        let unchanged = self.among("l.name || ' ' || l.revision", &revisions, parameters);
        let settings = parameters.add(from.settings);
        format!(
            "(SELECT count(*) FROM postcommit.layout l WHERE l.tenant = $1 AND {named}) = {count}
             AND (SELECT count(*) FROM postcommit.layout l WHERE l.tenant = $1 AND {unchanged}) = {count}
             AND coalesce((SELECT s.revision FROM postcommit.content_settings s WHERE s.tenant = $1), 0) = {settings}"
        )
    }

    /// Runs a change of a tenant's content. If the first statement changes no row, nothing is written.
    pub(in crate::store) async fn change_content(
        &self,
        tenant: i32,
        mut statements: Vec<Statement>,
        entry: AuditEntry,
    ) -> Result<bool, DbError> {
        // Changes of content and of providers take their numbers from the same counter, so both wait for the same
        // permit ([`turn`]).
        let _turn = turn().await?;
        // On PostgreSQL a lock makes the changes run one after another. SQLite has only one writer and needs no lock.
        let mut deciding = 0;
        if self.db.kind() == "postgres" {
            let one_by_one = "SELECT pg_advisory_xact_lock(hashtext('postcommit.template'), $1)";
            statements.insert(0, (one_by_one.to_owned(), vec![tenant.into()]));
            deciding = 1;
        }
        self.change_all(statements, deciding, entry).await
    }
}

/// The join of templates with their current versions.
pub(in crate::store) const CURRENT: &str = "FROM postcommit.template t
    JOIN postcommit.template_version v ON v.tenant = t.tenant AND v.template = t.id AND v.version = t.version";

/// Switches the templates of a tenant to the versions that were just created for them.
pub(in crate::store) const USE_NEWEST: &str = "UPDATE postcommit.template AS t
    SET version = version + 1, revision = revision + 1, updated_at = {now}
    WHERE t.tenant = $1 AND t.deleted_at IS NULL
      AND EXISTS (SELECT 1
        FROM postcommit.template_version v
        WHERE v.tenant = t.tenant AND v.template = t.id AND v.version = t.version + 1)";

/// Returns the number of templates, and the first ids, for an audit entry.
pub(in crate::store) fn named(ids: &[String]) -> Json {
    json!({"count": ids.len(), "ids": ids.iter().take(NAMED).collect::<Vec<_>>()})
}

/// Returns the names of the settings that differ.
fn changed_settings(from: &ContentSettings, to: &ContentSettings) -> Vec<&'static str> {
    let differ = [
        ("language", from.language != to.language),
        ("time_zone", from.time_zone != to.time_zone),
        ("date_format", from.date_format != to.date_format),
        ("missing", from.missing != to.missing),
        ("brand", from.brand != to.brand),
    ];
    differ.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

fn settings(row: &Row) -> Result<ContentSettings, DbError> {
    Ok(ContentSettings {
        language: row.get(0)?,
        time_zone: row.get(1)?,
        date_format: row.get(2)?,
        missing: missing(row, 3)?,
        brand: row.get(4)?,
        revision: row.get(5)?,
        updated_at: row.get(6)?,
    })
}

pub(in crate::store) fn missing(row: &Row, place: usize) -> Result<Missing, DbError> {
    let name: String = row.get(place)?;
    Missing::from_name(&name)
        .ok_or_else(|| DbError::Unreadable(format!("the column missing has the unknown value {name:?}")))
}
