//! Keys and people: API keys, sign-in links that work once, and the people who are signed in.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use minijinja::context;
use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::Scope;
use postcommit_engine::store::{Key, KeyDraft, KeyFilter, SessionRow};
use serde::Serialize;

use super::acts::{Done, Fields, Posted, see};
use super::confirm::Question;
use super::frame::Visitor;
use super::words::shown;
use crate::app::{App, AppState};
use crate::people;
use crate::problem::{Answer, Problem};

/// The number of keys of a page.
const KEYS: i64 = 50;
/// The maximum number of sessions that the page shows, the last used first.
const SESSIONS: i64 = 50;
/// How long a new key can be valid: the value of the field, its words, and days.
const LASTS: [(&str, &str, u64); 4] =
    [("", "Never", 0), ("30", "In 30 days", 30), ("90", "In 90 days", 90), ("365", "In a year", 365)];

/// What a scope allows, in the order of the form.
const SCOPES: [(Scope, &str); 7] = [
    (Scope::Enqueue, "enqueue notifications"),
    (Scope::Read, "see everything except keys and the audit log"),
    (Scope::Operate, "retry, discard, cancel, pause and resume"),
    (Scope::Edit, "change providers, templates, lists and users"),
    (Scope::Admin, "everything in this tenant, including keys"),
    (Scope::Ops, "everything in all tenants"),
    (Scope::Site, "submit the notifications of a remote site"),
];

/// A key of the list.
#[derive(Serialize)]
struct Listed {
    id: String,
    name: String,
    state: &'static str,
    scopes: String,
    created_at: String,
    created_by: String,
    last_used_at: Option<String>,
    expires_at: Option<String>,
    tenant: String,
    may_revoke: bool,
}

impl Listed {
    fn of(key: Key, visitor: &Visitor) -> Self {
        let is_expired = key.expires_at.is_some_and(|at| at <= clock::now());
        let state = match key.revoked_at {
            Some(_) => "revoked",
            None if is_expired => "expired",
            None => "active",
        };
        Self {
            may_revoke: state != "revoked" && people::covers(&visitor.caller, &key.scopes),
            state,
            id: key.id,
            name: key.name,
            scopes: key.scopes.names().join(", "),
            created_at: key.created_at.to_string(),
            created_by: key.created_by,
            last_used_at: key.last_used_at.map(|at| at.to_string()),
            expires_at: key.expires_at.map(|at| at.to_string()),
            tenant: key.tenant_name,
        }
    }
}

/// A session of the list.
#[derive(Serialize)]
struct SignedIn {
    actor: String,
    scopes: String,
    since: String,
    last_seen_at: String,
    tenant: String,
    may_end: bool,
}

impl SignedIn {
    fn of(row: SessionRow, visitor: &Visitor) -> Self {
        Self {
            may_end: visitor.caller.scopes().cover(&row.login.scopes),
            actor: row.login.actor,
            scopes: row.login.scopes.names().join(", "),
            since: row.created_at.to_string(),
            last_seen_at: row.last_seen_at.to_string(),
            tenant: row.tenant_name,
        }
    }
}

/// A form that was refused: which of the two forms of the page, its fields, and the problem with them.
struct Refused<'a> {
    form: &'static str,
    fields: &'a Fields,
    problem: Problem,
}

/// The list of keys and of people who are signed in.
pub async fn page(State(app): State<AppState>, visitor: Visitor, fields: Fields) -> Answer {
    let before = fields.get("before").map(position).transpose()?;
    list(&app, &visitor, before, None).await
}

/// The place of a key in the list: its creation time and its id.
fn position(text: &str) -> Result<(Timestamp, String), Problem> {
    let wrong = || Problem::invalid("before", "is not the position of a key; open the list again");
    let (at, id) = text.split_once('~').ok_or_else(wrong)?;
    Ok((at.parse().map_err(|_| wrong())?, id.to_owned()))
}

async fn list(
    app: &App,
    visitor: &Visitor,
    before: Option<(Timestamp, String)>,
    refused: Option<Refused<'_>>,
) -> Answer {
    let (store, tenant) = (visitor.store(app), visitor.caller.whose());
    let mut keys = store.key_rows(&KeyFilter { tenant, before, limit: KEYS + 1 }).await?;
    let fits = usize::try_from(KEYS).unwrap_or(0);
    let has_more = keys.len() > fits;
    keys.truncate(fits);
    let older = keys.last().filter(|_| has_more).map(|key| format!("/keys?before={}~{}", key.created_at, key.id));
    let sessions = store.session_rows(tenant, None, SESSIONS).await?;
    let content = context! {
        must_choose => visitor.must_choose(app).await?,
        keys => shown(keys.into_iter().map(|key| Listed::of(key, visitor)).collect::<Vec<_>>()),
        older,
        sessions => shown(sessions.into_iter().map(|row| SignedIn::of(row, visitor)).collect::<Vec<_>>()),
        lasts => shown(LASTS),
        key => form(visitor, refused.as_ref().filter(|refused| refused.form == "key")),
        link => form(visitor, refused.as_ref().filter(|refused| refused.form == "link")),
    };
    let status = if refused.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    visitor.page_as(app, status, "keys.html", "Keys and people", content).await
}

