//! The command `postcommit notifications`.

use clap::{Args, Subcommand};
use postcommit_channel::model::DeliveryState;
use postcommit_engine::store::{
    AttemptRow, AuditRow, DeliveryRow, NotificationDetails, NotificationFilter, NotificationRow, Store, masked,
};
use serde_json::json;
use uuid::Uuid;

use super::{AnyId, IdArg};
use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Subcommand)]
pub enum Notifications {
    /// List notifications, newest first
    List(List),
    /// Show one notification with its deliveries and attempts, or one delivery if the id is that of a delivery
    Show {
        /// Id of a notification or of a delivery (NOTIFICATION.N)
        #[arg(value_parser = super::any_id)]
        id: AnyId,
    },
    /// Cancel the deliveries of a notification that are not sent yet
    Cancel(IdArg),
}

#[derive(Debug, Args)]
pub struct List {
    /// Only notifications of this tenant [default: every tenant]
    #[arg(long)]
    tenant: Option<String>,
    /// Only notifications in this state; repeatable, or several with commas. A notification has the state of its least
    /// finished delivery
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',',
        value_parser = DeliveryState::ALL.map(DeliveryState::name))]
    states: Vec<String>,
    /// Only notifications of this event type
    #[arg(long)]
    event_type: Option<String>,
    /// Only notifications about this entity
    #[arg(long)]
    entity: Option<String>,
    /// Only notifications to exactly this user id or address; the form of `enqueue --to` is accepted, too: user:ID
    #[arg(long, value_name = "ADDRESS", value_parser = super::address)]
    recipient: Option<String>,
    /// Only the notification with this idempotency key
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    page: super::PageArgs,
}

impl Notifications {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = super::acting(settings).await?;
        match self {
            Self::Show { id } => id.show(format, &store, false).await,
            Self::Cancel(IdArg { id }) => {
                let counts = store.cancel_notification(None, *id).await?.ok_or_else(|| missing(*id))?;
                if counts == (0, 0) {
                    let state = store.notification_row(*id).await?.map_or_else(|| "gone".into(), |row| row.state);
                    say!("postcommit: the notification is {state}; {ONLY_UNSENT}{}", discard_hint(&state, *id));
                }
                taken_back(format, counts)
            }
            Self::List(list) => list.run(format, &store).await,
        }
    }
}

impl List {
    async fn run(&self, format: Format, store: &Store) -> CommandResult {
        let filter = NotificationFilter {
            tenant: super::tenant(store, self.tenant.as_deref()).await?,
            states: self.states.clone(),
            event_type: self.event_type.clone(),
            entity: self.entity.clone(),
            recipient: self.recipient.clone(),
            idempotency_key: self.idempotency_key.clone(),
            before: self.page.before,
            limit: self.page.size.limit,
            ..NotificationFilter::default()
        };
        let page = store.notification_rows(&filter).await?;
        super::print_page(format, store, filter.tenant, page, &COLUMNS).await
    }
}

const COLUMNS: [output::Column<NotificationRow>; 8] = [
    ("id", |r| r.id.to_string()),
    ("tenant", |r| r.tenant.clone()),
    ("created", |r| output::seconds(r.created_at)),
    ("state", |r| if r.captured { format!("{} (captured)", r.state) } else { r.state.clone() }),
    ("event type", |r| r.event_type.clone()),
    ("entity", |r| or_dash(&r.entity)),
    ("attempts", |r| r.attempts.to_string()),
    ("last error", |r| r.last_error.as_deref().map_or("-", |e| e.split(':').next().unwrap_or(e)).to_owned()),
];

/// Prints one notification with its deliveries, attempts and operator actions.
pub async fn show(format: Format, store: &Store, id: Uuid) -> CommandResult {
    let story = store.notification_details(None, id).await?.ok_or_else(|| missing(id))?;
    output::one(format, &story, text);
    Ok(Exit::Ok)
}

fn missing(id: Uuid) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no notification {id}"))
}

/// The note on a message that a driver for development recorded instead of sending it.
pub(super) const CAPTURED: &str = "captured, not sent";

/// The reason why nothing was cancelled.
pub(super) const ONLY_UNSENT: &str = "only deliveries that are not sent yet can be cancelled";

