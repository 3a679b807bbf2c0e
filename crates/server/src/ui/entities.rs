//! Everything about one entity, such as a booking, in one place; sending again and cancelling.

pub mod resend;

use std::collections::BTreeSet;

use axum::extract::{FromRequestParts, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use minijinja::context;
use postcommit_channel::model::Scope;
use postcommit_engine::store::{DeliveryFilter, DeliveryRow, Position};
use serde::Serialize;

use super::acts::{Done, Fields, Posted, see};
use super::confirm::{Choice, Question};
use super::frame::{Visitor, with_tenant};
use super::notifications::row::{Row, rows};
use super::words::{segment, shown};
use crate::app::{App, AppState};
use crate::problem::{Answer, Problem, ProblemPage};
use crate::templates::subjects::render_subjects;

/// The number of deliveries of a page.
const ROWS: i64 = 50;
/// The number of deliveries that are shown as not sent yet.
const LIVE_ROWS: i64 = 50;
/// The number of newest deliveries among which entities are looked for.
const NEWEST: i64 = 100;
/// The number of entities that the search offers.
const OFFERED: usize = 12;
/// The path segment that stands for an entity whose id is in the query.
const IN_QUERY: &str = "-";
const LIVE: [&str; 3] = ["pending", "sending", "retrying"];

/// A delivery on the page of an entity.
#[derive(Serialize)]
struct Line {
    row: Row,
    event_type: String,
    provider: Option<String>,
    template: Option<String>,
    sent_at: Option<String>,
    delivered_at: Option<String>,
    due_at: Option<String>,
    key: String,
    copy_of: Option<String>,
    /// The person who asked for the notification, if a person did.
    asked_by: Option<String>,
}

impl From<DeliveryRow> for Line {
    fn from(mut row: DeliveryRow) -> Self {
        // The title of the page names the entity, so the rows do not.
        row.entity = None;
        let version = row.template_version.map(|version| format!(" v{version}")).unwrap_or_default();
        let language = row.language.as_ref().map(|language| format!(", {language}")).unwrap_or_default();
        Self {
            event_type: row.event_type.clone(),
            provider: row.provider.clone(),
            template: row.template.as_ref().map(|template| format!("{template}{version}{language}")),
            sent_at: row.sent_at.map(|at| at.to_string()),
            delivered_at: row.delivered_at.map(|at| at.to_string()),
            due_at: row.next_attempt_at.map(|at| at.to_string()),
            key: row.idempotency_key.clone(),
            copy_of: row.copy_of.map(|id| id.to_string()),
            asked_by: row.asked_by.clone(),
            row: row.into(),
        }
    }
}

/// The tenants of these deliveries, each with the page of the entity in that tenant, for people who see all tenants.
fn choices<'r>(entity: &str, rows: impl Iterator<Item = &'r DeliveryRow>) -> Vec<(String, String)> {
    let tenants: BTreeSet<&str> = rows.map(|row| row.tenant.as_str()).collect();
    let page = |tenant: &str| with_tenant(&address(entity, "/resend"), Some(tenant));
    tenants.into_iter().take(OFFERED).map(|tenant| (tenant.to_owned(), page(tenant))).collect()
}

async fn lines(app: &App, visitor: &Visitor, mut found: Vec<DeliveryRow>) -> Result<Vec<Line>, Problem> {
    render_subjects(&visitor.store(app), visitor.caller.whose(), &mut found).await?;
    Ok(found.into_iter().map(Line::from).collect())
}

/// An entity that the search offers.
#[derive(Serialize)]
struct Offered {
    entity: String,
    href: String,
    event_type: String,
    at: String,
    tenant: String,
}

/// The search for an entity, with the newest entities.
pub async fn search(State(app): State<AppState>, visitor: Visitor, RawQuery(query): RawQuery) -> Answer {
    if let Some(wanted) = value(query.as_deref(), "entity").map(|wanted| wanted.trim().to_owned()) {
        let page = if wanted.is_empty() { "/entities".to_owned() } else { address(&wanted, "") };
        return Ok(see(visitor.link(&page)));
    }
    let filter = DeliveryFilter { tenant: visitor.caller.whose(), limit: NEWEST, ..DeliveryFilter::default() };
    let mut newest: Vec<Offered> = Vec::new();
    for row in visitor.store(&app).delivery_rows(&filter).await?.rows {
        let Some(entity) = row.entity.filter(|_| newest.len() < OFFERED) else { continue };
        if newest.iter().any(|known| known.entity == entity && known.tenant == row.tenant) {
            continue;
        }
        let page = address(&entity, "");
        let href = if visitor.sees_all() { with_tenant(&page, Some(&row.tenant)) } else { visitor.link(&page) };
        let (event_type, at) = (row.event_type, row.created_at.to_string());
        newest.push(Offered { href, entity, event_type, at, tenant: row.tenant });
    }
    visitor.page(&app, "entities.html", "Entities", context! { newest => shown(newest) }).await
}

fn value(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.into_iter().find(|(field, _)| field == name).map(|(_, value)| value.into_owned())
}

/// Returns the URL of the page of an entity, or of an act on it, such as `/cancel`. The server refuses encoded slashes
/// in the path of a page, so an id with a slash is in the query.
pub fn address(entity: &str, act: &str) -> String {
    if entity.contains(['/', '\\']) || [".", ".."].contains(&entity) {
        let entity: String = form_urlencoded::byte_serialize(entity.as_bytes()).collect();
        return format!("/entities/{IN_QUERY}{act}?entity={entity}");
    }
    format!("/entities/{}{act}", segment(entity))
}

