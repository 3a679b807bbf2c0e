//! `postcommit doctor`: checks the installation, and says what needs attention and how to fix it. It changes nothing.

mod shut;
mod surroundings;
mod unreadable;

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::{self, Destination, FailOn};
use postcommit_channel::egress::Egress;
use postcommit_channel::model::Provider;
use postcommit_channel::secret::Secrets;
use postcommit_engine::db::LATEST;
use postcommit_engine::store::{Attendance, Store};
use serde::Serialize;

use crate::app;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;

#[derive(Serialize)]
struct CheckResult {
    check: &'static str,
    /// ok, note, warning or problem; only a problem changes the exit code
    result: &'static str,
    detail: String,
}

fn finding(check: &'static str, result: &'static str, detail: impl Into<String>) -> CheckResult {
    CheckResult { check, result, detail: detail.into() }
}

pub async fn run(format: Format, settings: &Settings) -> CommandResult {
    let findings = examine(settings).await?;
    output::list(
        format,
        &findings,
        &[("check", |f| f.check.to_owned()), ("result", |f| f.result.to_owned()), ("detail", |f| f.detail.clone())],
    );
    Ok(if findings.iter().any(|f| f.result == "problem") { Exit::Failed } else { Exit::Ok })
}

async fn examine(settings: &Settings) -> Result<Vec<CheckResult>, Failure> {
    let store = match app::store(settings).await {
        Ok(store) => store,
        Err(failure) => return Ok(vec![finding("database", "problem", failure.to_string())]),
    };
    let mut findings = vec![finding("database", "ok", format!("{}, schema version {LATEST}", store.db().kind()))];
    match store.is_read_only().await {
        Ok(false) => {}
        Ok(true) => findings.push(finding(
            "database",
            "problem",
            "it is read-only, as a standby is, or a file that may not be written: nothing can be enqueued or delivered; check database.url",
        )),
        Err(problem) => findings.push(finding("database", "problem", format!("it cannot be written: {problem}"))),
    }
    findings.extend(access(&store).await?);
    findings.push(clock(&store).await?);
    findings.extend(surroundings::durability(&store).await?);
    findings.extend(surroundings::held_snapshots(&store).await?);
    findings.extend(partitions(&store).await?);
    findings.push(delivering(&store.attendance().await?, store.now().await?));
    findings.extend(queue(&store).await?);
    findings.extend(reused_keys(&store).await?);
    findings.extend(unreadable::look(&store).await?);
    let providers = store.providers().await?;
    if providers.is_empty() {
        findings.push(finding("providers", "warning", "none; nothing can be sent until `postcommit providers create`"));
    }
    findings.extend(suspended(&store).await?);
    let tenants = store.tenants().await?;
    findings.extend(shut::examine(&store, &providers, &tenants).await?);
    for one in &providers {
        let found = provider(settings, one, tenants.get(&one.tenant).map_or("default", String::as_str));
        findings.push(if found.result == "ok" && swallows(one, &providers) { swallowing(one, found) } else { found });
    }
    Ok(findings)
}

/// The isolation of tenants, and who else could reach the database.
async fn access(store: &Store) -> Result<Vec<CheckResult>, Failure> {
    if let Err(problem) = store.check_isolation().await {
        return Ok(vec![finding("access", "problem", problem.to_string())]);
    }
    let Some(access) = store.access().await? else { return Ok(vec![]) };
    Ok(access.notes().into_iter().map(|note| finding("access", "note", note)).collect())
}

/// Leases use the database's clock; a wrong clock of the host only misdates its logs.
async fn clock(store: &Store) -> Result<CheckResult, Failure> {
    let apart = store.now().await?.as_micros() - postcommit_channel::clock::now().as_micros();
    let seconds = apart / 1_000_000;
    Ok(match seconds.abs() {
        0..=5 => finding("clock", "ok", "this host and the database agree"),
        _ => finding(
            "clock",
            "warning",
            format!("the database's clock is {seconds} s ahead of this host's; check time synchronisation"),
        ),
    })
}

