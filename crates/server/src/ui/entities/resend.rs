//! Sends a message for an entity again, over any channel: with the text that was sent, or with the current text of a
//! template.

use axum::extract::State;
use axum::http::StatusCode;
use minijinja::context;
use postcommit::{Recipient, channel_name};
use postcommit_channel::model::Routes;
use postcommit_engine::store::{Original, Resend, TemplateFilter};
use serde_json::json;
use uuid::Uuid;

use super::{EntityId, address, check};
use crate::app::{App, AppState};
use crate::notifications::resend as send_again;
use crate::problem::{Answer, Problem, ProblemKind};
use crate::ui::acts::{Done, Fields, Posted, see};
use crate::ui::confirm::Question;
use crate::ui::frame::Visitor;
use crate::ui::words::shown;

/// The maximum number of templates to choose from.
const TEMPLATES: i64 = 200;
/// The kinds of recipients that a person can name.
const KINDS: [(&str, &str); 6] = [
    ("email", "Mail address"),
    ("phone", "Phone number"),
    ("user", "User"),
    ("list", "List"),
    ("slack", "Slack webhook"),
    ("webhook", "Webhook URL"),
];
/// The names of the fields of the form.
const NAMES: [&str; 6] = ["channel", "template", "event_type", "kind", "recipient", "of"];

/// Shows the form.
pub async fn page(State(app): State<AppState>, visitor: Visitor, EntityId(entity): EntityId, fields: Fields) -> Answer {
    check(&app, &visitor, &entity).await?;
    draw(&app, &visitor, &entity, &fields, None).await
}

/// Returns the URL of the form that sends a notification about an entity again.
pub fn of_notification(entity: &str, id: Uuid) -> String {
    let form = address(entity, "/resend");
    format!("{form}{}of={id}", if form.contains('?') { '&' } else { '?' })
}

/// The notification that the form names. Without one, the newest one about the entity is sent again.
fn original(fields: &Fields) -> Result<Option<Uuid>, Problem> {
    let wrong = |_| Problem::invalid("of", "is not the id of a notification");
    fields.get("of").map(|id| id.parse().map_err(wrong)).transpose()
}

/// Asks for a confirmation, then sends. A message that cannot be sent is refused before the question.
pub async fn resend(State(app): State<AppState>, visitor: Visitor, EntityId(entity): EntityId, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    check(&app, &visitor, &entity).await?;
    let wish = match wish(&entity, &fields) {
        Ok(wish) => wish,
        Err(problem) => return draw(&app, &visitor, &entity, &fields, Some(problem)).await,
    };
    if fields.is_yes("confirmed") {
        return match sent(&app, &visitor, &wish).await {
            Ok(page) => Ok(see(page)),
            Err(problem) => again(&app, &visitor, &entity, &fields, problem).await,
        };
    }
    match ready(&app, &visitor, &wish).await {
        Ok(()) => question(&fields, &visitor, &wish).ask(&app, &visitor).await,
        Err(problem) => again(&app, &visitor, &entity, &fields, problem).await,
    }
}

/// Shows the form again if a field is wrong. Any other problem becomes an error page.
async fn again(app: &App, visitor: &Visitor, entity: &str, fields: &Fields, problem: Problem) -> Answer {
    if problem.kind() != ProblemKind::Invalid {
        return Err(problem.into());
    }
    draw(app, visitor, entity, fields, Some(problem)).await
}

