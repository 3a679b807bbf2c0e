//! The audit log by day: who changed what, and when. Its newest entries as a CSV file.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use minijinja::context;
use postcommit::{Timestamp, limits};
use postcommit_engine::store::{AuditFilter, AuditNoise, AuditRow, Store};
use serde::Serialize;
use serde_json::Value;

use super::acts::Fields;
use super::frame::Visitor;
use super::notifications::filter::time;
use super::words::{dotted, segment, sentence_case, shown};
use crate::app::AppState;
use crate::problem::{Answer, Problem};
use crate::read::check_lengths;
use crate::table_file::csv_line;

/// The number of entries of a page.
const ROWS: i64 = 100;
/// The maximum number of entries in the exported file.
const EXPORTED: usize = 10_000;
/// The number of entries that are read together for a file.
const PAGE: i64 = 500;
/// The maximum number of characters of the details that a page shows. The file has all of them.
const DETAIL_CHARS: usize = 300;
/// The fields of the form, which are the parameters of the page.
const FIELDS: [&str; 6] = ["actor", "action", "subject", "without", "from", "until"];

/// The entries of a day, the newest first.
#[derive(Serialize)]
struct Day {
    date: String,
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    at: String,
    actor: String,
    action: String,
    subject: String,
    /// The URL of the page about the subject, if there is one.
    href: Option<String>,
    details: String,
    count: i64,
    tenant: String,
}

impl From<AuditRow> for Entry {
    fn from(row: AuditRow) -> Self {
        Self {
            at: row.at.to_string(),
            href: page_of(&row),
            details: row.details.as_ref().map(told).unwrap_or_default(),
            actor: row.actor,
            action: row.action,
            subject: row.subject,
            count: row.count,
            tenant: row.tenant,
        }
    }
}

pub async fn page(State(app): State<AppState>, visitor: Visitor, fields: Fields) -> Answer {
    let store = visitor.store(&app);
    let (rows, refused) = match wanted(&fields, visitor.caller.whose(), ROWS + 1) {
        Ok(filter) => (store.audit_rows(&filter).await?, None),
        Err(problem) => (vec![], Some(problem)),
    };
    let fits = usize::try_from(ROWS).unwrap_or(0);
    let older = (rows.len() > fits).then(|| rows[fits - 1].id);
    let given = query_of(&fields);
    let content = context! {
        fields => shown(BTreeMap::from(FIELDS.map(|name| (name, fields.get(name).unwrap_or_default())))),
        refused => refused.as_ref().map(|problem| context! { field => problem.field(), says => problem.to_string() }),
        shortcuts => shown(shortcuts(&fields)),
        is_filtered => FIELDS.into_iter().any(|name| name != "without" && fields.get(name).is_some()),
        days => shown(days(rows.into_iter().take(fits))),
        query => given.as_str(),
        older => older.map(|id| format!("/audit?{}", and(&given, &format!("before={id}")))),
        newest => fields.get("before").map(|_| format!("/audit?{given}")),
    };
    let status = if refused.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    visitor.page_as(&app, status, "audit.html", "Audit", content).await
}

/// Converts the fields of the form into a filter of the store.
fn wanted(fields: &Fields, tenant: Option<i32>, limit: i64) -> Result<AuditFilter, Problem> {
    let owned = |name: &str| fields.get(name).map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned);
    let at = |name: &str| owned(name).map(|value| time(name, &value)).transpose();
    let names = ["actor", "action", "subject"].map(|name| (name, owned(name)));
    let names: Vec<(&str, Option<&str>)> = names.iter().map(|(name, value)| (*name, value.as_deref())).collect();
    check_lengths(&names, limits::NAME_CHARS)?;
    let before = fields.get("before").map(|id| id.parse().map_err(|_| Problem::invalid("before", "is not a number")));
    Ok(AuditFilter {
        tenant,
        actor: owned("actor"),
        action: owned("action"),
        subject: owned("subject"),
        without: owned("without").map(|name| noise(&name)).transpose()?,
        from: at("from")?,
        until: at("until")?,
        before: before.transpose()?,
        limit,
        ..AuditFilter::default()
    })
}

fn noise(name: &str) -> Result<AuditNoise, Problem> {
    let wrong = || Problem::invalid("without", format!("is {name:?}; allowed are receipts and system"));
    AuditNoise::ALL.into_iter().find(|noise| noise.name() == name).ok_or_else(wrong)
}

/// The links that leave out what is not an act of a person: the label, the URL, and whether it is chosen. They keep the
/// other fields.
fn shortcuts(fields: &Fields) -> Vec<(&'static str, String, bool)> {
    let chosen = fields.get("without").unwrap_or_default();
    let link = |without: &str| {
        let others =
            FIELDS.into_iter().filter(|name| *name != "without").filter_map(|name| Some((name, fields.get(name)?)));
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(others.chain(Some(("without", without)).filter(|_| !without.is_empty())));
        match query.finish() {
            query if query.is_empty() => "/audit".to_owned(),
            query => format!("/audit?{query}"),
        }
    };
    [("Everything", ""), ("Without receipts", "receipts"), ("Only what was asked for", "system")]
        .map(|(label, without)| (label, link(without), chosen == without))
        .to_vec()
}

/// Returns the fields as a query, without the position of the page.
fn query_of(fields: &Fields) -> String {
    let given = FIELDS.into_iter().filter_map(|name| Some((name, fields.get(name)?)));
    form_urlencoded::Serializer::new(String::new()).extend_pairs(given).finish()
}

fn and(query: &str, more: &str) -> String {
    if query.is_empty() { more.to_owned() } else { format!("{query}&{more}") }
}

