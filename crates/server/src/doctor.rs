//! Checks the installation, and says what needs attention and how to fix it. It changes nothing. The command `doctor`
//! and the page about the system show the findings.

pub mod access;
mod channels;
pub mod delivering;
mod shut;
pub mod surroundings;
mod unreadable;

use std::time::Duration;

use postcommit_channel::driver::{self, FailOn};
use postcommit_channel::egress::Egress;
use postcommit_channel::model::Provider;
use postcommit_channel::secret::{KeySource, Secrets};
use postcommit_engine::db::LATEST;
use postcommit_engine::store::{Lacking, Store, UnopenedLane};
use serde::Serialize;

use crate::output::Failure;

/// The result of a check.
#[derive(Serialize)]
pub struct Finding {
    pub check: &'static str,
    /// The result: ok, note, warning or problem. Only a problem changes the exit code.
    pub result: &'static str,
    /// What the check found, and what an operator should do.
    pub detail: String,
}

pub fn finding(check: &'static str, result: &'static str, detail: impl Into<String>) -> Finding {
    Finding { check, result, detail: detail.into() }
}

/// The installation that is examined. The schema of the store must be that of this version.
pub struct Installation<'a> {
    pub store: &'a Store,
    /// The address of the database without its password.
    pub database: String,
    /// The source of the key that encrypts the providers' secrets on this host.
    pub keys: &'a KeySource,
    pub egress: &'a Egress,
}

/// Runs every check. If a check fails with an error, the error is the last finding and the later checks are not run.
pub async fn examine_all(of: &Installation<'_>) -> Vec<Finding> {
    let mut findings = vec![];
    // The findings are collected outside, so that an error of a later check does not lose them.
    if let Err(failure) = examine(of, &mut findings).await {
        findings.push(finding("database", "problem", failure.to_string()));
    }
    findings
}

async fn examine(of: &Installation<'_>, findings: &mut Vec<Finding>) -> Result<(), Failure> {
    let store = of.store;
    findings.push(finding("database", "ok", format!("{}, schema version {LATEST}", of.database)));
    match store.is_read_only().await {
        Ok(false) => {}
        Ok(true) => findings.push(finding(
            "database",
            "problem",
            "the database is read-only (a standby, or a file without write permission): nothing can be enqueued or \
             delivered; check database.url",
        )),
        Err(problem) => {
            findings.push(finding(
                "database",
                "problem",
                format!("the database cannot be written: {problem}; check its disk and the permissions of this login"),
            ));
        }
    }
    findings.extend(access::examine(store).await?);
    findings.push(clock(store).await?);
    findings.extend(surroundings::durability(store).await?);
    findings.extend(surroundings::held_snapshots(store).await?);
    findings.extend(partitions(store).await?);
    let attendance = store.attendance().await?;
    findings.push(delivering::judge(&attendance, store.now().await?));
    findings.extend(queue(store).await?);
    findings.extend(reused_keys(store).await?);
    findings.extend(unreadable::look(store).await?);
    let providers = store.providers().await?;
    if providers.is_empty() {
        findings.push(finding(
            "providers",
            "warning",
            "there is no provider, so nothing can be sent; create one with `postcommit providers create`",
        ));
    }
    findings.extend(suspended(store).await?);
    let tenants = store.tenants().await?;
    findings.extend(shut::examine(store, &providers, &tenants).await?);
    let (unopened, is_served) = (store.unopened(None).await?, attendance.workers > 0);
    let parked = store.parked_as_config().await?;
    for one in &providers {
        let opened = Opened { not: unopened.get(&one.id), is_served };
        let tenant = tenants.get(&one.tenant).map_or("default", String::as_str);
        let found = provider(of, one, tenant, &opened);
        let found = if found.result == "ok" { channels::captured(one, &providers, found) } else { found };
        findings.push(with_parked(found, one, tenant, parked.get(&one.id).copied().unwrap_or(0)));
    }
    findings.extend(channels::unserved(store, &providers, &tenants).await?);
    Ok(())
}

/// The command that retries the deliveries of a provider that are parked as `config`. `None` if there are none.
pub fn retry_parked(provider: &str, tenant: &str, parked: i64) -> Option<String> {
    let flag = if tenant == "default" { String::new() } else { format!(" --tenant {tenant}") };
    (parked > 0).then(|| {
        format!(
            "deliveries parked as config: {parked}; `postcommit deliveries retry --provider {provider} --reason \
             config{flag}` retries them"
        )
    })
}

/// Compares the clocks of the host and the database. Leases use the database's clock, so a wrong clock of the host only
/// affects the times in its logs.
async fn clock(store: &Store) -> Result<Finding, Failure> {
    let apart = store.now().await?.as_micros() - postcommit_channel::clock::now().as_micros();
    let seconds = apart / 1_000_000;
    Ok(match seconds.abs() {
        0..=5 => finding("clock", "ok", "this host and the database agree"),
        _ => finding(
            "clock",
            "warning",
            format!(
                "the clocks of the database and of this host differ by {} s; check time synchronisation",
                seconds.abs()
            ),
        ),
    })
}

