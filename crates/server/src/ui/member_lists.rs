//! Lists of recipients: all of them, one with its members, and their changes.

use axum::extract::{Path, State};
use minijinja::context;
use postcommit_channel::model::{ADDRESS_KINDS, Scope};
use postcommit_engine::store::{ListFilter, ListRow, MemberDraft, MemberPlace, MemberRow, Store};
use serde::Serialize;

use super::acts::{Done, Fields, Posted, see};
use super::confirm::Question;
use super::frame::Visitor;
use super::query::Query;
use super::typed::Typed;
use super::words::{grouped, segment, shown};
use crate::app::{App, AppState};
use crate::cursor::page_of;
use crate::problem::{Answer, Problem};

/// The number of lists, or of members, of a page.
const ROWS: i64 = 50;
/// Members are counted up to this number in the list of lists. The page of a list has the exact number.
const COUNTED: i64 = 1000;

/// A row of the list of lists.
#[derive(Serialize)]
struct Row {
    href: String,
    name: String,
    description: String,
    members: String,
    tenant: String,
    updated_at: String,
}

/// Shows the lists of recipients, ordered by name, or the form for a new list.
pub async fn list(State(app): State<AppState>, visitor: Visitor, query: Query) -> Answer {
    if query.get("new").is_some() {
        visitor.caller.may(Scope::Edit)?;
        return new(&app, &visitor, &Typed::default()).await;
    }
    let filter = ListFilter { tenant: visitor.caller.whose(), after: query.cursor()?, limit: ROWS + 1 };
    let store = visitor.store(&app);
    let found = store.member_list_rows(&filter).await?;
    let (found, next) = page_of(found, ROWS, |row| (row.tenant_id, row.name.clone()));
    let sizes = store.list_sizes(&found, COUNTED + 1).await?;
    let rows: Vec<Row> = found.into_iter().zip(sizes).map(|(row, size)| listed(&visitor, row, size)).collect();
    let content = context! {
        form => None::<()>,
        next => next.map(|next| query.with("cursor", &next).at("/lists")),
        rows => shown(rows),
    };
    visitor.page(&app, "member_lists.html", "Lists", content).await
}

fn listed(visitor: &Visitor, row: ListRow, size: i64) -> Row {
    Row {
        href: visitor.path_in(&row.tenant, path(&row.name)),
        members: if size > COUNTED { format!("{}+", grouped(COUNTED)) } else { grouped(size) },
        description: row.description.unwrap_or_default(),
        name: row.name,
        tenant: row.tenant,
        updated_at: row.updated_at.to_string(),
    }
}

async fn new(app: &App, visitor: &Visitor, typed: &Typed) -> Answer {
    let content = context! { form => typed.shown(), must_choose => visitor.must_choose(app).await? };
    visitor.page_as(app, typed.status(), "member_lists.html", "New list", content).await
}

fn path(name: &str) -> String {
    format!("/lists/{}", segment(name))
}

/// Creates a list.
pub async fn create(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let mut typed = Typed::of(&form?.into(), &["name", "description"]);
    let made = async {
        visitor.has_chosen(&app).await?;
        let (store, description) = (visitor.caller.store_of_one(&app), typed.some("description"));
        Ok(store.create_list(visitor.caller.tenant(), typed.get("name"), description.as_deref()).await?)
    };
    match made.await {
        Ok(made) => Ok(see(Done::one("list-saved").at(&visitor.link(&path(&made.name))))),
        Err(problem) => {
            typed.refused(problem)?;
            new(&app, &visitor, &typed).await
        }
    }
}

/// A member on the page of a list.
#[derive(Serialize)]
struct Member {
    kind: String,
    member: String,
    channel: Option<String>,
    href: Option<String>,
    added_at: String,
}

impl From<MemberRow> for Member {
    fn from(row: MemberRow) -> Self {
        let href = match row.kind.as_str() {
            "user" => Some(super::users::path(&row.member)),
            "list" => Some(path(&row.member)),
            _ => None,
        };
        let MemberRow { kind, member, channel, added_at } = row;
        Self { kind, member, channel, href, added_at: added_at.to_string() }
    }
}

/// A list, and the forms of its page.
struct One<'a> {
    app: &'a App,
    visitor: &'a Visitor,
    store: Store,
    row: ListRow,
    about: Typed,
    add: Typed,
}

