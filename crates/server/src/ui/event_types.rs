//! Declared event types: the list, and one of them with its sample, its placeholders and its rules.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use minijinja::context;
use postcommit_channel::model::{QuietRule, Scope};
use postcommit_engine::store::{EventTypeChange, EventTypeDraft, EventTypeFilter, EventTypeRow};
use serde::Serialize;
use serde_json::Value;

use super::acts::{Done, Fields, Posted, see};
use super::confirm::Question;
use super::frame::Visitor;
use super::words::{segment, shown};
use crate::app::{App, AppState};
use crate::problem::{Answer, Problem};

/// The number of event types of a page.
const ROWS: i64 = 50;
/// The rules for quiet hours, in the order of the form.
const QUIET: [(QuietRule, &str); 3] = [
    (QuietRule::Delay, "Delay the message"),
    (QuietRule::Skip, "Skip the message"),
    (QuietRule::Ignore, "Send it anyway"),
];

/// An event type of the list.
#[derive(Serialize)]
struct Listed {
    name: String,
    href: String,
    description: String,
    mandatory: bool,
    quiet_hours: &'static str,
    placeholders: usize,
    has_sample: bool,
    updated_at: String,
    tenant: String,
}

/// The fields of a form, as they are stored or as they were typed.
#[derive(Default, Serialize)]
struct Draft {
    name: String,
    description: String,
    /// The placeholders, one in each line.
    placeholders: String,
    /// The sample as JSON with line breaks.
    sample: String,
    mandatory: bool,
    quiet_hours: String,
    revision: String,
}

impl Draft {
    fn stored(row: &EventTypeRow) -> Self {
        let sample = row.event_type.sample.as_ref().and_then(|sample| serde_json::to_string_pretty(sample).ok());
        Self {
            name: row.name.clone(),
            description: row.event_type.description.clone().unwrap_or_default(),
            placeholders: row.event_type.placeholders.join("\n"),
            sample: sample.unwrap_or_default(),
            mandatory: row.event_type.mandatory,
            quiet_hours: row.event_type.quiet_hours.name().to_owned(),
            revision: row.revision.to_string(),
        }
    }

    fn typed(fields: &Fields) -> Self {
        let owned = |name: &str| fields.get(name).unwrap_or_default().to_owned();
        Self {
            name: owned("name").trim().to_owned(),
            description: owned("description"),
            placeholders: owned("placeholders"),
            sample: owned("sample"),
            mandatory: fields.is_yes("mandatory"),
            quiet_hours: owned("quiet_hours"),
            revision: owned("revision"),
        }
    }

    /// Reads the event type from the fields of the form.
    fn read(&self) -> Result<EventTypeDraft, Problem> {
        let lines = self.placeholders.lines().map(str::trim).filter(|line| !line.is_empty());
        let sample = match self.sample.trim() {
            "" => None,
            text => {
                let wrong = |problem| Problem::invalid("sample", format!("is not a JSON object: {problem}"));
                Some(Value::Object(serde_json::from_str(text).map_err(wrong)?))
            }
        };
        let quiet = if self.quiet_hours.is_empty() { "delay" } else { &self.quiet_hours };
        let description = self.description.trim();
        Ok(EventTypeDraft {
            description: (!description.is_empty()).then(|| description.to_owned()),
            sample,
            placeholders: lines.map(str::to_owned).collect(),
            mandatory: self.mandatory,
            quiet_hours: QuietRule::named(quiet).map_err(|problem| Problem::invalid("quiet_hours", problem))?,
        })
    }
}

/// The list of declared event types.
pub async fn list(State(app): State<AppState>, visitor: Visitor, fields: Fields) -> Answer {
    let after = fields.get("after").map(position).transpose()?;
    listing(&app, &visitor, after, Draft::default(), None).await
}

/// The place of an event type in the list: the number of its tenant and its name.
fn position(text: &str) -> Result<(i32, String), Problem> {
    let place = text.split_once('~').and_then(|(tenant, name)| Some((tenant.parse().ok()?, name.to_owned())));
    place.ok_or_else(|| Problem::invalid("after", "is not the position of an event type; open the list again"))
}

async fn listing(
    app: &App,
    visitor: &Visitor,
    after: Option<(i32, String)>,
    draft: Draft,
    refused: Option<&Problem>,
) -> Answer {
    let filter = EventTypeFilter { tenant: visitor.caller.whose(), after, limit: ROWS + 1 };
    let mut rows = visitor.store(app).event_type_rows(&filter).await?;
    let fits = usize::try_from(ROWS).unwrap_or(0);
    let has_more = rows.len() > fits;
    rows.truncate(fits);
    let place = |row: &EventTypeRow| {
        let place = format!("{}~{}", row.tenant_id, row.name);
        format!("/event-types?after={}", form_urlencoded::byte_serialize(place.as_bytes()).collect::<String>())
    };
    let content = context! {
        next => rows.last().filter(|_| has_more).map(place),
        rows => shown(rows.iter().map(|row| listed(visitor, row)).collect::<Vec<_>>()),
        may_edit => visitor.may(Scope::Edit),
        must_choose => visitor.must_choose(app).await?,
        form => shown(draft),
        quiet => shown(QUIET.map(|(rule, words)| (rule.name(), words))),
        refused => refused.map(told),
    };
    visitor.page_as(app, status(refused), "event_types.html", "Event types", content).await
}

