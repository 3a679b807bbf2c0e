//! `enqueue`: the cost of a notification in an application's transaction, against a plain INSERT of the same row with a
//! unique key.

use std::path::Path;
use std::time::Duration;

use postcommit_channel::clock;
use postcommit_engine::db::Value;
use tokio::task::JoinSet;
use tokio_postgres::types::ToSql;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::bare;
use crate::failure::Failure;
use crate::load::{BATCH, Feeder, Load, payload};
use crate::peers::PeerFigures;
use crate::profile::measure_rate;
use crate::report::{Finding, Series, Threshold};
use crate::run::Bench;
use crate::series::rate;
use crate::workspace::{Backend, Workspace};

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "enqueue",
    about: "enqueues one notification per commit and 1,000 per commit, against plain INSERTs of the same rows into a \
        table with a unique key",
    bars: "P3 one per commit, 8 connections ≥ 0.8; P4 batches of 1,000 ≥ 0.6 (PostgreSQL; reported on SQLite)",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

const CONNECTIONS: u64 = 8;
const SINGLES: u64 = 16_000;
const BATCHES: u64 = 50;
/// Enqueues before the measurement: they open connections, prepare statements and plan functions.
const WARM_UP: u64 = 20;

const ENQUEUE: &str = "SELECT postcommit.enqueue($1::text, $2::jsonb, $3::text, recipients => $4::jsonb)";
const INSERT: &str = "\
    INSERT INTO postcommit_bench.plain (event_type, payload, key, recipients)
    VALUES ($1, $2, $3, $4)";
const INSERT_MANY: &str = "\
    INSERT INTO postcommit_bench.plain (event_type, payload, key, recipients)
    SELECT * FROM unnest($1::text[], $2::jsonb[], $3::text[], $4::jsonb[])";

/// The known reasons why P3 (one enqueue per commit) may miss its limit, for the report.
const KNOWN_SINGLE: &str = "\
    Three tables with their indexes instead of one: 423,000 instructions per enqueue, of which the three INSERTs alone \
    are 177,000, against 52,000. Kept: functions that PostgreSQL inlines, exact checks of limits only near the limit. \
    Tried without effect: one statement for the three INSERTs, other ways to make an id (docs/decisions/0018)";
/// The known reasons why P4 (batches of enqueues) may miss its limit, for the report.
const KNOWN_MANY: &str = "\
    Inside the server a row takes 23 µs against 7 µs: the three INSERTs take 10 µs, and ids, hashes and texts 6 µs";

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    match bench.workspace.backend() {
        Backend::Postgres(_) => on_postgres(bench).await,
        Backend::Sqlite(_) => on_sqlite(bench).await,
    }
}

async fn on_postgres(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let (each, batches) = (bench.count(SINGLES / CONNECTIONS), bench.count(BATCHES));
    let (mut plain, mut ours, mut plain_many, mut ours_many) = (vec![], vec![], vec![], vec![]);
    let (mut peers, mut peers_many) = (PeerFigures::default(), PeerFigures::default());
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        for (name, sql, measured_rates) in [("INSERT", INSERT, &mut plain), ("enqueue", ENQUEUE, &mut ours)] {
            bench.progress.step(format!("{name}, one per commit"));
            fresh(bench).await?;
            measured_rates.push(measure_rate(each * CONNECTIONS, one_by_one(&bench.workspace, sql, each)).await?);
        }
        bench.progress.step("batches");
        fresh(bench).await?;
        plain_many.push(measure_rate(batches * BATCH, insert_batches(&bench.workspace, batches)).await?);
        fresh(bench).await?;
        ours_many.push(measure_rate(batches * BATCH, enqueue_batches(&bench.workspace, batches)).await?);
        for runner in &bench.peers.runners {
            peers.add(runner, runner.enqueue(bench, each * CONNECTIONS, CONNECTIONS).await);
            peers_many.add(runner, runner.enqueue_batches(bench, batches * BATCH, BATCH).await);
        }
    }
    let what = format!("postcommit.enqueue, one per commit, {CONNECTIONS} connections");
    let (rates, rates_many) =
        (Series::measured_rates("enqueue", &ours), Series::measured_rates("enqueue_many", &ours_many));
    let one =
        Finding::ratio("P3", format!("{what} ÷ plain INSERT"), rates.clone(), Series::measured_rates("INSERT", &plain))
            .must(Threshold::AtLeast(0.8))
            .explained("a commit", &ours, &plain, KNOWN_SINGLE);
    let what_many = "postcommit.enqueue_many of 1,000";
    let against = Series::measured_rates("INSERT of 1,000", &plain_many);
    let many = Finding::ratio("P4", format!("{what_many} ÷ plain batch INSERT"), rates_many.clone(), against)
        .must(Threshold::AtLeast(0.6))
        .explained("a row", &ours_many, &plain_many, KNOWN_MANY);
    let mut findings = vec![one, many];
    let beside = |what: &str, ours: &Series, peer: Series| {
        Finding::ratio("peer", format!("{what} ÷ {}", peer.name), ours.clone(), peer)
    };
    findings.extend(peers.series("/s").into_iter().map(|peer| beside(&what, &rates, peer)));
    findings.extend(peers_many.series("/s").into_iter().map(|peer| beside(what_many, &rates_many, peer)));
    Ok(SuiteFindings { findings, charts: vec![] })
}