/// The values of a form, as they were typed, and what was wrong with them. Scopes that the visitor cannot give are not
/// drawn.
fn form(visitor: &Visitor, refused: Option<&Refused<'_>>) -> minijinja::Value {
    let get = |name: &str| refused.and_then(|refused| refused.fields.get(name)).unwrap_or_default();
    let chosen = refused.map(|refused| refused.fields.all("scopes")).unwrap_or_default();
    let may_give = |scope: Scope| visitor.may(scope) || scope == Scope::Site;
    let scopes: Vec<_> = SCOPES
        .iter()
        .filter(|(scope, _)| may_give(*scope))
        .map(|(scope, says)| (scope.name(), says, chosen.contains(&scope.name())))
        .collect();
    context! {
        scopes => shown(scopes),
        name => get("name"), person => get("person"), lasts => get("lasts"),
        field => refused.map(|refused| refused.problem.field().unwrap_or_default().to_owned()),
        says => refused.map(|refused| refused.problem.to_string()),
    }
}

fn scopes(fields: &Fields) -> Vec<String> {
    fields.all("scopes").into_iter().map(str::to_owned).collect()
}

/// Creates a key, and shows it once.
pub async fn create(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    match make_key(&app, &visitor, &fields).await {
        // The key is revealed here to show it once.
        Ok(token) => show_once(&app, &visitor, "The key is created", "key", &token).await,
        Err(problem) if problem.field().is_some() => {
            list(&app, &visitor, None, Some(Refused { form: "key", fields: &fields, problem })).await
        }
        Err(problem) => Err(problem.into()),
    }
}

async fn make_key(app: &App, visitor: &Visitor, fields: &Fields) -> Result<String, Problem> {
    visitor.has_chosen(app).await?;
    let lasts = fields.get("lasts").unwrap_or_default();
    let Some((.., days)) = LASTS.iter().find(|(value, ..)| *value == lasts) else {
        return Err(Problem::invalid("lasts", format!("is {lasts:?}; allowed are 30, 90 and 365 days, or never")));
    };
    let expires_at = (*days > 0).then(|| clock::now().plus(Duration::from_secs(days * 86_400)));
    let name = fields.get("name").unwrap_or_default().trim().to_owned();
    let draft = KeyDraft { name, scopes: people::scopes(&scopes(fields))?, expires_at };
    Ok(people::create_key(app, &visitor.caller, &draft).await?.token.reveal().to_owned())
}

/// Creates a sign-in link, and shows it once.
pub async fn create_link(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    match make_link(&app, &visitor, &fields).await {
        Ok(link) => show_once(&app, &visitor, "The sign-in link is created", "link", &link).await,
        Err(problem) if problem.field().is_some() => {
            list(&app, &visitor, None, Some(Refused { form: "link", fields: &fields, problem })).await
        }
        Err(problem) => Err(problem.into()),
    }
}

async fn make_link(app: &App, visitor: &Visitor, fields: &Fields) -> Result<String, Problem> {
    visitor.has_chosen(app).await?;
    let person = fields.get("person").unwrap_or_default().trim();
    people::sign_in_link(app, &visitor.caller, person, people::scopes(&scopes(fields))?).await
}

/// Shows a secret in the answer to the form that made it. The secret is in no URL, and the browser does not store the
/// answer.
async fn show_once(app: &App, visitor: &Visitor, title: &str, what: &str, secret: &str) -> Answer {
    visitor.page(app, "secret.html", title, context! { what, secret }).await
}

/// Revokes a key.
pub async fn revoke(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let none = || Problem::not_found("key");
    let key = visitor.store(&app).key_row(visitor.caller.whose(), &id).await?.ok_or_else(none)?;
    let back = visitor.link("/keys");
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: format!("Revoke the key {}?", key.name),
            says: "Programs that use it are refused from now on, and its sessions end. This cannot be undone.".into(),
            button: "Revoke the key".into(),
            is_final: true,
            action: format!("/keys/{}/revoke", key.id),
            back,
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    people::revoke_key(&app, &visitor.caller, &key.id).await?;
    Ok(see(Done::one("key-revoked").at(&back)))
}

/// Ends all sessions of a person.
pub async fn sign_out(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let back = visitor.link("/keys");
    let Some(actor) = fields.get("actor") else {
        return Err(Problem::invalid("actor", "is missing; open the list again").into());
    };
    let (tenant, _) = visitor.caller.tenant_named(&app, fields.get("of")).await?;
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: format!("Sign out {actor}?"),
            says:
                "All sessions of this person end, and sign-in links that the person has not used are void. A new link \
                   lets the person in again."
                    .into(),
            button: "Sign out this person".into(),
            is_final: true,
            action: "/keys/sign-out".into(),
            fields: fields.repeated(&["actor", "of"]),
            back,
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    people::sign_out(&app, &visitor.caller, tenant, actor).await?;
    Ok(see(Done::one("signed-out").at(&back)))
}
