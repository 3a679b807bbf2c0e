//! The overview: the numbers of the last hours, and the problems that need a person.

pub mod lanes;
pub mod latency;
mod sites;

use std::time::Duration;

use axum::extract::{RawQuery, State};
use minijinja::{Value, context};
use postcommit::Timestamp;
use postcommit_channel::model::Scope;
use postcommit_engine::db::DbError;
use postcommit_engine::store::{GroupBy, KpiGrouping, KpiSeries, Kpis, SlotLength, TimeRange};
use serde::Serialize;

use super::chart::{self, Bar};
use super::frame::Visitor;
use super::words::{day, dotted, grouped, shown, span, time, waiting_of};
use crate::app::{App, AppState};
use crate::go_live;
use crate::problem::{Answer, Problem};
use lanes::{LANES, Lane, Permits, lanes};
use latency::Latencies;
use sites::sites;

/// A period that the page can show: its name, its words, its length in minutes, and the minutes of one bar.
struct Range {
    name: &'static str,
    words: &'static str,
    minutes: u64,
    per_bar: usize,
    bar_words: &'static str,
}

const RANGES: [Range; 3] = [
    Range { name: "1h", words: "Last hour", minutes: 60, per_bar: 1, bar_words: "per minute" },
    Range { name: "24h", words: "Last 24 hours", minutes: 1440, per_bar: 30, bar_words: "per half hour" },
    Range { name: "48h", words: "Last 48 hours", minutes: 2880, per_bar: 60, bar_words: "per hour" },
];

/// A number of the overview, with its label.
#[derive(Serialize)]
struct Tile {
    value: String,
    label: String,
    href: Option<String>,
    is_bad: bool,
}

/// A problem that needs a person.
#[derive(Serialize)]
pub struct Attention {
    tint: &'static str,
    label: &'static str,
    says: String,
    advice: String,
    href: Option<String>,
    open: &'static str,
}

pub async fn page(State(app): State<AppState>, visitor: Visitor, RawQuery(query): RawQuery) -> Answer {
    let range = range(query.as_deref().unwrap_or_default())?;
    let interval = Duration::from_secs(range.minutes * 60);
    let kpis = app.tallies.over(&app, &visitor.caller, Some(KpiGrouping::Provider), interval).await?;
    let store = visitor.store(&app);
    let providers = match visitor.caller.whose() {
        Some(tenant) => store.providers_of(tenant).await?,
        None => store.providers().await?,
    };
    let latencies = Latencies::of(&app.tallies.latencies(&app, &visitor.caller, &providers).await?);
    let tenants = if visitor.sees_all() { store.tenants().await? } else { Default::default() };
    // The permits have no tenant column, so the database role of one tenant may not read them.
    let in_use = visitor.caller.store_of_all(&app).permits_in_use(visitor.caller.whose()).await?;
    let permits = Permits { in_use, now: store.now().await? };
    let mut all = lanes(&providers, &tenants, &kpis, &latencies, &permits);
    let more_lanes = all.len().saturating_sub(LANES);
    all.truncate(LANES);
    let attention = attention(&app, &visitor, &kpis, &all).await?;
    let span = span_of(range, permits.now)?;
    let (bars, rows) = throughput(&app, &visitor, range, span).await?;
    let by_site = store.series(visitor.caller.whose(), span, GroupBy::Site).await?;
    let (sites, more_sites) = sites(&visitor, &by_site, range.per_bar, range.bar_words);
    let title = format!("Delivered, captured and parked deliveries, {}.", range.bar_words);
    let content = context! {
        nothing_is_sent => go_live::nothing_is_sent(&providers),
        may_go_live => visitor.may(Scope::Ops),
        range => range.name,
        ranges => shown(RANGES.map(|range| (range.name, range.words))),
        tiles => shown(tiles(&kpis, range)),
        attention => shown(attention),
        chart_title => format!("Delivered and parked, {}", range.bar_words),
        chart => Value::from_safe_string(chart::bars(&bars, &title)),
        chart_rows => shown(rows),
        latency => latencies.shown(),
        lanes => shown(all),
        more_lanes,
        sites => shown(sites),
        more_sites,
    };
    visitor.page(&app, "overview.html", "Overview", content).await
}

