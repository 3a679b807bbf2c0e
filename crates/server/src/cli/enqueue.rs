//! `postcommit enqueue`.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use clap::Args;
use postcommit::{Error, Recipient};
use postcommit_channel::clock;
use postcommit_engine::store::{Accepted, DeliveryFilter, Store};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use uuid::Uuid;

use crate::notifications::{self, Owner, named_tenant};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct Enqueue {
    /// The event type, e.g. booking.confirmed
    #[arg(required_unless_present = "json")]
    event_type: Option<String>,
    /// The recipient: email:a@b.c, phone:+49…, webhook:https://…, slack:…, teams:…, user:ID, list:NAME,
    /// provider:NAME:ADDRESS; repeatable
    #[arg(long = "to", value_name = "RECIPIENT")]
    to: Vec<String>,
    /// The event's data as JSON; @FILE reads a file, - reads stdin
    #[arg(long)]
    payload: Option<String>,
    /// Idempotency key: the same key is sent once [default: random]
    #[arg(long)]
    key: Option<String>,
    #[arg(long)]
    tenant: Option<String>,
    /// The entity it is about, e.g. a booking's id
    #[arg(long)]
    entity: Option<String>,
    /// Narrow to this channel; repeatable
    #[arg(long = "channel")]
    channels: Vec<String>,
    #[arg(long)]
    title: Option<String>,
    #[arg(long)]
    body: Option<String>,
    #[arg(long, value_name = "URL")]
    action_url: Option<String>,
    /// Per-channel data as JSON: {"whatsapp": {…}}
    #[arg(long)]
    data: Option<String>,
    /// 0 to 9, 9 first
    #[arg(long)]
    priority: Option<i16>,
    /// Not before this time, e.g. 2026-03-15T09:30:00Z
    #[arg(long, value_name = "TIME")]
    due_at: Option<String>,
    /// Never after this time
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// Where it comes from, as JSON: {"site": …, "instance": …, "script": …, "rule": …}
    #[arg(long)]
    source: Option<String>,
    #[arg(long)]
    correlation_id: Option<String>,
    #[arg(long)]
    topic: Option<String>,
    #[arg(long)]
    schema_version: Option<i32>,
    /// The same key with other content is an error
    #[arg(long)]
    strict: bool,
    /// The whole notification as JSON instead: @FILE, - for stdin, or the text
    #[arg(long, conflicts_with_all = ["payload", "to", "event_type"])]
    json: Option<String>,
    /// Wait until it is sent or parked, and show it
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

impl Enqueue {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let json = self.json()?;
        // A tenant that is not a text is refused when the rest is read.
        let tenant = named_tenant(json.get()).ok().flatten().unwrap_or_else(|| "default".to_owned());
        let store = super::store(settings).await?;
        let owner = Owner { id: store.tenant(&tenant).await?, name: &tenant };
        let note = notifications::read(&store, owner, json.get(), None).await.map_err(super::refused)?;
        if note.note().recipients.is_empty() {
            say!("postcommit: no recipient is named: the notification will be parked");
        }
        let (key, strict) = (note.note().idempotency_key.clone(), note.note().strict);
        let gone =
            || Failure::new(Exit::Failed, "the database did not say what became of it; repeat it under the same key");
        let accepted = store.accept(vec![note]).await.pop().ok_or_else(gone)?.map_err(super::refused)?;
        let Accepted { id, duplicate, conflict } = accepted;
        if conflict && strict {
            return Err(Failure::new(Exit::Refused, Error::Conflict { key, first: id }.to_string()));
        }
        if owner.id.is_none() {
            // A misspelt name makes a tenant, too.
            say!("postcommit: there was no tenant {tenant:?}: it was made, and has no providers of its own yet");
        }
        say_seen(accepted, &key);
        if self.wait {
            let done = wait(format, &store, id, self.timeout).await?;
            return Ok(if conflict { Exit::Refused } else { done });
        }
        output::one(format, &json!({"id": id, "duplicate": duplicate, "conflict": conflict}), |_| id.to_string());
        Ok(Exit::Ok)
    }

    /// The notification as the API takes it: payload and data are kept as they were written, digit for digit.
    fn json(&self) -> Result<Box<RawValue>, Failure> {
        match &self.json {
            Some(text) => parse("--json", text),
            None => raw("the notification", &self.document()?),
        }
    }

    /// The fields given, under the names of the contract.
    fn document(&self) -> Result<BTreeMap<&'static str, Box<RawValue>>, Failure> {
        let recipients = self.to.iter().map(|text| recipient(text)).collect::<Result<Vec<_>, _>>()?;
        let text = |name, value: &Option<String>| value.as_ref().map(|value| raw(name, value)).transpose();
        let json = |name, value: &Option<String>| value.as_ref().map(|value| parse(name, value)).transpose();
        let fields = [
            ("event_type", text("event_type", &self.event_type)?),
            ("payload", json("--payload", &self.payload)?),
            ("idempotency_key", text("--key", &self.key)?),
            ("tenant", text("--tenant", &self.tenant)?),
            ("entity", text("--entity", &self.entity)?),
            ("recipients", Some(raw("--to", &recipients)?)),
            ("channels", Some(raw("--channel", &self.channels)?)),
            ("title", text("--title", &self.title)?),
            ("body", text("--body", &self.body)?),
            ("action_url", text("--action-url", &self.action_url)?),
            ("data", json("--data", &self.data)?),
            ("priority", self.priority.map(|priority| raw("--priority", &priority)).transpose()?),
            ("due_at", text("--due-at", &self.due_at)?),
            ("expires_at", text("--expires-at", &self.expires_at)?),
            ("source", json("--source", &self.source)?),
            ("correlation_id", text("--correlation-id", &self.correlation_id)?),
            ("topic", text("--topic", &self.topic)?),
            ("schema_version", self.schema_version.map(|version| raw("--schema-version", &version)).transpose()?),
            ("strict", Some(raw("--strict", &self.strict)?)),
        ];
        Ok(fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }
}

