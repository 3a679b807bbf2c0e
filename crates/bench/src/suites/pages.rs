//! `pages`: how soon the pages for operators answer when the database holds ten million finished deliveries and others
//! are being delivered.

use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use postcommit_channel::clock;
use postcommit_channel::model::Scope;
use postcommit_engine::store::{History, HistoryKind, KeyDraft, KpiSettings, Store};
use postcommit_server::output::Exit;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::child::ServeProcess;
use crate::dispatcher::{self, TENANT};
use crate::failure::Failure;
use crate::http_client::{Post, Visitor, failed};
use crate::load::{BATCH, Load};
use crate::report::{Finding, Series, Threshold};
use crate::run::Bench;
use crate::series::quantile;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "pages",
    about: "opens pages of a `serve` that delivers a steady feed, over a history of 10,000,000 deliveries, and beside \
        them runs the bare query of a list",
    bars: "p95 of the first byte: list and detail ≤ 50 ms, overview ≤ 150 ms, each single filter ≤ 250 ms",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

const HISTORY: u64 = 10_000_000;
/// How often each page is opened in a round.
const OPENED: u64 = 40;
/// How many parts of the history one transaction writes.
const PARTS: usize = 4;
/// The pause between two batches of enqueues. It leaves processor time for the pages and the deliveries.
const PAUSE: Duration = Duration::from_millis(50);

/// The limits of the time until the first byte of a page, in milliseconds.
const LIST: f64 = 50.0;
const OVERVIEW: f64 = 150.0;
const FILTERED: f64 = 250.0;

/// The bare query of a list: the newest 50 deliveries of the ledger, by its key.
const BARE: &str = "SELECT notification_id, n, state, channel, target, attempts, finished_at
    FROM postcommit.delivery_ledger
    WHERE tenant = $1
    ORDER BY notification_id DESC, n DESC
    LIMIT 50";

/// A page that is opened, and the limit of the time until its first byte.
struct Page {
    name: String,
    path: String,
    limit: f64,
}

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let store = bench.workspace.fresh().await?;
    dispatcher::create_provider(&store, &dispatcher::capture()).await?;
    seed(bench, &store).await?;
    bench.workspace.quiesce().await?;
    let (pages, key) = (pages(&store).await?, key(&store).await?);
    let server = ServeProcess::start_unlimited(bench).await?;
    let load = Load::captured();
    let feed = async {
        loop {
            load.feed(&bench.workspace, BATCH).await?;
            tokio::time::sleep(PAUSE).await;
        }
    };
    let measured = tokio::select! {
        measured = measure(bench, &store, server.address(), &pages, &key) => measured,
        ended = feed => ended,
    };
    server.stop().await?;
    Ok(SuiteFindings { findings: measured?, charts: vec![] })
}

/// Opens the pages one after the other, several times per round, and the bare query in between. Returns a finding per
/// page.
async fn measure(
    bench: &Bench,
    store: &Store,
    address: &str,
    pages: &[Page],
    key: &str,
) -> Result<Vec<Finding>, Failure> {
    let mut visitor = Visitor::on(address).await?;
    let (mut slow, mut bare_slow) = (vec![vec![]; pages.len()], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        bench.progress.step("opening pages");
        let (mut took, mut bare) = (vec![vec![]; pages.len()], vec![]);
        for _ in 0..OPENED {
            let began = clock::monotonic();
            store.db().query(BARE, vec![TENANT.into()]).await?;
            bare.push(milliseconds(clock::monotonic().duration_since(began)));
            for (page, took) in pages.iter().zip(&mut took) {
                took.push(milliseconds(visitor.first_byte(request(address, key, &page.path)?).await?));
            }
        }
        bare_slow.push(p95(bare));
        for (slow, took) in slow.iter_mut().zip(took) {
            slow.push(p95(took));
        }
    }
    let bare = Series::of("bare query of a list", "ms", bare_slow);
    let finding = |(page, slow): (&Page, Vec<f64>)| {
        let ours = Series::of(page.path.clone(), "ms", slow);
        let ratio = format!("{:.0} times the bare query of a list ({:.2} ms)", ours.median / bare.median, bare.median);
        let what = format!("first byte of {}, p95, in ms", page.name);
        Finding::figure("pages", what, ours).must(Threshold::AtMost(page.limit)).noting(ratio)
    };
    Ok(pages.iter().zip(slow).map(finding).collect())
}

