//! `postcommit notifications`.

use std::collections::HashSet;

use clap::{Args, Subcommand};
use postcommit_channel::driver::{self, Destination};
use postcommit_channel::model::{DeliveryState, Provider};
use postcommit_engine::store::{
    AttemptRow, AuditRow, DeliveryRow, NotificationDetails, NotificationFilter, NotificationRow, Position, Store,
};
use serde_json::json;
use uuid::Uuid;

use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub enum Notifications {
    /// Newest first
    List(List),
    /// One with its deliveries and attempts
    Show {
        /// The notification's id
        #[arg(value_parser = super::id)]
        id: Uuid,
    },
    /// Cancel the deliveries of it that are not sent yet
    Cancel {
        /// The notification's id
        #[arg(value_parser = super::id)]
        id: Uuid,
    },
}

#[derive(Debug, Args)]
pub struct List {
    #[arg(long)]
    tenant: Option<String>,
    /// Its state, which is that of its least finished delivery
    #[arg(long, value_parser = DeliveryState::ALL.map(DeliveryState::name))]
    status: Option<String>,
    #[arg(long)]
    event_type: Option<String>,
    /// About this entity
    #[arg(long)]
    entity: Option<String>,
    /// The one with this idempotency key
    #[arg(long)]
    key: Option<String>,
    /// The page after this position; a notification's id is the position behind it
    #[arg(long, value_name = "PLACE")]
    before: Option<Position>,
    /// 1 to 200
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=200))]
    limit: i64,
}

impl Notifications {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = super::acting(settings).await?;
        match self {
            Self::Show { id } => show(format, &store, *id).await,
            Self::Cancel { id } => {
                let (cancelled, under_way) = store.cancel_notification(None, *id).await?.ok_or_else(|| missing(*id))?;
                taken_back(format, cancelled, under_way)
            }
            Self::List(list) => list.run(format, &store).await,
        }
    }
}

impl List {
    async fn run(&self, format: Format, store: &Store) -> CommandResult {
        let filter = NotificationFilter {
            tenant: super::tenant(store, self.tenant.as_deref()).await?,
            status: self.status.clone(),
            event_type: self.event_type.clone(),
            entity: self.entity.clone(),
            idempotency_key: self.key.clone(),
            before: self.before,
            limit: self.limit,
            ..NotificationFilter::default()
        };
        let page = store.notification_rows(&filter).await?;
        let tenant = super::tenant_column(store, filter.tenant).await?;
        output::list(
            format,
            &page.rows,
            &COLUMNS.into_iter().filter(|(name, _)| tenant || *name != "tenant").collect::<Vec<_>>(),
        );
        super::say_more(format, page.more);
        Ok(Exit::Ok)
    }
}

const COLUMNS: [output::Column<NotificationRow>; 8] = [
    ("id", |r| r.id.to_string()),
    ("tenant", |r| r.tenant.clone()),
    ("created", |r| output::seconds(r.created_at)),
    ("status", |r| r.status.clone()),
    ("event type", |r| r.event_type.clone()),
    ("entity", |r| or_dash(&r.entity)),
    ("attempts", |r| r.attempts.to_string()),
    ("last error", |r| r.last_error.as_deref().map_or("-", |e| e.split(':').next().unwrap_or(e)).to_owned()),
];

/// Prints one notification with everything that happened to it.
pub async fn show(format: Format, store: &Store, id: Uuid) -> CommandResult {
    let story = store.notification_details(None, id).await?.ok_or_else(|| missing(id))?;
    let captured = captured(store, story.notification.tenant).await?;
    output::one(format, &story, |story| text(story, &captured));
    Ok(Exit::Ok)
}

fn missing(id: Uuid) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no notification {id}"))
}

/// A tenant's providers that record messages and send nothing.
pub(super) async fn captured(store: &Store, tenant: i32) -> Result<HashSet<String>, Failure> {
    let providers = store.providers_of(tenant).await?;
    let captures = |provider: &Provider| driver::destination(&provider.driver) == Destination::Record;
    Ok(providers.into_iter().filter(captures).map(|provider| provider.name).collect())
}

/// The result of a cancellation. Nothing left to cancel is not a failure.
pub(super) fn taken_back(format: Format, cancelled: i64, under_way: i64) -> CommandResult {
    output::one(format, &json!({"cancelled": cancelled, "under_way": under_way}), |_| {
        let late = if under_way > 0 {
            format!("; {under_way} under way, too late for this attempt, not tried again")
        } else {
            String::new()
        };
        format!("{cancelled} cancelled{late}")
    });
    Ok(Exit::Ok)
}