/// The id of the entity that a page is about.
pub struct EntityId(pub String);

impl<S: Send + Sync> FromRequestParts<S> for EntityId {
    type Rejection = ProblemPage;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemPage> {
        let none = || Problem::not_found("entity");
        let Path(named) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| none())?;
        let in_query = value(parts.uri.query(), "entity").filter(|_| named == IN_QUERY);
        Ok(Self(in_query.unwrap_or(named)))
    }
}

/// The page of an entity: its deliveries that are not sent yet, and all its deliveries.
pub async fn page(
    State(app): State<AppState>,
    visitor: Visitor,
    EntityId(entity): EntityId,
    RawQuery(query): RawQuery,
) -> Answer {
    let before = value(query.as_deref(), "cursor").map(|cursor| cursor.parse::<Position>());
    let before = before.transpose().map_err(|problem| Problem::invalid("cursor", problem))?;
    let store = visitor.store(&app);
    let filter = DeliveryFilter { before, limit: ROWS, ..of_entity(&visitor, &entity) };
    let found = store.delivery_rows(&filter).await?;
    let live = if before.is_some() { vec![] } else { live(&app, &visitor, &entity).await? };
    let is_known = before.is_some() || !found.rows.is_empty() || found.more.is_some();
    let (base, is_first_page, title) = (address(&entity, ""), before.is_none(), format!("Entity {entity}"));
    let joint = if base.contains('?') { '&' } else { '?' };
    let choices =
        if visitor.must_choose(&app).await? { choices(&entity, live.iter().chain(&found.rows)) } else { vec![] };
    let (live, all) = (lines(&app, &visitor, live).await?, lines(&app, &visitor, found.rows).await?);
    let content = context! {
        older => found.more.map(|more| format!("{base}{joint}cursor={more}")),
        newer => (!is_first_page).then(|| base.clone()),
        is_first_page, is_known,
        must_choose => visitor.must_choose(&app).await?,
        choices,
        live => shown(live),
        lines => shown(all),
        may_act => visitor.may(Scope::Operate),
        resend => address(&entity, "/resend"), cancel => address(&entity, "/cancel"),
    };
    let status = if is_known { StatusCode::OK } else { StatusCode::NOT_FOUND };
    visitor.page_as(&app, status, "entity.html", &title, content).await
}

fn of_entity(visitor: &Visitor, entity: &str) -> DeliveryFilter {
    DeliveryFilter { tenant: visitor.caller.whose(), entity: Some(entity.to_owned()), ..DeliveryFilter::default() }
}

/// Returns the deliveries that are not sent yet: scheduled, due, being sent, or retried.
async fn live(app: &App, visitor: &Visitor, entity: &str) -> Result<Vec<DeliveryRow>, Problem> {
    let states = LIVE.map(str::to_owned).into();
    let filter = DeliveryFilter { states, limit: LIVE_ROWS, ..of_entity(visitor, entity) };
    Ok(visitor.store(app).delivery_rows(&filter).await?.rows)
}

/// Refuses an act on an entity without a delivery, and an act of a person who sees several tenants and chose none.
async fn check(app: &App, visitor: &Visitor, entity: &str) -> Result<(), Problem> {
    if visitor.must_choose(app).await? {
        return Err(Problem::invalid("tenant", "is not chosen; choose the tenant that the entity belongs to"));
    }
    let filter = DeliveryFilter { tenant: Some(visitor.caller.tenant()), limit: 1, ..of_entity(visitor, entity) };
    let found = visitor.store(app).delivery_rows(&filter).await?;
    if found.rows.is_empty() && found.more.is_none() { Err(Problem::not_found("entity")) } else { Ok(()) }
}

/// Cancels the deliveries of an entity that are not sent yet, e.g. the reminders of a cancelled booking.
pub async fn cancel(State(app): State<AppState>, visitor: Visitor, EntityId(entity): EntityId, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    check(&app, &visitor, &entity).await?;
    let page = visitor.link(&address(&entity, ""));
    if fields.is_yes("confirmed") {
        let (store, tenant) = (visitor.store(&app), visitor.caller.tenant());
        let (cancelled, _) = store.cancel_entity(tenant, &entity, fields.get("event_type")).await?;
        app.tallies.forget(visitor.caller.whose());
        return Ok(see(Done::one("cancel").count(usize::try_from(cancelled).unwrap_or(0)).at(&page)));
    }
    let live = live(&app, &visitor, &entity).await?;
    let mut types: Vec<String> = live.iter().map(|row| row.event_type.clone()).collect();
    types.sort_unstable();
    types.dedup();
    let all = (String::new(), "All".to_owned());
    let options = std::iter::once(all).chain(types.into_iter().map(|name| (name.clone(), name)));
    let question = Question {
        title: format!("Cancel what is not sent yet for {entity}?"),
        says: "It is never sent. What is being sent now is not tried again.".into(),
        button: "Cancel the deliveries".into(),
        is_final: true,
        action: address(&entity, "/cancel"),
        choice: Some(Choice { name: "event_type", label: "Event type", options: options.collect() }),
        rows: rows(&app, &visitor, live).await?,
        back: page,
        ..Question::default()
    };
    question.ask(&app, &visitor).await
}
