//! Background duties. When a duty is due, the first process that claims it in the database runs it.

mod receipts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use receipts::{run_due as run_due_receipts, run_once as run_receipts_once};

use super::Tools;
use super::outage::OutageLog;
use crate::db::DbError;
use crate::store::{KpiSettings, Store};

const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3600);
/// The time between two checks whether a duty is due.
const LOOK: Duration = Duration::from_secs(60);
/// The interval of duties that delete data which is no longer needed.
const TIDYING: Duration = Duration::from_secs(600);
/// The interval of duties that are due at every check. It is a little shorter than `LOOK`, so that a check that comes
/// slightly early still finds the duty due.
const EVERY_LOOK: Duration = Duration::from_secs(50);

/// Runs all due duties. Returns descriptions of the work done, for display.
pub async fn run_once(store: &Store, kpi: &KpiSettings) -> Result<Vec<String>, DbError> {
    let mut done = Vec::new();
    if store.take_duty("partitions", DAY).await? {
        let made = or_give_back(store, "partitions", store.make_partitions_once().await).await?;
        done.push(format!("created {made} partitions"));
    }
    if store.take_duty("strays", EVERY_LOOK).await? {
        let moved = or_give_back(store, "strays", store.reroute_strays_once().await).await?;
        done.push(format!("moved {moved} deliveries of deleted providers back, to find another provider for them"));
    }
    if store.take_duty("hosts", TIDYING).await? {
        let forgotten = or_give_back(store, "hosts", store.forget_open_hosts_once().await).await?;
        done.push(format!("deleted {forgotten} rows of hosts that are no longer paused or on hold"));
    }
    if store.take_duty("expansions", TIDYING).await? {
        let forgotten = or_give_back(store, "expansions", store.forget_parts_once().await).await?;
        done.push(format!("deleted {forgotten} members of expansions that ended before they were complete"));
    }
    if store.take_duty("pacing", TIDYING).await? {
        let forgotten = or_give_back(store, "pacing", store.forget_pacing_once().await).await?;
        done.push(format!("deleted {forgotten} throttles and digests whose period is over"));
    }
    if store.take_duty("rollups", EVERY_LOOK).await? {
        let folded = or_give_back(store, "rollups", store.fold_rollups_once(kpi).await).await?;
        done.push(format!("added {folded} new counts to the statistics by minute and hour"));
    }
    if store.take_duty("sessions", HOUR).await? {
        let purged = or_give_back(store, "sessions", store.purge_sessions_once().await).await?;
        done.push(format!("deleted {purged} expired sessions and login links"));
    }
    Ok(done)
}

/// Gives a failed duty back, so that it is due again immediately.
async fn or_give_back<T>(store: &Store, name: &str, done: Result<T, DbError>) -> Result<T, DbError> {
    if done.is_err() {
        store.give_back_duty(name).await?;
    }
    done
}

pub async fn run_forever(tools: Tools, quiet: Arc<AtomicBool>, outage: Arc<OutageLog>) {
    tokio::join!(receipts::run_forever(&tools, &quiet, &outage), look_forever(&tools, &quiet, &outage));
}

async fn look_forever(tools: &Tools, quiet: &AtomicBool, outage: &OutageLog) {
    let mut look = tokio::time::interval(LOOK);
    while !quiet.load(Ordering::Relaxed) {
        look.tick().await;
        match run_once(&tools.store, &tools.kpi).await {
            Ok(done) => done.iter().for_each(|what| tracing::debug!(what, "background duty done")),
            Err(problem) => outage.failed(&problem, "a background duty failed; it is tried again later"),
        }
    }
}
