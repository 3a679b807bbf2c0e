//! `postcommit deliveries`.

mod act;
mod cancel;
mod resend;
mod which;

use std::collections::HashSet;
use std::time::Duration;

use clap::{Args, Subcommand};
use postcommit::Timestamp;
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{Act, Acted, DeliveryFilter, DeliveryRow, Position, Store};
use serde_json::{Value, json};
use uuid::Uuid;

use super::notifications::{captured, history, standing};
use crate::acts;
use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::settings::Settings;
use crate::telemetry::say;
use act::ActArgs;
use resend::ResendArgs;
use which::Which;

#[derive(Debug, Subcommand)]
pub enum Deliveries {
    /// Newest first
    List(List),
    /// One delivery with its attempts
    Show {
        /// The delivery's id: NOTIFICATION.N
        id: DeliveryId,
    },
    /// Set parked deliveries back to pending with counters reset; what was sent stays sent
    Retry(ActArgs),
    /// End parked deliveries for good; the rows stay
    Discard(ActArgs),
    /// Cancel what is not under way yet: by ids, or all about an entity
    Cancel(cancel::CancelArgs),
    /// Send again what was last sent for an entity over a channel; the first one is not touched
    Resend(ResendArgs),
    /// Follow attempts as they happen
    Tail {
        /// Begin this many seconds ago
        #[arg(long, default_value_t = 0, value_name = "SECONDS")]
        since: u64,
        /// Print what there is and exit
        #[arg(long)]
        no_follow: bool,
    },
}

#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    which: Which,
    /// Only deliveries due for longer than the setting kpi.stuck_after_s and not under way
    #[arg(long)]
    stuck: bool,
    /// The page after this position; a notification's id is the position behind it
    #[arg(long, value_name = "PLACE")]
    before: Option<Position>,
    /// 1 to 200
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=200))]
    limit: i64,
}

impl Deliveries {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = super::acting(settings).await?;
        match self {
            Self::List(list) => list.run(format, settings, &store).await,
            Self::Show { id } => show(format, &store, *id).await,
            Self::Retry(many) if many.by_filter()? => many.run(format, &store, Act::Retry).await,
            Self::Retry(ActArgs { ids, .. }) => act_on_ids(format, &store, ids, Act::Retry).await,
            Self::Discard(many) if many.by_filter()? => many.run(format, &store, Act::Discard).await,
            Self::Discard(ActArgs { ids, .. }) => act_on_ids(format, &store, ids, Act::Discard).await,
            Self::Cancel(cancel) => cancel.run(format, &store).await,
            Self::Resend(again) => again.run(format, &store).await,
            Self::Tail { since, no_follow } => tail(format, &store, *since, *no_follow).await,
        }
    }
}

