//! Creating and changing a provider. A refused form is shown again with the typed values.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use minijinja::{Value, context};
use postcommit_channel::driver;
use postcommit_channel::model::Provider;
use postcommit_engine::store::Store;

use super::catalogue::Entry;
use super::find;
use super::form::{Input, Sheet, Wrong, placed};
use crate::app::{App, AppState};
use crate::problem::{Answer, Problem, ProblemKind};
use crate::providers::{ProviderError, stored_secrets, workshop};
use crate::ui::acts::{Done, Fields, Posted, see};
use crate::ui::frame::Visitor;
use crate::ui::words::{segment, shown};

/// The form of a new provider of a driver.
pub async fn new(State(app): State<AppState>, visitor: Visitor, Path(driver): Path<String>) -> Answer {
    let kind = driver::kind(&driver).map_err(|_| Problem::not_found("driver"))?;
    let store = visitor.caller.store_of_one(&app);
    let sheet = new_sheet(&store, &visitor, &kind).await?;
    draw(&app, &visitor, &sheet, Form { inputs: sheet.inputs(None, &[]), ..Form::default() }).await
}

/// Creates a provider. A secret that the driver generated is shown once.
pub async fn create(State(app): State<AppState>, visitor: Visitor, Path(driver): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let kind = driver::kind(&driver).map_err(|_| Problem::not_found("driver"))?;
    if visitor.must_choose(&app).await? {
        return Err(Problem::invalid("tenant", "is not chosen; choose the tenant that gets the provider").into());
    }
    let store = visitor.caller.store_of_one(&app);
    let sheet = new_sheet(&store, &visitor, &kind).await?;
    let name = fields.get("name").unwrap_or_default().trim();
    let change = match sheet.change(&fields) {
        Ok(change) => change,
        Err(wrong) => return refused(&app, &visitor, &sheet, &fields, &wrong).await,
    };
    let workshop = workshop(&app, &store, &visitor.caller);
    let made = match workshop.create(visitor.caller.tenant(), name, &driver, change).await {
        Ok(made) => made,
        Err(problem) => return again(&app, &visitor, &sheet, &fields, problem.into()).await,
    };
    let page = visitor.link(&format!("/providers/{}", segment(name)));
    let shown_once = made.filter(|made| made.public.is_none()).zip(kind.new_secret.as_ref());
    let Some((made, new)) = shown_once else { return Ok(see(Done::one("provider-created").at(&page))) };
    // The secret is revealed here to show it once.
    let content = context! { secret => made.secret.reveal(), about => new.about.as_ref(), page, name };
    visitor.page(&app, "provider_made.html", "The provider is created", content).await
}

/// The form of a provider that exists.
pub async fn edit(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>) -> Answer {
    let store = visitor.caller.store_of_one(&app);
    let provider = find(&app, &visitor, &name).await?;
    let kind = driver::kind(&provider.driver).map_err(unknown_driver)?;
    let sheet = sheet_of(&app, &store, &provider, &kind).await?;
    let form = Form { inputs: sheet.inputs(None, &[]), revision: provider.revision, ..Form::default() };
    draw(&app, &visitor, &sheet, form).await
}

/// Changes a provider, if it still has the revision that the form was drawn for.
pub async fn update(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let store = visitor.caller.store_of_one(&app);
    let workshop = workshop(&app, &store, &visitor.caller);
    let provider = workshop.find(visitor.caller.tenant(), &name).await?;
    let kind = driver::kind(&provider.driver).map_err(unknown_driver)?;
    let sheet = sheet_of(&app, &store, &provider, &kind).await?;
    let change = match sheet.change(&fields) {
        Ok(change) => change,
        Err(wrong) => return refused(&app, &visitor, &sheet, &fields, &wrong).await,
    };
    match workshop.update(provider.tenant, &name, Some(revision(&fields)), &change).await {
        Ok(is_changed) => {
            let done = Done::one(if is_changed { "provider-changed" } else { "provider-same" });
            Ok(see(done.at(&visitor.link(&format!("/providers/{}", segment(&name))))))
        }
        Err(ProviderError::Outdated { .. }) => {
            let problem = "The provider was changed meanwhile. Compare with its page, then save again.";
            let inputs = sheet.inputs(Some(&fields), &[]);
            let form = Form { inputs, revision: provider.revision, problem: Some(problem.into()), is_refused: true };
            draw(&app, &visitor, &sheet, form).await
        }
        Err(problem) => again(&app, &visitor, &sheet, &fields, problem.into()).await,
    }
}

