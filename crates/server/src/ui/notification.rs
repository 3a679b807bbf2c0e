//! One notification: its deliveries, what was sent, what happened, and what can be done.

pub mod acts;
pub mod payload;
mod story;

use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use minijinja::{Value, context};
use postcommit_channel::model::{DeliveryId, DeliveryKey, Scope, StoredNotification};
use postcommit_engine::store::{DeliveryFilter, DeliveryRow, EditError, StateCounts, SuppressionFilter};
use serde::Serialize;
use uuid::Uuid;

use super::entities::resend::of_notification;
use super::frame::{Visitor, with_tenant};
use super::notifications::row::why;
use super::templates::look::blocks;
use super::words::shown;
use super::{entities, glossary};
use crate::app::{App, AppState};
use crate::html;
use crate::problem::{Answer, Problem, ProblemKind};
use crate::templates::Templates;
use crate::templates::preview::Preview;
use story::{Step, sentence, steps};

/// The maximum number of deliveries that the page shows. The list shows the others.
const DELIVERIES: i64 = 50;
/// The maximum number of parked deliveries that the page adds if there are more deliveries than it shows.
const PARKED: i64 = 10;
/// The maximum number of attempts that the page shows.
const ATTEMPTS: i64 = 100;
/// The states of deliveries that can be cancelled.
const WAITING: [&str; 2] = ["pending", "retrying"];

/// The content security policy of a mail's HTML. The mail cannot run, load or send anything. Its own styles are
/// allowed, because its iframe is sandboxed and has an origin of its own.
pub const MAIL_POLICY: HeaderValue = HeaderValue::from_static(
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; \
     frame-ancestors 'self'",
);

/// A notification, and the delivery whose details the page shows.
struct Found {
    note: StoredNotification,
    rows: Vec<DeliveryRow>,
    states: StateCounts,
    has_more: bool,
    chosen: DeliveryRow,
}

/// A delivery in the list of the page.
#[derive(Serialize)]
struct Line {
    href: String,
    state: String,
    channel: String,
    to: String,
    provider: Option<String>,
    template: Option<String>,
    is_chosen: bool,
}

/// The page of a notification.
pub async fn page(
    State(app): State<AppState>,
    visitor: Visitor,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    let Found { note, rows, states, has_more, chosen } = find(&app, &visitor, &id, wanted(query.as_deref())).await?;
    let key = DeliveryKey { tenant: note.tenant, notification: note.id, n: chosen.n };
    let store = visitor.store(&app);
    let steps: Vec<Step> = steps(&store, &note, &chosen, ATTEMPTS).await?;
    let sent = as_sent(&app, &visitor, &note, key).await?;
    let address = address(&app, &visitor, key).await?;
    let title = sent.as_ref().ok().and_then(|sent| sent.subject.clone()).or_else(|| note.title.clone());
    let title = title.unwrap_or_else(|| note.event_type.clone());
    let content = context! {
        id => note.id.to_string(),
        state => if states.of(&["parked"]) > 0 { Some("parked") } else { states.only() },
        sentence => sentence(&states, &chosen),
        meaning => glossary::entry_of(&chosen),
        is_open => states.of(&["pending", "sending", "retrying"]) > 0,
        has_more,
        lines => shown(rows.iter().map(|row| line(row, &chosen)).collect::<Vec<_>>()),
        chosen => shown(&chosen),
        why => why(&chosen),
        steps => shown(steps),
        sent => shown(sent.as_ref().ok()),
        data => sent.as_ref().ok().and_then(|sent| serde_json::to_string_pretty(sent.data.as_ref()?).ok()),
        blocks => shown(blocks(sent.as_ref().ok().and_then(|sent| sent.data.as_ref()))),
        not_rendered => sent.as_ref().err().map(ToString::to_string),
        payload => payload::beginning(note.payload.get()),
        note => shown(Related::of(&visitor, &note, &chosen)),
        address => address.as_deref().filter(|_| visitor.may(Scope::Operate)),
        suppression => shown(suppression(&app, &visitor, &chosen, key, address.as_deref()).await?),
        acts => acts(&visitor, &note, &chosen, &states),
    };
    visitor.page(&app, "notification.html", &title, content).await
}

