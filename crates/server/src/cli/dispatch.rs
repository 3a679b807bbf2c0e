//! `postcommit dispatch`: one bounded pass, for cron or by hand.

use std::sync::atomic::Ordering;

use clap::Args;
use postcommit_engine::dispatch::Dispatcher;
use serde_json::json;
use uuid::Uuid;

use crate::output::{self, Done, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;
use crate::{app, telemetry};

#[derive(Debug, Args)]
pub struct Dispatch {
    /// One pass over what is due, then exit
    #[arg(long, required = true)]
    once: bool,
    /// Only this notification, whether due or not
    #[arg(long, value_name = "ID")]
    id: Option<Uuid>,
}

impl Dispatch {
    pub async fn run(&self, format: Format, settings: &Settings) -> Done {
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
        dispatcher.pass(only).await?;
        let tally = dispatcher.tally();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let done = json!({"sent": count(&tally.sent), "again": count(&tally.again), "parked": count(&tally.parked), "dropped": count(&tally.dropped), "stale": count(&tally.stale)});
        output::one(format, &done, |d| {
            format!("sent {}, to be tried again {}, parked {}, expired or cancelled {}", d["sent"], d["again"], d["parked"], d["dropped"])
        });
        if let (Some(id), true) = (self.id, done.as_object().is_some_and(|counts| counts.values().all(|count| count == 0))) {
            let status = looked.notification_row(id).await?.map_or_else(|| "gone".into(), |row| row.status);
            say!(
                "postcommit: nothing was done: it is {status}; a paused or held provider keeps what waits for it (`postcommit providers list`)"
            );
        }
        Ok(Exit::Ok)
    }
}