fn range(query: &str) -> Result<&'static Range, Problem> {
    let named = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "range");
    let named = named.map_or_else(|| "24h".to_owned(), |(_, range)| range.into_owned());
    let known = RANGES.iter().find(|range| range.name == named);
    known.ok_or_else(|| Problem::invalid("range", format!("is {named:?}; allowed are 1h, 24h and 48h")))
}

fn tiles(kpis: &Kpis, range: &Range) -> Vec<Tile> {
    let total = &kpis.total;
    let good = total.delivered + total.captured;
    let finished = good + total.failed;
    let share = if finished == 0 {
        "–".to_owned()
    } else {
        // Rounded down, so that 100 % means all deliveries.
        let share = (good as f64 / finished as f64 * 10_000.0).floor() / 100.0;
        if total.failed == 0 { "100 %".to_owned() } else { format!("{share:.2} %") }
    };
    let oldest = u64::try_from(total.oldest_pending_s).unwrap_or(0);
    let waiting = dotted([
        Some("Waiting".to_owned()),
        (total.queue.scheduled > 0).then(|| format!("{} scheduled", grouped(total.queue.scheduled))),
        (oldest > 0).then(|| format!("oldest unfinished {}", span(oldest))),
    ]);
    let delivered = if total.captured > 0 {
        format!("Delivered · {} captured", grouped(total.captured))
    } else {
        "Delivered".into()
    };
    let tile = |value: String, label: String, href: Option<&str>, is_bad| Tile {
        value,
        label,
        href: href.map(str::to_owned),
        is_bad,
    };
    let sent = format!("/notifications?state=sent,delivered&since={}", range.name);
    vec![
        tile(grouped(total.delivered), delivered, Some(&sent), false),
        tile(share, "of finished deliveries".into(), None, false),
        tile(grouped(waiting_of(&total.queue)), waiting, Some("/notifications?state=pending"), false),
        tile(grouped(total.queue.retrying), "Retrying".into(), Some("/notifications?state=retrying"), false),
        tile(grouped(total.parked.total), "Parked · need a person".into(), Some("/parked"), total.parked.total > 0),
        tile(
            grouped(total.stuck),
            format!("Stuck over {}", span(kpis.stuck_after_s)),
            Some("/notifications?stuck=true"),
            total.stuck > 0,
        ),
    ]
}

/// Returns the problems that need a person.
async fn attention(app: &App, visitor: &Visitor, kpis: &Kpis, lanes: &[Lane]) -> Result<Vec<Attention>, DbError> {
    let mut all: Vec<Attention> = lanes.iter().filter_map(Lane::attention).collect();
    let shut = &kpis.shut;
    if shut.lanes_unopened > 0 {
        all.push(Attention {
            tint: "bad",
            label: "Not served",
            says: format!(
                "No worker can serve {}.",
                if shut.lanes_unopened == 1 {
                    "1 provider".to_owned()
                } else {
                    format!("{} providers", shut.lanes_unopened)
                }
            ),
            advice: "The page of the provider says what the workers lack.".into(),
            href: None,
            open: "",
        });
    }
    if shut.hosts_paused > 0 {
        all.push(Attention {
            tint: "warn",
            label: "Hosts paused",
            says: match shut.hosts_paused {
                1 => "1 receiver refuses our credentials.".into(),
                hosts => format!("{hosts} receivers refuse our credentials."),
            },
            advice: "Their deliveries wait. The page of the provider names them and resumes them.".into(),
            href: Some("/providers".into()),
            open: "Open providers",
        });
    }
    if visitor.may(Scope::Ops) && visitor.caller.store_of_all(app).is_unattended().await? {
        all.push(Attention {
            tint: "bad",
            label: "Nothing delivers",
            says: "No process delivers, and deliveries are due.".into(),
            advice: "Start `postcommit serve` or `postcommit serve --role worker`.".into(),
            href: None,
            open: "",
        });
    }
    if kpis.total.stuck > 0 {
        all.push(Attention {
            tint: "warn",
            label: "Stuck",
            says: format!(
                "{} waited for more than {}.",
                match kpis.total.stuck {
                    1 => "1 delivery has".to_owned(),
                    stuck => format!("{} deliveries have", grouped(stuck)),
                },
                span(kpis.stuck_after_s)
            ),
            advice: "The list says what each of them waits for.".into(),
            href: Some("/notifications?stuck=true".into()),
            open: "See deliveries",
        });
    }
    Ok(all)
}

