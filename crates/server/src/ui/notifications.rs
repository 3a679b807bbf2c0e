//! The list of deliveries, with its filters and pages.

pub mod errors;
pub mod export;
pub mod filter;
pub mod row;
pub mod views;

use axum::extract::{RawQuery, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use minijinja::context;
use postcommit_channel::model::{CHANNELS, Scope};
use postcommit_engine::store::{DeliveryFilter, Kpis};
use serde::Serialize;

use super::frame::Visitor;
use super::words::{grouped, shown};
use crate::app::{App, AppState};
use crate::problem::Answer;
use filter::{ENDED, Filter, PERIODS, error_classes, reasons};

/// The number of rows of a page.
const ROWS: i64 = 50;

/// One of the links above the list that choose a state.
#[derive(Serialize)]
struct StatePill {
    label: &'static str,
    count: Option<i64>,
    href: String,
    is_chosen: bool,
}

/// The list of deliveries, newest first.
pub async fn list(
    State(app): State<AppState>,
    visitor: Visitor,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Answer {
    match Filter::read(query.as_deref().unwrap_or_default())? {
        Ok(filter) => draw(&app, &visitor, &headers, &filter, StatusCode::OK, None).await,
        Err(fields) => Ok((StatusCode::SEE_OTHER, [(LOCATION, visitor.link(&fields))]).into_response()),
    }
}

/// Draws the list. `refused` is the name of a view that was not saved, and why.
async fn draw(
    app: &App,
    visitor: &Visitor,
    headers: &HeaderMap,
    filter: &Filter,
    status: StatusCode,
    refused: Option<(&str, String)>,
) -> Answer {
    let store = visitor.store(app);
    let of_store = filter.of_store(store.now().await?, app.stuck_after)?;
    let of_store = DeliveryFilter { tenant: visitor.caller.whose(), limit: ROWS, ..of_store };
    let page = store.delivery_rows(&of_store).await?;
    let kpis = app.tallies.current(app, &visitor.caller).await?;
    let rows = row::rows(app, visitor, page.rows).await?;
    let acts = visitor.may(Scope::Operate);
    let views = views::kept(headers, filter);
    let content = context! {
        pills => shown(pills(filter, &kpis)),
        has_parked => acts && rows.iter().any(|row| row.is_parked),
        all => shown(acts.then(|| all_that_match(filter, &kpis)).flatten()),
        query => filter.query(),
        chips => shown(filter.chips()),
        words => filter.get("title"),
        fields => shown(fields(filter)),
        channels => CHANNELS.to_vec(),
        error_classes => shown(error_classes()),
        reasons => shown(reasons()),
        periods => shown(PERIODS),
        errors => shown(errors::groups(app, visitor, filter).await?),
        older => page.more.map(|more| filter.older(more)),
        newer => filter.newer(),
        is_first_page => filter.is_first_page(),
        is_filtered => !filter.has_only(&[]),
        rows => shown(rows),
        chosen_view => views.iter().find(|view| view.is_chosen).map(|view| view.name.as_str()),
        views => shown(&views),
        // The answer to a refused view has another URL, to which forms cannot lead back.
        back => refused.is_some().then(|| visitor.link(&filter.first_page())),
        view_chars => views::NAME_CHARS,
        refused => shown(refused),
    };
    visitor.page_as(app, status, "notifications.html", "Notifications", content).await
}

/// The links that choose a state. Only live and parked deliveries are counted: the others are history, and counting
/// them would read all of it.
fn pills(filter: &Filter, kpis: &Kpis) -> Vec<StatePill> {
    let (queue, parked) = (&kpis.total.queue, &kpis.total.parked);
    // The counts are known only per state, so they are hidden if the filter has another condition.
    let is_counted = filter.with("state", "").with("stuck", "").has_only(&[]);
    let chosen = (filter.get("state"), filter.get("stuck"));
    let pill = |label, state: &str, count: Option<i64>| {
        let href = filter.with("stuck", "").with("state", state).first_page();
        StatePill { label, count: count.filter(|_| is_counted), href, is_chosen: chosen == (state, "") }
    };
    let stuck = StatePill {
        label: "Stuck",
        count: Some(kpis.total.stuck).filter(|_| is_counted),
        href: filter.with("state", "").with("stuck", "true").first_page(),
        is_chosen: chosen.1 == "true",
    };
    vec![
        pill("All", "", None),
        pill("Pending", "pending", Some(queue.pending + queue.scheduled)),
        pill("Sending", "sending", Some(queue.sending)),
        pill("Retrying", "retrying", Some(queue.retrying)),
        pill("Parked", "parked", Some(parked.total)),
        stuck,
        pill("Sent", "sent", None),
        pill("Delivered", "delivered", None),
        pill("Skipped", "skipped", None),
        pill("Ended", ENDED, None),
    ]
}

/// The labels of the acts on all deliveries that match the filter.
#[derive(Serialize)]
struct AllThatMatch {
    retry: String,
    discard: Option<&'static str>,
}

/// Returns the acts on all deliveries that match the filter. Their number is only known here if the state is the only
/// condition; otherwise the page that asks for a confirmation counts them.
fn all_that_match(filter: &Filter, kpis: &Kpis) -> Option<AllThatMatch> {
    let (count, discard) = match filter.get("state") {
        "parked" => (kpis.total.parked.total, Some("Discard all that match…")),
        "retrying" => (kpis.total.queue.retrying, None),
        _ => return None,
    };
    if count == 0 || !filter.get("stuck").is_empty() {
        return None;
    }
    let number = if filter.has_only(&["state"]) { format!("{} ", grouped(count)) } else { String::new() };
    let retry = match discard {
        Some(_) => format!("Retry all {number}that match…"),
        None => format!("Try all {number}that match now…"),
    };
    Some(AllThatMatch { retry, discard })
}

/// Returns the values of the fields of the filter form.
fn fields(filter: &Filter) -> std::collections::BTreeMap<&'static str, String> {
    let names = [
        "state",
        "stuck",
        "channel",
        "event_type",
        "entity",
        "recipient",
        "correlation_id",
        "provider",
        "site",
        "list",
        "error_class",
        "error_code",
        "reason",
        "unclear",
        "since",
        "from",
        "until",
        "notification_id",
    ];
    let value = |name: &str| match name {
        "from" | "until" => filter.time_field(name),
        _ => filter.get(name).to_owned(),
    };
    names.into_iter().map(|name| (name, value(name))).collect()
}