fn text(story: &NotificationDetails, captured: &HashSet<String>) -> String {
    let note = &story.notification;
    let mut lines = vec![format!("{}  {}", note.id, story.status)];
    let mut field = |name: &str, value: Option<String>| lines.extend(value.map(|value| format!("  {name:<12}{value}")));
    field("event type", Some(note.event_type.clone()));
    field("tenant", Some(note.tenant_name.clone()));
    field("entity", note.entity.clone());
    field("key", Some(note.idempotency_key.clone()));
    field("title", note.title.clone());
    field("payload", Some(note.payload.to_string()).filter(|p| p != "{}"));
    field("enqueued", Some(note.created_at.to_string()));
    field("due", (note.due_at > note.created_at).then(|| note.due_at.to_string()));
    field("expires", Some(note.expires_at.to_string()));
    for delivery in &story.deliveries {
        lines.push(line(delivery, captured));
        lines.extend(history(story, &delivery.id));
    }
    // Acts before it had deliveries, or on deliveries that no longer exist.
    let told = |subject: &str| story.deliveries.iter().any(|delivery| delivery.id == subject);
    lines.extend(story.acts.iter().filter(|act| !told(&act.subject)).map(act_line));
    if !story.conflicts.is_empty() {
        lines.push(format!(
            "  key used again with other content, not sent: {}, last {}",
            if story.conflicts.len() == 1 { "once".to_owned() } else { format!("{} times", story.conflicts.len()) },
            story.conflicts[story.conflicts.len() - 1].noted_at
        ));
    }
    lines.join("\n")
}

/// The history of one delivery in order: attempts, and acts of operators.
pub(super) fn history(story: &NotificationDetails, delivery: &str) -> Vec<String> {
    let attempts = story
        .attempts
        .iter()
        .filter(|attempt| attempt.delivery == delivery)
        .map(|attempt| (attempt.at, attempt_line(attempt)));
    let acts = story.acts.iter().filter(|act| act.subject == delivery).map(|act| (act.at, act_line(act)));
    let mut all: Vec<_> = attempts.chain(acts).collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, line)| line).collect()
}

fn act_line(act: &AuditRow) -> String {
    let by = act.request_id.as_ref().map(|request| format!(" ({request})")).unwrap_or_default();
    format!("     - {}  {} by {}{by}", act.at, act.action.rsplit('.').next().unwrap_or(&act.action), act.actor)
}

/// The state of a delivery, its reason, and whether it was only recorded.
pub(super) fn standing(d: &DeliveryRow, captured: &HashSet<String>) -> String {
    let is_recorded = d.state == "sent" && d.provider.as_ref().is_some_and(|name| captured.contains(name));
    let reason = d.reason.clone().or_else(|| is_recorded.then(|| "recorded, not sent".to_owned()));
    format!("{}{}", d.state, reason.map(|reason| format!(" ({reason})")).unwrap_or_default())
}

fn line(d: &DeliveryRow, captured: &HashSet<String>) -> String {
    if d.n == 0 && d.state == "pending" {
        return "  .0 pending  not expanded yet".to_owned();
    }
    let error = d
        .error_code
        .as_ref()
        .map(|code| format!("  {code}{}", d.last_error.as_ref().map(|e| format!(": {e}")).unwrap_or_default()))
        .unwrap_or_default();
    let next = d.next_attempt_at.filter(|_| d.state == "retrying").map(|at| format!("  next {at}")).unwrap_or_default();
    let maybe = if d.unclear && d.state == "parked" { "  it may have arrived" } else { "" };
    format!(
        "  .{} {}  {} to {} by {}{next}{error}{maybe}",
        d.n,
        standing(d, captured),
        or_dash(&d.channel),
        or_dash(&d.target),
        or_dash(&d.provider)
    )
}

fn attempt_line(a: &AttemptRow) -> String {
    let error = a
        .code
        .as_ref()
        .map(|code| format!("  {code}{}", a.detail.as_ref().map(|d| format!(": {d}")).unwrap_or_default()))
        .unwrap_or_default();
    let reference = a.provider_ref.as_ref().map(|r| format!("  {r}")).unwrap_or_default();
    // The other side's answer matters when an attempt failed.
    let said =
        a.excerpt.as_ref().filter(|_| a.code.is_some()).map(|e| format!("\n       answer: {e}")).unwrap_or_default();
    format!("     {} {}  {}  {} ms{reference}{error}{said}", a.seq, a.at, a.outcome, a.latency_ms)
}
