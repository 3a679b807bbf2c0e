//! Providers: the list, and one provider with its settings, its lane, its newest attempts and its newest changes.

pub mod acts;
pub mod callback;
pub mod catalogue;
pub mod edit;
mod form;
mod lane;
pub mod trial;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use axum::extract::{Path, State};
use minijinja::{Value, context};
use postcommit::Timestamp;
use postcommit_channel::driver::{self, Destination};
use postcommit_channel::model::{Provider, Scope};
use postcommit_engine::store::{
    AttemptRow, AuditFilter, AuditRow, ClosedHost, KpiGroup, KpiGrouping, Kpis, Store, UnopenedLane,
};
use serde::Serialize;
use serde_json::Value as Json;

use super::frame::{Visitor, with_tenant};
use super::overview::lanes::success;
use super::overview::latency::median;
use super::words::{dotted, segment, sentence_case, shown, waiting_of};
use crate::app::{App, AppState};
use crate::callbacks;
use crate::problem::{Answer, Problem};
use crate::providers::{stored_secrets, workshop};
use catalogue::Entry;
use lane::LaneState;

/// The maximum number of providers in the list, which is also the maximum number of a tenant.
const PROVIDERS: usize = 200;
/// The number of newest attempts of a tenant in which errors and latencies are looked for.
const ATTEMPTS: i64 = 500;
/// The maximum number of tenants whose attempts are read, for people who see all tenants.
const TENANTS: usize = 5;
/// The number of attempts that the page of a provider shows.
const ATTEMPTS_SHOWN: usize = 10;
/// The number of entries of the audit log that the page of a provider shows.
const ACTS_SHOWN: i64 = 20;
/// The maximum number of paused or held receivers that are shown, for one provider and for a list.
const HOSTS_SHOWN: i64 = 100;
const HOSTS_LISTED: i64 = 1000;
/// The period over which deliveries are counted.
const DAY: Duration = Duration::from_secs(86_400);

/// A provider in the list.
#[derive(Serialize)]
struct Row {
    name: String,
    href: String,
    tenant: Option<String>,
    lane: LaneState,
    is_enabled: bool,
    is_default: bool,
    channel: String,
    service: String,
    guarantee: String,
    rate: Option<String>,
    failover: Option<String>,
    success: String,
    waiting: i64,
    retrying: i64,
    hosts: usize,
    error: Option<Failed>,
}

/// The newest attempt of a provider that failed.
#[derive(Serialize)]
struct Failed {
    said: String,
    at: String,
    href: String,
}

/// An attempt on the page of a provider.
#[derive(Serialize)]
struct Attempt {
    href: String,
    at: String,
    outcome: &'static str,
    said: String,
    latency_ms: i64,
}

/// The list of providers, sorted by tenant, the oldest first.
pub async fn list(State(app): State<AppState>, visitor: Visitor) -> Answer {
    let (store, whose) = (visitor.store(&app), visitor.caller.whose());
    let mut providers = match whose {
        Some(tenant) => store.providers_of(tenant).await?,
        None => store.providers().await?,
    };
    let has_more = providers.len() > PROVIDERS;
    providers.truncate(PROVIDERS);
    let closed = Closed::read(&store, whose, None, HOSTS_LISTED).await?;
    let tenants = if visitor.sees_all() { store.tenants().await? } else { BTreeMap::new() };
    let kpis = app.tallies.over(&app, &visitor.caller, Some(KpiGrouping::Provider), DAY).await?;
    let failures = failures(&store, &providers).await?;
    let now = store.now().await?;
    let row = |provider: &Provider| {
        let tenant = tenants.get(&provider.tenant).cloned();
        let href = format!("/providers/{}", segment(&provider.name));
        let group = group_of(&kpis, &provider.name, tenant.as_deref());
        let depth = group.map(|group| &group.kpi.queue);
        Row {
            href: if whose.is_none() { with_tenant(&href, tenant.as_deref()) } else { visitor.link(&href) },
            lane: LaneState::of(provider, closed.unopened.get(&provider.id), now),
            is_enabled: provider.enabled,
            is_default: provider.is_default,
            channel: channel(provider),
            service: catalogue::service(&provider.driver),
            guarantee: sentence_case(provider.guarantee.name()),
            rate: rate(provider),
            failover: provider.failover.clone(),
            success: success(group),
            waiting: depth.map_or(0, waiting_of),
            retrying: depth.map_or(0, |depth| depth.retrying),
            hosts: closed.hosts.iter().filter(|host| host.lane == provider.id).count(),
            error: failures.get(&(provider.tenant, provider.name.clone())).map(failed),
            name: provider.name.clone(),
            tenant: tenant.filter(|_| tenants.len() > 1),
        }
    };
    let rows: Vec<Row> = providers.iter().map(row).collect();
    visitor.page(&app, "providers.html", "Providers", context! { rows => shown(rows), has_more }).await
}