fn p95(mut took: Vec<f64>) -> f64 {
    took.sort_by(f64::total_cmp);
    quantile(&took, 0.95)
}

fn milliseconds(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

fn request(address: &str, key: &str, path: &str) -> Result<Post, Failure> {
    let request = Request::get(path)
        .header("host", address)
        .header("accept", "text/html")
        .header("authorization", format!("Bearer {key}"));
    request.body(Full::default()).map_err(failed)
}

/// Creates a key with the scope `ops`, which may open every page of every tenant.
async fn key(store: &Store) -> Result<String, Failure> {
    let draft = KeyDraft { name: "benchmark".into(), scopes: [Scope::Ops].into_iter().collect(), expires_at: None };
    // The token is revealed because the requests send it.
    Ok(store.create_key(TENANT, &draft).await.map_err(failed)?.token.reveal().to_owned())
}

/// Writes the history of finished deliveries, and the rollups of its counts.
async fn seed(bench: &Bench, store: &Store) -> Result<(), Failure> {
    let rows = bench.count(HISTORY);
    bench.progress.step(format!("writing a history of {rows} deliveries"));
    let provider = store.provider(TENANT, "capture").await?;
    let lane = provider.ok_or_else(|| Failure::new(Exit::Failed, "the provider `capture` was not found"))?.id;
    let kind = |channel: &str, event_type: &str, recipient: &str, before: &str, after: &str| HistoryKind {
        tenant: TENANT,
        lane,
        provider: "capture".into(),
        channel: channel.into(),
        event_type: event_type.into(),
        recipient: recipient.into(),
        address: (before.into(), after.into()),
        site: None,
    };
    let kinds = vec![
        kind("email", "booking.confirmed", "email", "guest", "@guest.example"),
        kind("sms", "booking.reminder", "phone", "+91987650", ""),
        kind("webhook", "stock.changed", "webhook", "https://partner.example/", ""),
    ];
    let sites = vec!["leh".into(), "kochi".into(), "pune".into()];
    let history = History { rows, until: store.now().await?, seed: 7, kinds, sites };
    store.begin_history(&history).await?;
    for (place, parts) in history.parts().chunks(PARTS).enumerate() {
        store.write_history(&history, parts).await?;
        if place % 16 == 15 {
            store.fold_rollups_once(&KpiSettings::default()).await?;
        }
    }
    store.fold_rollups_once(&KpiSettings::default()).await?;
    Ok(())
}

/// The pages that are opened, with the id of a notification and the address of a recipient that exist.
async fn pages(store: &Store) -> Result<Vec<Page>, Failure> {
    let newest = "SELECT l.notification_id, l.target FROM postcommit.delivery_ledger l
        WHERE l.tenant = $1 AND l.channel = 'email' ORDER BY l.notification_id DESC LIMIT 1";
    let rows = store.db().query(newest, vec![TENANT.into()]).await?;
    let row = rows
        .first()
        .ok_or_else(|| Failure::new(Exit::Failed, "the history has no delivery by email; use a larger --scale"))?;
    let (id, address): (uuid::Uuid, String) = (row.get(0)?, row.get(1)?);
    let page = |name: &str, path: String, limit: f64| Page { name: name.into(), path, limit };
    let filters = [
        ("by state", "state=parked".to_owned()),
        ("by two states", "state=sent,delivered".into()),
        ("of what is stuck", "stuck=true".into()),
        ("by channel", "channel=sms".into()),
        ("by event type", "event_type=booking.reminder".into()),
        ("by provider", "provider=capture".into()),
        ("by site", "site=kochi".into()),
        ("by a site that does not exist", "site=nowhere".into()),
        ("by list", "list=guests".into()),
        ("by recipient", format!("recipient={}", address.replace('+', "%2B"))),
        ("by entity", "entity=booking-77".into()),
        ("by words", "title=booking+77".into()),
        ("by error", "error_class=timeout".into()),
        ("by reason", "reason=exhausted".into()),
        ("of the last hour", "since=1h".into()),
    ];
    let mut all = vec![
        page("the list", "/notifications".into(), LIST),
        page("a notification", format!("/notifications/{id}"), LIST),
        page("the overview", "/".into(), OVERVIEW),
    ];
    all.extend(
        filters.map(|(name, query)| page(&format!("the list {name}"), format!("/notifications?{query}"), FILTERED)),
    );
    Ok(all)
}
