//! Acts on one notification or delivery: cancel, send again, mark as delivered, suppress its address. Each act asks for
//! a confirmation first.

use axum::extract::{Path, State};
use postcommit::limits;
use postcommit_channel::model::{DeliveryId, StoredNotification};
use postcommit_engine::store::{Acted, DeliveryFilter, DeliveryRow, Original, Resend, SuppressionDraft};
use uuid::Uuid;

use super::super::acts::{Done, Fields, Posted, see};
use super::super::confirm::{Choice, Question};
use super::super::frame::Visitor;
use super::super::notifications::row::rows;
use super::super::words::{counted, grouped};
use super::WAITING;
use crate::app::{App, AppState};
use crate::notifications::resend as send_again;
use crate::problem::{Answer, Problem, ProblemKind};

/// The maximum number of deliveries that the question before a cancel shows.
const SHOWN: i64 = 20;
/// The choice of a resend that means all recipients.
const ALL: &str = "all";

/// Whether a person may mark the delivery as delivered: it was really sent, or may have been sent.
pub fn may_be_marked(row: &DeliveryRow) -> bool {
    let is_unknown = row.state == "parked" && row.reason.as_deref() == Some("outcome_unknown");
    (row.state == "sent" && !row.captured) || is_unknown
}

/// Whether a copy of the delivery can be sent: it was sent over a channel and is about an entity.
pub fn may_be_resent(note: &StoredNotification, row: &DeliveryRow) -> bool {
    ["sent", "delivered"].contains(&row.state.as_str()) && note.entity.is_some() && row.channel.is_some()
}

/// The delivery that the form names.
async fn named(app: &App, visitor: &Visitor, fields: &Fields) -> Result<DeliveryRow, Problem> {
    let none = || Problem::not_found("delivery");
    let id: DeliveryId = fields.get("id").and_then(|id| id.parse().ok()).ok_or_else(none)?;
    visitor.store(app).delivery_row(visitor.caller.whose(), id, false).await?.ok_or_else(none)
}

/// Marks a delivery as delivered.
pub async fn mark_delivered(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let none = || Problem::not_found("delivery");
    let id: DeliveryId = fields.get("id").and_then(|id| id.parse().ok()).ok_or_else(none)?;
    let store = visitor.store(&app);
    let key = store.delivery_key(visitor.caller.whose(), id).await?.ok_or_else(none)?;
    let row = named(&app, &visitor, &fields).await?;
    if row.captured {
        let detail = "the delivery was captured and not sent, so it cannot have arrived";
        return Err(Problem::new(ProblemKind::StateConflict, detail).into());
    }
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: "Mark this delivery as delivered?".into(),
            says: "Do this if you know that the message arrived. It is not sent again.".into(),
            button: "Mark as delivered".into(),
            action: "/deliveries/mark-delivered".into(),
            fields: fields.repeated(&["id", "back"]),
            rows: rows(&app, &visitor, vec![row]).await?,
            back: fields.back(),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    match store.mark_delivered(key).await? {
        Acted::Done => {
            app.tallies.forget(Some(key.tenant));
            Ok(see(Done::one("mark-delivered").at(&fields.back())))
        }
        Acted::Refused { state, .. } => {
            let allowed = "only one that was sent, or that may have arrived, can be marked as delivered";
            Err(Problem::new(ProblemKind::StateConflict, format!("the delivery is {state}; {allowed}")).into())
        }
        Acted::Unclear { .. } | Acted::NotFound => Err(none().into()),
    }
}

