//! The page about the installation, for all tenants: the findings of `doctor`, the workers and their leases, old
//! transactions, and the space that tables take.

use std::time::Duration;

use axum::extract::State;
use minijinja::{Value, context};
use postcommit_engine::db::LATEST;
use postcommit_engine::store::{HeldLeases, HeldSnapshot, Holder, Store, TableSize};
use serde::Serialize;

use super::frame::Visitor;
use super::words::{grouped, shown, span};
use crate::app::{App, AppState};
use crate::doctor::{self, Finding, Installation};
use crate::problem::{Answer, Problem};

/// The maximum number of workers, lanes, transactions and tables that are listed.
const LISTED: i64 = 20;
/// The maximum number of findings that are shown, the worst first.
const FINDINGS: usize = 200;

/// A finding of `doctor`, as the page shows it.
#[derive(Serialize)]
struct Shown {
    check: &'static str,
    result: &'static str,
    tint: &'static str,
    shape: &'static str,
    detail: String,
}

impl From<Finding> for Shown {
    fn from(finding: Finding) -> Self {
        let (tint, shape) = match finding.result {
            "problem" => ("bad", "alert"),
            "warning" => ("warn", "clock"),
            "ok" => ("good", "check"),
            _ => ("calm", "bar"),
        };
        Self { check: finding.check, result: finding.result, tint, shape, detail: finding.detail }
    }
}

pub async fn page(State(app): State<AppState>, visitor: Visitor) -> Answer {
    let store = visitor.caller.store_of_all(&app);
    let (bad, good) = findings(&app, &store).await;
    let content = context! {
        bad => shown(bad),
        good => shown(good),
        workers => workers(&store).await?,
        leases => leases(&store).await?,
        transactions => transactions(&store).await?,
        space => space(&store).await?,
        facts => shown(facts(&app)),
    };
    visitor.page(&app, "system.html", "System", content).await
}

/// Returns the findings that need attention, the worst first, and the findings that are fine.
async fn findings(app: &App, store: &Store) -> (Vec<Shown>, Vec<Shown>) {
    let installation =
        Installation { store, database: app.database.clone(), keys: &app.tools.keys, egress: &app.tools.egress };
    let mut findings = doctor::examine_all(&installation).await;
    findings.sort_by_key(|finding| ["problem", "warning", "note"].iter().position(|known| *known == finding.result));
    let (good, bad): (Vec<Finding>, Vec<Finding>) = findings.into_iter().partition(|finding| finding.result == "ok");
    let told = |all: Vec<Finding>| all.into_iter().take(FINDINGS).map(Shown::from).collect();
    (told(bad), told(good))
}

async fn workers(store: &Store) -> Result<Value, Problem> {
    let rows = store.workers(LISTED).await?.into_iter();
    Ok(rows
        .map(|row| context! { id => row.id, seen_at => row.seen_at.to_string(), is_present => row.is_present })
        .collect())
}

async fn leases(store: &Store) -> Result<Value, Problem> {
    let rows = store.held_leases(LISTED).await?.into_iter();
    let lane = |row: HeldLeases| {
        context! {
            tenant => row.tenant, provider => row.provider, count => row.count, run_out => row.run_out,
            oldest_at => row.oldest_at.map(|at| at.to_string()),
        }
    };
    Ok(rows.map(lane).collect())
}

/// The oldest transactions, which keep the database from removing old rows. Empty on SQLite.
async fn transactions(store: &Store) -> Result<Value, Problem> {
    let rows = store.held_snapshots(Duration::ZERO, 0).await?;
    Ok(rows.iter().map(transaction).collect())
}

fn transaction(row: &HeldSnapshot) -> Value {
    let age = row.age.map_or_else(|| format!("{} transactions", grouped(row.transactions)), |age| span(age.as_secs()));
    context! {
        pid => row.pid, age, kind => holder(row.holder), name => row.name.as_str(), user => row.user.as_deref(), state => row.state.as_deref(),
    }
}

fn holder(holder: Holder) -> &'static str {
    match holder {
        Holder::Session => "a transaction",
        Holder::Standby => "a standby",
        Holder::Prepared => "a prepared transaction",
        Holder::Slot => "a replication slot",
    }
}

async fn space(store: &Store) -> Result<Value, Problem> {
    let space = store.space(LISTED).await?;
    let table = |table: TableSize| {
        context! { name => table.name, partitions => table.partitions, size => size(table.bytes), rows => table.rows }
    };
    Ok(context! {
        total => size(space.bytes),
        free => space.free.map(size),
        tables => space.tables.into_iter().map(table).collect::<Vec<_>>(),
    })
}

/// Versions, addresses and the settings that explain what a person sees.
fn facts(app: &App) -> Vec<(&'static str, String)> {
    let (dispatch, kpi) = (&app.tools.settings, &app.tools.kpi);
    vec![
        ("This server", format!("Postcommit {}", env!("CARGO_PKG_VERSION"))),
        ("Schema", format!("version {LATEST}; a process that needs another version does not start")),
        ("Database", app.database.clone()),
        ("Address for browsers", app.base_url.clone()),
        ("dispatch.interval_ms", grouped(dispatch.interval_ms.try_into().unwrap_or(i64::MAX))),
        ("dispatch.lease_s", dispatch.lease_s.to_string()),
        ("dispatch.batch", dispatch.batch.to_string()),
        ("dispatch.stop_grace_s", dispatch.stop_grace_s.to_string()),
        ("kpi.stuck_after_s", kpi.stuck_after_s.to_string()),
        ("kpi.interval_s", kpi.interval_s.to_string()),
        ("kpi.minutes_kept_h", kpi.minutes_kept_h.to_string()),
        ("kpi.hours_kept_d", kpi.hours_kept_d.to_string()),
    ]
}

/// Formats a size, e.g. `1.2 GB`.
fn size(bytes: i64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KB", "MB", "GB", "TB"];
    let (mut size, mut unit) = (bytes as f64, 0);
    while size >= 1000.0 && unit + 1 < UNITS.len() {
        (size, unit) = (size / 1000.0, unit + 1);
    }
    if unit == 0 || size >= 100.0 { format!("{size:.0} {}", UNITS[unit]) } else { format!("{size:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_told_in_one_unit() {
        for (bytes, words) in
            [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 KB"), (123_456, "123 KB"), (12_345_678_901, "12.3 GB")]
        {
            assert_eq!(size(bytes), words);
        }
    }
}
