//! The command `postcommit deliveries`.

mod act;
mod cancel;
mod resend;
mod tail;
mod which;

use clap::{Args, Subcommand};
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{Act, DeliveryFilter, DeliveryRow, ReceiptRow, Store};
use serde_json::json;

use super::AnyId;
use super::notifications::{history, standing};
use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::settings::Settings;
use act::ActArgs;
use resend::ResendArgs;
use tail::Tail;
use which::Which;

#[derive(Debug, Subcommand)]
pub enum Deliveries {
    /// List deliveries, newest first
    List(List),
    /// Show one delivery with its attempts and receipts, or one notification if the id is that of a notification
    Show {
        /// Id of a delivery (NOTIFICATION.N) or of a notification
        #[arg(value_parser = super::any_id)]
        id: AnyId,
        /// Show the full address instead of the masked one
        #[arg(long)]
        full: bool,
    },
    /// Set parked deliveries back to pending and reset their attempt counters
    ///
    /// Sent deliveries are not changed. A delivery that may have arrived is retried only with --unclear. With --state
    /// retrying, deliveries that wait for their next attempt become due now and keep their attempt counters.
    Retry(ActArgs),
    /// Discard parked deliveries: they are never sent, and their rows are kept
    Discard(ActArgs),
    /// Cancel deliveries that are not being sent yet, by ids or by entity
    Cancel(cancel::CancelArgs),
    /// Send the last notification of an entity over a channel again, as a copy
    ///
    /// The command copies the last notification that was sent for the entity over this channel. If none was sent, it
    /// copies the last notification that was enqueued for the entity. The original is not changed.
    Resend(ResendArgs),
    /// Print attempts as they happen, of all deliveries or only of matching deliveries
    Tail(Tail),
}

#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    which: Which,
    /// Only stuck deliveries: first due longer ago than the setting kpi.stuck_after_s, and not being sent
    #[arg(long)]
    stuck: bool,
    /// Show full addresses instead of masked ones
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    page: super::PageArgs,
}

impl Deliveries {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = super::acting(settings).await?;
        match self {
            Self::List(list) => list.run(format, settings, &store).await,
            Self::Show { id, full } => id.show(format, &store, *full).await,
            Self::Retry(many) if many.by_filter()? => many.run(format, &store, Act::Retry).await,
            Self::Retry(many) => act::on_ids(format, &store, &many.ids, Act::Retry, many.unclear()).await,
            Self::Discard(many) if many.by_filter()? => many.run(format, &store, Act::Discard).await,
            Self::Discard(many) => act::on_ids(format, &store, &many.ids, Act::Discard, false).await,
            Self::Cancel(cancel) => cancel.run(format, &store).await,
            Self::Resend(again) => again.run(format, &store).await,
            Self::Tail(tail) => tail.run(format, &store).await,
        }
    }
}

impl List {
    async fn run(&self, format: Format, settings: &Settings, store: &Store) -> CommandResult {
        let filter = DeliveryFilter {
            stuck: self.stuck.then(|| settings.kpi.stuck_after()),
            full: self.full,
            before: self.page.before,
            limit: self.page.size.limit,
            ..self.which.filter(store).await?
        };
        let page = store.delivery_rows(&filter).await?;
        let of_entity: &[_] = if filter.entity.is_some() { &ENTITY_COLUMNS } else { &[] };
        let warned: &[_] = if page.rows.iter().any(|row| row.warning.is_some()) { &[WARNING] } else { &[] };
        let columns = [&COLUMNS[..], of_entity, &[WAITS_FOR], warned].concat();
        super::print_page(format, store, filter.tenant, page, &columns).await
    }
}

const COLUMNS: [output::Column<DeliveryRow>; 12] = [
    ("id", |r| r.id.clone()),
    ("tenant", |r| r.tenant.clone()),
    ("updated", |r| output::seconds(r.updated_at)),
    ("state", standing),
    ("channel", |r| or_dash(&r.channel)),
    ("to", |r| or_dash(shown_address(r))),
    ("user", |r| or_dash(&r.user_id)),
    ("provider", |r| or_dash(&r.provider)),
    ("event type", |r| r.event_type.clone()),
    ("attempts", |r| r.attempts.to_string()),
    ("next", |r| r.next_attempt_at.filter(|_| r.state != "sending").map_or_else(|| "-".into(), output::seconds)),
    ("error", |r| or_dash(&r.error_code)),
];