fn discard_hint(state: &str, id: Uuid) -> String {
    let discard = format!("; `postcommit deliveries discard --notification-id {id}` discards parked deliveries");
    if state == "parked" { discard } else { String::new() }
}

/// Prints the result of a cancellation. It is no failure if there was nothing to cancel.
pub(super) fn taken_back(format: Format, (cancelled, under_way): (i64, i64)) -> CommandResult {
    output::one(format, &json!({"cancelled": cancelled, "under_way": under_way}), |_| {
        let late = if under_way > 0 {
            format!("; {under_way} deliveries are being sent: this attempt continues, and they are not retried")
        } else {
            String::new()
        };
        format!("{cancelled} cancelled{late}")
    });
    Ok(Exit::Ok)
}

fn text(story: &NotificationDetails) -> String {
    let note = &story.notification;
    let mut lines = vec![format!("{}  {}", note.id, story.state)];
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
    field("last try", story.last_attempt_at.map(|at| at.to_string()));
    field("sent", story.sent_at.map(|at| at.to_string()));
    field("delivered", story.delivered_at.map(|at| at.to_string()));
    for delivery in &story.deliveries {
        lines.push(line(delivery));
        lines.extend(history(story, &delivery.id));
    }
    // Also show the actions from before the notification had deliveries, and on deliveries that no longer exist.
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

/// The history of one delivery in order: attempts, and actions of operators.
pub(super) fn history(story: &NotificationDetails, delivery: &str) -> Vec<String> {
    let attempts = story
        .attempt_log
        .iter()
        .filter(|attempt| attempt.delivery_id == delivery)
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

/// The state of a delivery with its reason, whether it was only captured, and whether a parked delivery may have
/// arrived.
pub(super) fn standing(d: &DeliveryRow) -> String {
    let reason = d.reason.as_deref().or(d.captured.then_some(CAPTURED));
    let maybe = if d.unclear && d.state == "parked" { ": it may have arrived" } else { "" };
    format!("{}{}{maybe}", d.state, reason.map(|reason| format!(" ({reason})")).unwrap_or_default())
}

fn line(d: &DeliveryRow) -> String {
    let waits = d.waits_for.as_ref().map(|what| format!("  waits for {what}")).unwrap_or_default();
    if d.n == 0 && d.state == "pending" {
        return format!("  .0 pending  not expanded yet{waits}");
    }
    let error = d
        .error_code
        .as_ref()
        .map(|code| format!("  {code}{}", d.last_error.as_ref().map(|e| format!(": {e}")).unwrap_or_default()))
        .unwrap_or_default();
    let (channel, provider) = (or_dash(&d.channel), or_dash(&d.provider));
    format!("  .{} {}  {channel} to {} by {provider}{waits}{error}", d.n, standing(d), receiver(d))
}

/// The address and the user of a delivery. The address of an inbox is the user's id, so the masked address is left out.
fn receiver(d: &DeliveryRow) -> String {
    match &d.user_id {
        None => or_dash(&d.target),
        Some(user) if d.target.as_deref().is_none_or(|target| target == masked(user)) => format!("user {user}"),
        Some(user) => format!("{} (user {user})", or_dash(&d.target)),
    }
}

fn attempt_line(a: &AttemptRow) -> String {
    // The detail of an attempt without an error code is a warning.
    let told: Vec<&str> = a.code.as_deref().into_iter().chain(a.detail.as_deref()).collect();
    let error = if told.is_empty() { String::new() } else { format!("  {}", told.join(": ")) };
    let class = a.error_class.as_ref().map(|class| format!(" [{class}]")).unwrap_or_default();
    let captured = if a.captured { format!(" ({CAPTURED})") } else { String::new() };
    let reference = a.provider_ref.as_ref().map(|r| format!("  {r}")).unwrap_or_default();
    // The receiver's answer is shown only if the attempt failed.
    let said =
        a.excerpt.as_ref().filter(|_| a.code.is_some()).map(|e| format!("\n       answer: {e}")).unwrap_or_default();
    format!("     {} {}  {}{captured}  {} ms{reference}{error}{class}{said}", a.seq, a.at, a.outcome, a.latency_ms)
}
