//! The checklist before an installation sends to real people. Its lines are found out from the store and the settings,
//! where possible by the functions of `doctor`.

use std::collections::BTreeMap;

use postcommit_channel::driver::{self, Destination};
use postcommit_channel::model::{Provider, Scope};
use postcommit_engine::db::DbError;
use postcommit_engine::store::{AuditFilter, KeyFilter, Lacking, Store};
use serde::Serialize;
use url::{Host, Url};

use crate::app::App;
use crate::doctor::{delivering, surroundings};

/// How many tests of providers and how many keys are read, the newest first.
const LOOKED_AT: i64 = 200;

/// Whether a line of the checklist is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    Done,
    ToDo,
    /// The program cannot find it out, so a person must check it.
    Unknown,
}

/// A line of the checklist.
#[derive(Debug, Serialize)]
pub struct Line {
    pub standing: Standing,
    pub title: &'static str,
    /// What the check found.
    pub says: String,
    /// What a person should do.
    pub advice: &'static str,
}

fn line(standing: Standing, title: &'static str, says: impl Into<String>, advice: &'static str) -> Line {
    Line { standing, title, says: says.into(), advice }
}

fn done_if(is_done: bool) -> Standing {
    if is_done { Standing::Done } else { Standing::ToDo }
}

/// The whole checklist, for an operator of the installation.
pub async fn checklist(app: &App, store: &Store) -> Result<Vec<Line>, DbError> {
    let providers = store.providers().await?;
    let tenants = store.tenants().await?;
    let names = Names(&tenants);
    let mut lines = vec![database(store).await?, delivered(store).await?];
    lines.extend([sending(&providers, &names), tested(store, &providers, &names).await?, captured(&providers, &names)]);
    lines.push(secrets(app, store, &providers).await?);
    lines.extend([public_url(app), key(store).await?, watched(app), retention()]);
    Ok(lines)
}

async fn database(store: &Store) -> Result<Line, DbError> {
    const TITLE: &str = "The database survives a broken machine";
    if store.db().kind() == "sqlite" {
        let says = "It is a SQLite file on this machine. Whether it is backed up cannot be seen from here.";
        let advice = "Copy it with a tool that knows SQLite (docs/operations.md, Backup), or move to PostgreSQL.";
        return Ok(line(Standing::Unknown, TITLE, says, advice));
    }
    let found = store.durability().await?.map(|durability| surroundings::told(&durability)).unwrap_or_default();
    Ok(match found.into_iter().find(|found| found.result != "ok") {
        Some(found) => {
            line(Standing::ToDo, TITLE, sentence(&found.detail), "Correct the setting of the PostgreSQL server.")
        }
        None => line(
            Standing::Done,
            TITLE,
            "PostgreSQL, and commits wait for the disk.",
            "Whether it is backed up cannot be seen from here.",
        ),
    })
}

async fn delivered(store: &Store) -> Result<Line, DbError> {
    let found = delivering::judge(&store.attendance().await?, store.now().await?);
    let advice = "Let a supervisor such as systemd keep `postcommit serve` running.";
    Ok(line(done_if(found.result == "ok"), "A process delivers", sentence(&found.detail), advice))
}

/// Returns names of providers for people: `tenant/provider`, in the tenant `default` only `provider`.
struct Names<'a>(&'a BTreeMap<i32, String>);

impl Names<'_> {
    fn tenant(&self, provider: &Provider) -> &str {
        self.0.get(&provider.tenant).map_or("default", String::as_str)
    }

    fn of(&self, provider: &Provider) -> String {
        match self.tenant(provider) {
            "default" => provider.name.clone(),
            tenant => format!("{tenant}/{}", provider.name),
        }
    }
}

fn is_real(provider: &Provider) -> bool {
    provider.enabled && driver::destination(&provider.driver) == Destination::Service
}

/// Whether every message is only recorded, because no provider sends any.
pub fn nothing_is_sent(providers: &[Provider]) -> bool {
    let records = |provider: &Provider| driver::destination(&provider.driver) == Destination::Record;
    providers.iter().any(|provider| provider.enabled && records(provider)) && !providers.iter().any(is_real)
}

fn sending(providers: &[Provider], names: &Names<'_>) -> Line {
    const TITLE: &str = "A provider sends messages";
    const ADVICE: &str = "`postcommit providers create --help` shows how; docs/catalogue.md lists the services.";
    let real: Vec<String> = providers.iter().filter(|one| is_real(one)).map(|one| names.of(one)).collect();
    let says = if real.is_empty() {
        "No provider sends to a real service.".into()
    } else {
        format!("These providers send: {}.", real.join(", "))
    };
    line(done_if(!real.is_empty()), TITLE, says, ADVICE)
}

/// Checks in the audit log that each provider that sends was tested.
async fn tested(store: &Store, providers: &[Provider], names: &Names<'_>) -> Result<Line, DbError> {
    const TITLE: &str = "Each provider was tested";
    const ADVICE: &str = "`postcommit providers test NAME --address YOURS` sends a message to you.";
    let action = Some("provider.test".to_owned());
    let tests = store.audit_rows(&AuditFilter { action, limit: LOOKED_AT, ..AuditFilter::default() }).await?;
    let was_tested = |provider: &Provider| {
        let arrived = |details: &Option<serde_json::Value>| {
            details.as_ref().is_some_and(|told| ["sent", "delivered"].contains(&told["outcome"].as_str().unwrap_or("")))
        };
        tests.iter().any(|test| {
            test.subject == provider.name && test.tenant == names.tenant(provider) && arrived(&test.details)
        })
    };
    let untested: Vec<String> =
        providers.iter().filter(|one| is_real(one) && !was_tested(one)).map(|one| names.of(one)).collect();
    let is_any = providers.iter().any(is_real);
    let says = match (untested.as_slice(), is_any) {
        (_, false) => "There is no provider to test yet.".into(),
        ([], true) => "The audit log has a successful test of each provider.".into(),
        (untested, true) => format!("The audit log has no successful test of {}.", untested.join(", ")),
    };
    Ok(line(done_if(is_any && untested.is_empty()), TITLE, says, ADVICE))
}