/// Returns the time range of a period. It ends with the bar of the current time, so that every bar begins at a multiple
/// of its length, such as a full hour.
fn span_of(range: &Range, now: Timestamp) -> Result<TimeRange, Problem> {
    let per_bar = i64::try_from(range.per_bar).unwrap_or(1) * 60_000_000;
    let until = now.as_micros() - now.as_micros().rem_euclid(per_bar) + per_bar;
    let minutes = i64::try_from(range.minutes).unwrap_or(0) * 60_000_000;
    let span =
        TimeRange::new(SlotLength::Minute, Timestamp::from_micros(until - minutes), Timestamp::from_micros(until));
    span.map_err(|problem| Problem::invalid("range", problem))
}

/// The bars of the chart, and the same numbers as rows.
async fn throughput(
    app: &App,
    visitor: &Visitor,
    range: &Range,
    span: TimeRange,
) -> Result<(Vec<Bar>, Vec<(String, [i64; 3])>), Problem> {
    let store = visitor.store(app);
    let series = store.series(visitor.caller.whose(), span, GroupBy::State).await?;
    let count = series.slots.len() / range.per_bar;
    let mut rows = Vec::with_capacity(count);
    for (place, slots) in series.slots.chunks(range.per_bar).enumerate() {
        let Some(begins) = slots.first() else { continue };
        rows.push((begins.to_string(), sums(&series, place * range.per_bar, slots.len())));
    }
    let mut labelled = None;
    let drawn = rows.iter().enumerate().map(|(place, (begins, counts))| {
        let is_labelled = place % count.div_ceil(4).max(1) == 0;
        let label = is_labelled.then(|| label(begins, &mut labelled));
        Bar { label, ..bar(visitor, range, begins, counts) }
    });
    let drawn = drawn.collect();
    Ok((drawn, rows))
}

/// How many deliveries were delivered, captured and parked in some slots.
fn sums(series: &KpiSeries, from: usize, slots: usize) -> [i64; 3] {
    [&["sent", "delivered"][..], &["captured"], &["parked"]].map(|states| {
        let lines = series.lines.iter().filter(|line| states.contains(&line.label.as_str()));
        lines.flat_map(|line| line.counts.iter().skip(from).take(slots)).sum()
    })
}

/// The time of a bar, with the day if the label before it was of another day.
fn label(begins: &str, before: &mut Option<String>) -> String {
    let (day, time) = (day(begins), minute(begins));
    let label = if before.as_ref().is_some_and(|before| *before != day) {
        format!("{} {time}", day.get(5..).unwrap_or_default())
    } else {
        time
    };
    *before = Some(day);
    label
}

fn minute(at: &str) -> String {
    time(at).chars().take(5).collect()
}

fn bar(visitor: &Visitor, range: &Range, begins: &str, counts: &[i64; 3]) -> Bar {
    let ends = begins.parse::<Timestamp>().ok().map(|at| at.plus(Duration::from_secs(range.per_bar as u64 * 60)));
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(
            [
                ("state", Some("sent,delivered,parked".to_owned())),
                ("from", Some(begins.to_owned())),
                ("until", ends.map(|at| at.to_string())),
            ]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?))),
        )
        .finish();
    let [delivered, captured, parked] = counts.map(grouped);
    let captured = if counts[1] > 0 { format!(", {captured} captured") } else { String::new() };
    let at = format!("{} {}", day(begins), minute(begins));
    Bar {
        title: format!("{at}: {delivered} delivered{captured}, {parked} parked. Opens those that were enqueued then."),
        href: visitor.link(&format!("/notifications?{query}")),
        parts: counts.map(|count| count as f64).to_vec(),
        label: None,
    }
}
