//! `lists`: the memory of a `serve` process while it expands and delivers a short and a long list.

use std::time::Duration;

use postcommit_channel::clock;
use postcommit_engine::store::{MEMBERS_CHANGED, MemberDraft, Store};
use postcommit_server::output::Exit;

use super::memory::MemoryUse;
use super::{Fits, SuiteFindings, SuiteSpec};
use crate::child::ServeProcess;
use crate::dispatcher::{self, TENANT};
use crate::failure::Failure;
use crate::load::Load;
use crate::report::{Chart, Finding, Series, Threshold};
use crate::run::Bench;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "lists",
    about: "runs `serve` on one notification to a list of 100,000 members, and on 100 notifications to a list of \
        1,000 members, and measures its peak memory; once, whatever the number of rounds",
    bars: "lists growth ≤ 1.2",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

const SHORT: u64 = 1000;
const LONG: u64 = 100_000;
/// A list without progress for this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The memory of a server that delivered to a list, and how long that took.
struct Delivered {
    held: MemoryUse,
    seconds: f64,
}

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    bench.progress.round(1, 1);
    let (short, long) = (bench.count(SHORT), bench.count(LONG));
    // Both sides make the same number of deliveries, so both fill the caches of the database, and only the list
    // differs.
    let at_short = deliver(bench, short, long / short.max(1)).await?;
    let at_long = deliver(bench, long, 1).await?;
    let name = |members: u64| format!("list of {members}");
    let peak = |members: u64, delivered: &Delivered| Series::of(name(members), "MB", vec![delivered.held.peak]);
    let growth = Finding::ratio(
        "lists growth",
        "peak resident memory, long list ÷ short",
        peak(long, &at_long),
        peak(short, &at_short),
    );
    let rate = Finding::figure(
        "lists rate",
        "members per second, from the start of serve until the last outcome",
        Series::rates(name(long), vec![long as f64 / at_long.seconds]),
    );
    let lines = vec![(name(short), at_short.held.over_time), (name(long), at_long.held.over_time)];
    let chart = Chart { title: "resident memory of serve".into(), x: "seconds".into(), y: "MB".into(), lines };
    Ok(SuiteFindings { findings: vec![growth.must(Threshold::AtMost(1.2)), rate], charts: vec![chart] })
}

async fn deliver(bench: &Bench, members: u64, notifications: u64) -> Result<Delivered, Failure> {
    bench.progress.step(format!("entering a list of {members}"));
    let store = bench.workspace.fresh().await?;
    dispatcher::create_provider(&store, &dispatcher::capture()).await?;
    create_list(&store, members).await?;
    Load::to("list", "crowd").feed(&bench.workspace, notifications).await?;
    bench.workspace.quiesce().await?;
    bench.progress.step(format!("delivering to a list of {members}"));
    let server = ServeProcess::start(bench).await?;
    let started = clock::monotonic();
    let (mut held, mut moved, mut last) = (MemoryUse::default(), started, 0);
    let expected = members * notifications;
    while last < expected {
        held.look(&server, started).await?;
        let (now, finished) = (clock::monotonic(), finished(&store).await?);
        if finished != last {
            (last, moved) = (finished, now);
        }
        if now.duration_since(moved) > PATIENCE {
            return Err(Failure::new(
                Exit::Failed,
                format!("no progress for {PATIENCE:?}: only {last} of {expected} deliveries were made"),
            ));
        }
    }
    server.stop().await?;
    Ok(Delivered { held, seconds: moved.duration_since(started).as_secs_f64() })
}

async fn create_list(store: &Store, members: u64) -> Result<(), Failure> {
    let refused = |problem: postcommit_engine::store::EditError| Failure::new(Exit::Failed, problem.to_string());
    store.create_list(TENANT, "crowd", None).await.map_err(refused)?;
    let member = |i: u64| MemberDraft { kind: "email".into(), member: format!("guest{i}@example.com"), channel: None };
    let all: Vec<MemberDraft> = (0..members).map(member).collect();
    for some in all.chunks(MEMBERS_CHANGED) {
        store.change_members(TENANT, "crowd", some, &[]).await.map_err(refused)?;
    }
    Ok(())
}

async fn finished(store: &Store) -> Result<u64, Failure> {
    let rows = store.db().query("SELECT count(*) FROM postcommit.delivery_ledger", vec![]).await?;
    let count: i64 = rows.first().map(|row| row.get(0)).transpose()?.unwrap_or(0);
    Ok(count.unsigned_abs())
}
