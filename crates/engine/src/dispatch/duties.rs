//! Background duties: each is done by whichever process comes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::db::DbError;
use crate::store::{KpiSettings, Store};

const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3600);
const LOOK: Duration = Duration::from_secs(60);
const STRAYS: Duration = Duration::from_secs(600);
/// A little less than a look, so that none is skipped.
const ROLLUPS: Duration = Duration::from_secs(50);

/// Runs all due duties. Returns what was done, for people.
///
/// # Errors
/// When the database fails; the next look tries again.
pub async fn run_once(store: &Store, kpi: &KpiSettings) -> Result<Vec<String>, DbError> {
    let mut done = Vec::new();
    if store.take_duty("partitions", DAY).await? {
        let made = or_give_back(store, "partitions", store.make_partitions_once().await).await?;
        done.push(format!("made {made} partitions"));
    }
    if store.take_duty("strays", STRAYS).await? {
        let moved = or_give_back(store, "strays", store.reroute_strays_once().await).await?;
        done.push(format!("rerouted {moved} deliveries whose provider is gone"));
    }
    if store.take_duty("hosts", STRAYS).await? {
        let forgotten = or_give_back(store, "hosts", store.forget_open_hosts_once().await).await?;
        done.push(format!("forgot {forgotten} hosts that are open"));
    }
    if store.take_duty("rollups", ROLLUPS).await? {
        let folded = or_give_back(store, "rollups", store.fold_rollups_once(kpi).await).await?;
        done.push(format!("folded {folded} counts"));
    }
    if store.take_duty("sessions", HOUR).await? {
        let purged = or_give_back(store, "sessions", store.purge_sessions_once().await).await?;
        done.push(format!("forgot {purged} sessions and login links that were over"));
    }
    Ok(done)
}

/// Gives a failed duty back, so that it is due again.
async fn or_give_back<T>(store: &Store, name: &str, done: Result<T, DbError>) -> Result<T, DbError> {
    if done.is_err() {
        store.give_back_duty(name).await?;
    }
    done
}

pub async fn run_forever(store: Store, kpi: KpiSettings, quiet: Arc<AtomicBool>) {
    let mut look = tokio::time::interval(LOOK);
    while !quiet.load(Ordering::Relaxed) {
        look.tick().await;
        match run_once(&store, &kpi).await {
            Ok(done) => done.iter().for_each(|what| tracing::debug!(what, "duty")),
            Err(problem) => tracing::warn!(%problem, "background duty failed; trying again later"),
        }
    }
}
