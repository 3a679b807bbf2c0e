//! Templates: the list. `editor` shows, previews and saves one template; `draft` is its form; `versions` has its
//! history and the acts on the whole template; `trial` sends a test.

mod difference;
mod draft;
pub mod editor;
pub mod look;
pub mod trial;
pub mod versions;

use axum::extract::State;
use minijinja::context;
use postcommit::limits;
use postcommit_channel::model::CHANNELS;
use postcommit_engine::store::{TemplateFilter, TemplatePosition, TemplateRow};
use serde::Serialize;

use super::frame::Visitor;
use super::query::Query;
use super::typed::Typed;
use super::words::{dotted, segment, shown};
use crate::app::AppState;
use crate::cursor::page_of;
use crate::problem::Answer;
use crate::read::check_lengths;

/// The number of templates of a page.
const ROWS: i64 = 50;
const FILTERS: [&str; 7] = ["q", "event_type", "channel", "language", "scope_type", "scope_id", "active"];

/// A template in the list.
#[derive(Serialize)]
struct Row {
    href: String,
    id: String,
    state: &'static str,
    event_type: String,
    channel: String,
    /// The language, the audience and the scope of the template.
    place: String,
    version: i32,
    tenant: String,
    updated_at: String,
}

/// Shows the templates, ordered by id, or the form for a new template.
pub async fn list(State(app): State<AppState>, visitor: Visitor, query: Query) -> Answer {
    if query.get("new").is_some() {
        return editor::new(&app, &visitor).await;
    }
    let values = FILTERS.map(|name| (name, query.get(name)));
    check_lengths(&values, limits::NAME_CHARS)?;
    let text = |name: &str| query.get(name).map(str::to_owned);
    let filter = TemplateFilter {
        tenant: visitor.caller.whose(),
        event_type: text("event_type"),
        channel: text("channel"),
        language: text("language"),
        scope_type: text("scope_type").map(|name| postcommit_channel::template::flat_name(&name)),
        scope_id: text("scope_id"),
        active: query.get("active").map(|active| active == "yes"),
        words: text("q"),
        after: query.cursor()?,
        limit: ROWS + 1,
        ..TemplateFilter::default()
    };
    let rows = visitor.store(&app).template_rows(&filter).await?;
    let (rows, next) = page_of(rows, ROWS, |row| TemplatePosition(row.tenant_id, row.draft.id.clone()));
    let mut form = Typed::default();
    for (name, value) in values {
        form.set(name, value.unwrap_or_default());
    }
    let rows: Vec<Row> = rows.into_iter().map(|row| listed(&visitor, row)).collect();
    let content = context! {
        form => form.shown(),
        is_filtered => values.iter().any(|(_, value)| value.is_some()),
        chosen => values[1..].iter().filter(|(_, value)| value.is_some()).count(),
        channels => CHANNELS.to_vec(),
        older => next.map(|next| query.with("cursor", &next).at("/templates")),
        rows => shown(rows),
    };
    visitor.page(&app, "templates.html", "Templates", content).await
}

fn listed(visitor: &Visitor, row: TemplateRow) -> Row {
    let draft = row.draft;
    let scope = (!draft.scope_type.is_empty()).then(|| format!("{} {}", draft.scope_type, draft.scope_id));
    let audience = (!draft.audience.is_empty()).then(|| format!("for {}", draft.audience));
    Row {
        href: visitor.path_in(&row.tenant, path(&draft.id)),
        id: draft.id,
        state: if draft.active { "active" } else { "inactive" },
        event_type: draft.event_type,
        channel: draft.channel,
        place: dotted([Some(draft.language), audience, scope]),
        version: row.version,
        tenant: row.tenant,
        updated_at: row.updated_at.to_string(),
    }
}

/// Returns the URL of the page of a template.
fn path(id: &str) -> String {
    format!("/templates/{}", segment(id))
}