/// Cancels the deliveries of a notification that are not sent yet.
pub async fn cancel(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let none = || Problem::not_found("notification");
    let uuid: Uuid = id.parse().map_err(|_| none())?;
    let store = visitor.store(&app);
    let note = store.notification(visitor.caller.whose(), uuid).await?.ok_or_else(none)?;
    if !fields.is_yes("confirmed") {
        let waiting = store.delivery_states(note.tenant, uuid, None).await?.of(&WAITING);
        let filter = DeliveryFilter {
            tenant: Some(note.tenant),
            states: WAITING.map(str::to_owned).to_vec(),
            limit: SHOWN,
            ..DeliveryFilter::of_notification(uuid)
        };
        let rows = rows(&app, &visitor, store.delivery_rows(&filter).await?.rows).await?;
        let others = waiting - i64::try_from(rows.len()).unwrap_or(0);
        let question = Question {
            title: format!("Cancel {} of this notification?", counted(waiting)),
            says: "What is not sent yet is never sent. What is being sent now is not tried again.".into(),
            warning: (others > 0).then(|| format!("{} more than those below are cancelled.", grouped(others))),
            button: "Cancel the notification".into(),
            is_final: true,
            action: format!("/notifications/{uuid}/cancel"),
            fields: fields.repeated(&["back"]),
            rows,
            back: fields.back(),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    let (cancelled, _) = store.cancel_notification(visitor.caller.whose(), uuid).await?.ok_or_else(none)?;
    app.tallies.forget(Some(note.tenant));
    Ok(see(Done::one("cancel").count(usize::try_from(cancelled).unwrap_or(0)).at(&fields.back())))
}

/// Sends a copy of a delivery to its recipient, or to all recipients of the notification on its channel.
pub async fn resend(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let none = || Problem::not_found("notification");
    let id: Uuid = id.parse().map_err(|_| none())?;
    let note = visitor.store(&app).notification(visitor.caller.whose(), id).await?.ok_or_else(none)?;
    let row = named(&app, &visitor, &fields).await?;
    let is_of_it = row.notification_id == id && may_be_resent(&note, &row);
    let (Some(entity), Some(channel)) = (note.entity.clone(), row.channel.clone().filter(|_| is_of_it)) else {
        let detail = "only what was sent over a channel for an entity can be sent again";
        return Err(Problem::new(ProblemKind::StateConflict, detail).into());
    };
    if !fields.is_yes("confirmed") {
        return ask_to_resend(&app, &visitor, &fields, &note, row).await;
    }
    let n = (fields.get("to") != Some(ALL)).then_some(row.n);
    let wish = Resend {
        entity,
        channel,
        event_type: Some(note.event_type),
        template: None,
        recipient: None,
        of: Some(Original { notification: id, n }),
        request_id: fields.get("request_id").map_or_else(|| Uuid::now_v7().to_string(), str::to_owned),
    };
    // The notification may belong to another tenant than the caller's own, if the caller sees all tenants.
    let all = visitor.caller.store_of_all(&app);
    let accepted = send_again(&visitor.store(&app), &all, note.tenant, &wish, |request| request).await;
    let accepted = accepted.map_err(Problem::from)?.ok_or_else(none)?;
    app.tallies.forget(Some(note.tenant));
    Ok(see(Done::one("resend").at(&visitor.link(&format!("/notifications/{}", accepted.id)))))
}

/// The reasons for a suppression that the page offers.
const REASONS: [&str; 4] =
    ["the address does not work", "the recipient asked for it", "the address belongs to somebody else", "complaint"];

/// Suppresses the address of a delivery on its channel.
pub async fn suppress(
    State(app): State<AppState>,
    visitor: Visitor,
    Path((id, n)): Path<(String, String)>,
    form: Posted,
) -> Answer {
    let fields: Fields = form?.into();
    let none = || Problem::not_found("delivery");
    let n: i32 = n.parse().map_err(|_| none())?;
    let id = DeliveryId { notification: id.parse().map_err(|_| none())?, n };
    let store = visitor.store(&app);
    let row = store.delivery_row(visitor.caller.whose(), id, true).await?.ok_or_else(none)?;
    let key = store.delivery_key(visitor.caller.whose(), id).await?.ok_or_else(none)?;
    let (Some(channel), Some(address)) = (row.channel, row.address) else {
        let detail = "the delivery has no address yet, so there is nothing to suppress";
        return Err(Problem::new(ProblemKind::StateConflict, detail).into());
    };
    if !fields.is_yes("confirmed") {
        let to = row.target.unwrap_or_default();
        let question = Question {
            title: "Suppress this address?".into(),
            says: format!(
                "Nothing is sent to {to} over {channel} any more, until somebody removes the suppression. What was sent \
                 already stays sent."
            ),
            button: "Suppress the address".into(),
            is_final: true,
            action: format!("/notifications/{}/{n}/suppress", id.notification),
            fields: fields.repeated(&["back"]),
            choice: Some(Choice {
                name: "reason",
                label: "Reason",
                options: REASONS.map(|reason| (reason.to_owned(), reason.to_owned())).to_vec(),
            }),
            back: fields.back(),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    let reason = fields.get("reason").unwrap_or(REASONS[0]).to_owned();
    let draft = SuppressionDraft { channel, address, reason, until: None };
    store.suppress(key.tenant, &draft).await.map_err(Problem::from)?;
    Ok(see(Done::one("suppressed").at(&fields.back())))
}

async fn ask_to_resend(
    app: &App,
    visitor: &Visitor,
    fields: &Fields,
    note: &StoredNotification,
    row: DeliveryRow,
) -> Answer {
    let (channel, to) = (row.channel.clone().unwrap_or_default(), row.target.clone().unwrap_or_default());
    let over_it = visitor.store(app).delivery_states(note.tenant, note.id, Some(&channel)).await?;
    let reached = over_it.total() - over_it.of(&["skipped"]);
    // A copy for all recipients is only offered if one notification may name that many.
    let is_for_all = reached > 1 && usize::try_from(reached).is_ok_and(|reached| reached <= limits::RECIPIENTS);
    let options = || {
        let all = format!("All {} recipients over {channel}", grouped(reached));
        vec![("one".to_owned(), format!("Only {to}")), (ALL.to_owned(), all)]
    };
    // The id of the request makes sure that a form which is posted twice sends once.
    let mut repeated = fields.repeated(&["id", "back"]);
    repeated.push(("request_id".into(), Uuid::now_v7().to_string()));
    let question = Question {
        title: "Send a copy of this delivery?".into(),
        says: format!("It was sent to {to} over {channel} before. The copy has the same text, and names you."),
        choice: is_for_all.then(|| Choice { name: "to", label: "Recipients of the copy", options: options() }),
        button: "Send a copy".into(),
        action: format!("/notifications/{}/resend", note.id),
        fields: repeated,
        rows: rows(app, visitor, vec![row]).await?,
        back: fields.back(),
        ..Question::default()
    };
    question.ask(app, visitor).await
}