async fn partitions(store: &Store) -> Result<Vec<CheckResult>, Failure> {
    let Some(health) = store.partition_health().await? else { return Ok(vec![]) };
    let ahead = match health.months_ahead {
        months @ 2.. => finding("partitions", "ok", format!("made {months} months ahead")),
        months => finding(
            "partitions",
            "problem",
            format!("made {months} months ahead only; run `postcommit serve`, or SELECT postcommit.make_partitions()"),
        ),
    };
    let caught = (health.in_default > 0).then(|| {
        finding(
            "partitions",
            "warning",
            format!(
                "{} rows are in default partitions; SELECT postcommit.make_partitions() moves them",
                health.in_default
            ),
        )
    });
    Ok(std::iter::once(ahead).chain(caught).collect())
}

/// Where passes deliver, they come at least this often.
const PASSES_S: u64 = 120;
/// Passes further apart than this are no way to deliver, even with an empty queue.
const PASSES_MOST_S: u64 = 600;

/// Whether anything delivers. A single pass by hand is not cron: once something has been due for longer than the time
/// between passes, nothing delivers.
fn delivering(there: &Attendance, now: Timestamp) -> CheckResult {
    let ago = |at: Option<Timestamp>| at.map(|at| now.since(at).as_secs());
    let job = if there.jobs == 1 { "job" } else { "jobs" };
    let waiting = format!("{} due, {} {job} to be done", there.due, there.jobs);
    let is_late = there.jobs > 0 || ago(there.oldest_due_at).is_some_and(|late| late > PASSES_S);
    match (there.workers, ago(there.last_pass_at)) {
        (1.., _) => finding("delivering", "ok", format!("{} running; {waiting}", there.workers)),
        (_, Some(pass)) if pass <= PASSES_S || (pass <= PASSES_MOST_S && !is_late) => {
            finding("delivering", "ok", format!("by passes, the last one {pass} s ago; {waiting}"))
        }
        _ => {
            let last = ago(there.last_worker_at.max(there.last_pass_at))
                .map(|s| format!(", none was heard of for {s} s"))
                .unwrap_or_default();
            let result = if there.due + there.jobs > 0 { "problem" } else { "warning" };
            let what = "start `postcommit serve` or `postcommit serve --role worker`, or let cron run `postcommit dispatch --once` every minute";
            finding("delivering", result, format!("no process delivers{last}; {waiting}: {what}"))
        }
    }
}

/// What waits for suspended tenants is not late: it is not to be sent.
async fn suspended(store: &Store) -> Result<Vec<CheckResult>, Failure> {
    let tenants = store.suspended_tenants().await?;
    Ok(tenants
        .iter()
        .map(|tenant| {
            let why = tenant.suspended_reason.as_deref().unwrap_or("no reason was given");
            finding(
                "tenant",
                "warning",
                format!("{}: suspended: {why}; `postcommit tenants resume {}` lets it go on", tenant.name, tenant.name),
            )
        })
        .collect())
}

async fn queue(store: &Store) -> Result<Vec<CheckResult>, Failure> {
    let health = store.queue_health().await?;
    let waiting = format!("{} waiting, {} parked", health.waiting, health.parked);
    let mut findings = vec![match health.oldest_due_s {
        0..=600 if health.parked > 0 => {
            finding("queue", "warning", format!("{waiting}: `postcommit deliveries list --state parked`"))
        }
        0..=600 => finding("queue", "ok", waiting),
        late => finding(
            "queue",
            "problem",
            format!(
                "{waiting}; the oldest has been due for {late} s: does a process deliver (see above), does its provider's rate hold it back?"
            ),
        ),
    }];
    if health.stale_settles > 0 {
        findings.push(finding(
            "leases",
            "warning",
            format!(
                "{} results came after their lease had run out; if this grows, raise dispatch.lease_s",
                health.stale_settles
            ),
        ));
    }
    Ok(findings)
}

