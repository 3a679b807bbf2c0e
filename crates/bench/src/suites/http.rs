//! `http`: how many durable POST requests share a commit.

use http_body_util::Full;
use hyper::{Request, StatusCode};
use postcommit_channel::model::Scope;
use postcommit_engine::store::{KeyDraft, Store};

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::child::ServeProcess;
use crate::failure::Failure;
use crate::http_client::{Post, failed, pump};
use crate::load::Load;
use crate::profile::{MeasuredRate, measure_rate};
use crate::report::{Finding, Series, Threshold};
use crate::run::Bench;
use crate::workspace::Backend;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "http",
    about: "posts notifications to a separate server over 64 connections, each answered when its row is durable, \
        against one connection",
    bars: "P11 http: 64 ÷ 1 ≥ 15 on SQLite",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

const CLIENTS: u64 = 64;

/// The known reasons why `P11 http` may miss its limit, for the report.
const KNOWN: &str = "\
    The client, the server and the disk share the cores: a single request waits for the disk and leaves the cores idle, \
    64 concurrent ones use them up";

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let (mut alone, mut together) = (vec![], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        alone.push(post(bench, 1, bench.count(1000)).await?);
        together.push(post(bench, CLIENTS, bench.count(400) * CLIENTS).await?);
    }
    let what = format!("durable posts, {CLIENTS} connections ÷ 1");
    let finding = Finding::ratio(
        "P11 http",
        what,
        Series::measured_rates(format!("{CLIENTS} connections"), &together),
        Series::measured_rates("1 connection", &alone),
    );
    // Only SQLite has a bar (a limit): without commits that clients share, all its clients would wait for each other.
    let finding = match bench.workspace.backend() {
        Backend::Sqlite(_) => finding.must(Threshold::AtLeast(15.0)).explained("a post", &together, &alone, KNOWN),
        Backend::Postgres(_) => finding,
    };
    Ok(SuiteFindings { findings: vec![finding], charts: vec![] })
}

/// The rate of `count` requests over `connections` connections.
async fn post(bench: &Bench, connections: u64, count: u64) -> Result<MeasuredRate, Failure> {
    bench.progress.step(format!("posting, {connections} connections"));
    let store = bench.workspace.fresh().await?;
    let key = key(&store).await?;
    let server = ServeProcess::start_api(bench).await?;
    let load = Load::captured();
    let address = server.address().to_owned();
    let request = move |i| request(&address, &key, load.one(i));
    let measured = measure_rate(count, pump(server.address(), count, connections, StatusCode::ACCEPTED, request)).await;
    server.stop().await?;
    measured
}

/// An API key that may enqueue, of the default tenant.
async fn key(store: &Store) -> Result<String, Failure> {
    let tenant = store.tenant_or_new("default").await?;
    let draft = KeyDraft { name: "benchmark".into(), scopes: [Scope::Enqueue].into_iter().collect(), expires_at: None };
    // The token is revealed because the requests send it.
    Ok(store.create_key(tenant, &draft).await.map_err(failed)?.token.reveal().to_owned())
}

fn request(address: &str, key: &str, body: String) -> Result<Post, Failure> {
    let request = Request::post("/v1/notifications")
        .header("host", address)
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json");
    request.body(Full::from(body)).map_err(failed)
}
