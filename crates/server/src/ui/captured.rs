//! Captured messages: what people would have received, if a driver for development had not recorded it instead.

use axum::extract::{RawQuery, State};
use minijinja::context;
use postcommit_channel::model::{CHANNELS, DeliveryId};
use postcommit_engine::store::{DeliveryFilter, DeliveryRow, Position};
use serde::Serialize;

use super::frame::Visitor;
use super::notification::as_sent;
use super::notifications::row::what;
use super::templates::look::blocks;
use super::words::shown;
use crate::app::AppState;
use crate::problem::{Answer, Problem};
use crate::templates::subjects::render_subjects;

/// The number of messages of a page.
const ROWS: i64 = 20;

/// A captured message in the list.
#[derive(Serialize)]
struct Line {
    id: String,
    href: String,
    title: String,
    channel: String,
    to: String,
    provider: Option<String>,
    at: String,
    tenant: String,
    is_chosen: bool,
}

/// The parameters of the page's URL.
#[derive(Default)]
struct Wanted {
    channel: String,
    to: String,
    cursor: Option<String>,
    /// The id of the message whose content is shown.
    id: Option<DeliveryId>,
}

impl Wanted {
    fn read(query: &str) -> Self {
        let mut wanted = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "channel" => wanted.channel = value.trim().to_owned(),
                "to" => wanted.to = value.trim().to_owned(),
                "cursor" => wanted.cursor = Some(value.into_owned()).filter(|cursor| !cursor.is_empty()),
                "id" => wanted.id = value.parse().ok(),
                _ => {}
            }
        }
        wanted
    }

    /// Returns the URL of a page of the list, with one message opened.
    fn page(&self, cursor: Option<&str>, id: Option<&str>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let fields =
            [("channel", Some(self.channel.as_str())), ("to", Some(self.to.as_str())), ("cursor", cursor), ("id", id)];
        for (name, value) in fields {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                query.append_pair(name, value);
            }
        }
        let query = query.finish();
        if query.is_empty() { "/captured".into() } else { format!("/captured?{query}") }
    }
}

/// The captured messages, newest first, and the content of one of them.
pub async fn page(State(app): State<AppState>, visitor: Visitor, RawQuery(query): RawQuery) -> Answer {
    let wanted = Wanted::read(query.as_deref().unwrap_or_default());
    let before = wanted.cursor.as_deref().map(str::parse::<Position>).transpose();
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let filter = DeliveryFilter {
        tenant: visitor.caller.whose(),
        channel: some(&wanted.channel),
        recipient: some(&wanted.to),
        captured: true,
        before: before.map_err(|problem| Problem::invalid("cursor", problem))?,
        limit: ROWS,
        ..DeliveryFilter::default()
    };
    let store = visitor.store(&app);
    let mut found = store.delivery_rows(&filter).await?;
    render_subjects(&store, visitor.caller.whose(), &mut found.rows).await?;
    let named = wanted.id.and_then(|id| found.rows.iter().find(|row| row.id == id.to_string()));
    let chosen = named.or(found.rows.first());
    let lines: Vec<Line> = found.rows.iter().map(|row| line(row, chosen, &wanted)).collect();
    let mut content = None;
    if let Some(row) = chosen {
        let whose = visitor.caller.whose();
        let id = DeliveryId { notification: row.notification_id, n: row.n };
        let key = store.delivery_key(whose, id).await?.ok_or_else(|| Problem::not_found("delivery"))?;
        let note = store.notification(Some(key.tenant), key.notification).await?;
        let note = note.ok_or_else(|| Problem::not_found("notification"))?;
        content = Some(as_sent(&app, &visitor, &note, key).await?);
    }
    let sent = content.as_ref().and_then(|content| content.as_ref().ok());
    let page = context! {
        lines => shown(lines),
        chosen => shown(chosen),
        sent => shown(sent),
        data => sent.and_then(|sent| serde_json::to_string_pretty(sent.data.as_ref()?).ok()),
        blocks => shown(blocks(sent.and_then(|sent| sent.data.as_ref()))),
        not_rendered => content.as_ref().and_then(|content| Some(content.as_ref().err()?.to_string())),
        payload => (),
        id => chosen.map(|row| row.notification_id.to_string()),
        channel => wanted.channel.as_str(), recipient => wanted.to.as_str(),
        channels => CHANNELS.to_vec(),
        is_filtered => !wanted.channel.is_empty() || !wanted.to.is_empty(),
        older => found.more.map(|more| wanted.page(Some(&more.to_string()), None)),
        newest => wanted.cursor.is_some().then(|| wanted.page(None, None)),
    };
    visitor.page(&app, "captured.html", "Captured messages", page).await
}

fn line(row: &DeliveryRow, chosen: Option<&DeliveryRow>, wanted: &Wanted) -> Line {
    Line {
        href: format!("{}#content", wanted.page(wanted.cursor.as_deref(), Some(&row.id))),
        title: what(row),
        channel: row.channel.clone().unwrap_or_default(),
        to: row.target.clone().or_else(|| row.user_id.clone()).unwrap_or_default(),
        provider: row.provider.clone(),
        at: row.sent_at.unwrap_or(row.updated_at).to_string(),
        tenant: row.tenant.clone(),
        is_chosen: chosen.is_some_and(|chosen| chosen.id == row.id),
        id: row.id.clone(),
    }
}
