//! The versions of a template, and the acts on a whole template: roll back, activate, deactivate, delete.

use axum::extract::{Path, State};
use axum::response::Response;
use minijinja::context;
use postcommit_engine::store::{EditError, VersionRow};
use serde::Serialize;

use super::super::acts::{Done, Fields, Posted, see};
use super::super::confirm::Question;
use super::super::frame::Visitor;
use super::super::query::Query;
use super::super::words::shown;
use super::difference::difference;
use super::editor::waiting_in_words;
use super::path;
use crate::app::{App, AppState};
use crate::problem::{Answer, Problem, ProblemPage};
use crate::templates::{Change, Templates};

/// The number of versions of a page.
const VERSIONS: i64 = 50;

/// A version in the list.
#[derive(Serialize)]
struct Line {
    version: i32,
    created_at: String,
    created_by: String,
    note: Option<String>,
    is_current: bool,
    is_shown: bool,
}

/// The page with the versions of a template, newest first, and the difference between two of them.
pub async fn page(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, query: Query) -> Answer {
    let (store, tenant) = (visitor.caller.store_of_one(&app), visitor.caller.tenant());
    let templates = Templates { store: &store, tenant };
    let template = templates.find(&id).await?;
    let before = number(&query, "before")?;
    let mut rows = store.template_versions(tenant, &id, before, VERSIONS + 1).await?;
    let has_more = i64::try_from(rows.len()).is_ok_and(|count| count > VERSIONS);
    rows.truncate(usize::try_from(VERSIONS).unwrap_or(0));
    let to = number(&query, "version")?.unwrap_or(template.version);
    let from = number(&query, "against")?.unwrap_or(to - 1);
    let source = templates.source(&id, to).await?;
    let changed = match from {
        0 => None,
        from => Some(difference(&templates.source(&id, from).await?, &source)),
    };
    let older = rows.last().filter(|_| has_more).map(|row| format!("{}/versions?before={}", path(&id), row.version));
    let line = |row: VersionRow| Line {
        version: row.version,
        created_at: row.created_at.to_string(),
        created_by: row.created_by,
        note: row.note,
        is_current: row.version == template.version,
        is_shown: row.version == to,
    };
    let content = context! {
        at => path(&id),
        to_version => to, from, older,
        is_current => to == template.version,
        changed => shown(changed),
        lines => shown(rows.into_iter().map(line).collect::<Vec<_>>()),
    };
    visitor.page(&app, "versions.html", &format!("Versions of {id}"), content).await
}

fn number(query: &Query, name: &str) -> Result<Option<i32>, Problem> {
    let wrong = || Problem::invalid(name, "is not the number of a version");
    query.get(name).map(|text| text.parse().ok().filter(|number| *number > 0).ok_or_else(wrong)).transpose()
}

/// An act on a whole template, with the texts of its confirmation page.
struct Act {
    /// The last segment of the path of the act's form.
    name: &'static str,
    title: String,
    says: String,
    button: &'static str,
    is_final: bool,
    done: &'static str,
}

/// Returns the page that asks for a confirmation of an act and says how many waiting notifications it concerns. `None`
/// if the act is confirmed.
async fn asked(
    (app, visitor): (&App, &Visitor),
    id: &str,
    fields: &Fields,
    act: &Act,
) -> Result<Option<Response>, ProblemPage> {
    let store = visitor.caller.store_of_one(app);
    let templates = Templates { store: &store, tenant: visitor.caller.tenant() };
    let template = templates.find(id).await?;
    if fields.is_yes("confirmed") {
        return Ok(None);
    }
    let waiting = templates.waiting(&template.draft).await?;
    let question = Question {
        title: act.title.clone(),
        says: act.says.clone(),
        warning: (waiting.count > 0 || !waiting.is_exact).then(|| waiting_in_words(&waiting)),
        button: act.button.into(),
        is_final: act.is_final,
        action: format!("{}/{}", path(id), act.name),
        fields: fields.repeated(&["version"]),
        back: visitor.link(&path(id)),
        ..Question::default()
    };
    question.ask(app, visitor).await.map(Some)
}

async fn change(app: &App, visitor: &Visitor, id: &str, change: &Change) -> Result<(), EditError> {
    let store = visitor.caller.store_of_one(app);
    Templates { store: &store, tenant: visitor.caller.tenant() }.update(id, None, change).await.map(drop)
}

/// Saves the texts of an earlier version as a new version.
pub async fn roll_back(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let wrong = || Problem::invalid("version", "is not the number of a version");
    let act = |version: i32| Act {
        name: "roll-back",
        title: format!("Roll back to version {version}?"),
        says: format!(
            "The texts of version {version} are saved as a new version, with the layouts as they are now. An active template \
             uses it immediately."
        ),
        button: "Roll back",
        is_final: false,
        done: "template-saved",
    };
    let version: i32 = match fields.get("version").map(str::parse) {
        Some(Ok(version)) => version,
        // If the template does not exist, that is the error, and not the wrong number.
        _ => return asked((&app, &visitor), &id, &fields, &act(0)).await.and(Err(wrong().into())),
    };
    let act = act(version);
    if let Some(question) = asked((&app, &visitor), &id, &fields, &act).await? {
        return Ok(question);
    }
    let back = Change {
        from_version: Some(version),
        note: Some(format!("rolled back to version {version}")),
        ..Change::default()
    };
    change(&app, &visitor, &id, &back).await?;
    Ok(see(Done::one(act.done).at(&visitor.link(&path(&id)))))
}

async fn set_active(app: &App, visitor: &Visitor, id: &str, fields: &Fields, active: bool) -> Answer {
    let act = if active {
        Act {
            name: "activate",
            title: "Activate this template?".into(),
            says: "It is used for notifications that are expanded from now on.".into(),
            button: "Activate the template",
            is_final: false,
            done: "template-active",
        }
    } else {
        Act {
            name: "deactivate",
            title: "Deactivate this template?".into(),
            says: "It is not used any more. Deliveries that use it already keep it.".into(),
            button: "Deactivate the template",
            is_final: true,
            done: "template-inactive",
        }
    };
    if let Some(question) = asked((app, visitor), id, fields, &act).await? {
        return Ok(question);
    }
    change(app, visitor, id, &Change { active: Some(active), ..Change::default() }).await?;
    Ok(see(Done::one(act.done).at(&visitor.link(&path(id)))))
}

/// Activates a template.
pub async fn activate(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    set_active(&app, &visitor, &id, &form?.into(), true).await
}

/// Deactivates a template.
pub async fn deactivate(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    set_active(&app, &visitor, &id, &form?.into(), false).await
}

/// Deletes a template that is not active. Its versions are kept.
pub async fn delete(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let act = Act {
        name: "delete",
        title: "Delete this template?".into(),
        says: "Its versions are kept, because deliveries name them. A template that is created with this id later goes on \
               with them."
            .into(),
        button: "Delete the template",
        is_final: true,
        done: "template-deleted",
    };
    if let Some(question) = asked((&app, &visitor), &id, &fields, &act).await? {
        return Ok(question);
    }
    let store = visitor.caller.store_of_one(&app);
    Templates { store: &store, tenant: visitor.caller.tenant() }.delete(&id).await?;
    Ok(see(Done::one(act.done).at(&visitor.link("/templates"))))
}