async fn reused_keys(store: &Store) -> Result<Option<CheckResult>, Failure> {
    let Some(reused) = store.key_conflicts(Duration::from_secs(7 * 86_400)).await? else { return Ok(None) };
    let times = if reused.count == 1 { "once".to_owned() } else { format!("{} times", reused.count) };
    let detail = format!(
        "within 7 days a key was used again with other content {times}, and that was not sent; last by {:?}: `postcommit notifications show {}` is the one that holds its key",
        reused.event_type, reused.notification
    );
    Ok(Some(finding("keys", "warning", detail)))
}

/// Whether a capturing provider takes what a missing provider would have sent: fine for a trial, not beside providers
/// that send.
fn swallows(one: &Provider, all: &[Provider]) -> bool {
    let goes = |provider: &Provider, to: Destination| driver::destination(&provider.driver) == to;
    let sends = |other: &Provider| other.tenant == one.tenant && goes(other, Destination::Service);
    goes(one, Destination::Record) && one.is_default && one.enabled && all.iter().any(sends)
}

fn swallowing(one: &Provider, found: CheckResult) -> CheckResult {
    let takes = if one.channel == "*" {
        "every channel without another default".to_owned()
    } else {
        format!("the channel {}", one.channel)
    };
    let detail = format!("{}: it takes {takes}; it records and sends nothing", found.detail);
    finding("provider", "warning", detail)
}

fn provider(settings: &Settings, provider: &Provider, tenant: &str) -> CheckResult {
    let flag = if tenant == "default" { String::new() } else { format!(" --tenant {tenant}") };
    let detail = |text: String| {
        if flag.is_empty() {
            format!("{}: {text}", provider.name)
        } else {
            format!("{tenant}/{}: {text}", provider.name)
        }
    };
    if let Some(why) = &provider.paused {
        return finding(
            "provider",
            "problem",
            detail(format!("paused: {why}; mend it, then `postcommit providers resume {}{flag}`", provider.name)),
        );
    }
    match usable(settings, provider) {
        Ok(()) => finding("provider", "ok", detail(format!("{} on {}", provider.driver, provider.channel))),
        Err(problem) => finding("provider", "problem", detail(problem)),
    }
}

fn usable(settings: &Settings, provider: &Provider) -> Result<(), String> {
    let secrets = match &provider.secrets {
        None => Secrets::new(),
        Some(sealed) => {
            let ring = app::keys(settings).existing().map_err(|e| e.to_string())?;
            ring.open(sealed, provider.tenant, &provider.name).map_err(|e| e.to_string())?
        }
    };
    let egress = Egress::new(&settings.egress).map_err(|e| e.to_string())?;
    driver::of_provider(provider, &secrets, &egress, &FailOn::default()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pass_by_hand_is_no_cron() {
        let now = Timestamp::from_micros(1_800_000_000_000_000);
        let ago = |seconds: i64| Some(Timestamp::from_micros(now.as_micros() - seconds * 1_000_000));
        let judged = |pass, due| {
            let oldest_due_at = ago(due).filter(|_| due > 0);
            let there = Attendance {
                workers: 0,
                last_worker_at: None,
                last_pass_at: ago(pass),
                due: i64::from(due > 0),
                oldest_due_at,
                jobs: 0,
            };
            delivering(&there, now).result
        };
        for (pass, due, expected) in [
            (30, 0, "ok"),
            (30, 300, "ok"),
            (300, 0, "ok"),
            (300, 100, "ok"),
            (300, 121, "problem"),
            (121, 121, "problem"),
            (601, 1, "problem"),
            (601, 0, "warning"),
        ] {
            assert_eq!(judged(pass, due), expected, "a pass {pass} s ago, something due for {due} s");
        }
    }
}
