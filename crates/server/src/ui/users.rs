//! Users: the list with its search. `users/one.rs` is the page of one user, `users/acts.rs` has the acts on users.

pub mod acts;
pub mod one;

use axum::extract::State;
use minijinja::context;
use postcommit::limits;
use postcommit_channel::model::Scope;
use postcommit_engine::store::{UserFilter, UserRow, UsersFound};
use serde::Serialize;

use super::frame::Visitor;
use super::query::Query;
use super::typed::Typed;
use super::words::{dotted, segment, shown};
use crate::app::{App, AppState};
use crate::cursor::encode;
use crate::problem::{Answer, Problem};
use crate::read::check_lengths;

/// The number of users of a page.
const ROWS: i64 = 50;

/// A user in the list.
#[derive(Serialize)]
struct Row {
    href: String,
    id: String,
    name: String,
    addresses: String,
    language: String,
    tenant: String,
    updated_at: String,
}

/// Shows the users, ordered by id, or the users that a search finds, or the form for a new user.
pub async fn list(State(app): State<AppState>, visitor: Visitor, query: Query) -> Answer {
    if query.get("new").is_some() {
        visitor.caller.may(Scope::Edit)?;
        return new(&app, &visitor, &Typed::default()).await;
    }
    let words = query.get("q");
    check_lengths(&[("q", words)], limits::ADDRESS_BYTES)?;
    let found = find(&app, &visitor, &query, words).await?;
    let rows: Vec<Row> = found.rows.into_iter().map(|row| listed(&visitor, row)).collect();
    let content = context! {
        words,
        form => None::<()>,
        next => found.more.map(|more| query.with("cursor", &encode(&more)).at("/users")),
        rows => shown(rows),
    };
    visitor.page(&app, "users.html", "Users", content).await
}

async fn find(app: &App, visitor: &Visitor, query: &Query, words: Option<&str>) -> Result<UsersFound, Problem> {
    let mut filter = UserFilter { tenant: visitor.caller.whose(), after: query.cursor()?, limit: ROWS };
    let store = visitor.store(app);
    if let Some(words) = words {
        return Ok(store.search_users(&filter, words.trim()).await?);
    }
    filter.limit = ROWS + 1;
    let mut rows = store.user_rows(&filter).await?;
    let fits = usize::try_from(ROWS).unwrap_or(0);
    let has_more = rows.len() > fits;
    rows.truncate(fits);
    let more = rows.last().filter(|_| has_more).map(|row| (row.tenant_id, row.id.clone()));
    Ok(UsersFound { rows, more })
}

/// The form of a new user.
pub async fn new(app: &App, visitor: &Visitor, typed: &Typed) -> Answer {
    let content = context! { form => typed.shown(), must_choose => visitor.must_choose(app).await? };
    visitor.page_as(app, typed.status(), "users.html", "New user", content).await
}

fn listed(visitor: &Visitor, row: UserRow) -> Row {
    let used = row.user.addresses.into_iter().filter(|address| address.disabled_reason.is_none());
    Row {
        href: visitor.path_in(&row.tenant, path(&row.id)),
        name: row.user.name.unwrap_or_default(),
        addresses: dotted(used.map(|address| Some(address.address))),
        language: row.user.language.unwrap_or_default(),
        tenant: row.tenant,
        updated_at: row.updated_at.to_string(),
        id: row.id,
    }
}

/// Returns the URL of the page of a user.
pub fn path(id: &str) -> String {
    format!("/users/{}", segment(id))
}