fn listed(visitor: &Visitor, row: &EventTypeRow) -> Listed {
    let quiet = QUIET.iter().find(|(rule, _)| *rule == row.event_type.quiet_hours);
    Listed {
        href: visitor.path_in(&row.tenant, format!("/event-types/{}", segment(&row.name))),
        name: row.name.clone(),
        description: row.event_type.description.clone().unwrap_or_default(),
        mandatory: row.event_type.mandatory,
        quiet_hours: quiet.map_or("", |(_, words)| words),
        placeholders: row.event_type.placeholders.len(),
        has_sample: row.event_type.sample.is_some(),
        updated_at: row.updated_at.to_string(),
        tenant: row.tenant.clone(),
    }
}

fn status(refused: Option<&Problem>) -> StatusCode {
    if refused.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK }
}

/// The problem for the form: the field without its place in a list, and the text.
fn told(problem: &Problem) -> minijinja::Value {
    let field = problem.field().unwrap_or_default();
    let (field, place) = field.split_once('[').map_or((field, ""), |(field, place)| (field, place));
    let line = place.strip_suffix(']').and_then(|place| place.parse::<usize>().ok());
    let says = line.map_or_else(|| problem.to_string(), |line| format!("Entry {}: {problem}", line + 1));
    context! { field, says }
}

/// Declares an event type.
pub async fn create(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let draft = Draft::typed(&form?.into());
    let made = async {
        visitor.has_chosen(&app).await?;
        let (tenant, wanted) = (visitor.caller.tenant(), draft.read()?);
        let store = visitor.caller.store_of_one(&app);
        store.create_event_type(tenant, &draft.name, &wanted).await.map_err(Problem::from)
    };
    match made.await {
        Ok(made) => {
            let page = visitor.link(&format!("/event-types/{}", segment(&made.name)));
            Ok(see(Done::one("event-type-created").at(&page)))
        }
        Err(problem) => listing(&app, &visitor, None, draft, Some(&problem)).await,
    }
}

/// The page of an event type.
pub async fn page(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>) -> Answer {
    let row = find(&app, &visitor, &name).await?;
    one(&app, &visitor, &row, Draft::stored(&row), None).await
}

async fn find(app: &App, visitor: &Visitor, name: &str) -> Result<EventTypeRow, Problem> {
    let found = visitor.caller.store_of_one(app).event_type(visitor.caller.tenant(), name).await?;
    found.ok_or_else(|| Problem::not_found("event type"))
}

async fn one(app: &App, visitor: &Visitor, row: &EventTypeRow, draft: Draft, refused: Option<&Problem>) -> Answer {
    let content = context! {
        name => row.name.as_str(),
        path_of => format!("/event-types/{}", segment(&row.name)),
        created_at => row.created_at.to_string(),
        updated_at => row.updated_at.to_string(),
        may_edit => visitor.may(Scope::Edit),
        form => shown(draft),
        quiet => shown(QUIET.map(|(rule, words)| (rule.name(), words))),
        refused => refused.map(told),
    };
    visitor.page_as(app, status(refused), "event_type.html", &row.name, content).await
}

/// Saves an event type.
pub async fn save(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let row = find(&app, &visitor, &name).await?;
    let draft = Draft::typed(&form?.into());
    let saved = async {
        let wanted = draft.read()?;
        let change = EventTypeChange {
            description: Some(wanted.description),
            sample: Some(wanted.sample),
            placeholders: Some(wanted.placeholders),
            mandatory: Some(wanted.mandatory),
            quiet_hours: Some(wanted.quiet_hours),
        };
        let store = visitor.caller.store_of_one(&app);
        let revision = draft.revision.parse().ok();
        store.update_event_type(visitor.caller.tenant(), &name, revision, &change).await.map_err(Problem::from)
    };
    match saved.await {
        Ok(_) => {
            let page = visitor.link(&format!("/event-types/{}", segment(&name)));
            Ok(see(Done::one("event-type-saved").at(&page)))
        }
        Err(problem) => one(&app, &visitor, &row, draft, Some(&problem)).await,
    }
}

/// Deletes the declaration of an event type.
pub async fn delete(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let row = find(&app, &visitor, &name).await?;
    let path = format!("/event-types/{}", segment(&row.name));
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: format!("Delete the declaration of {}?", row.name),
            says: "Notifications of this event type are still accepted. Its sample, its placeholders and its rules are gone, \
                   so people may opt out of it even if it was mandatory."
                .into(),
            button: "Delete the declaration".into(),
            is_final: true,
            action: format!("{path}/delete"),
            back: visitor.link(&path),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    visitor.caller.store_of_one(&app).delete_event_type(visitor.caller.tenant(), &row.name).await?;
    Ok(see(Done::one("event-type-deleted").at(&visitor.link("/event-types"))))
}
