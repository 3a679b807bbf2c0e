//! A delivery as a row of a list: what it is about, and why it is in its state.

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_engine::store::DeliveryRow;
use serde::Serialize;

use crate::app::App;
use crate::problem::Problem;
use crate::templates::subjects::render_subjects;
use crate::ui::frame::Visitor;
use crate::ui::words::{dotted, sentence_case};

/// The beginning of the store's text for a delivery that waits for its due time. The row shows the time instead.
const DUE_TIME: &str = "its due time";

/// The values of a row in a list of deliveries.
#[derive(Serialize)]
pub struct Row {
    pub id: String,
    /// The page of the notification, with this delivery opened.
    pub href: String,
    pub tenant: String,
    pub state: String,
    pub what: String,
    pub why: String,
    /// The time of the next attempt, if it is in the future, and the words before that time.
    pub next: Option<String>,
    pub next_label: &'static str,
    pub channel: String,
    pub to: String,
    pub tries: String,
    pub created_at: String,
    /// Whether the delivery is parked, so that a person may retry or discard it.
    pub is_parked: bool,
    pub captured: bool,
}

/// Returns the rows of deliveries, with the subjects that templates render.
pub async fn rows(app: &App, visitor: &Visitor, mut found: Vec<DeliveryRow>) -> Result<Vec<Row>, Problem> {
    render_subjects(&visitor.store(app), visitor.caller.whose(), &mut found).await?;
    Ok(found.into_iter().map(Row::from).collect())
}

/// What a delivery is about: its title, or else its event type and its entity.
pub fn what(row: &DeliveryRow) -> String {
    let named = || dotted([Some(row.event_type.clone()), row.entity.clone()]);
    row.title.clone().filter(|title| !title.trim().is_empty()).unwrap_or_else(named)
}

impl From<DeliveryRow> for Row {
    fn from(row: DeliveryRow) -> Self {
        let is_live = ["pending", "sending", "retrying"].contains(&row.state.as_str());
        Self {
            href: format!("/notifications/{}?n={}", row.notification_id, row.n),
            what: what(&row),
            why: why(&row),
            next: later(&row).map(|at| at.to_string()),
            next_label: if row.state == "retrying" { "next try" } else { "due" },
            channel: row.channel.clone().unwrap_or_else(|| "not expanded yet".into()),
            to: row.target.clone().or(row.user_id).unwrap_or_default(),
            tries: if row.attempts == 0 && is_live { "–".into() } else { row.attempts.to_string() },
            created_at: row.created_at.to_string(),
            is_parked: row.state == "parked",
            captured: row.captured,
            id: row.id,
            tenant: row.tenant,
            state: row.state,
        }
    }
}

/// Returns when a waiting delivery is tried, if that is in the future.
fn later(row: &DeliveryRow) -> Option<Timestamp> {
    let waits = ["pending", "retrying"].contains(&row.state.as_str());
    row.next_attempt_at.filter(|at| waits && *at > clock::now())
}

/// Why a delivery is in its state, in a few words.
pub fn why(row: &DeliveryRow) -> String {
    let error = || row.last_error.clone().or_else(|| row.error_code.as_deref().map(sentence_case));
    let unclear = || row.unclear.then(|| "it may have arrived".to_owned());
    // Without a title, `what` names the entity.
    let entity = row.entity.as_ref().filter(|_| row.title.is_some()).map(|entity| format!("entity {entity}"));
    match row.state.as_str() {
        "parked" => dotted([error().or_else(|| row.reason.as_deref().map(sentence_case)), unclear()]),
        "retrying" => {
            let due = later(row).is_none().then(|| row.waits_for.as_ref().map(|what| format!("due, waits for {what}")));
            dotted([error(), due.flatten()])
        }
        "pending" | "sending" => {
            let until_due = |what: &&String| later(row).is_some() && what.starts_with(DUE_TIME);
            let waits = row.waits_for.as_ref().filter(|what| !until_due(what));
            dotted([waits.map(|what| format!("waits for {what}"))])
        }
        "sent" | "delivered" => {
            dotted([row.warning.clone(), entity, row.captured.then(|| "captured, not sent".to_owned())])
        }
        _ => dotted([error(), unclear(), entity]),
    }
}
