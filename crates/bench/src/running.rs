//! Our dispatcher at work in this process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_channel::driver::FailOn;
use postcommit_channel::model::{Guarantee, Policy, ProviderDraft};
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
use crate::place::Place;
use crate::run::Bench;
use crate::series::rate;

/// How often the tally is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// A drain that settles nothing for this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const WARM_UP: u64 = 2000;
/// `default`, which the migration makes first.
const TENANT: i32 = 1;

/// A dispatcher that runs until it is finished or dropped.
pub struct Running {
    tally: Arc<Tally>,
    stop: watch::Sender<Stop>,
    task: tokio::task::JoinHandle<()>,
    /// When it was let loose.
    pub started: Instant,
}

impl Running {
    /// Makes one and lets it loose.
    pub async fn start(bench: &Bench, store: &Store) -> Result<Self, Failure> {
        let dispatcher = Dispatcher::new(tools(bench, store)).await?;
        let (stop, told) = watch::channel(Stop::No);
        let tally = dispatcher.tally();
        let started = clock::monotonic();
        Ok(Self { tally, stop, task: tokio::spawn(dispatcher.run(told)), started })
    }

    /// How many it has sent, durably.
    pub fn sent(&self) -> u64 {
        self.tally.sent.load(Ordering::Relaxed)
    }

    /// Waits until it has sent that many, and says when that was.
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
            let [again, parked, dropped] = [&self.tally.again, &self.tally.parked, &self.tally.dropped].map(|c| c.load(Ordering::Relaxed));
            if again + parked + dropped > 0 || self.task.is_finished() || now.duration_since(moved) > PATIENCE {
                let otherwise = format!("{again} are to be tried again, {parked} are parked, {dropped} were dropped");
                return Err(Failure::new(Exit::Failed, format!("the drain stopped at {sent} of {count}; {otherwise}")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Lets it finish what is under way.
    pub async fn finish(mut self) {
        let _ = self.stop.send(Stop::Finish);
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn tools(bench: &Bench, store: &Store) -> Tools {
    let (egress, settings) = (bench.egress.clone(), bench.dispatch.clone());
    Tools {
        store: store.clone(),
        egress,
        keys: bench.place.keys(),
        capture_fail_on: FailOn::default(),
        settings,
        kpi: KpiSettings::default(),
        metrics: Metrics::default(),
        tracer: Tracer::default(),
    }
}

/// A fresh database with a capture provider, through whose connections something has been delivered already: they are open, their statements prepared.
pub async fn ready(bench: &Bench) -> Result<Store, Failure> {
    let store = bench.place.fresh().await?;
    provide(&store, &capture()).await?;
    warm_up(bench, &store, &Load::captured()).await?;
    Ok(store)
}

/// Delivers something through the connections that will be measured.
pub async fn warm_up(bench: &Bench, store: &Store, load: &Load) -> Result<(), Failure> {
    load.feed(&bench.place, bench.count(WARM_UP)).await?;
    finish_all(bench, store).await
}

/// Delivers all that is due.
pub async fn finish_all(bench: &Bench, store: &Store) -> Result<(), Failure> {
    Ok(Dispatcher::new(tools(bench, store)).await?.pass(None).await?)
}

/// Delivers that many and tells how long it took.
pub async fn drain(bench: &Bench, store: &Store, count: u64) -> Result<Duration, Failure> {
    let running = Running::start(bench, store).await?;
    let done = running.until(count).await?;
    let took = done.duration_since(running.started);
    running.finish().await;
    Ok(took)
}

/// How fast `count` are delivered out of a backlog of `all`, after the first few of it.
pub async fn window(bench: &Bench, store: &Store, count: u64, all: u64) -> Result<f64, Failure> {
    let running = Running::start(bench, store).await?;
    let from = running.until(count / 20).await?;
    // Whatever was counted by then: results come in batches.
    let already = running.sent();
    let to = running.until(all.min(already + count)).await?;
    let sent = running.sent() - already;
    running.finish().await;
    if sent == 0 {
        return Err(Failure::new(Exit::Failed, format!("{all} were delivered before the clock ran; a larger --scale makes more")));
    }
    Ok(rate(sent, to.duration_since(from)))
}

/// A provider for every channel that sends nothing and takes as much at once as a provider may.
pub fn capture() -> ProviderDraft {
    ProviderDraft {
        name: "capture".into(),
        channel: "*".into(),
        driver: "capture".into(),
        // A handler that does nothing, as those of the peers: what would have been sent is not copied into the attempt.
        settings: json!({"record": false}),
        secrets: None,
        guarantee: Guarantee::Idempotent,
        policy: Policy::default(),
        concurrency: 1000,
        rate_per_s: None,
        burst: None,
        timeout_ms: 30_000,
        is_default: true,
        enabled: true,
    }
}

/// A provider of signed webhooks, so many at once.
pub fn webhook(place: &Place, concurrency: u64) -> Result<ProviderDraft, Failure> {
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let ring = place.keys().or_new().map_err(|e| Failure::new(Exit::Refused, e.to_string()))?;
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

/// Enters a provider for the tenant that everything is enqueued for.
pub async fn provide(store: &Store, draft: &ProviderDraft) -> Result<(), Failure> {
    Ok(store.create_provider(TENANT, draft).await.map(drop)?)
}
