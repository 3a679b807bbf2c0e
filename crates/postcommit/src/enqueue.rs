//! The statements and arguments that all adapters share. Every argument is sent as text and cast by the database, so no
//! adapter needs its driver's features for JSON, UUIDs or times.

use uuid::Uuid;

#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
use crate::error::ABORTED;
use crate::{Error, Notification, limits};

#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
pub const POSTGRES_ENQUEUE: &str = "\
    SELECT postcommit.enqueue(
        event_type => $1::text, payload => $2::text::jsonb, idempotency_key => $3::text, tenant => $4::text,
        entity => $5::text, recipients => $6::text::jsonb, channels => $7::text::text[], title => $8::text,
        body => $9::text, action_url => $10::text, data => $11::text::jsonb, priority => $12::text::int,
        due_at => $13::text::timestamptz, expires_at => $14::text::timestamptz, source => $15::text::jsonb,
        correlation_id => $16::text, topic => $17::text, schema_version => $18::text::int,
        strict => $19::text::boolean)::text";

#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
pub const POSTGRES_ENQUEUE_MANY: &str = "SELECT id::text FROM postcommit.enqueue_many($1::text::jsonb)";

#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
pub const POSTGRES_CANCEL: &str = "SELECT postcommit.cancel($1::text, $2::text, $3::text)";

#[cfg(any(feature = "sqlx-sqlite", feature = "rusqlite"))]
pub const SQLITE_ENQUEUE: &str = "\
    INSERT INTO postcommit_enqueue (
        event_type, payload, idempotency_key, tenant, entity, recipients, channels, title, body, action_url, data,
        priority, due_at, expires_at, source, correlation_id, topic, schema_version, strict)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";

#[cfg(any(feature = "sqlx-sqlite", feature = "rusqlite"))]
pub const SQLITE_ID_OF_KEY: &str = "SELECT id FROM postcommit_key WHERE tenant = ?1 AND idempotency_key = ?2";

#[cfg(any(feature = "sqlx-sqlite", feature = "rusqlite"))]
pub const SQLITE_CANCEL: &str = "INSERT INTO postcommit_cancel (tenant, entity, event_type) VALUES (?1, ?2, ?3)";

/// Counts the deliveries that the insert into `postcommit_cancel` will cancel.
#[cfg(any(feature = "sqlx-sqlite", feature = "rusqlite"))]
pub const SQLITE_CANCELLABLE: &str = "\
    SELECT count(*)
    FROM postcommit_cancellable
    WHERE tenant = ?1 AND entity = ?2 AND (?3 IS NULL OR event_type = ?3)";

/// The arguments of an enqueue statement, in the order of its parameters.
pub fn arguments(note: &Notification, channels: String) -> [Option<String>; 19] {
    let source = (!note.source.is_empty()).then_some(&note.source);
    [
        Some(note.event_type.clone()),
        Some(note.payload.to_string()),
        Some(note.idempotency_key.clone()),
        Some(note.tenant.clone()),
        note.entity.clone(),
        serde_json::to_string(&note.recipients).ok(),
        Some(channels),
        note.title.clone(),
        note.body.clone(),
        note.action_url.clone(),
        note.data.as_ref().map(ToString::to_string),
        Some(note.priority.to_string()),
        note.due_at.map(|at| at.to_string()),
        note.expires_at.map(|at| at.to_string()),
        source.and_then(|source| serde_json::to_string(source).ok()),
        note.correlation_id.clone(),
        note.topic.clone(),
        note.schema_version.map(|version| version.to_string()),
        Some(i32::from(note.strict).to_string()),
    ]
}

/// The channels as a PostgreSQL array literal. Names are quoted, because an unquoted `null` is a NULL element and not a
/// name.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
pub fn postgres_channels(note: &Notification) -> String {
    let quoted = |name: &String| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
    format!("{{{}}}", note.channels.iter().map(quoted).collect::<Vec<_>>().join(","))
}