fn wish(entity: &str, fields: &Fields) -> Result<Resend, Problem> {
    let text = |name: &str| fields.get(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let channel = text("channel").ok_or_else(|| Problem::invalid("channel", "is missing; choose one"))?;
    let recipient = text("recipient").map(|value| {
        let kind = text("kind").unwrap_or_default();
        let read = serde_json::from_value::<Recipient>(json!({ kind: value }));
        read.map_err(|_| Problem::invalid("recipient", "has no kind; choose what it is"))
    });
    Ok(Resend {
        entity: entity.to_owned(),
        channel: channel_name(&channel).to_owned(),
        event_type: text("event_type"),
        template: text("template"),
        recipient: recipient.transpose()?,
        of: original(fields)?.map(|notification| Original { notification, n: None }),
        // The confirmation form contains this id. If the form is posted twice, both posts have the same id, so only one
        // copy is sent.
        request_id: text("request_id").unwrap_or_else(|| Uuid::now_v7().to_string()),
    })
}

/// Checks the resend as far as that is possible before anything is sent.
async fn ready(app: &App, visitor: &Visitor, wish: &Resend) -> Result<(), Problem> {
    wish.check().map_err(Problem::from)?;
    let copied = visitor.caller.store_of_one(app).copied(visitor.caller.tenant(), wish).await.map_err(Problem::from)?;
    match copied {
        Some(_) => Ok(()),
        None if wish.of.is_some() => Err(Problem::not_found("notification of this entity")),
        None => Err(Problem::invalid("event_type", "has no notification about this entity; choose another one")),
    }
}

fn question(fields: &Fields, visitor: &Visitor, wish: &Resend) -> Question {
    let mut repeated = fields.repeated(&NAMES);
    repeated.push(("request_id".into(), wish.request_id.clone()));
    let what = match &wish.template {
        Some(template) => format!("The current text of the template {template}, with the newest event about it,"),
        None if wish.of.is_some() => "This notification".into(),
        None => "The last message about it".into(),
    };
    let whom = match &wish.recipient {
        Some(recipient) => format!("to {} {}", recipient.kind(), recipient.value()),
        None => "to the recipients of the original".into(),
    };
    Question {
        title: format!("Send again over {}?", wish.channel),
        says: format!(
            "{what} is sent over {} {whom}, although it may have been sent before. The copy names you.",
            wish.channel
        ),
        button: "Send".into(),
        action: address(&wish.entity, "/resend"),
        fields: repeated,
        back: visitor.link(&match wish.of {
            Some(of) => of_notification(&wish.entity, of.notification),
            None => address(&wish.entity, "/resend"),
        }),
        ..Question::default()
    }
}

/// Sends the copy, and returns the URL of its page.
async fn sent(app: &App, visitor: &Visitor, wish: &Resend) -> Result<String, Problem> {
    let (reader, writer) = (visitor.caller.store_of_one(app), visitor.caller.store_of_all(app));
    let accepted = send_again(&reader, &writer, visitor.caller.tenant(), wish, |request| request).await;
    let accepted = accepted.map_err(Problem::from)?;
    let accepted = accepted.ok_or_else(|| Problem::not_found("notification of this entity and event type"))?;
    app.tallies.forget(visitor.caller.whose());
    Ok(Done::one("resend").at(&visitor.link(&format!("/notifications/{}", accepted.id))))
}

async fn draw(app: &App, visitor: &Visitor, entity: &str, fields: &Fields, problem: Option<Problem>) -> Answer {
    let (store, tenant) = (visitor.caller.store_of_one(app), visitor.caller.tenant());
    let providers = store.providers_of(tenant).await?;
    let filter =
        TemplateFilter { tenant: Some(tenant), active: Some(true), limit: TEMPLATES, ..TemplateFilter::default() };
    let templates = store.template_rows(&filter).await?;
    let templates: Vec<(String, String)> =
        templates.into_iter().map(|template| (template.draft.id, template.draft.channel)).collect();
    let of = original(fields)?;
    let value = |name: &str| fields.get(name).unwrap_or_default().to_owned();
    let (about, said) = match &problem {
        Some(problem) => (problem.field().unwrap_or_default().to_owned(), problem.to_string()),
        None => Default::default(),
    };
    let about = if about.starts_with("recipient") { "recipient".to_owned() } else { about };
    let content = context! {
        page => of.map_or_else(|| address(entity, ""), |of| format!("/notifications/{of}")),
        of => of.map(|of| of.to_string()),
        action => address(entity, "/resend"), entity,
        channels => shown(Routes(&providers).channels().into_iter().map(str::to_owned).collect::<Vec<_>>()),
        templates => shown(templates),
        kinds => shown(KINDS),
        channel => value("channel"), template => value("template"), event_type => value("event_type"),
        kind => value("kind"), recipient => value("recipient"),
        about, said,
    };
    let status = if problem.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    visitor.page_as(app, status, "resend.html", &format!("Send again for {entity}"), content).await
}
