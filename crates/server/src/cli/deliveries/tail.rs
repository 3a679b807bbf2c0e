//! The command `postcommit deliveries tail`.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use clap::Args;
use postcommit::Timestamp;
use postcommit_engine::store::{AttemptRow, DeliveryFilter, Store};
use uuid::Uuid;

use super::which::Which;
use crate::cli::notifications::CAPTURED;
use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};

/// How far a look goes back, in microseconds. An attempt is written when it ends, with the time when it began, so each
/// look must go back in time.
const REACH: i64 = 5_000_000;
/// How far every twentieth look goes back, for attempts that took long.
const LONG_REACH: i64 = 120_000_000;
/// Attempts that one query reads.
const PAGE: usize = 1000;
/// The age in microseconds after which a notification is no longer followed.
const OLDEST: i64 = 172_800_000_000;

#[derive(Debug, Args)]
pub struct Tail {
    #[command(flatten)]
    which: Which,
    /// Begin with the attempts of the last SECONDS seconds
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    since: u64,
    /// Print the attempts so far, then exit
    #[arg(long)]
    no_follow: bool,
}

impl Tail {
    pub async fn run(&self, format: Format, store: &Store) -> CommandResult {
        // A JSON array would never be closed, because the stream has no end. JSONL needs no closing bracket.
        let format = if format == Format::Json { Format::Jsonl } else { format };
        let filter = self.which.filter(store).await?;
        let since = i64::try_from(self.since.min(315_360_000)).unwrap_or(0) * 1_000_000;
        let from = store.now().await?.as_micros() - since;
        let mut seen: HashMap<(String, i32), i64> = HashMap::new();
        let mut look = tokio::time::interval(Duration::from_millis(250));
        for turn in 0_u64.. {
            look.tick().await;
            let now = store.now().await?.as_micros();
            let reach = if turn.is_multiple_of(20) { LONG_REACH } else { REACH };
            let mut start = if turn == 0 { from } else { from.max(now - reach) };
            let oldest = first_id((now - OLDEST).max(0));
            loop {
                let mut new = store.attempts_since(Timestamp::from_micros(start), oldest, PAGE as i64).await?;
                let last = new.last().filter(|_| new.len() == PAGE).map(|attempt| attempt.at.as_micros());
                new.retain(|a| seen.insert((a.delivery_id.clone(), a.seq), a.at.as_micros()).is_none());
                for attempt in matching(store, &filter, new).await? {
                    output::one(format, &attempt, line);
                }
                // The next page begins with the attempts of the last microsecond, of which this page may have only some.
                let Some(last) = last else { break };
                start = (last - 1).max(start + 1);
            }
            if self.no_follow {
                break;
            }
            seen.retain(|_, at| *at > now - 2 * LONG_REACH);
        }
        Ok(Exit::Ok)
    }
}

/// The attempts whose deliveries match the filter in their current state. An attempt and the new state of its delivery
/// are written in one commit, so the state is never older than the attempt.
async fn matching(
    store: &Store,
    filter: &DeliveryFilter,
    attempts: Vec<AttemptRow>,
) -> Result<Vec<AttemptRow>, Failure> {
    if *filter == DeliveryFilter::default() {
        return Ok(attempts);
    }
    let mut known: HashMap<Uuid, HashSet<String>> = HashMap::new();
    let mut matching = Vec::new();
    for attempt in attempts {
        let Some(id) = attempt.delivery_id.split('.').next().and_then(|id| id.parse::<Uuid>().ok()) else { continue };
        if filter.notification_id.is_some_and(|only| only != id) {
            continue;
        }
        if let Entry::Vacant(unknown) = known.entry(id) {
            let of_it = DeliveryFilter::of_notification(id);
            let of_it = DeliveryFilter { notification_id: Some(id), limit: of_it.limit, ..filter.clone() };
            let rows = store.delivery_rows(&of_it).await?.rows;
            unknown.insert(rows.into_iter().map(|row| row.id).collect());
        }
        if known.get(&id).is_some_and(|rows| rows.contains(&attempt.delivery_id)) {
            matching.push(attempt);
        }
    }
    Ok(matching)
}

/// The smallest possible id of a notification at a time.
fn first_id(micros: i64) -> Uuid {
    Uuid::new_v7(uuid::Timestamp::from_unix_time(u64::try_from(micros / 1_000_000).unwrap_or(0), 0, 0, 0))
}

fn line(a: &AttemptRow) -> String {
    let word = |text: &Option<String>| text.as_ref().map(|text| format!("  {text}")).unwrap_or_default();
    let captured = if a.captured { format!("  {CAPTURED}") } else { String::new() };
    // The detail of an attempt without an error code is a warning.
    let warning = if a.code.is_none() { word(&a.detail) } else { String::new() };
    let error = format!("{captured}{}{}{warning}", word(&a.code), word(&a.error_class));
    let (provider, id) = (or_dash(&a.provider), &a.delivery_id);
    format!("{}  {:<9} {provider:<16} {id}  #{}  {} ms{error}", a.at, a.outcome, a.seq, a.latency_ms)
}
