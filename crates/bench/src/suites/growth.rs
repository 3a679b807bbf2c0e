//! `growth`: whether history or a long backlog slows the drain.

use postcommit_engine::store::Store;
use tokio_postgres::Client;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::dispatcher;
use crate::failure::Failure;
use crate::load::Load;
use crate::report::{Finding, Series, Threshold};
use crate::run::Bench;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "growth",
    about: "delivers 50,000 next to 5,000,000 finished deliveries, and 50,000 of a backlog of 1,000,000, against the \
        same in an empty database",
    bars: "P6 history ≥ 0.9; P6 backlog ≥ 0.9",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

const HISTORY: u64 = 5_000_000;
const BACKLOG: u64 = 1_000_000;
const COUNT: u64 = 50_000;
/// At least this many deliveries of a backlog are not measured: those before and after the measured window.
const SPARE: u64 = 5000;
/// Rows of history that are written in one transaction.
const CHUNK: u64 = 250_000;

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    seed_history(bench).await?;
    seed_backlog(bench).await?;
    let (mut empty, mut history, mut backlog) = (vec![], vec![], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        bench.progress.step("in an empty database");
        let store = dispatcher::warm_store(bench).await?;
        empty.push(fed(bench, &store).await?);
        history.push(beside_history(bench).await?);
        backlog.push(out_of_backlog(bench).await?);
    }
    let rates = |name: String, values: Vec<f64>| Series::rates(name, values);
    let small = || rates(format!("{} of {}", bench.count(COUNT), some_more(bench)), empty.clone());
    let finished = bench.count(HISTORY);
    let history = Finding::ratio(
        "P6 history",
        format!("drain with {finished} finished rows ÷ empty"),
        rates("with history".into(), history),
        small(),
    );
    let name = format!("{} of {}", bench.count(COUNT), long_backlog(bench));
    let backlog =
        Finding::ratio("P6 backlog", "drain out of a long backlog ÷ a short one", rates(name, backlog), small());
    Ok(SuiteFindings {
        findings: vec![history.must(Threshold::AtLeast(0.9)), backlog.must(Threshold::AtLeast(0.9))],
        charts: vec![],
    })
}

/// The size of a backlog with [`COUNT`] measured deliveries, and more before and after them.
fn some_more(bench: &Bench) -> u64 {
    // At a small `--scale`, a fifth of the count is less than a few batches of results, so [`SPARE`] is the minimum.
    (bench.count(COUNT) * 12 / 10).max(bench.count(COUNT) + SPARE)
}

fn long_backlog(bench: &Bench) -> u64 {
    bench.count(BACKLOG).max(some_more(bench))
}

/// Enqueues a backlog and returns the rate at which the measured window of it is delivered.
async fn fed(bench: &Bench, store: &Store) -> Result<f64, Failure> {
    Load::captured().insert_rows(&bench.workspace, some_more(bench)).await?;
    bench.workspace.quiesce().await?;
    dispatcher::rate_in_window(bench, store, bench.count(COUNT), some_more(bench)).await
}

async fn beside_history(bench: &Bench) -> Result<f64, Failure> {
    bench.progress.step("next to history");
    bench.workspace.postgres()?.bring_back("history").await?;
    let store = bench.workspace.store().await?;
    dispatcher::warm_up(bench, &store, &Load::captured()).await?;
    let rate = fed(bench, &store).await?;
    // Delivers the rest of the backlog, so that the next round finds none.
    dispatcher::finish_all(bench, &store).await?;
    bench.workspace.postgres()?.put_aside("history").await?;
    Ok(rate)
}

async fn out_of_backlog(bench: &Bench) -> Result<f64, Failure> {
    bench.progress.step("out of a long backlog");
    bench.workspace.postgres()?.bring_back("backlog").await?;
    bench.workspace.quiesce().await?;
    let rate =
        dispatcher::rate_in_window(bench, &bench.workspace.store().await?, bench.count(COUNT), long_backlog(bench))
            .await?;
    bench.workspace.postgres()?.put_aside("backlog").await?;
    Ok(rate)
}

async fn seed_backlog(bench: &Bench) -> Result<(), Failure> {
    bench.progress.step("enqueueing a long backlog");
    drop(dispatcher::warm_store(bench).await?);
    Load::captured().insert_rows(&bench.workspace, long_backlog(bench)).await?;
    bench.workspace.quiesce().await?;
    bench.workspace.postgres()?.put_aside("backlog").await
}

/// Inserts finished rows as the engine would have left them, over the last 60 days.
async fn seed_history(bench: &Bench) -> Result<(), Failure> {
    drop(dispatcher::warm_store(bench).await?);
    let (client, all) = (bench.workspace.client().await?, bench.count(HISTORY));
    let mut from = 0;
    while from < all {
        bench.progress.step(format!("writing history, {from} of {all}"));
        seed_chunk(&client, from, all.min(from + CHUNK), all).await?;
        from += CHUNK;
    }
    bench.workspace.quiesce().await?;
    bench.workspace.postgres()?.put_aside("history").await
}

async fn seed_chunk(client: &Client, from: u64, to: u64, all: u64) -> Result<(), Failure> {
    // The ids are UUIDv7, which begin with the time, so that each row goes into the partition of its month. now() is
    // the time of the transaction, so both statements make the same ids.
    let rows = format!(
        "SELECT at, i,
           (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008000' || lpad(to_hex(i), 12, '0'))::uuid
             AS id
         FROM (
           SELECT i, now() - interval '60 days' * (1 - i::float8 / {all}) AS at
           FROM generate_series({from}::bigint, {to} - 1) i
         ) moments"
    );
    let payload = crate::load::payload(1);
    let sql = format!(
        "BEGIN;
        INSERT INTO postcommit.notification (tenant, id, event_type, idempotency_key, payload, recipients, channels,
            priority, due_at, expires_at, created_at)
          SELECT 1, id, 'bench.history', 'history:' || i, '{payload}', '[{{\"email\":\"guest@example.com\"}}]', '{{}}',
            5, at, at + interval '30 days', at
          FROM ({rows}) h;
        INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, state, attempts, seq,
            sent_at, finished_at, attempted_at, attempted_by, outcome, latency_ms, token)
          SELECT 1, id, 1, 1, 'email', 'guest@example.com', 'sent', 1, 1, at, at, at, 'capture', 'sent', 1, gen_random_uuid()
          FROM ({rows}) h;
        COMMIT"
    );
    Ok(client.batch_execute(&sql).await?)
}