/// The closed receivers of lanes, and the lanes that no worker can serve.
struct Closed {
    hosts: Vec<ClosedHost>,
    unopened: BTreeMap<i32, UnopenedLane>,
}

impl Closed {
    async fn read(store: &Store, whose: Option<i32>, lane: Option<i32>, limit: i64) -> Result<Self, Problem> {
        Ok(Self { hosts: store.closed_hosts(whose, lane, limit).await?, unopened: store.unopened(whose).await? })
    }
}

/// The newest failed attempt of each provider, among the newest attempts of its tenant.
async fn failures(store: &Store, of: &[Provider]) -> Result<HashMap<(i32, String), AttemptRow>, Problem> {
    let mut tenants: Vec<i32> = of.iter().map(|provider| provider.tenant).collect();
    tenants.sort_unstable();
    tenants.dedup();
    let mut found = HashMap::new();
    for tenant in tenants.into_iter().take(TENANTS) {
        for attempt in store.newest_attempts(tenant, ATTEMPTS).await? {
            if let Some(provider) = attempt.provider.clone().filter(|_| attempt.code.is_some()) {
                found.entry((tenant, provider)).or_insert(attempt);
            }
        }
    }
    Ok(found)
}

fn failed(attempt: &AttemptRow) -> Failed {
    Failed { said: said(attempt), at: attempt.at.to_string(), href: delivery_page(&attempt.delivery_id) }
}

fn said(attempt: &AttemptRow) -> String {
    dotted([attempt.code.clone(), attempt.detail.clone()])
}

/// Returns the URL of the page of the notification, with this delivery chosen.
fn delivery_page(delivery: &str) -> String {
    match delivery.rsplit_once('.') {
        Some((notification, n)) => format!("/notifications/{notification}?n={n}"),
        None => format!("/notifications/{delivery}"),
    }
}

/// Returns the counts of a provider. If only one tenant is counted, `tenant` is `None` and the name alone identifies
/// the provider.
fn group_of<'k>(kpis: &'k Kpis, name: &str, tenant: Option<&str>) -> Option<&'k KpiGroup> {
    let is_of = |group: &&KpiGroup| group.label == name && (tenant.is_none() || group.tenant.as_deref() == tenant);
    kpis.groups.iter().find(is_of)
}

fn channel(provider: &Provider) -> String {
    if provider.channel == "*" { "every channel".into() } else { provider.channel.clone() }
}

fn rate(provider: &Provider) -> Option<String> {
    let rate = provider.rate()?;
    let (per_s, burst) = (provider.rate_per_s?, rate.burst);
    Some(format!("{per_s} a second, burst {burst}"))
}

/// The provider with this name in the tenant of the visitor.
async fn find(app: &App, visitor: &Visitor, name: &str) -> Result<Provider, Problem> {
    let store = visitor.caller.store_of_one(app);
    Ok(workshop(app, &store, &visitor.caller).find(visitor.caller.tenant(), name).await?)
}

