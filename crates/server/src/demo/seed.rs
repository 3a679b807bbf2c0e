//! `demo --seed N`: writes N finished deliveries of the past before the demo begins, with a progress bar on a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_engine::db::DbError;
use postcommit_engine::dispatch::{Stop, Tools};
use postcommit_engine::store::{HISTORY_DAYS, History, HistoryKind, HistoryPart, Store};
use tokio::sync::watch;

use super::story::{BAKERY, HOTELS, SITES};
use crate::telemetry::say;

/// After this many parts of the history, their counts are added to the rollups.
const FOLDED_AFTER: usize = 48;
/// The most rows that one transaction writes, unless a single part of the history has more.
const TRANSACTION_ROWS: u64 = 5000;
/// The width of the progress bar, in characters.
const WIDTH: u64 = 30;
/// The time between two lines of progress if stderr is not a terminal.
const LINES_EVERY: Duration = Duration::from_secs(10);

/// A kind of messages: tenant, provider, channel, event type, kind of recipient, and the texts before and after the
/// number in its address.
type MessageKind = (&'static str, &'static str, &'static str, &'static str, &'static str, (&'static str, &'static str));

/// The kinds of messages in the history.
const KINDS: [MessageKind; 7] = [
    (HOTELS, "mail", "email", "booking.confirmed", "email", ("guest", "@guest.example")),
    (HOTELS, "mail", "email", "invoice.issued", "email", ("guest", "@guest.example")),
    (HOTELS, "whatsapp", "whatsapp", "booking.confirmed", "phone", ("+91987650", "")),
    (HOTELS, "sms", "sms", "booking.reminder", "phone", ("+91987650", "")),
    (HOTELS, "slack", "slack", "housekeeping.alert", "slack", ("desk-", "")),
    (HOTELS, "partners", "webhook", "stock.changed", "webhook", ("/stock/", "")),
    (BAKERY, "sms", "sms", "order.ready", "phone", ("+91987650", "")),
];

/// Writes `rows` finished deliveries over the last 28 days. Webhooks go to the URL `partner` of a fake service, so that
/// a retry of an old one stays in this process. Returns false if a stop was requested meanwhile.
pub async fn seed(tools: &Tools, rows: u64, partner: &str, stop: &watch::Receiver<Stop>) -> Result<bool, DbError> {
    let store = &tools.store;
    let history = history(store, rows, partner).await?;
    store.begin_history(&history).await?;
    let (mut progress, parts) = (Progress::begin(rows), history.parts());
    let (mut rest, mut folded) = (parts.as_slice(), 0);
    while !rest.is_empty() {
        if *stop.borrow() != Stop::No {
            progress.end();
            return Ok(false);
        }
        let (now, later) = rest.split_at(together(rest));
        store.write_history(&history, now).await?;
        folded += now.len();
        if folded >= FOLDED_AFTER || later.is_empty() {
            store.fold_rollups_once(&tools.kpi).await?;
            folded = 0;
        }
        progress.told(now.last().map_or(0, |part| part.from + part.rows));
        rest = later;
    }
    progress.end();
    let (took, of) = (progress.began.elapsed().as_secs_f64(), rows as f64);
    say!(
        "postcommit: wrote {rows} deliveries over {HISTORY_DAYS} days in {took:.1} s, {:.0} a second",
        of / took.max(0.001)
    );
    Ok(true)
}

/// Returns how many of the next parts are written in one transaction.
fn together(parts: &[HistoryPart]) -> usize {
    let mut rows = 0;
    let fits = parts.iter().take_while(|part| {
        rows += part.rows;
        rows <= TRANSACTION_ROWS
    });
    fits.count().max(1)
}

async fn history(store: &Store, rows: u64, partner: &str) -> Result<History, DbError> {
    let mut kinds = Vec::with_capacity(KINDS.len());
    for (tenant, provider, channel, event_type, recipient, (before, after)) in KINDS {
        let tenant_id = store.tenant_or_new(tenant).await?;
        let Some(lane) = store.provider(tenant_id, provider).await?.map(|provider| provider.id) else { continue };
        kinds.push(HistoryKind {
            tenant: tenant_id,
            lane,
            provider: provider.into(),
            channel: channel.into(),
            event_type: event_type.into(),
            recipient: recipient.into(),
            address: (if channel == "webhook" { format!("{partner}{before}") } else { before.into() }, after.into()),
            site: (tenant == BAKERY).then(|| "market-street".to_owned()),
        });
    }
    let sites = SITES.map(str::to_owned).into();
    Ok(History { rows, until: store.now().await?, seed: 7, kinds, sites })
}

/// The progress: a bar on a terminal, elsewhere a line every [`LINES_EVERY`].
struct Progress {
    rows: u64,
    began: Instant,
    said: Instant,
    is_terminal: bool,
}

impl Progress {
    fn begin(rows: u64) -> Self {
        let now = clock::monotonic();
        let is_terminal = std::io::stderr().is_terminal();
        say!("postcommit: writing {rows} deliveries of history");
        Self { rows, began: now, said: now, is_terminal }
    }

    fn told(&mut self, done: u64) {
        let least = if self.is_terminal { Duration::from_millis(100) } else { LINES_EVERY };
        let is_last = done == self.rows && self.is_terminal;
        if self.said.elapsed() < least && !is_last {
            return;
        }
        self.said = clock::monotonic();
        let (percent, rows) = (done * 100 / self.rows.max(1), self.rows);
        if self.is_terminal {
            let filled = done * WIDTH / self.rows.max(1);
            let bar: String = (0..WIDTH).map(|place| if place < filled { '#' } else { '.' }).collect();
            let _ = write!(std::io::stderr(), "\r[{bar}] {percent:>3} %  {done} of {rows}");
        } else {
            say!("postcommit: {done} of {rows} deliveries, {percent} %");
        }
    }

    /// Ends the line of the progress bar.
    fn end(&self) {
        if self.is_terminal {
            let _ = writeln!(std::io::stderr());
        }
    }
}