impl List {
    async fn run(&self, format: Format, settings: &Settings, store: &Store) -> CommandResult {
        let filter = DeliveryFilter {
            stuck: self.stuck.then(|| settings.kpi.stuck_after()),
            before: self.before,
            limit: self.limit,
            ..self.which.filter(store).await?
        };
        let page = store.delivery_rows(&filter).await?;
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

const COLUMNS: [output::Column<DeliveryRow>; 10] = [
    ("id", |r| r.id.clone()),
    ("tenant", |r| r.tenant.clone()),
    ("updated", |r| output::seconds(r.updated_at)),
    ("state", |r| r.reason.as_ref().map_or_else(|| r.state.clone(), |reason| format!("{} ({reason})", r.state))),
    ("channel", |r| or_dash(&r.channel)),
    ("to", |r| or_dash(&r.target)),
    ("provider", |r| or_dash(&r.provider)),
    ("event type", |r| r.event_type.clone()),
    ("attempts", |r| r.attempts.to_string()),
    ("error", |r| or_dash(&r.error_code)),
];

fn missing(id: DeliveryId) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no delivery {id}"))
}

async fn show(format: Format, store: &Store, id: DeliveryId) -> CommandResult {
    let row = store.delivery_row(None, id).await?.ok_or_else(|| missing(id))?;
    let key = store.delivery_key(None, id).await?.ok_or_else(|| missing(id))?;
    let attempts: Vec<_> =
        store.attempts(key.tenant, id.notification).await?.into_iter().filter(|a| a.delivery == row.id).collect();
    let (captured, story) =
        (captured(store, key.tenant).await?, store.notification_details(None, id.notification).await?);
    let mut told = json!(row);
    told["attempt_log"] = json!(attempts);
    output::one(format, &told, |_| {
        let past = story.iter().flat_map(|story| history(story, &row.id));
        std::iter::once(format!("{}  {}", row.id, standing(&row, &captured)))
            .chain(fields(&row))
            .chain(past)
            .collect::<Vec<_>>()
            .join("\n")
    });
    Ok(Exit::Ok)
}

/// The fields of a delivery, most important first.
fn fields(row: &DeliveryRow) -> Vec<String> {
    let error = row
        .error_code
        .as_ref()
        .map(|code| row.last_error.as_ref().map_or_else(|| code.clone(), |text| format!("{code}: {text}")));
    let fields = [
        ("event type", Some(row.event_type.clone())),
        ("tenant", Some(row.tenant.clone())),
        ("entity", row.entity.clone()),
        ("channel", row.channel.clone()),
        ("to", row.target.clone()),
        ("provider", row.provider.clone()),
        ("reference", row.provider_ref.clone()),
        ("attempts", Some(format!("{} in this round", row.attempts))),
        ("next", row.next_attempt_at.map(|at| at.to_string())),
        ("last error", error),
        ("unclear", row.unclear.then(|| "an attempt of this round may have arrived".to_owned())),
        ("enqueued", Some(row.created_at.to_string())),
        ("sent", row.sent_at.map(|at| at.to_string())),
        ("updated", Some(row.updated_at.to_string())),
    ];
    fields.iter().filter_map(|(name, value)| Some(format!("  {name:<12}{}", value.as_ref()?))).collect()
}

/// Acts on each id, prints the results, and exits by how many succeeded.
async fn act_on_ids(format: Format, store: &Store, ids: &[DeliveryId], act: Act) -> CommandResult {
    let (done, why_not) = match act {
        Act::Retry => {
            let instead = "`postcommit dispatch --once --id NOTIFICATION` tries what waits immediately";
            ("pending", format!("only what is parked is retried; {instead}"))
        }
        Act::Discard => ("discarded", "only what is parked is discarded".to_owned()),
        Act::Cancel => ("cancelled", "only what waits is cancelled".to_owned()),
    };
    let some: Vec<Option<DeliveryId>> = ids.iter().copied().map(Some).collect();
    let acted = acts::on_ids(store, None, act, &some).await?;
    let mut failed = (0, Exit::Ok);
    let mut results = Vec::with_capacity(ids.len());
    for (id, acted) in ids.iter().zip(acted) {
        let result = match acted {
            Acted::Done => done,
            Acted::Refused { state, .. } => {
                failed = (failed.0 + 1, Exit::Refused);
                say!("postcommit: {id} is {state}: {why_not}");
                "refused"
            }
            Acted::NotFound => {
                failed = (failed.0 + 1, Exit::NotFound);
                say!("postcommit: {id}: there is no such delivery");
                "not found"
            }
        };
        results.push(json!({"id": id.to_string(), "result": result}));
    }
    fn text(value: &Value) -> String {
        value.as_str().unwrap_or_default().to_owned()
    }
    output::list(format, &results, &[("id", |row| text(&row["id"])), ("result", |row| text(&row["result"]))]);
    Ok(if failed.0 > 0 && failed.0 < ids.len() { Exit::Partly } else { failed.1 })
}

/// Attempts are written when they end and dated when they began, so each query reaches back and skips what was
/// printed.
async fn tail(format: Format, store: &Store, since: u64, no_follow: bool) -> CommandResult {
    const REACH: i64 = 120_000_000;
    // A stream has no end where a JSON document could close.
    let format = if format == Format::Json { Format::Jsonl } else { format };
    let from = store.now().await?.as_micros() - i64::try_from(since.min(315_360_000)).unwrap_or(0) * 1_000_000;
    let mut printed: HashSet<(String, i32)> = HashSet::new();
    let mut look = tokio::time::interval(Duration::from_millis(250));
    loop {
        look.tick().await;
        let now = store.now().await?.as_micros();
        let start = if printed.is_empty() { from } else { from.max(now - REACH) };
        // Two days back: a retry of an older notification is not followed.
        let oldest = Uuid::new_v7(uuid::Timestamp::from_unix_time(
            u64::try_from((now - 172_800_000_000).max(0) / 1_000_000).unwrap_or(0),
            0,
            0,
            0,
        ));
        for attempt in store.attempts_since(Timestamp::from_micros(start), oldest, 1000).await? {
            if printed.insert((attempt.delivery.clone(), attempt.seq)) {
                output::one(format, &attempt, |a| {
                    let error = a.code.as_ref().map(|code| format!("  {code}")).unwrap_or_default();
                    format!(
                        "{}  {:<9} {:<16} {}  #{}  {} ms{error}",
                        a.at,
                        a.outcome,
                        or_dash(&a.provider),
                        a.delivery,
                        a.seq,
                        a.latency_ms
                    )
                });
            }
        }
        if no_follow {
            return Ok(Exit::Ok);
        }
    }
}