/// Waits until it is sent or parked, at most this many seconds, and shows it.
pub async fn wait(format: Format, store: &Store, id: Uuid, timeout: u64) -> CommandResult {
    let started = clock::monotonic();
    let mut look = tokio::time::interval(Duration::from_millis(100));
    let mut status = String::from("pending");
    while ["pending", "sending", "retrying"].contains(&status.as_str())
        && started.elapsed() < Duration::from_secs(timeout)
    {
        look.tick().await;
        let gone = || Failure::new(Exit::NotFound, format!("notification {id} is gone"));
        status = store.notification_row(id).await?.ok_or_else(gone)?.status;
    }
    super::notifications::show(format, store, id).await?;
    match status.as_str() {
        "sent" | "delivered" => Ok(Exit::Ok),
        "pending" | "sending" | "retrying" => Err(Failure::new(
            Exit::Failed,
            format!("not finished within {timeout} s: {}", why_not_yet(store, id).await?),
        )),
        _ => Ok(Exit::Failed),
    }
}

/// What an unfinished notification waits for.
async fn why_not_yet(store: &Store, id: Uuid) -> Result<String, Failure> {
    let now = store.now().await?;
    let waiting = store
        .delivery_rows(&DeliveryFilter::of_notification(id))
        .await?
        .rows
        .into_iter()
        .find(|d| d.next_attempt_at.is_some());
    let Some(waiting) = waiting else { return Ok("it is being settled".into()) };
    let lane = store.providers().await?.into_iter().find(|p| Some(&p.name) == waiting.provider.as_ref());
    Ok(match (lane.and_then(|lane| lane.paused), waiting.next_attempt_at) {
        (Some(why), _) => format!("its provider is paused: {why}"),
        (None, Some(at)) if at > now => format!("it is {}, next at {at}", waiting.state),
        _ if store.attendance().await?.workers == 0 => {
            format!(
                "it is {}, and no process delivers: start `postcommit serve` or `postcommit serve --role worker`",
                waiting.state
            )
        }
        _ => format!("it is {}, and its turn has not come; `postcommit doctor` looks for the cause", waiting.state),
    })
}

/// Tells a person that the key was used before.
fn say_seen(accepted: Accepted, key: &str) {
    if accepted.conflict {
        say!(
            "postcommit: key {key:?} was used before with other content; this one is not sent, the id is the first one's (--strict makes it an error)"
        );
    } else if accepted.duplicate {
        say!("postcommit: key {key:?} was used before; the id is the first one's");
    }
}

fn raw<T: Serialize>(name: &str, value: &T) -> Result<Box<RawValue>, Failure> {
    to_raw_value(value).map_err(|e| Failure::new(Exit::Usage, format!("{name}: {e}")))
}

/// JSON given as text, as `@file` or as `-` for stdin.
pub fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, Failure> {
    let usage = |problem: String| Failure::new(Exit::Usage, format!("{name}: {problem}"));
    let text = read_text(text).map_err(&usage)?;
    serde_json::from_str(&text).map_err(|e| usage(format!("is not JSON: {e}")))
}

/// A text as it is, of `@file`, or of stdin for `-`.
pub fn read_text(text: &str) -> Result<String, String> {
    if let Some(path) = text.strip_prefix('@') {
        return std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    }
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut all = String::new();
    std::io::stdin().read_to_string(&mut all).map_err(|e| format!("stdin: {e}"))?;
    Ok(all)
}

/// `kind:value`; an address that can only be of one kind needs no kind.
fn recipient(text: &str) -> Result<Recipient, Failure> {
    let (kind, value) = text.split_once(':').unwrap_or(("", text));
    let recipient = match kind {
        "email" | "user" | "list" | "phone" | "slack" | "teams" | "webhook" => {
            Recipient::from_json(&json!({ kind: value }))
        }
        "provider" => value
            .split_once(':')
            .map(|(name, address)| Recipient::at(name, address))
            .ok_or_else(|| "write provider:NAME:ADDRESS".to_owned()),
        "http" | "https" => Ok(Recipient::webhook(text)),
        _ if text.contains('@') => Ok(Recipient::email(text)),
        _ if text.starts_with('+') => Ok(Recipient::phone(text)),
        _ => Err("write email:…, phone:…, webhook:…, slack:…, teams:…, user:…, list:… or provider:NAME:ADDRESS".into()),
    };
    recipient.map_err(|problem| Failure::new(Exit::Usage, format!("--to {text}: {problem}")))
}