/// The page of one provider.
pub async fn page(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>) -> Answer {
    let store = visitor.caller.store_of_one(&app);
    let provider = find(&app, &visitor, &name).await?;
    let closed = Closed::read(&store, Some(provider.tenant), Some(provider.id), HOSTS_SHOWN).await?;
    let now = store.now().await?;
    let lane = LaneState::of(&provider, closed.unopened.get(&provider.id), now);
    let kpis = app.tallies.over(&app, &visitor.caller, Some(KpiGrouping::Provider), DAY).await?;
    let of_tenant = kpis.groups.iter().any(|group| group.tenant.is_some()).then(|| visitor.caller.tenant_name());
    let group = group_of(&kpis, &provider.name, of_tenant);
    let attempts = attempts(&store, &provider).await?;
    let took = attempts.iter().map(|attempt| attempt.latency_ms).collect();
    let content = context! {
        sentence => lane.sentence(group.map(|group| &group.kpi.queue)),
        lane => shown(&lane),
        service => catalogue::service(&provider.driver),
        entry => shown(Entry::of(&provider.driver)),
        is_inbox => driver::destination(&provider.driver) == Destination::Inbox,
        channel => channel(&provider),
        settings => settings(&provider),
        secrets => shown(secrets(&app, &provider)),
        guarantee => sentence_case(provider.guarantee.name()),
        policy => policy(&provider),
        rate => rate(&provider),
        chain => shown(chain(&provider, &store.providers_of(provider.tenant).await?)),
        callbacks => trust(&app, &provider),
        hosts => closed.hosts.iter().map(|host| host_row(host, now)).collect::<Vec<_>>(),
        success => success(group),
        latency => median(took),
        attempts => shown(attempts.iter().take(ATTEMPTS_SHOWN).map(attempt).collect::<Vec<_>>()),
        breaker => breaker_history(&store, &provider).await?,
        acts => acts_on(&store, &visitor, &provider).await?,
        provider => shown(&provider),
        base => format!("/providers/{}", segment(&provider.name)),
    };
    visitor.page(&app, "provider.html", &provider.name, content).await
}

/// The attempts over a provider among the newest of its tenant.
async fn attempts(store: &Store, provider: &Provider) -> Result<Vec<AttemptRow>, Problem> {
    let mut all = store.newest_attempts(provider.tenant, ATTEMPTS).await?;
    all.retain(|attempt| attempt.provider.as_ref() == Some(&provider.name));
    Ok(all)
}

fn attempt(attempt: &AttemptRow) -> Attempt {
    Attempt {
        href: delivery_page(&attempt.delivery_id),
        at: attempt.at.to_string(),
        outcome: outcome(&attempt.outcome),
        said: if attempt.captured { "captured, not sent".into() } else { said(attempt) },
        latency_ms: attempt.latency_ms.into(),
    }
}

/// Returns the state that a pill shows for an outcome.
fn outcome(outcome: &str) -> &'static str {
    match outcome {
        "sent" => "sent",
        "delivered" => "delivered",
        "deferred" => "deferred",
        "rejected" => "rejected",
        _ => "unclear",
    }
}

/// The settings by name. A setting may be any JSON.
fn settings(provider: &Provider) -> Vec<(String, String)> {
    let all = provider.settings.as_object().into_iter().flatten();
    all.map(|(name, value)| (form::label(name), form::as_text(value))).collect()
}

/// The secrets that the driver takes, and whether each is set. Their values are never read into a page.
fn secrets(app: &App, provider: &Provider) -> Vec<(String, &'static str)> {
    let names = driver::kind(&provider.driver).map(|kind| kind.secrets.clone()).unwrap_or_default();
    let stored = stored_secrets(&app.tools.keys, provider);
    let state = |name: &str| match &stored {
        Some(stored) if stored.contains(name) => "set",
        Some(_) => "not set",
        None => "set, but cannot be decrypted here",
    };
    names.iter().map(|name| (form::label(name), state(name))).collect()
}