/// The number of the delivery that the query names.
fn wanted(query: Option<&str>) -> Option<i32> {
    let query = query.unwrap_or_default();
    form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "n").and_then(|(_, n)| n.parse().ok())
}

async fn find(app: &App, visitor: &Visitor, id: &str, n: Option<i32>) -> Result<Found, Problem> {
    let none = || Problem::not_found("notification");
    let id: Uuid = id.parse().map_err(|_| none())?;
    let store = visitor.store(app);
    let note = store.notification(visitor.caller.whose(), id).await?.ok_or_else(none)?;
    let filter = DeliveryFilter { tenant: Some(note.tenant), limit: DELIVERIES, ..DeliveryFilter::of_notification(id) };
    let page = store.delivery_rows(&filter).await?;
    let (mut rows, has_more) = (page.rows, page.more.is_some());
    let states = store.delivery_states(note.tenant, id, None).await?;
    if has_more && states.of(&["parked"]) > 0 {
        // Parked deliveries come first, because they need a person.
        let parked = DeliveryFilter { states: vec!["parked".into()], limit: PARKED, ..filter };
        let parked = store.delivery_rows(&parked).await?.rows;
        rows.retain(|row| parked.iter().all(|one| one.n != row.n));
        rows.splice(0..0, parked);
    }
    let named = n.filter(|n| !rows.iter().any(|row| row.n == *n));
    if let Some(n) = named {
        // The query names a delivery that is not among the shown ones. Number 0 no longer exists if the notification
        // was expanded meanwhile.
        match store.delivery_row(Some(note.tenant), DeliveryId { notification: id, n }, false).await? {
            Some(row) => rows.push(row),
            None if n == 0 => {}
            None => return Err(Problem::not_found("delivery")),
        }
    }
    let rank = |row: &&DeliveryRow| match row.state.as_str() {
        _ if Some(row.n) == n => 0,
        "parked" => 1,
        "retrying" => 2,
        _ => 3,
    };
    let chosen = rows.iter().min_by_key(rank).cloned().ok_or_else(none)?;
    Ok(Found { note, rows, states, has_more, chosen })
}

fn line(row: &DeliveryRow, chosen: &DeliveryRow) -> Line {
    let version = row.template_version.map(|version| format!(" v{version}")).unwrap_or_default();
    let language = row.language.as_ref().map(|language| format!(" · {language}")).unwrap_or_default();
    Line {
        href: format!("/notifications/{}?n={}", row.notification_id, row.n),
        state: row.state.clone(),
        channel: row.channel.clone().unwrap_or_else(|| "not expanded yet".into()),
        to: row.target.clone().unwrap_or_default(),
        provider: row.provider.clone(),
        template: row.template.as_ref().map(|template| format!("{template}{version}{language}")),
        is_chosen: row.n == chosen.n,
    }
}

/// What the notification is related to, and where it comes from.
#[derive(Serialize)]
struct Related {
    event_type: String,
    entity: Option<String>,
    /// The page of the entity, in the tenant of the notification.
    entity_page: Option<String>,
    /// The form that sends the notification again over another channel or to another recipient.
    resend: Option<String>,
    user: Option<String>,
    key: String,
    correlation: Option<String>,
    site: Option<String>,
    copy_of: Option<Uuid>,
    priority: i16,
    created_at: String,
    due_at: Option<String>,
    expires_at: String,
}

impl Related {
    fn of(visitor: &Visitor, note: &StoredNotification, row: &DeliveryRow) -> Self {
        let link = |page: String| match visitor.sees_all() {
            true => with_tenant(&page, Some(&row.tenant)),
            false => visitor.link(&page),
        };
        let entity = note.entity.as_ref();
        let may_resend = visitor.may(Scope::Operate) && row.n > 0;
        let site = note.source.as_ref().and_then(|source| source.get("site")?.as_str()).map(str::to_owned);
        Self {
            event_type: note.event_type.clone(),
            entity: note.entity.clone(),
            entity_page: entity.map(|entity| link(entities::address(entity, ""))),
            resend: entity.filter(|_| may_resend).map(|entity| link(of_notification(entity, note.id))),
            user: row.user_id.clone(),
            key: note.idempotency_key.clone(),
            correlation: note.correlation_id.clone(),
            site,
            copy_of: row.copy_of,
            priority: note.priority,
            created_at: note.created_at.to_string(),
            due_at: Some(note.due_at).filter(|due| *due > note.created_at).map(|due| due.to_string()),
            expires_at: note.expires_at.to_string(),
        }
    }
}

