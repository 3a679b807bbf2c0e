//! Reports lanes and hosts that are held, and hosts that are paused. Their deliveries are not sent. A paused lane is
//! reported with its provider.

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Provider, can_follow};
use postcommit_engine::store::{ClosedHost, Store};

use super::{Finding, finding};
use crate::output::Failure;

/// A hold that lasts longer than this is reported.
const LONG: Duration = Duration::from_secs(600);
/// A breaker that tripped this often without a success in between is a warning: the service has failed for over a
/// minute.
const OFTEN: i32 = 4;
/// The maximum number of hosts that are reported one by one.
const TOLD: usize = 20;

pub async fn examine(
    store: &Store,
    providers: &[Provider],
    tenants: &BTreeMap<i32, String>,
) -> Result<Vec<Finding>, Failure> {
    let (now, hosts, count) =
        (store.now().await?, store.closed_hosts(None, None, TOLD as i64).await?, store.count_closed(None).await?);
    let named = |provider: &Provider| NamedProvider::of(provider, tenants);
    let lanes = providers.iter().filter_map(|provider| held_lane(&named(provider), provider, now));
    let told = hosts
        .iter()
        .filter_map(|host| Some((named(providers.iter().find(|provider| provider.id == host.lane)?), host)));
    let chains = providers.iter().filter_map(|provider| broken_chain(&named(provider), provider, providers));
    let mut findings: Vec<Finding> =
        lanes.chain(chains).chain(told.map(|(name, host)| shut_host(&name, host, now))).collect();
    let untold = count.hosts_paused + count.hosts_held - i64::try_from(hosts.len()).unwrap_or(0);
    if hosts.len() == TOLD && untold > 0 {
        let detail = format!(
            "{} hosts are paused and {} held; `postcommit providers show NAME` lists them",
            count.hosts_paused, count.hosts_held
        );
        findings.push(finding("host", if count.hosts_paused > 0 { "problem" } else { "warning" }, detail));
    }
    Ok(findings)
}

/// The name of a provider: as it is shown, and as the arguments of a command.
struct NamedProvider {
    shown: String,
    arguments: String,
}

impl NamedProvider {
    fn of(provider: &Provider, tenants: &BTreeMap<i32, String>) -> Self {
        let name = &provider.name;
        match tenants.get(&provider.tenant).map(String::as_str) {
            None | Some("default") => Self { shown: name.clone(), arguments: name.clone() },
            Some(tenant) => Self { shown: format!("{tenant}/{name}"), arguments: format!("{name} --tenant {tenant}") },
        }
    }
}

fn severity(until: Timestamp, now: Timestamp) -> &'static str {
    if until.since(now) > LONG { "warning" } else { "ok" }
}

/// Reports a lane that is held or whose breaker tripped. A breaker that tripped again and again is a warning, however
/// short its hold is.
fn held_lane(name: &NamedProvider, provider: &Provider, now: Timestamp) -> Option<Finding> {
    let NamedProvider { shown, arguments } = name;
    let held = provider.held_until.filter(|until| *until > now);
    let resume = format!("`postcommit providers resume {arguments}` resumes it now");
    match (held, &provider.hold_reason) {
        (Some(until), None) => Some(finding(
            "lane",
            severity(until, now),
            format!("{shown}: held until {until}, because the provider asked to wait; {resume}"),
        )),
        (held, Some(why)) if provider.is_tripped() => {
            let state = held.map_or("probed with one send at a time".to_owned(), |until| format!("held until {until}"));
            let status = if provider.trips >= OFTEN { "warning" } else { "ok" };
            let detail = format!("{shown}: {state}, because {why}; check whether the service works; {resume}");
            Some(finding("lane", status, detail))
        }
        _ => None,
    }
}

/// Reports a provider whose next provider cannot take over: it was deleted, disabled, or serves another channel by now.
fn broken_chain(name: &NamedProvider, provider: &Provider, all: &[Provider]) -> Option<Finding> {
    let NamedProvider { shown, arguments } = name;
    let next = provider.failover.as_deref()?;
    let found = all.iter().find(|other| other.tenant == provider.tenant && other.name == next);
    let problem = match found {
        None => "does not exist",
        Some(next) if !next.enabled => "is disabled",
        Some(next) if !can_follow(&provider.channel, &next.channel) => "serves another channel",
        Some(_) => return None,
    };
    let detail = format!(
        "{shown}: its failover {next:?} {problem}, so nothing takes over; \
         `postcommit providers update {arguments} --failover NAME` names another, --no-failover removes it"
    );
    Some(finding("failover", "warning", detail))
}

fn shut_host(name: &NamedProvider, host: &ClosedHost, now: Timestamp) -> Finding {
    let resume = format!("`postcommit providers resume {} --host {}`", name.arguments, host.host);
    let (shown, host_name) = (&name.shown, &host.host);
    match (&host.paused, host.held_until) {
        (Some(why), _) => {
            finding("host", "problem", format!("{shown}: {host_name} is paused: {why}; fix the cause, then {resume}"))
        }
        (None, Some(until)) => finding(
            "host",
            severity(until, now),
            format!(
                "{shown}: {host_name} is held until {until}, because {}; {resume} resumes it now",
                host.hold_reason.as_deref().unwrap_or("it asked to wait")
            ),
        ),
        (None, None) => finding("host", "ok", format!("{shown}: {host_name} is open")),
    }
}