impl<'a> One<'a> {
    async fn of(app: &'a App, visitor: &'a Visitor, name: &str) -> Result<Self, Problem> {
        let store = visitor.caller.store_of_one(app);
        let row = store.member_list_row(visitor.caller.tenant(), name).await?;
        let row = row.ok_or_else(|| Problem::not_found("list"))?;
        let mut about = Typed::locked(!visitor.may(Scope::Edit));
        about.set("description", row.description.as_deref().unwrap_or_default());
        about.set("revision", &row.revision.to_string());
        Ok(Self { app, visitor, store, row, about, add: Typed::default() })
    }

    async fn draw(&self, query: &Query) -> Answer {
        let (tenant, name) = (self.visitor.caller.tenant(), self.row.name.as_str());
        let after = query.cursor::<MemberPlace>()?;
        let rows = self.store.member_rows(tenant, name, after.as_ref(), ROWS + 1).await?;
        let (rows, next) = page_of(rows, ROWS, MemberRow::place);
        let members: Vec<Member> = rows.into_iter().map(Member::from).collect();
        let content = context! {
            at => path(name),
            count => self.store.member_count(tenant, name).await?,
            form => self.about.shown(),
            add => self.add.shown(),
            kinds => [&["user", "list"][..], &ADDRESS_KINDS].concat(),
            next => next.map(|next| query.with("cursor", &next).at(&path(name))),
            members => shown(members),
        };
        let status = self.about.status().max(self.add.status());
        self.visitor.page_as(self.app, status, "member_list.html", name, content).await
    }
}

/// The page of a list, with a page of its members.
pub async fn page(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, query: Query) -> Answer {
    One::of(&app, &visitor, &name).await?.draw(&query).await
}

/// Saves the description of a list.
pub async fn save(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let mut one = One::of(&app, &visitor, &name).await?;
    one.about = Typed::of(&form?.into(), &["description", "revision"]);
    let (revision, description) = (one.about.get("revision").parse().ok(), one.about.some("description"));
    let saved = one.store.update_list(visitor.caller.tenant(), &name, revision, Some(description.as_deref())).await;
    match saved {
        Ok(_) => Ok(see(Done::one("list-saved").at(&visitor.link(&path(&name))))),
        Err(error) => {
            one.about.refused(error.into())?;
            one.draw(&Query::default()).await
        }
    }
}

/// Adds a member to a list, or removes one.
pub async fn members(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let mut one = One::of(&app, &visitor, &name).await?;
    one.add = Typed::of(&fields, &["kind", "member", "channel"]);
    let draft = MemberDraft {
        kind: one.add.get("kind").to_owned(),
        member: one.add.get("member").to_owned(),
        channel: one.add.some("channel"),
    };
    let removes = fields.get("act") == Some("remove");
    if removes && !fields.is_yes("confirmed") {
        let question = Question {
            title: "Remove this member?".into(),
            says: format!("{} {} is removed from the list {name}.", draft.kind, draft.member),
            button: "Remove the member".into(),
            is_final: true,
            action: format!("{}/members", path(&name)),
            fields: fields.repeated(&["act", "kind", "member", "channel"]),
            back: visitor.link(&path(&name)),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    let (draft, none) = ([draft], []);
    let (add, remove): (&[_], &[_]) = if removes { (&none, &draft) } else { (&draft, &none) };
    match one.store.change_members(visitor.caller.tenant(), &name, add, remove).await {
        Ok(_) => Ok(see(Done::one("members-changed").at(&visitor.link(&path(&name))))),
        Err(error) => {
            one.add.refused(error.into())?;
            one.draw(&Query::default()).await
        }
    }
}

/// Deletes a list.
pub async fn delete(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let one = One::of(&app, &visitor, &name).await?;
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: "Delete this list?".into(),
            says: format!(
                "{name} is deleted with its members. Notifications to it that are not expanded yet reach nobody."
            ),
            button: "Delete the list".into(),
            is_final: true,
            action: format!("{}/delete", path(&name)),
            back: visitor.link(&path(&name)),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    one.store.delete_list(visitor.caller.tenant(), &name).await?;
    Ok(see(Done::one("list-deleted").at(&visitor.link("/lists"))))
}
