//! The text of `/metrics`: the counts of the process, and the state of the store. The store is read at most every few
//! seconds and by one caller at a time.

use std::time::{Duration, Instant};

use postcommit_channel::clock;
use tokio::sync::Mutex;

use super::{Metrics, PrometheusText};
use crate::db::DbError;
use crate::store::{KpiSettings, Kpis, Standing, Store};

/// How long a state of the store is reused after it was read.
const FRESH: Duration = Duration::from_secs(5);

/// Produces the text of `/metrics`.
pub struct Scrape {
    metrics: Metrics,
    store: Store,
    settings: KpiSettings,
    last: Mutex<Option<(Instant, (Kpis, Standing))>>,
}

impl Scrape {
    pub fn new(metrics: Metrics, store: Store, settings: KpiSettings) -> Self {
        Self { metrics, store, settings, last: Mutex::default() }
    }

    /// Returns all metrics in the Prometheus text format 0.0.4. If the database is unreachable, the process still
    /// reports its own counts.
    pub async fn text(&self) -> String {
        let mut text = PrometheusText::default();
        self.metrics.write(&mut text);
        self.write_database(&mut text);
        // Concurrent callers wait for the lock and then reuse this answer.
        let mut last = self.last.lock().await;
        if last.as_ref().is_none_or(|(at, _)| at.elapsed() >= FRESH) {
            *last = match self.ask().await {
                Ok(answer) => Some((clock::monotonic(), answer)),
                Err(problem) => {
                    tracing::warn!(
                        %problem,
                        "could not read metrics from the database; the answer has only the metrics of this process"
                    );
                    None
                }
            };
        }
        text.one(
            "postcommit_database_up",
            "gauge",
            "1 if the database answered, otherwise 0.",
            u8::from(last.is_some()),
        );
        if let Some((_, (kpis, standing))) = last.as_ref() {
            write_store(&mut text, kpis, standing);
        }
        text.into_string()
    }

    async fn ask(&self) -> Result<(Kpis, Standing), DbError> {
        let kpis = self.store.kpis(None, None, self.settings.stuck_after(), self.settings.interval()).await?;
        Ok((kpis, self.store.standing().await?))
    }

    fn write_database(&self, text: &mut PrometheusText) {
        let (trips, pools) = (self.store.db().trips(), self.store.db().pools());
        text.one("postcommit_database_trips_total", "counter", "Round trips to the database.", trips.trips);
        text.one("postcommit_database_statements_total", "counter", "Statements executed.", trips.statements);
        text.one("postcommit_database_commits_total", "counter", "Transactions committed.", trips.commits);
        text.head("postcommit_database_pool_waits_total", "counter", "How often a connection was taken from the pool.");
        pools
            .iter()
            .for_each(|pool| text.sample("postcommit_database_pool_waits_total", &[("pool", pool.name)], pool.taken));
        text.head(
            "postcommit_database_pool_wait_seconds_total",
            "counter",
            "Time spent waiting for a connection of the pool.",
        );
        pools.iter().for_each(|pool| {
            text.sample(
                "postcommit_database_pool_wait_seconds_total",
                &[("pool", pool.name)],
                pool.waited.as_secs_f64(),
            );
        });
        text.head(
            "postcommit_database_pool_waiting",
            "gauge",
            "Callers that are waiting for a connection of the pool.",
        );
        pools
            .iter()
            .for_each(|pool| text.sample("postcommit_database_pool_waiting", &[("pool", pool.name)], pool.waiting));
    }
}

fn write_store(text: &mut PrometheusText, kpis: &Kpis, standing: &Standing) {
    let (kpi, shut) = (&kpis.total, &kpis.shut);
    text.head("postcommit_queue_depth", "gauge", "Deliveries of all tenants that are not finished, by state.");
    let depth = &kpi.queue;
    for (state, count) in [
        ("pending", depth.pending),
        ("sending", depth.sending),
        ("retrying", depth.retrying),
        ("scheduled", depth.scheduled),
    ] {
        text.sample("postcommit_queue_depth", &[("state", state)], count);
    }
    text.one(
        "postcommit_oldest_due_seconds",
        "gauge",
        "Time since the due time of the oldest delivery that could be sent now and that no worker has claimed.",
        standing.oldest_due.as_secs_f64(),
    );
    text.one(
        "postcommit_oldest_pending_seconds",
        "gauge",
        "Age of the oldest delivery that is not finished, since it was first due.",
        kpi.oldest_pending_s,
    );
    text.one(
        "postcommit_stuck",
        "gauge",
        "Deliveries that are pending or retrying and were first due more than kpi.stuck_after_s ago.",
        kpi.stuck,
    );
    text.head("postcommit_parked", "gauge", "Parked deliveries, by reason.");
    let parked = &kpi.parked;
    for (reason, count) in [
        ("rejected", parked.rejected),
        ("exhausted", parked.exhausted),
        ("outcome_unknown", parked.outcome_unknown),
        ("config", parked.config),
    ] {
        text.sample("postcommit_parked", &[("reason", reason)], count);
    }
    text.one("postcommit_lanes_paused", "gauge", "Providers that are paused.", shut.lanes_paused);
    text.one(
        "postcommit_lanes_held",
        "gauge",
        "Providers over which nothing is sent now because they asked to wait or their breaker tripped.",
        shut.lanes_held,
    );
    text.one(
        "postcommit_lanes_unopened",
        "gauge",
        "Providers over which nothing is sent because no worker can decrypt their secrets or set up their driver.",
        shut.lanes_unopened,
    );
    text.one("postcommit_hosts_paused", "gauge", "Hosts of receivers that are paused.", shut.hosts_paused);
    text.one(
        "postcommit_hosts_held",
        "gauge",
        "Hosts of receivers to which nothing is sent now because they asked to wait or their breaker tripped.",
        shut.hosts_held,
    );
    text.one(
        "postcommit_lanes_tripped",
        "gauge",
        "Providers whose breaker tripped and over which no send has succeeded since.",
        shut.lanes_tripped,
    );
    text.one(
        "postcommit_hosts_tripped",
        "gauge",
        "Hosts of receivers whose breaker tripped and to which no send has succeeded since.",
        shut.hosts_tripped,
    );
    text.one(
        "postcommit_key_conflicts_total",
        "counter",
        "Enqueued notifications that repeated an idempotency key with other content.",
        standing.key_conflicts,
    );
}