/// Returns the full address. People who may act find other deliveries to the same recipient with it.
async fn address(app: &App, visitor: &Visitor, key: DeliveryKey) -> Result<Option<String>, Problem> {
    let row = visitor.store(app).delivery_row(Some(key.tenant), key.id(), true).await?;
    Ok(row.and_then(|row| row.address))
}

/// A suppression in force of the delivery's address.
#[derive(Serialize)]
struct Suppressed {
    reason: String,
    channel: String,
    href: String,
}

/// Returns the suppression because of which nothing is sent to the address any more.
async fn suppression(
    app: &App,
    visitor: &Visitor,
    row: &DeliveryRow,
    key: DeliveryKey,
    address: Option<&str>,
) -> Result<Option<Suppressed>, Problem> {
    let (Some(channel), Some(address)) = (row.channel.clone(), address) else { return Ok(None) };
    let filter = SuppressionFilter {
        tenant: Some(key.tenant),
        channel: Some(channel),
        address: Some(address.to_owned()),
        limit: 2,
        ..SuppressionFilter::default()
    };
    let found = visitor.store(app).suppression_rows(&filter).await?.into_iter().find(|row| row.active);
    let query: String = form_urlencoded::byte_serialize(address.as_bytes()).collect();
    Ok(found.map(|found| Suppressed {
        reason: found.reason,
        channel: if found.channel == "*" { "every channel".into() } else { found.channel },
        href: visitor.path_in(&row.tenant, format!("/suppressions?address={query}")),
    }))
}

/// The acts that the states of the delivery and of the notification allow.
fn acts(visitor: &Visitor, note: &StoredNotification, row: &DeliveryRow, states: &StateCounts) -> Value {
    let may = visitor.may(Scope::Operate);
    let is = |states: &[&str]| may && states.contains(&row.state.as_str());
    context! {
        retry => is(&["parked"]),
        discard => is(&["parked"]),
        cancel => may && states.of(&WAITING) > 0,
        mark => may && acts::may_be_marked(row),
        suppress => visitor.may(Scope::Edit) && row.target.is_some() && row.channel.is_some(),
        resend => may && acts::may_be_resent(note, row),
    }
}

/// Renders the content of a delivery again, or returns why it cannot be rendered.
pub async fn as_sent(
    app: &App,
    visitor: &Visitor,
    note: &StoredNotification,
    key: DeliveryKey,
) -> Result<Result<Preview, Problem>, Problem> {
    let store = visitor.store(app);
    let Some(facts) = store.facts(key).await? else { return Err(Problem::not_found("delivery")) };
    if key.n == 0 && facts.channel.is_none() {
        let waits = "the deliveries and their content are made when the notification is expanded";
        return Ok(Err(Problem::new(ProblemKind::NotFound, waits)));
    }
    let templates = Templates { store: &store, tenant: key.tenant };
    match templates.as_sent(note.clone(), facts, &app.tools.public_url).await {
        Err(EditError::Database(problem)) => Err(problem.into()),
        rendered => Ok(rendered.map_err(Problem::from)),
    }
}

/// The HTML of a mail, for the sandboxed frame of the page.
pub async fn mail(State(app): State<AppState>, visitor: Visitor, Path((id, n)): Path<(String, String)>) -> Answer {
    let n = n.parse().map_err(|_| Problem::not_found("delivery"))?;
    let Found { note, chosen, .. } = find(&app, &visitor, &id, Some(n)).await?;
    if chosen.n != n {
        return Err(Problem::not_found("delivery").into());
    }
    let key = DeliveryKey { tenant: note.tenant, notification: note.id, n };
    let mail = as_sent(&app, &visitor, &note, key).await??.html.ok_or_else(|| Problem::not_found("HTML"))?;
    let mut response = html::answer(StatusCode::OK, mail);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, MAIL_POLICY);
    Ok(response.into_response())
}
