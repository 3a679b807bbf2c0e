//! `postcommit enqueue`.

use std::io::Read;
use std::time::Duration;

use clap::Args;
use postcommit::{Error, Notification, Recipient, Timestamp};
use postcommit_engine::clock;
use postcommit_engine::store::{DeliveryFilter, EnqueueError, Store};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::output::{self, Done, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct Enqueue {
    /// What happened, e.g. booking.confirmed
    #[arg(required_unless_present = "json")]
    event_type: Option<String>,
    /// To whom: email:a@b.c, phone:+49…, webhook:https://…, slack:…, teams:…, user:ID, list:NAME, provider:NAME:ADDRESS; repeatable
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
    /// The thing it is about, e.g. a booking's id
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
    /// Not before this, e.g. 2026-03-15T09:30:00Z
    #[arg(long, value_name = "TIME")]
    due_at: Option<String>,
    /// Never after this
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
    /// Wait until it is sent or given up, and show it
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

impl Enqueue {
    pub async fn run(&self, format: Format, settings: &Settings) -> Done {
        let note = self.notification()?;
        let store = super::store(settings).await?;
        if note.recipients.is_empty() {
            say!("postcommit: no recipient is named: the notification will be parked");
        }
        let asked = store.now().await?;
        let id = store.enqueue(&note).await.map_err(refused)?;
        let seen = Seen::of(&store, id, asked).await?;
        seen.say(&note.idempotency_key);
        if self.wait {
            let done = self.wait(format, &store, id).await?;
            return Ok(if seen.conflict { Exit::Refused } else { done });
        }
        output::one(format, &json!({"id": id, "duplicate": seen.duplicate, "conflict": seen.conflict}), |_| id.to_string());
        Ok(Exit::Ok)
    }

    fn notification(&self) -> Result<Notification, Failure> {
        let usage = |problem: String| Failure::new(Exit::Usage, problem);
        let document = match &self.json {
            Some(text) => parse("--json", text)?,
            None => self.document()?,
        };
        serde_json::from_value(document).map_err(|e| usage(e.to_string()))
    }

    /// The fields given, under the names of the contract.
    fn document(&self) -> Result<Value, Failure> {
        let recipients = self.to.iter().map(|text| recipient(text)).collect::<Result<Vec<_>, _>>()?;
        let json = |name: &str, text: &Option<String>| text.as_ref().map(|text| parse(name, text)).transpose();
        let mut document = Map::new();
        let fields = [
            ("event_type", self.event_type.clone().map(Value::from)),
            ("payload", json("--payload", &self.payload)?),
            ("idempotency_key", self.key.clone().map(Value::from)),
            ("tenant", self.tenant.clone().map(Value::from)),
            ("entity", self.entity.clone().map(Value::from)),
            ("recipients", Some(json!(recipients))),
            ("channels", Some(json!(self.channels))),
            ("title", self.title.clone().map(Value::from)),
            ("body", self.body.clone().map(Value::from)),
            ("action_url", self.action_url.clone().map(Value::from)),
            ("data", json("--data", &self.data)?),
            ("priority", self.priority.map(Value::from)),
            ("due_at", self.due_at.clone().map(Value::from)),
            ("expires_at", self.expires_at.clone().map(Value::from)),
            ("source", json("--source", &self.source)?),
            ("correlation_id", self.correlation_id.clone().map(Value::from)),
            ("topic", self.topic.clone().map(Value::from)),
            ("schema_version", self.schema_version.map(Value::from)),
            ("strict", Some(self.strict.into())),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                document.insert(name.to_owned(), value);
            }
        }
        Ok(document.into())
    }

    async fn wait(&self, format: Format, store: &Store, id: Uuid) -> Done {
        let started = clock::monotonic();
        let mut look = tokio::time::interval(Duration::from_millis(100));
        let mut status = String::from("pending");
        while ["pending", "sending", "retrying"].contains(&status.as_str()) && started.elapsed() < Duration::from_secs(self.timeout) {
            look.tick().await;
            let gone = || Failure::new(Exit::NotFound, format!("notification {id} is gone"));
            status = store.notification_row(id).await?.ok_or_else(gone)?.status;
        }
        super::notifications::show(format, store, id).await?;
        match status.as_str() {
            "sent" | "delivered" => Ok(Exit::Ok),
            "pending" | "sending" | "retrying" => {
                Err(Failure::new(Exit::Failed, format!("not finished within {} s: {}", self.timeout, why_not_yet(store, id).await?)))
            }
            _ => Ok(Exit::Failed),
        }
    }
}

/// What an unfinished notification waits for.
async fn why_not_yet(store: &Store, id: Uuid) -> Result<String, Failure> {
    let now = store.now().await?;
    let waiting = store.delivery_rows(&DeliveryFilter::of_notification(id)).await?.rows.into_iter().find(|d| d.next_attempt_at.is_some());
    let Some(waiting) = waiting else { return Ok("it is being settled".into()) };
    let lane = store.providers().await?.into_iter().find(|p| Some(&p.name) == waiting.provider.as_ref());
    Ok(match (lane.and_then(|lane| lane.paused), waiting.next_attempt_at) {
        (Some(why), _) => format!("its provider is paused: {why}"),
        (None, Some(at)) if at > now => format!("it is {}, next at {at}", waiting.state),
        _ => format!("it is {}; is `postcommit serve` running?", waiting.state),
    })
}

/// Whether the key had been used before.
struct Seen {
    duplicate: bool,
    conflict: bool,
}

impl Seen {
    async fn of(store: &Store, id: Uuid, asked: Timestamp) -> Result<Self, Failure> {
        let Some(note) = store.notification(None, id).await? else { return Ok(Self { duplicate: false, conflict: false }) };
        let conflict = store.conflicts(note.tenant, id).await?.iter().any(|conflict| conflict.noted_at >= asked);
        Ok(Self { duplicate: note.created_at < asked, conflict })
    }

    fn say(&self, key: &str) {
        if self.conflict {
            say!(
                "postcommit: key {key:?} was used before with other content; this one is not sent, the id is the first one's (--strict makes it an error)"
            );
        } else if self.duplicate {
            say!("postcommit: key {key:?} was used before; the id is the first one's");
        }
    }
}

fn refused(error: EnqueueError) -> Failure {
    match error {
        EnqueueError::Database(error) => error.into(),
        EnqueueError::Refused(error @ Error::Invalid { .. }) => Failure::new(Exit::Usage, error.to_string()),
        EnqueueError::Refused(error) => Failure::new(Exit::Refused, error.to_string()),
    }
}

/// JSON given as text, as `@file` or as `-` for stdin.
pub fn parse(name: &str, text: &str) -> Result<Value, Failure> {
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

/// `kind:value`; an address that can only be of one kind needs none.
fn recipient(text: &str) -> Result<Recipient, Failure> {
    let (kind, value) = text.split_once(':').unwrap_or(("", text));
    let recipient = match kind {
        "email" | "user" | "list" | "phone" | "slack" | "teams" | "webhook" => Recipient::from_json(&json!({ kind: value })),
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
