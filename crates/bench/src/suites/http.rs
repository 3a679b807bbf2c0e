//! `http`: how many durable posts share a commit.

use http_body_util::Full;
use hyper::{Request, StatusCode};
use postcommit_channel::model::Scope;
use postcommit_engine::store::{KeyDraft, Store};

use super::{Fits, Found, Kind};
use crate::child::Server;
use crate::failure::Failure;
use crate::load::Load;
use crate::place::Spot;
use crate::posts::{Post, failed, pump};
use crate::profile::{Pace, pace};
use crate::report::{Bar, Finding, Series};
use crate::run::Bench;

pub const SUITE: Kind = Kind {
    name: "http",
    about: "posts notifications to a server of its own over 64 connections, each answered when its row is durable, against one connection",
    bars: "P11 http: 64 ÷ 1 ≥ 15 on SQLite",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

const CLIENTS: u64 = 64;

/// What is known about posts that share too little.
const KNOWN: &str =
    "The client, the server and the disk share the cores: a single post waits for the disk and leaves them idle, 64 use them up.";

async fn run(bench: &Bench) -> Result<Found, Failure> {
    let (mut alone, mut together) = (vec![], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        alone.push(post(bench, 1, bench.count(1000)).await?);
        together.push(post(bench, CLIENTS, bench.count(400) * CLIENTS).await?);
    }
    let what = format!("durable posts, {CLIENTS} connections ÷ 1");
    let finding =
        Finding::ratio("P11 http", what, Series::paces(format!("{CLIENTS} connections"), &together), Series::paces("1 connection", &alone));
    // The bar is SQLite's, where without a shared commit everybody would wait for everybody.
    let finding = match bench.place.spot() {
        Spot::Sqlite(_) => finding.must(Bar::AtLeast(15.0)).explained("a post", &together, &alone, KNOWN),
        Spot::Postgres(_) => finding,
    };
    Ok(Found { findings: vec![finding], charts: vec![] })
}

/// So many posts over so many connections; how many per second are answered in all.
async fn post(bench: &Bench, connections: u64, count: u64) -> Result<Pace, Failure> {
    bench.progress.step(format!("posting, {connections} connections"));
    let store = bench.place.fresh().await?;
    let key = key(&store).await?;
    let server = Server::start_api(bench).await?;
    let load = Load::captured();
    let address = server.address().to_owned();
    let request = move |i| request(&address, &key, load.one(i));
    let measured = pace(count, pump(server.address(), count, connections, StatusCode::ACCEPTED, request)).await;
    server.stop().await?;
    measured
}

/// A key that may enqueue, in the tenant that is always there.
async fn key(store: &Store) -> Result<String, Failure> {
    let tenant = store.tenant_or_new("default").await?;
    let draft = KeyDraft { name: "benchmark".into(), scopes: [Scope::Enqueue].into_iter().collect(), expires_at: None };
    // Revealed to be sent.
    Ok(store.create_key(tenant, &draft).await.map_err(failed)?.token.reveal().to_owned())
}

fn request(address: &str, key: &str, body: String) -> Result<Post, Failure> {
    let request = Request::post("/v1/notifications")
        .header("host", address)
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json");
    request.body(Full::from(body)).map_err(failed)
}
