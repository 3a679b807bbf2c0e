//! The command `postcommit dispatch`: sends due deliveries in one pass of limited duration, for cron or for operators.

use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use postcommit_engine::dispatch::{Dispatcher, PassOutcome};
use postcommit_engine::store::{DeliveryFilter, Store};
use serde_json::json;
use uuid::Uuid;

use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;
use crate::{app, telemetry};

#[derive(Debug, Args)]
pub struct Dispatch {
    /// Send the due deliveries in one pass, then exit
    #[arg(long, required = true)]
    once: bool,
    /// Stop claiming deliveries after this many seconds, 1 to 3600; running sends are finished
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600), conflicts_with = "id")]
    seconds: u64,
    /// Send only this notification, even if it is not due yet
    #[arg(long, value_name = "ID")]
    id: Option<Uuid>,
}

impl Dispatch {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        telemetry::start(&settings.log);
        let store = app::store(settings).await?;
        let only = match self.id {
            None => None,
            Some(id) => {
                let note = store
                    .notification(None, id)
                    .await?
                    .ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no notification {id}")))?;
                Some((note.tenant, id))
            }
        };
        let looked = store.clone();
        let mut dispatcher = Dispatcher::new(app::tools(settings, store)?).await?;
        let more = match only {
            Some(_) => dispatcher.pass(only).await.map(|()| false)?,
            None => match dispatcher.pass_alone(Duration::from_secs(self.seconds)).await? {
                PassOutcome::Done { more } => more,
                PassOutcome::Elsewhere => return Ok(under_way(format)),
            },
        };
        let tally = dispatcher.tally();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let done = json!({"sent": count(&tally.sent), "again": count(&tally.again), "parked": count(&tally.parked), "dropped": count(&tally.dropped), "stale": count(&tally.stale), "more": more, "running": false});
        output::one(format, &done, |d| {
            let left = if more { "; the time is over, and more deliveries may be due" } else { "" };
            format!(
                "sent {}, to be tried again {}, parked {}, expired or cancelled {}{left}",
                d["sent"], d["again"], d["parked"], d["dropped"]
            )
        });
        if let (Some(id), true) = (
            self.id,
            done.as_object().is_some_and(|counts| counts.values().all(|count| count == 0 || count.is_boolean())),
        ) {
            say!("postcommit: nothing was sent: {}", why_nothing(&looked, id).await?);
        }
        Ok(Exit::Ok)
    }
}

/// The reason why the pass sent no delivery of a notification. The pass has made the notification due, even if its
/// provider is closed.
async fn why_nothing(store: &Store, id: Uuid) -> Result<String, Failure> {
    let state = store.notification_row(id).await?.map_or_else(|| "gone".into(), |row| row.state);
    let rows = store.delivery_rows(&DeliveryFilter::of_notification(id)).await?.rows;
    let waits = rows.into_iter().find_map(|row| row.waits_for).map(|what| {
        format!(" and waits for {what}. It is due now; a running server sends it as soon as this wait ends")
    });
    Ok(format!("the notification is {state}{}", waits.unwrap_or_default()))
}

/// Prints that another pass is running, and exits with success, so that cron sends no mail.
fn under_way(format: Format) -> Exit {
    let nothing = json!({"sent": 0, "again": 0, "parked": 0, "dropped": 0, "stale": 0, "more": true, "running": true});
    output::one(format, &nothing, |_| "another dispatch pass is running; this one did nothing".into());
    Exit::Ok
}