/// The column `waits for`. It is the last column, because it is the widest.
const WAITS_FOR: output::Column<DeliveryRow> = ("waits for", |r| or_dash(&r.waits_for));
const WARNING: output::Column<DeliveryRow> = ("warning", |r| or_dash(&r.warning));

/// The full address if it was requested, otherwise the masked address.
fn shown_address(row: &DeliveryRow) -> &Option<String> {
    if row.address.is_some() { &row.address } else { &row.target }
}

/// Additional columns when the list is limited to one entity.
const ENTITY_COLUMNS: [output::Column<DeliveryRow>; 5] = [
    ("sent", |r| r.sent_at.map_or_else(|| "-".into(), output::seconds)),
    ("template", |r| or_dash(&r.template)),
    ("idempotency key", |r| r.idempotency_key.clone()),
    ("copy of", |r| r.copy_of.map_or_else(|| "-".into(), |id| id.to_string())),
    ("asked by", |r| or_dash(&r.asked_by)),
];

fn missing(id: DeliveryId) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no delivery {id}"))
}

pub(super) async fn show(format: Format, store: &Store, id: DeliveryId, full: bool) -> CommandResult {
    let row = store.delivery_row(None, id, full).await?.ok_or_else(|| missing(id))?;
    let key = store.delivery_key(None, id).await?.ok_or_else(|| missing(id))?;
    let attempts: Vec<_> =
        store.attempts(key.tenant, id.notification).await?.into_iter().filter(|a| a.delivery_id == row.id).collect();
    let story = store.notification_details(None, id.notification).await?;
    let receipts = store.receipts(key.tenant, id.notification, id.n).await?;
    let mut told = json!(row);
    told["attempt_log"] = json!(attempts);
    told["receipts"] = json!(receipts);
    output::one(format, &told, |_| {
        let past = story.iter().flat_map(|story| history(story, &row.id));
        std::iter::once(format!("{}  {}", row.id, standing(&row)))
            .chain(fields(&row))
            .chain(past)
            .chain(receipts.iter().map(receipt_line))
            .collect::<Vec<_>>()
            .join("\n")
    });
    Ok(Exit::Ok)
}

/// Formats a receipt: what the provider reported after the send, and whether the report was applied.
fn receipt_line(receipt: &ReceiptRow) -> String {
    let said: Vec<&str> = receipt.code.as_deref().into_iter().chain(receipt.detail.as_deref()).collect();
    let said = if said.is_empty() { String::new() } else { format!("  {}", said.join(": ")) };
    let why = receipt.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let by = or_dash(&receipt.provider);
    format!("     < {}  {} by {by}  {}{why}{said}", receipt.received_at, receipt.happened, receipt.fate)
}

/// The fields of a delivery, most important first.
fn fields(row: &DeliveryRow) -> Vec<String> {
    let error = row
        .error_code
        .as_ref()
        .map(|code| row.last_error.as_ref().map_or_else(|| code.clone(), |text| format!("{code}: {text}")));
    let template = row.template.as_ref().map(|template| match row.template_version {
        Some(version) => format!("{template}, version {version}"),
        None => template.clone(),
    });
    let fields = [
        ("event type", Some(row.event_type.clone())),
        ("tenant", Some(row.tenant.clone())),
        ("entity", row.entity.clone()),
        ("key", Some(row.idempotency_key.clone())),
        ("copy of", row.copy_of.map(|id| id.to_string())),
        ("asked by", row.asked_by.clone()),
        ("template", template),
        ("language", row.language.clone()),
        ("send key", row.send_key.clone()),
        ("user", row.user_id.clone()),
        ("channel", row.channel.clone()),
        ("to", shown_address(row).clone()),
        ("provider", row.provider.clone()),
        ("reference", row.provider_ref.clone()),
        ("attempts", Some(format!("{} in this round", row.attempts))),
        ("next", row.next_attempt_at.filter(|_| row.state != "sending").map(|at| at.to_string())),
        ("waits for", row.waits_for.clone()),
        ("last error", error),
        ("error class", row.error_class.clone()),
        ("warning", row.warning.clone()),
        ("unclear", row.unclear.then(|| "an attempt of this round may have arrived".to_owned())),
        ("enqueued", Some(row.created_at.to_string())),
        ("last try", row.last_attempt_at.map(|at| at.to_string())),
        ("sent", row.sent_at.map(|at| at.to_string())),
        ("delivered", row.delivered_at.map(|at| at.to_string())),
        ("updated", Some(row.updated_at.to_string())),
    ];
    fields.iter().filter_map(|(name, value)| Some(format!("  {name:<12}{}", value.as_ref()?))).collect()
}
