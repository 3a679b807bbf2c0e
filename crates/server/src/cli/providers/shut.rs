//! Pauses and resumes the hosts of a provider's lane, and shows held and paused hosts.

use postcommit_channel::model::Provider;
use postcommit_engine::store::{CloseOutcome, MAX_CLOSED_HOSTS, Store};
use serde_json::Value;

use crate::doctor::retry_parked;
use crate::output::{Exit, Failure};
use crate::telemetry::say;

/// Pauses the lane or one of its hosts. Returns the result to print.
pub async fn pause(store: &Store, provider: &Provider, host: Option<&str>, reason: &str) -> Result<String, Failure> {
    let shut = match host {
        Some(host) => store.pause_host(provider.id, host, None, reason).await?,
        None if store.pause_lane(provider.id, None, reason).await? => CloseOutcome::Now,
        None => CloseOutcome::Already,
    };
    let which = host.map(|host| format!(" for host {host}")).unwrap_or_default();
    match shut {
        CloseOutcome::Now => Ok(format!("paused{which}")),
        CloseOutcome::Already => Ok(format!("was already paused{which}")),
        CloseOutcome::TooMany => {
            let detail = format!(
                "--host: {MAX_CLOSED_HOSTS} hosts of this provider are paused or held, which is the limit; pause the \
                 whole provider"
            );
            Err(Failure::new(Exit::Refused, detail))
        }
        CloseOutcome::Outdated => {
            Err(Failure::new(Exit::NotFound, "the provider no longer exists; `postcommit providers list` lists them"))
        }
    }
}

/// The maximum number of hosts that a message names.
const NAMED: i64 = 10;

/// Resumes one host. If it is already open, the error names the closed hosts, because the port may be missing.
pub async fn resume_host(store: &Store, tenant: i32, provider: &Provider, host: &str) -> Result<String, Failure> {
    if store.resume_host(provider.id, host).await? {
        return Ok(format!("resumed for host {host}"));
    }
    let shut: Vec<String> =
        store.closed_hosts(Some(tenant), Some(provider.id), NAMED).await?.into_iter().map(|shut| shut.host).collect();
    let named = if shut.is_empty() {
        "every host is open".to_owned()
    } else {
        format!("paused or held are: {}", shut.join(", "))
    };
    let name = &provider.name;
    Err(Failure::new(Exit::NotFound, format!("provider {name} neither pauses nor holds host {host}; {named}")))
}

/// Prints how many deliveries are parked as `config`, and the command that retries them. A resume does not retry them.
pub async fn say_parked(store: &Store, provider: &Provider, tenant: &str) -> Result<(), Failure> {
    let parked = store.parked_as_config().await?.remove(&provider.id).unwrap_or(0);
    if let Some(what) = retry_parked(&provider.name, tenant, parked) {
        say!("postcommit: {what}");
    }
    Ok(())
}

/// Returns one line per host.
pub fn lines(hosts: &Value) -> Vec<String> {
    let line = |host: &Value| {
        let because = host["hold_reason"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
        let until = host["held_until"].as_str().map(|until| format!("held until {until}{because}"));
        let why = host["paused"].as_str().map(|why| format!("paused: {why}"));
        let told: Vec<String> = why.into_iter().chain(until).collect();
        format!("  {:<13}{}  {}", "host", host["host"].as_str().unwrap_or("-"), told.join("; "))
    };
    hosts.as_array().into_iter().flatten().map(line).collect()
}

/// The number of paused and of held hosts, as text.
pub fn summary(hosts: &Value) -> String {
    let count = |field: &str| hosts.as_array().into_iter().flatten().filter(|host| !host[field].is_null()).count();
    let told: Vec<String> = [("paused", count("paused")), ("held", count("held_until"))]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    if told.is_empty() { "-".to_owned() } else { told.join(", ") }
}