/// Groups entries, which are in order, by their day in UTC.
fn days(rows: impl Iterator<Item = AuditRow>) -> Vec<Day> {
    let mut days: Vec<Day> = Vec::new();
    for row in rows {
        let date = date(row.at);
        match days.last_mut().filter(|day| day.date == date) {
            Some(day) => day.entries.push(row.into()),
            None => days.push(Day { date, entries: vec![row.into()] }),
        }
    }
    days
}

fn date(at: Timestamp) -> String {
    at.to_string().chars().take(10).collect()
}

/// Returns the URL of the page about the subject of an entry.
fn page_of(row: &AuditRow) -> Option<String> {
    let noun = row.action.split('.').next()?;
    let deleted = row.action.ends_with(".delete");
    match (noun, row.subject.rsplit_once('.')) {
        ("delivery", Some((id, n))) => {
            let (id, n): (uuid::Uuid, i32) = (id.parse().ok()?, n.parse().ok()?);
            Some(format!("/notifications/{id}?n={n}"))
        }
        ("notification", _) => row.subject.parse::<uuid::Uuid>().ok().map(|id| format!("/notifications/{id}")),
        ("job", _) => row.subject.parse::<uuid::Uuid>().ok().map(|id| format!("/jobs/{id}")),
        ("event_type", _) if !deleted => Some(format!("/event-types/{}", segment(&row.subject))),
        _ => None,
    }
}

/// The details of an entry in words, e.g. the filter of a job.
fn told(details: &Value) -> String {
    let text = words(details);
    match text.char_indices().nth(DETAIL_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn words(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(is) => if *is { "yes" } else { "no" }.into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => dotted(fields.iter().map(|(name, value)| {
            let said = words(value);
            (!said.is_empty()).then(|| format!("{} {said}", sentence_case(name).to_lowercase()))
        })),
    }
}

/// The columns of the file: the name, and the value of an entry.
type Column = (&'static str, fn(&AuditRow) -> String);
const COLUMNS: [Column; 8] = [
    ("at", |row| row.at.to_string()),
    ("tenant", |row| row.tenant.clone()),
    ("actor", |row| row.actor.clone()),
    ("action", |row| row.action.clone()),
    ("subject", |row| row.subject.clone()),
    ("count", |row| row.count.to_string()),
    ("details", |row| row.details.as_ref().map(Value::to_string).unwrap_or_default()),
    ("request_id", |row| row.request_id.clone().unwrap_or_default()),
];

/// The file with the newest entries that match, at most [`EXPORTED`].
pub async fn export(State(app): State<AppState>, visitor: Visitor, fields: Fields) -> Answer {
    let filter = wanted(&fields, visitor.caller.whose(), PAGE)?;
    let rows = read(&visitor.store(&app), filter).await?;
    let head = csv_line(COLUMNS.map(|(name, _)| name));
    let line = |row: &AuditRow| {
        let cells = COLUMNS.map(|(_, cell)| cell(row));
        csv_line(cells.iter().map(String::as_str))
    };
    let text: String = std::iter::once(head).chain(rows.iter().map(line)).map(|line| line + "\n").collect();
    let headers =
        [(CONTENT_TYPE, "text/csv; charset=utf-8"), (CONTENT_DISPOSITION, "attachment; filename=\"audit.csv\"")];
    Ok((StatusCode::OK, headers, text).into_response())
}

async fn read(store: &Store, mut filter: AuditFilter) -> Result<Vec<AuditRow>, Problem> {
    let mut rows: Vec<AuditRow> = Vec::new();
    while rows.len() < EXPORTED {
        let page = store.audit_rows(&filter).await?;
        filter.before = page.last().map(|row| row.id);
        let is_last = i64::try_from(page.len()).is_ok_and(|count| count < PAGE);
        rows.extend(page);
        if is_last {
            break;
        }
    }
    rows.truncate(EXPORTED);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(action: &str, subject: &str) -> AuditRow {
        AuditRow {
            id: 1,
            tenant: "default".into(),
            at: Timestamp::from_micros(0),
            actor: "cli:ada".into(),
            action: action.into(),
            subject: subject.into(),
            details: None,
            count: 1,
            request_id: None,
        }
    }

    #[test]
    fn details_are_words_and_subjects_are_links() {
        let filter = json!({"filter": {"states": ["parked"], "channel": null}, "unclear": false, "pace_per_s": 10});
        assert_eq!(told(&filter), "filter states parked · pace per s 10 · unclear no");
        assert!(told(&json!("x".repeat(1000))).chars().count() == DETAIL_CHARS + 1);
        let id = "0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e";
        assert_eq!(page_of(&entry("delivery.retry", &format!("{id}.2"))), Some(format!("/notifications/{id}?n=2")));
        assert_eq!(page_of(&entry("job.create", id)), Some(format!("/jobs/{id}")));
        assert_eq!(page_of(&entry("event_type.update", "a b")), Some("/event-types/a%20b".into()));
        assert_eq!(page_of(&entry("event_type.delete", "a")), None);
        assert_eq!(page_of(&entry("delivery.retry", "<b>.x")), None);
    }

    #[test]
    fn entries_are_grouped_by_their_day() {
        let at = |at: &str| AuditRow { at: at.parse().unwrap(), ..entry("key.create", "x") };
        let rows = [at("2026-03-15T00:00:00Z"), at("2026-03-14T23:59:59Z"), at("2026-03-14T01:00:00Z")];
        let days = days(rows.into_iter());
        let told: Vec<(&str, usize)> = days.iter().map(|day| (day.date.as_str(), day.entries.len())).collect();
        assert_eq!(told, [("2026-03-15", 1), ("2026-03-14", 2)]);
    }
}