/// The revision of the provider for which a form was drawn.
fn revision(fields: &Fields) -> i32 {
    fields.get("revision").and_then(|revision| revision.parse().ok()).unwrap_or(0)
}

fn unknown_driver(problem: String) -> Problem {
    Problem::new(ProblemKind::StateConflict, format!("the provider cannot be changed here: {problem}"))
}

async fn new_sheet<'k>(store: &Store, visitor: &Visitor, kind: &'k driver::Kind) -> Result<Sheet<'k>, Problem> {
    let others = others(store, visitor.caller.tenant(), "").await?;
    Ok(Sheet { draft: kind.draft(&kind.name), kind, is_new: true, stored: None, others })
}

async fn sheet_of<'k>(
    app: &App,
    store: &Store,
    provider: &Provider,
    kind: &'k driver::Kind,
) -> Result<Sheet<'k>, Problem> {
    let stored = stored_secrets(&app.tools.keys, provider);
    let others = others(store, provider.tenant, &provider.name).await?;
    Ok(Sheet { draft: provider.draft.clone(), kind, is_new: false, stored, others })
}

/// Returns the providers that could take over, with their channels.
async fn others(store: &Store, tenant: i32, but: &str) -> Result<Vec<(String, String)>, Problem> {
    let all = store.providers_of(tenant).await?;
    let others = all.into_iter().filter(|other| other.name != but);
    Ok(others.map(|other| (other.draft.name, other.draft.channel)).collect())
}

/// The values with which the form is drawn.
#[derive(Default)]
struct Form {
    inputs: Vec<Input>,
    revision: i32,
    /// A problem that belongs to no field of the form.
    problem: Option<String>,
    is_refused: bool,
}

/// Shows the form again, with the problem of each field.
async fn refused(app: &App, visitor: &Visitor, sheet: &Sheet<'_>, fields: &Fields, wrong: &[Wrong]) -> Answer {
    let inputs = sheet.inputs(Some(fields), wrong);
    let form = Form { inputs, revision: revision(fields), problem: None, is_refused: true };
    draw(app, visitor, sheet, form).await
}

/// Shows the form again, with the problem that the create or the change returned. A problem that a person cannot
/// correct in the form becomes an error page.
async fn again(app: &App, visitor: &Visitor, sheet: &Sheet<'_>, fields: &Fields, problem: Problem) -> Answer {
    if !matches!(problem.kind(), ProblemKind::Invalid | ProblemKind::StateConflict) {
        return Err(problem.into());
    }
    let mut inputs = sheet.inputs(Some(fields), &[]);
    let problem = placed(&mut inputs, &problem);
    draw(app, visitor, sheet, Form { inputs, revision: revision(fields), problem, is_refused: true }).await
}

async fn draw(app: &App, visitor: &Visitor, sheet: &Sheet<'_>, form: Form) -> Answer {
    let (limits, inputs): (Vec<Input>, Vec<Input>) = form.inputs.into_iter().partition(|input| input.is_limit);
    let name = segment(&sheet.draft.name);
    let (title, action, back): (String, String, String) = match (sheet.is_new, Entry::of(&sheet.kind.name)) {
        (true, entry) => {
            let title = entry.map(|entry| entry.title).unwrap_or_default();
            (format!("Add {title}"), format!("/providers/new/{}", segment(&sheet.kind.name)), "/providers/new".into())
        }
        (false, _) => {
            let page = format!("/providers/{name}");
            (format!("Edit {}", sheet.draft.name), format!("{page}/edit"), page)
        }
    };
    let has_problem = |inputs: &[Input]| inputs.iter().any(|input| input.problem.is_some());
    let content = context! {
        action, back,
        problem => form.problem,
        has_wrong => has_problem(&inputs) || has_problem(&limits),
        limits_open => has_problem(&limits),
        is_new => sheet.is_new,
        revision => form.revision,
        entry => shown(Entry::of(&sheet.kind.name)),
        local => sheet.kind.local_settings.iter().map(|local| local.name.to_string()).collect::<Vec<_>>(),
        is_refused => form.is_refused,
        has_secrets => !sheet.kind.secrets.is_empty(),
        inputs => shown(inputs), limits => shown(limits),
        must_choose => sheet.is_new && visitor.must_choose(app).await?,
    };
    let content: Value = content;
    let status = if form.is_refused { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    visitor.page_as(app, status, "provider_form.html", &title, content).await
}