/// The retry policy: its name and its numbers.
fn policy(provider: &Provider) -> String {
    let policy = serde_json::to_value(&provider.policy).unwrap_or_default();
    let name = policy.get("name").map(|name| sentence_case(&form::as_text(name)));
    let numbers = policy.as_object().into_iter().flatten().filter(|(field, _)| *field != "name");
    let word = |(field, value): (&String, &Json)| Some(format!("{} {}", field.replace('_', " "), form::as_text(value)));
    dotted(std::iter::once(name).chain(numbers.map(word)))
}

/// The providers that take over one after another. A name that no provider has is shown, too.
fn chain(provider: &Provider, all: &[Provider]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut next = provider.failover.clone();
    while let Some(name) = next.filter(|name| !names.contains(name) && *name != provider.name) {
        next = all.iter().find(|other| other.name == name).and_then(|other| other.failover.clone());
        names.push(name);
    }
    names
}

/// How callbacks are verified. `None` if the driver takes none.
fn trust(app: &App, provider: &Provider) -> Option<&'static str> {
    let takes = driver::kind(&provider.driver).is_ok_and(|kind| kind.callback.is_some());
    takes.then(|| callbacks::words(callbacks::trust(&app.tools.keys, provider).map(callbacks::name)))
}

fn host_row(host: &ClosedHost, now: Timestamp) -> Value {
    let held = host.held_until.filter(|until| *until > now);
    context! {
        host => host.host.as_str(),
        is_paused => host.paused.is_some(),
        reason => host.paused.as_deref().or(host.hold_reason.as_deref()).unwrap_or("the receiver asked to wait"),
        until => held.map(|until| until.to_string()),
    }
}

/// When the breaker of a provider, or of one of its receivers, tripped and recovered, the newest first.
async fn breaker_history(store: &Store, provider: &Provider) -> Result<Vec<Value>, Problem> {
    let filter = AuditFilter {
        tenant: Some(provider.tenant),
        subject: Some(provider.name.clone()),
        only_breakers: true,
        limit: ACTS_SHOWN,
        ..AuditFilter::default()
    };
    let entries = store.audit_rows(&filter).await?;
    let step = |entry: AuditRow| {
        let details = entry.details.unwrap_or_default();
        let is_trip = entry.action.ends_with(".trip");
        context! {
            what => if is_trip { "Tripped" } else { "Recovered" },
            tint => if is_trip { "warn" } else { "good" },
            at => entry.at.to_string(),
            details => told("", &details),
        }
    };
    Ok(entries.into_iter().map(step).collect())
}

/// The newest changes of a provider. As in the API, the audit log needs the scope `admin`.
async fn acts_on(store: &Store, visitor: &Visitor, provider: &Provider) -> Result<Option<Vec<Value>>, Problem> {
    if !visitor.may(Scope::Admin) {
        return Ok(None);
    }
    let filter = AuditFilter {
        tenant: Some(provider.tenant),
        subject: Some(provider.name.clone()),
        // Entries about the breaker are shown apart.
        limit: 3 * ACTS_SHOWN,
        ..AuditFilter::default()
    };
    let entries = store.audit_rows(&filter).await?;
    let of_it = entries.into_iter().filter_map(|entry| {
        let act = entry.action.strip_prefix("provider.").filter(|act| !["trip", "recover"].contains(act))?;
        let details = entry.details.unwrap_or_default();
        Some(context! {
            what => sentence_case(act),
            at => entry.at.to_string(),
            actor => entry.actor.as_str(),
            details => told(act, &details),
        })
    });
    Ok(Some(of_it.take(usize::try_from(ACTS_SHOWN).unwrap_or(0)).collect()))
}

/// The details of an entry of the audit log in words.
fn told(act: &str, details: &Json) -> String {
    let text = |name: &str| details.get(name).and_then(Json::as_str).map(str::to_owned);
    match act {
        "update" => dotted(details.as_object().into_iter().flatten().map(|(field, _)| Some(field.replace('_', " ")))),
        _ => dotted([
            text("host").map(|host| format!("host {host}")),
            text("reason"),
            text("outcome"),
            text("code"),
            text("address").map(|address| format!("to {address}")),
        ]),
    }
}
