//! Suppressions: the list with its filter, and how an address is suppressed and released.

use axum::extract::State;
use minijinja::context;
use postcommit::{Timestamp, limits};
use postcommit_channel::model::{CHANNELS, Scope};
use postcommit_engine::store::{SuppressionDraft, SuppressionFilter, SuppressionRow};
use serde::Serialize;

use super::acts::{Done, Fields, Posted, see};
use super::confirm::Question;
use super::frame::Visitor;
use super::query::Query;
use super::typed::Typed;
use super::words::shown;
use crate::app::{App, AppState};
use crate::cursor::page_of;
use crate::problem::{Answer, Problem};
use crate::read::check_lengths;

/// The number of suppressions of a page.
const ROWS: i64 = 50;
const FIELDS: [&str; 4] = ["channel", "address", "reason", "until"];

/// A suppression in the list.
#[derive(Serialize)]
struct Row {
    /// The path of the form that removes the suppression.
    action: String,
    state: &'static str,
    channel: String,
    address: String,
    reason: String,
    created_by: String,
    created_at: String,
    until: Option<String>,
    tenant: String,
}

/// The list of suppressions, ordered by channel and address.
pub async fn list(State(app): State<AppState>, visitor: Visitor, query: Query) -> Answer {
    draw(&app, &visitor, &query, &Typed::default()).await
}

async fn draw(app: &App, visitor: &Visitor, query: &Query, add: &Typed) -> Answer {
    let (channel, address) = (query.get("channel"), query.get("address"));
    check_lengths(&[("channel", channel)], limits::SHORT_NAME_CHARS)?;
    check_lengths(&[("address", address)], limits::ADDRESS_BYTES)?;
    let filter = SuppressionFilter {
        tenant: visitor.caller.whose(),
        channel: channel.map(str::to_owned),
        address: address.map(|address| address.trim().to_owned()),
        after: query.cursor()?,
        limit: ROWS + 1,
    };
    let rows = visitor.store(app).suppression_rows(&filter).await?;
    let (rows, next) = page_of(rows, ROWS, |row| (row.tenant_id, row.channel.clone(), row.address.clone()));
    let rows: Vec<Row> = rows.into_iter().map(|row| listed(visitor, row)).collect();
    let content = context! {
        channel, address,
        channels => CHANNELS.to_vec(),
        is_filtered => channel.is_some() || address.is_some(),
        must_choose => visitor.may(Scope::Edit) && visitor.must_choose(app).await?,
        add => add.shown(),
        is_refused => add.status().is_client_error(),
        next => next.map(|next| query.with("cursor", &next).at("/suppressions")),
        rows => shown(rows),
    };
    visitor.page_as(app, add.status(), "suppressions.html", "Suppressions", content).await
}

fn listed(visitor: &Visitor, row: SuppressionRow) -> Row {
    Row {
        action: visitor.path_in(&row.tenant, "/suppressions/remove".into()),
        state: if row.active { "active" } else { "ended" },
        channel: row.channel,
        address: row.address,
        reason: row.reason,
        created_by: row.created_by,
        created_at: row.created_at.to_string(),
        until: row.until.map(|until| until.to_string()),
        tenant: row.tenant,
    }
}

/// Suppresses an address.
pub async fn add(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let mut typed = Typed::of(&form?.into(), &FIELDS);
    let made = async {
        visitor.has_chosen(&app).await?;
        let text = |name: &str| typed.get(name).trim().to_owned();
        let (channel, address, reason) = (text("channel"), text("address"), text("reason"));
        let draft = SuppressionDraft { channel, address, reason, until: until(&typed)? };
        Ok(visitor.caller.store_of_one(&app).suppress(visitor.caller.tenant(), &draft).await?)
    };
    match made.await {
        Ok(_) => Ok(see(Done::one("suppressed").at(&visitor.link("/suppressions")))),
        Err(problem) => {
            typed.refused(problem)?;
            draw(&app, &visitor, &Query::default(), &typed).await
        }
    }
}

/// Parses the typed end of a suppression. A browser's time field sends no seconds and no zone.
fn until(typed: &Typed) -> Result<Option<Timestamp>, Problem> {
    let wrong =
        |text: &str| Problem::invalid("until", format!("is {text:?}; write a time in UTC such as 2026-03-15T08:12"));
    let Some(text) = typed.some("until") else { return Ok(None) };
    let full = if text.len() == 16 { format!("{text}:00Z") } else { text.clone() };
    full.parse().map(Some).map_err(|_| wrong(&text))
}

/// Removes a suppression.
pub async fn remove(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let (channel, address) = (fields.get("channel").unwrap_or_default(), fields.get("address").unwrap_or_default());
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: "Remove this suppression?".into(),
            says: format!(
                "Messages go to {address} again, on {}.",
                if channel == "*" { "every channel" } else { channel }
            ),
            button: "Remove the suppression".into(),
            is_final: true,
            action: "/suppressions/remove".into(),
            fields: fields.repeated(&["channel", "address"]),
            back: visitor.link("/suppressions"),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    let store = visitor.caller.store_of_one(&app);
    // It is no error if another person has removed the suppression meanwhile.
    store.remove_suppression(visitor.caller.tenant(), channel, address).await?;
    Ok(see(Done::one("not-suppressed").at(&visitor.link("/suppressions"))))
}