async fn fresh(bench: &Bench) -> Result<(), Failure> {
    bare::postgres::fresh(&bench.workspace).await?;
    drop(bench.workspace.fresh().await?);
    bench.workspace.quiesce().await
}

/// Commits `each` rows on every connection, one row per commit. `sql` is the INSERT or the enqueue; both take the same
/// parameters.
async fn one_by_one(workspace: &Workspace, sql: &'static str, each: u64) -> Result<Duration, Failure> {
    let mut ready = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = workspace.client().await?;
        let statement = client.prepare(sql).await?;
        let load = Load::captured();
        let commit = async move |from: u64, to: u64| {
            for i in from..to {
                let (payload, key, recipients) =
                    (Value::Json(payload(i)), load.key(i), Value::Json(load.recipients.clone()));
                client.execute(&statement, &[&load.event_type, &payload, &key, &recipients]).await?;
            }
            Ok::<(), Failure>(())
        };
        commit(0, WARM_UP).await?;
        ready.push(commit);
    }
    let started = clock::monotonic();
    let mut working = JoinSet::new();
    for commit in ready {
        working.spawn(async move { commit(WARM_UP, WARM_UP + each).await });
    }
    while let Some(done) = working.join_next().await {
        done??;
    }
    Ok(clock::monotonic().duration_since(started))
}

async fn insert_batches(workspace: &Workspace, batches: u64) -> Result<Duration, Failure> {
    let client = workspace.client().await?;
    let statement = client.prepare(INSERT_MANY).await?;
    let load = Load::captured();
    let ready: Vec<_> = (0..=batches).map(|batch| columns(&load, batch * BATCH)).collect();
    let mut started = clock::monotonic();
    for (i, (types, payloads, keys, recipients)) in ready.iter().enumerate() {
        let parameters: [&(dyn ToSql + Sync); 4] = [types, payloads, keys, recipients];
        client.execute(&statement, &parameters).await?;
        if i == 0 {
            started = clock::monotonic();
        }
    }
    Ok(clock::monotonic().duration_since(started))
}

type InsertColumns = (Vec<&'static str>, Vec<Value>, Vec<String>, Vec<Value>);

fn columns(load: &Load, from: u64) -> InsertColumns {
    let numbers = || from..from + BATCH;
    (
        numbers().map(|_| load.event_type).collect(),
        numbers().map(|i| Value::Json(payload(i))).collect(),
        numbers().map(|i| load.key(i)).collect(),
        numbers().map(|_| Value::Json(load.recipients.clone())).collect(),
    )
}

async fn enqueue_batches(workspace: &Workspace, batches: u64) -> Result<Duration, Failure> {
    let mut feeder = Feeder::on(workspace.client().await?).await?;
    let load = Load::captured();
    let ready: Vec<String> = (0..=batches).map(|batch| load.batch(batch * BATCH, BATCH)).collect();
    let mut started = clock::monotonic();
    for (i, batch) in ready.iter().enumerate() {
        feeder.enqueue(batch).await?;
        if i == 0 {
            started = clock::monotonic();
        }
    }
    Ok(clock::monotonic().duration_since(started))
}

async fn on_sqlite(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let (singles, batches) = (bench.count(2000), bench.count(BATCHES));
    let mut rates: [Vec<f64>; 4] = Default::default();
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        for (i, (insert, commits, each)) in
            [(plain as Insert, singles, 1), (ours, singles, 1), (plain, batches, BATCH), (ours, batches, BATCH)]
                .into_iter()
                .enumerate()
        {
            drop(bench.workspace.fresh().await?);
            let Backend::Sqlite(file) = bench.workspace.backend() else { continue };
            let file = file.path();
            let took = tokio::task::spawn_blocking(move || commit_all(&file, insert, commits, each)).await??;
            rates[i].push(rate(commits * each, took));
        }
    }
    let [plain, ours, plain_many, ours_many] = rates;
    let one = Finding::ratio(
        "enqueue",
        "one per commit ÷ plain INSERT",
        Series::rates("enqueue", ours),
        Series::rates("INSERT", plain),
    );
    let (ours, plain) = (Series::rates("enqueue", ours_many), Series::rates("INSERT", plain_many));
    let many = Finding::ratio("enqueue-batch", "1,000 per commit ÷ plain INSERTs", ours, plain);
    Ok(SuiteFindings { findings: vec![one, many], charts: vec![] })
}

type Insert = fn(&rusqlite::Connection, &Load, u64) -> rusqlite::Result<()>;

fn plain(connection: &rusqlite::Connection, load: &Load, i: u64) -> rusqlite::Result<()> {
    bare::sqlite::insert_plain(connection, &load.key(i), load.event_type, &load.recipients, &payload(i))
}

fn ours(connection: &rusqlite::Connection, load: &Load, i: u64) -> rusqlite::Result<()> {
    load.insert_sqlite(connection, i)
}

/// Makes `commits` commits of `each` rows, after one commit to warm up.
fn commit_all(file: &Path, insert: Insert, commits: u64, each: u64) -> rusqlite::Result<Duration> {
    bare::sqlite::fresh(file)?;
    let mut connection = bare::sqlite::open(file)?;
    let load = Load::captured();
    let mut started = clock::monotonic();
    for commit in 0..=commits {
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        for i in commit * each..(commit + 1) * each {
            insert(&transaction, &load, i)?;
        }
        transaction.commit()?;
        if commit == 0 {
            started = clock::monotonic();
        }
    }
    Ok(clock::monotonic().duration_since(started))
}