#[cfg(any(feature = "sqlx-sqlite", feature = "rusqlite"))]
pub fn sqlite_channels(note: &Notification) -> String {
    serde_json::json!(note.channels).to_string()
}

#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
pub fn batch(notes: &[Notification]) -> Result<String, Error> {
    check_batch(notes.len())?;
    serde_json::to_string(notes).map_err(|e| Error::Database(Box::new(e)))
}

pub fn check_batch(count: usize) -> Result<(), Error> {
    if count > limits::BATCH {
        return Err(Error::invalid(
            "batch",
            format!("has {count} notifications; at most {} are allowed", limits::BATCH),
        ));
    }
    Ok(())
}

pub fn parse_id(text: &str) -> Result<Uuid, Error> {
    text.parse().map_err(|e| Error::Database(Box::new(e)))
}

/// The fields of PostgreSQL's error for a refused statement.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
pub struct Refusal<'a> {
    pub code: &'a str,
    pub message: &'a str,
    pub detail: Option<&'a str>,
    pub constraint: Option<&'a str>,
}

/// Recognises a field beyond its limit, which PostgreSQL raises as 23514, and a strict conflict, which it raises as
/// 23505.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
pub fn postgres_refusal(refusal: &Refusal<'_>, notes: &[Notification]) -> Option<Error> {
    match refusal.code {
        "23514" => beyond_limit(refusal.constraint?, ABORTED),
        "23505" => postgres_conflict(refusal.message, refusal.detail?, notes),
        _ => None,
    }
}

/// Builds the error of a strict conflict. PostgreSQL's message quotes the key and the tenant, which identify the
/// notification in the batch. Its detail ends with the id of the first notification.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
fn postgres_conflict(message: &str, detail: &str, notes: &[Notification]) -> Option<Error> {
    let first = detail.rsplit(' ').next()?.parse().ok()?;
    let named = |note: &&Notification| {
        let (key, tenant) = (postgres_literal(&note.idempotency_key), postgres_literal(&note.tenant));
        message.starts_with(&format!("postcommit: idempotency_key {key} of tenant {tenant} was used"))
    };
    let note = notes.iter().find(named)?;
    Some(Error::Conflict { key: note.idempotency_key.clone(), first, aborted: true })
}

/// Quotes like PostgreSQL's `quote_literal`.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
fn postgres_literal(text: &str) -> String {
    let escape = if text.contains('\\') { "E" } else { "" };
    format!("{escape}'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// Recognises a strict conflict by its text, because a SQLite trigger can raise only a fixed text.
#[cfg(any(feature = "sqlx-sqlite", feature = "rusqlite"))]
pub fn is_sqlite_conflict(message: &str) -> bool {
    message.contains("was used with other content")
}

/// Recognises a field beyond its limit by SQLite's error text, which names the violated check constraint.
#[cfg(any(feature = "sqlx-sqlite", feature = "rusqlite"))]
pub fn sqlite_limit(message: &str) -> Option<Error> {
    let (_, constraint) = message.split_once("CHECK constraint failed: ")?;
    beyond_limit(constraint.split_whitespace().next()?, "")
}

/// The fields that the database checks. No two of them can match the same constraint name.
const LIMITED: [&str; 15] = [
    "event_type",
    "idempotency_key",
    "payload",
    "recipients",
    "channels",
    "priority",
    "expires_at",
    "entity",
    "topic",
    "correlation_id",
    "title",
    "body",
    "action_url",
    "data",
    "source",
];

/// Builds the error of a violated constraint, whose name contains the field and the limit: `title_at_most_998_bytes`.
fn beyond_limit(constraint: &str, ending: &str) -> Option<Error> {
    let limit_of = |field: &str| constraint.strip_prefix(field)?.strip_prefix('_').map(|limit| limit.replace('_', " "));
    let (field, limit) = LIMITED.iter().find_map(|field| Some((*field, limit_of(field)?)))?;
    Some(Error::invalid(field, format!("is refused; the rule is: {limit}{ending}")))
}
