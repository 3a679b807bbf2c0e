//! The engine's dispatcher, running in this process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_channel::driver::FailOn;
use postcommit_channel::model::{
    BREAKER_COOL_DOWN_S, BREAKER_FAILURES, FAILOVER_AFTER_S, Guarantee, Policy, ProviderDraft, TIMEOUT_MS,
};
use postcommit_channel::secret::Secret;
use postcommit_engine::dispatch::{Dispatcher, Stop, Tally, Tools};
use postcommit_engine::metrics::Metrics;
use postcommit_engine::store::{KpiSettings, Store};
use postcommit_engine::trace::Tracer;
use postcommit_server::output::Exit;
use serde_json::json;
use tokio::sync::watch;

use crate::failure::Failure;
use crate::load::Load;
use crate::run::Bench;
use crate::series::rate;
use crate::workspace::Workspace;

/// How often the dispatcher's counters are read.
const LOOK: Duration = Duration::from_millis(1);
/// A drain without progress for this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const WARM_UP: u64 = 2000;
/// The tenant `default`, which the migration creates first.
pub const TENANT: i32 = 1;

/// A dispatcher that runs until it is finished or dropped.
pub struct RunningDispatcher {
    tally: Arc<Tally>,
    stop: watch::Sender<Stop>,
    task: tokio::task::JoinHandle<()>,
    /// When the dispatcher was started.
    pub started: Instant,
}

impl RunningDispatcher {
    /// Creates a dispatcher and starts it.
    pub async fn start(bench: &Bench, store: &Store) -> Result<Self, Failure> {
        let dispatcher = Dispatcher::new(tools(bench, store)).await?;
        let (stop, told) = watch::channel(Stop::No);
        let tally = dispatcher.tally();
        let started = clock::monotonic();
        Ok(Self { tally, stop, task: tokio::spawn(dispatcher.run(told)), started })
    }

    /// Returns how many deliveries are sent and settled.
    pub fn sent(&self) -> u64 {
        self.tally.sent.load(Ordering::Relaxed)
    }

    /// Waits until `count` deliveries are sent and returns when that was.
    pub async fn until(&self, count: u64) -> Result<Instant, Failure> {
        let (mut last, mut moved) = (0, clock::monotonic());
        loop {
            let (sent, now) = (self.sent(), clock::monotonic());
            if sent >= count {
                return Ok(now);
            }
            if sent != last {
                (last, moved) = (sent, now);
            }
            let [again, parked, dropped] =
                [&self.tally.again, &self.tally.parked, &self.tally.dropped].map(|c| c.load(Ordering::Relaxed));
            if again + parked + dropped > 0 || self.task.is_finished() || now.duration_since(moved) > PATIENCE {
                let otherwise = format!(
                    "{again} will be retried, {parked} are parked, {dropped} expired, were cancelled or skipped"
                );
                return Err(Failure::new(
                    Exit::Failed,
                    format!("the dispatcher stopped after {sent} of {count} deliveries; {otherwise}"),
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Stops the dispatcher and waits until the sends in flight have ended.
    pub async fn finish(mut self) {
        let _ = self.stop.send(Stop::Finish);
        let _ = (&mut self.task).await;
    }
}

impl Drop for RunningDispatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn tools(bench: &Bench, store: &Store) -> Tools {
    let (egress, settings) = (bench.egress.clone(), bench.dispatch.clone());
    Tools {
        store: store.clone(),
        egress,
        keys: bench.workspace.keys(),
        capture_fail_on: FailOn::default(),
        public_url: String::new(),
        settings,
        kpi: KpiSettings::default(),
        metrics: Metrics::default(),
        tracer: Tracer::default(),
    }
}

/// Returns an empty database with a capture provider. Some notifications have already been delivered, so that
/// connections are open and statements prepared.
pub async fn warm_store(bench: &Bench) -> Result<Store, Failure> {
    let store = bench.workspace.fresh().await?;
    create_provider(&store, &capture()).await?;
    warm_up(bench, &store, &Load::captured()).await?;
    Ok(store)
}

/// Delivers some notifications through the connections that will be measured.
pub async fn warm_up(bench: &Bench, store: &Store, load: &Load) -> Result<(), Failure> {
    load.feed(&bench.workspace, bench.count(WARM_UP)).await?;
    finish_all(bench, store).await
}

/// Delivers all deliveries that are due.
pub async fn finish_all(bench: &Bench, store: &Store) -> Result<(), Failure> {
    Ok(Dispatcher::new(tools(bench, store)).await?.pass(None).await?)
}

/// Delivers `count` notifications and returns how long that took.
pub async fn drain(bench: &Bench, store: &Store, count: u64) -> Result<Duration, Failure> {
    let running = RunningDispatcher::start(bench, store).await?;
    let done = running.until(count).await?;
    let took = done.duration_since(running.started);
    running.finish().await;
    Ok(took)
}

/// Returns the rate at which `count` notifications are delivered out of a backlog of `all`. The first deliveries, a
/// twentieth of `count`, are not measured.
pub async fn rate_in_window(bench: &Bench, store: &Store, count: u64, all: u64) -> Result<f64, Failure> {
    let running = RunningDispatcher::start(bench, store).await?;
    let from = running.until(count / 20).await?;
    // Results are counted in batches, so more than `count / 20` may have been counted.
    let already = running.sent();
    let to = running.until(all.min(already + count)).await?;
    let sent = running.sent() - already;
    running.finish().await;
    if sent == 0 {
        return Err(Failure::new(
            Exit::Failed,
            format!("all {all} notifications were delivered before the measurement began; use a larger --scale"),
        ));
    }
    Ok(rate(sent, to.duration_since(from)))
}

/// A provider that serves every channel and sends nothing, with the highest concurrency allowed.
pub fn capture() -> ProviderDraft {
    ProviderDraft {
        name: "capture".into(),
        channel: "*".into(),
        driver: "capture".into(),
        // The provider does nothing, like the handlers of the peers: it does not copy the message into the attempt.
        settings: json!({"record": false}),
        secrets: None,
        guarantee: Guarantee::Idempotent,
        policy: Policy::default(),
        concurrency: 1000,
        rate_per_s: None,
        burst: None,
        timeout_ms: TIMEOUT_MS,
        breaker_failures: BREAKER_FAILURES,
        breaker_cool_down_s: BREAKER_COOL_DOWN_S,
        failover: None,
        failover_after_s: FAILOVER_AFTER_S,
        is_default: true,
        enabled: true,
    }
}

/// A provider of signed webhooks.
pub fn webhook(workspace: &Workspace, concurrency: u64) -> Result<ProviderDraft, Failure> {
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let ring = workspace.keys().or_new().map_err(|e| Failure::new(Exit::Refused, e.to_string()))?;
    Ok(ProviderDraft {
        name: "hooks".into(),
        channel: "webhook".into(),
        driver: "webhook".into(),
        settings: json!({}),
        secrets: Some(ring.seal(&[("secret".to_owned(), secret)].into(), TENANT, "hooks")),
        concurrency: i32::try_from(concurrency).unwrap_or(1),
        rate_per_s: None,
        burst: None,
        ..capture()
    })
}

/// Creates a provider in the tenant that all notifications of the benchmark belong to.
pub async fn create_provider(store: &Store, draft: &ProviderDraft) -> Result<(), Failure> {
    Ok(store.create_provider(TENANT, draft).await.map(drop)?)
}