/// Checks that no default provider only records. The messages of such a provider look sent, but nobody gets them.
fn captured(providers: &[Provider], names: &Names<'_>) -> Line {
    const TITLE: &str = "No channel is only recorded";
    const ADVICE: &str = "Create a provider for each channel that you use, then delete the one that records.";
    let takes =
        |one: &&Provider| one.enabled && one.is_default && driver::destination(&one.driver) == Destination::Record;
    let recording: Vec<String> = providers
        .iter()
        .filter(takes)
        .map(|one| match one.channel.as_str() {
            "*" => format!("{} records every channel that has no provider of its own", names.of(one)),
            channel => format!("{} records {channel}", names.of(one)),
        })
        .collect();
    let says = if recording.is_empty() {
        "No provider records messages.".into()
    } else {
        format!("{}.", recording.join("; "))
    };
    line(done_if(recording.is_empty()), TITLE, says, ADVICE)
}

async fn secrets(app: &App, store: &Store, providers: &[Provider]) -> Result<Line, DbError> {
    const TITLE: &str = "The key of the secrets is kept in a second place";
    const ADVICE: &str = "Without the key the secrets of all providers are lost. Keep a copy apart from the database.";
    if providers.iter().all(|provider| provider.secrets.is_none()) {
        return Ok(line(Standing::Done, TITLE, "No provider has a secret yet.", ADVICE));
    }
    let unopened = store.unopened(None).await?;
    let all_decrypted = unopened.values().all(|lane| lane.lacking != Lacking::Secrets);
    Ok(match (app.tools.keys.existing(), all_decrypted) {
        (Err(problem), _) => line(Standing::ToDo, TITLE, sentence(&problem.to_string()), ADVICE),
        (Ok(_), false) => {
            line(Standing::ToDo, TITLE, "Some secrets cannot be decrypted with the key of this server.", ADVICE)
        }
        (Ok(_), true) => {
            let says =
                format!("The key is there: {}. Whether there is a copy cannot be seen from here.", app.tools.keys);
            line(Standing::Unknown, TITLE, says, ADVICE)
        }
    })
}

fn public_url(app: &App) -> Line {
    const TITLE: &str = "People reach this server by https";
    const ADVICE: &str = "Set api.public_url to the https URL, and TLS or a proxy in front (docs/server.md). Links in mails and callbacks of providers need it.";
    let url = &app.tools.public_url;
    let parsed = Url::parse(url).ok();
    let is_local = parsed.as_ref().and_then(Url::host).is_none_or(|host| match host {
        Host::Domain(name) => name.eq_ignore_ascii_case("localhost"),
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.is_loopback(),
    });
    let is_https = parsed.as_ref().is_some_and(|url| url.scheme() == "https");
    let says = match (url.as_str(), is_https, is_local) {
        ("", ..) => "api.public_url is not set.".to_owned(),
        (url, true, false) => format!("api.public_url is {url}."),
        (url, _, true) => format!("api.public_url is {url}, which only this machine can reach."),
        (url, false, false) => format!("api.public_url is {url}: keys and sessions would travel unencrypted."),
    };
    line(done_if(is_https && !is_local), TITLE, says, ADVICE)
}

/// Checks that there is a key for an application: it may enqueue, but not change settings.
async fn key(store: &Store) -> Result<Line, DbError> {
    const TITLE: &str = "The application has a key of its own";
    const ADVICE: &str = "`postcommit keys create --scope enqueue` makes a key that can only enqueue. An application that enqueues by SQL needs none.";
    let keys = store.key_rows(&KeyFilter { tenant: None, before: None, limit: LOOKED_AT }).await?;
    let is_limited = |scopes: &postcommit_channel::model::Scopes| {
        scopes.allows(Scope::Enqueue) && !scopes.allows(Scope::Edit) && !scopes.allows(Scope::Admin)
    };
    let found = keys.iter().find(|key| key.revoked_at.is_none() && is_limited(&key.scopes));
    let says = match found {
        Some(key) => format!("The key {} may enqueue, but may not change settings.", key.id),
        None => "No key may enqueue without also being allowed to change settings.".into(),
    };
    Ok(line(done_if(found.is_some()), TITLE, says, ADVICE))
}

fn watched(app: &App) -> Line {
    const TITLE: &str = "Problems raise an alert";
    const ADVICE: &str = "docs/monitoring.md has alerts for Prometheus, and what to do about each. `postcommit doctor` exits 1 if it finds a problem.";
    if app.has_closed_metrics {
        let says = "This server is reached from outside and metrics.token is not set, so /metrics is refused.";
        return line(Standing::ToDo, TITLE, says, ADVICE);
    }
    line(
        Standing::Unknown,
        TITLE,
        "/metrics can be read. Whether an alert watches it cannot be seen from here.",
        ADVICE,
    )
}

fn retention() -> Line {
    line(
        Standing::Unknown,
        "There is room for the history",
        "Every notification and its attempts are kept. Nothing is purged yet.",
        "Plan about 2 KB for each delivery, and watch the disk.",
    )
}

/// Returns the text of a finding as a sentence, with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let text: String = chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default();
    if text.ends_with('.') { text } else { format!("{text}.") }
}