async fn partitions(store: &Store) -> Result<Vec<Finding>, Failure> {
    let Some(health) = store.partition_health().await? else { return Ok(vec![]) };
    let ahead = match health.months_ahead {
        months @ 2.. => finding("partitions", "ok", format!("partitions exist for the next {months} months")),
        months => finding(
            "partitions",
            "problem",
            format!(
                "partitions exist only for the next {months} months; run `postcommit serve`, or SELECT \
                 postcommit.make_partitions()"
            ),
        ),
    };
    let caught = (health.in_default > 0).then(|| {
        finding(
            "partitions",
            "warning",
            format!(
                "{} rows are in the default partitions; SELECT postcommit.make_partitions() moves them to the partitions of their months",
                health.in_default
            ),
        )
    });
    Ok(std::iter::once(ahead).chain(caught).collect())
}

/// Reports suspended tenants. Their deliveries do not count as late.
async fn suspended(store: &Store) -> Result<Vec<Finding>, Failure> {
    let tenants = store.suspended_tenants().await?;
    Ok(tenants
        .iter()
        .map(|tenant| {
            let why = tenant.suspended_reason.as_deref().unwrap_or("no reason was given");
            finding(
                "tenant",
                "warning",
                format!("{} is suspended: {why}; `postcommit tenants resume {}` resumes it", tenant.name, tenant.name),
            )
        })
        .collect())
}

async fn queue(store: &Store) -> Result<Vec<Finding>, Failure> {
    let health = store.queue_health().await?;
    let waiting = format!("{} waiting, {} parked", health.waiting, health.parked);
    let mut findings = vec![match health.oldest_due_s {
        0..=600 if health.parked > 0 => finding(
            "queue",
            "warning",
            format!("{waiting}; `postcommit deliveries list --state parked` lists the parked ones"),
        ),
        0..=600 => finding("queue", "ok", waiting),
        late => finding(
            "queue",
            "problem",
            format!(
                "{waiting}; the oldest has been due for {late} s: check that a process delivers (see above), and that \
                 the rate limit of its provider is not too low"
            ),
        ),
    }];
    if health.stale_settles > 0 {
        findings.push(finding(
            "leases",
            "warning",
            format!(
                "{} results of sends came after their lease had expired and were not stored; if the number grows, \
                 raise dispatch.lease_s",
                health.stale_settles
            ),
        ));
    }
    Ok(findings)
}

async fn reused_keys(store: &Store) -> Result<Option<Finding>, Failure> {
    let Some(reused) = store.key_conflicts(Duration::from_secs(7 * 86_400)).await? else { return Ok(None) };
    let times = if reused.count == 1 { "once".to_owned() } else { format!("{} times", reused.count) };
    let detail = format!(
        "in the last 7 days an idempotency key was used again with other content {times}; the second notification was \
         not sent. The last event type was {:?}; `postcommit notifications show {}` shows the notification that holds \
         the key",
        reused.event_type, reused.notification
    );
    Ok(Some(finding("keys", "warning", detail)))
}

/// The reports of the workers about a provider.
struct Opened<'a> {
    /// The reason why no worker can serve the provider.
    not: Option<&'a UnopenedLane>,
    /// Whether a worker runs.
    is_served: bool,
}

fn provider(of: &Installation<'_>, provider: &Provider, tenant: &str, opened: &Opened<'_>) -> Finding {
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
            detail(format!("paused: {why}; fix the cause, then `postcommit providers resume {}{flag}`", provider.name)),
        );
    }
    if let Some(why) = opened.not {
        let here =
            usable(of, provider, false).err().map(|problem| format!(" On this host: {problem}")).unwrap_or_default();
        let remedy = match &why.pass_on {
            _ if why.lacking == Lacking::Driver => {
                "run every server with the version and the recipes (recipes.folder) that know this driver and its \
                 settings, and restart it after a change of the recipes"
                    .to_owned()
            }
            // The key may be on another host or in another directory, so it is not necessarily lost.
            Some(host) => format!(
                "no server runs, and the passes on host {host} have no usable key; start a server that has the key, \
                 or run the passes with it (secrets.key_file)"
            ),
            None => format!(
                "start the server with the key that encrypted them; only if that key is lost, set them again: \
                 `postcommit providers update {} --secret NAME=VALUE --new-secrets-key{flag}` on the host of the server",
                provider.name
            ),
        };
        let told = format!("nothing is sent, because {}; {remedy}.{here}", why.cause());
        return finding("provider", "problem", detail(told));
    }
    match usable(of, provider, opened.is_served) {
        Ok(()) => finding("provider", "ok", detail(format!("{} on {}", provider.driver, provider.channel))),
        Err(problem) => finding("provider", "problem", detail(problem)),
    }
}

/// Adds the command that retries the deliveries that are parked as `config`, because a resume does not retry them.
fn with_parked(found: Finding, provider: &Provider, tenant: &str, parked: i64) -> Finding {
    let Some(what) = retry_parked(&provider.name, tenant, parked) else { return found };
    let (result, when) = if found.result == "problem" { ("problem", ". Then retry its ") } else { ("warning", "; ") };
    finding(found.check, result, format!("{}{when}{what}", found.detail))
}

/// Checks that a driver can be built from the provider. Secrets that a worker has decrypted are not checked here,
/// because `doctor` may run on a host without the key.
fn usable(of: &Installation<'_>, provider: &Provider, is_served: bool) -> Result<(), String> {
    let open = |sealed: &Vec<u8>| of.keys.existing()?.open(sealed, provider.tenant, &provider.name);
    let secrets = match provider.secrets.as_ref().map(open) {
        None => Secrets::new(),
        Some(Ok(secrets)) => secrets,
        Some(Err(_)) if is_served => return Ok(()),
        Some(Err(problem)) => return Err(problem.to_string()),
    };
    driver::of_provider(provider, &secrets, of.egress, &FailOn::default()).map(drop)
}
