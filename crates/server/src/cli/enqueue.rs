//! The command `postcommit enqueue`.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use postcommit::{Error, Recipient};
use postcommit_channel::clock;
use postcommit_engine::db::DbError;
use postcommit_engine::store::{Accepted, DeliveryFilter, Store, TemplateFilter};
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use uuid::Uuid;

use super::value;
use crate::app;
use crate::notifications::{self, Owner, named_tenant};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct Enqueue {
    /// Event type, e.g. booking.confirmed
    #[arg(required_unless_present = "json")]
    event_type: Option<String>,
    /// Recipient: email:a@b.c, phone:+49…, webhook:https://…, slack:…, teams:…, push:…, web_push:…, user:ID,
    /// list:NAME or provider:NAME:ADDRESS; repeatable. Every channel except in_app needs a provider
    #[arg(long = "to", value_name = "RECIPIENT")]
    to: Vec<String>,
    /// The event's data as JSON; @FILE reads a file, - reads stdin, here and for --data, --source and --json
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Idempotency key: a second notification with the same key is not sent [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Tenant of the notification; a new name creates the tenant [default: default]
    #[arg(long)]
    tenant: Option<String>,
    /// Entity that the notification is about, e.g. the id of a booking
    #[arg(long)]
    entity: Option<String>,
    /// Send only over this channel; repeatable
    #[arg(long = "channel")]
    channels: Vec<String>,
    /// Subject or heading of the message, one line
    #[arg(long)]
    title: Option<String>,
    /// Text of the message
    #[arg(long)]
    body: Option<String>,
    /// Link for the reader: http, https, mailto or tel
    #[arg(long, value_name = "URL")]
    action_url: Option<String>,
    /// Further fields for the driver of a channel, as JSON by channel: {"whatsapp": {…}}
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Priority, 0 to 9; 9 is sent first [default: 5]
    #[arg(long)]
    priority: Option<i16>,
    /// Do not send before this time, RFC 3339, e.g. 2026-03-15T09:30:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    due_at: Option<String>,
    /// Do not send after this time, RFC 3339 [default: 30 days after --due-at]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// Where the notification comes from, as JSON: {"site": …, "instance": …, "script": …, "rule": …}
    #[arg(long, value_name = "JSON")]
    source: Option<String>,
    /// Id of the request or trace that caused the notification
    #[arg(long)]
    correlation_id: Option<String>,
    /// Stream that the event belongs to, e.g. booking.events
    #[arg(long)]
    topic: Option<String>,
    /// Version of the payload's format
    #[arg(long)]
    schema_version: Option<i32>,
    /// Fail if the idempotency key was used before with other content
    #[arg(long)]
    strict: bool,
    /// The whole notification as JSON, instead of the options above
    #[arg(long, value_name = "JSON", conflicts_with_all = ["payload", "to", "event_type"])]
    json: Option<String>,
    /// Wait until the notification is sent or parked, then show it
    #[arg(long)]
    wait: bool,
    /// Longest wait of --wait, in seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

impl Enqueue {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let json = self.json()?;
        // A tenant that is not a string is refused later, when the whole notification is read.
        let tenant = named_tenant(json.get()).ok().flatten().unwrap_or_else(|| "default".to_owned());
        app::say_database(settings);
        let store = app::store(settings).await?;
        let owner = Owner { id: store.tenant(&tenant).await?, name: &tenant };
        let note = notifications::read(&store, owner, json.get(), None).await.map_err(super::refused)?;
        if note.note().recipients.is_empty() && !has_template(&store, owner.id, &note.note().event_type).await? {
            say!(
                "postcommit: the notification names no recipient, and its event type has no active template that \
                 could give an address; it will be parked"
            );
        }
        let (key, strict) = (note.note().idempotency_key.clone(), note.note().strict);
        let gone = || {
            Failure::new(
                Exit::Failed,
                "the database did not confirm the notification; repeat the command with the same idempotency key",
            )
        };
        let accepted = store.accept(vec![note]).await.pop().ok_or_else(gone)?.map_err(super::refused)?;
        let Accepted { id, duplicate, conflict } = accepted;
        if conflict && strict {
            return Err(Failure::new(Exit::Refused, Error::Conflict { key, first: id, aborted: false }.to_string()));
        }
        if owner.id.is_none() {
            // A misspelt tenant name also creates a tenant, so the operator is told.
            say!("postcommit: tenant {tenant:?} did not exist and was created; it has no providers yet");
        }
        say_seen(accepted, &key);
        if self.wait {
            let done = wait(format, &store, id, self.timeout).await?;
            return Ok(if conflict { Exit::Refused } else { done });
        }
        output::one(format, &json!({"id": id, "duplicate": duplicate, "conflict": conflict}), |_| id.to_string());
        Ok(Exit::Ok)
    }

    /// The notification as JSON for the API. Numbers in payload and data keep all their digits.
    fn json(&self) -> Result<Box<RawValue>, Failure> {
        match &self.json {
            Some(text) => value::json("--json", r#"{"event_type": "a", "recipients": [{"user": "42"}]}"#, text),
            None => raw("the notification", &self.document()?),
        }
    }

    /// Builds the notification from the options of the command line: the value of each given option as JSON, under the
    /// name that this field has in SQL and in the HTTP API.
    fn document(&self) -> Result<BTreeMap<&'static str, Box<RawValue>>, Failure> {
        let recipients = self.to.iter().map(|text| recipient(text)).collect::<Result<Vec<_>, _>>()?;
        let text = |name, value: &Option<String>| value.as_ref().map(|value| raw(name, value)).transpose();
        let json = |name, example, given: &Option<String>| {
            given.as_ref().map(|given| value::json(name, example, given)).transpose()
        };
        let fields = [
            ("event_type", text("event_type", &self.event_type)?),
            ("payload", json("--payload", r#"{"guestName": "Ada"}"#, &self.payload)?),
            ("idempotency_key", text("--idempotency-key", &self.idempotency_key)?),
            ("tenant", text("--tenant", &self.tenant)?),
            ("entity", text("--entity", &self.entity)?),
            ("recipients", Some(raw("--to", &recipients)?)),
            ("channels", Some(raw("--channel", &self.channels)?)),
            ("title", text("--title", &self.title)?),
            ("body", text("--body", &self.body)?),
            ("action_url", text("--action-url", &self.action_url)?),
            ("data", json("--data", r#"{"whatsapp": {"template": "welcome"}}"#, &self.data)?),
            ("priority", self.priority.map(|priority| raw("--priority", &priority)).transpose()?),
            ("due_at", text("--due-at", &self.due_at)?),
            ("expires_at", text("--expires-at", &self.expires_at)?),
            ("source", json("--source", r#"{"site": "north"}"#, &self.source)?),
            ("correlation_id", text("--correlation-id", &self.correlation_id)?),
            ("topic", text("--topic", &self.topic)?),
            ("schema_version", self.schema_version.map(|version| raw("--schema-version", &version)).transpose()?),
            ("strict", Some(raw("--strict", &self.strict)?)),
        ];
        Ok(fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }
}

/// Waits until the notification is sent or parked, at most `timeout` seconds, then shows it.
pub async fn wait(format: Format, store: &Store, id: Uuid, timeout: u64) -> CommandResult {
    let started = clock::monotonic();
    let mut look = tokio::time::interval(Duration::from_millis(100));
    let mut state = String::from("pending");
    while ["pending", "sending", "retrying"].contains(&state.as_str())
        && started.elapsed() < Duration::from_secs(timeout)
    {
        look.tick().await;
        let gone = || Failure::new(Exit::NotFound, format!("notification {id} no longer exists"));
        state = store.notification_row(id).await?.ok_or_else(gone)?.state;
    }
    super::notifications::show(format, store, id).await?;
    match state.as_str() {
        "sent" | "delivered" => Ok(Exit::Ok),
        "pending" | "sending" | "retrying" => Err(Failure::new(
            Exit::Failed,
            format!("notification {id} was not finished within {timeout} s: {}", why_not_yet(store, id).await?),
        )),
        _ => Ok(Exit::Failed),
    }
}

/// The reason why a notification is not finished.
async fn why_not_yet(store: &Store, id: Uuid) -> Result<String, Failure> {
    let rows = store.delivery_rows(&DeliveryFilter::of_notification(id)).await?.rows;
    let waiting = rows.into_iter().find_map(|row| Some((row.state, row.waits_for?)));
    Ok(waiting.map_or_else(
        || "its result is being written".to_owned(),
        |(state, what)| format!("it is {state} and waits for {what}; `postcommit doctor` looks for the cause"),
    ))
}

/// Prints that the key was used before.
fn say_seen(accepted: Accepted, key: &str) {
    if accepted.conflict {
        say!(
            "postcommit: key {key:?} was used before with other content; this notification is not sent, and the id is \
             that of the first one (--strict makes this an error)"
        );
    } else if accepted.duplicate {
        say!("postcommit: key {key:?} was used before; the id is that of the first notification");
    }
}

fn raw<T: Serialize>(name: &str, value: &T) -> Result<Box<RawValue>, Failure> {
    to_raw_value(value).map_err(|e| Failure::new(Exit::Usage, format!("{name}: {e}")))
}

/// Whether an active template of the event type exists. It may give the address of a notification that names none.
async fn has_template(store: &Store, tenant: Option<i32>, event_type: &str) -> Result<bool, DbError> {
    let Some(tenant) = tenant else { return Ok(false) };
    let (event_type, active) = (Some(event_type.to_owned()), Some(true));
    let filter = TemplateFilter { tenant: Some(tenant), event_type, active, limit: 1, ..TemplateFilter::default() };
    Ok(!store.template_rows(&filter).await?.is_empty())
}

/// Parses a recipient of `--to`.
pub fn recipient(text: &str) -> Result<Recipient, Failure> {
    kind_and_value(text).map_err(|problem| Failure::new(Exit::Usage, format!("--to {text}: {problem}")))
}

/// Parses `kind:value`. If an address can only be of one kind, the kind may be left out.
pub fn kind_and_value(text: &str) -> Result<Recipient, String> {
    let (kind, value) = text.split_once(':').unwrap_or(("", text));
    match kind {
        "email" | "user" | "list" | "phone" | "slack" | "teams" | "webhook" | "push" | "web_push" => {
            Recipient::from_json(&json!({ kind: value }))
        }
        "provider" => value
            .split_once(':')
            .map(|(name, address)| Recipient::at(name, address))
            .ok_or_else(|| "has no address; write provider:NAME:ADDRESS".to_owned()),
        "http" | "https" => Ok(Recipient::webhook(text)),
        _ if text.contains('@') => Ok(Recipient::email(text)),
        _ if text.starts_with('+') => Ok(Recipient::phone(text)),
        _ => Err("is not a recipient; write email:…, phone:…, webhook:…, slack:…, teams:…, push:…, web_push:…, user:…, list:… or provider:NAME:ADDRESS".into()),
    }
}
