//! Acts on one notification or delivery: cancel, send again, mark as delivered. Each asks first.

use axum::extract::{Path, State};
use axum::response::Response;
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{Acted, Resend};
use uuid::Uuid;

use super::super::acts::{Done, Fields, Posted, see};
use super::super::confirm::Question;
use super::super::frame::Visitor;
use crate::app::AppState;
use crate::notifications::resend as send_again;
use crate::problem::{Problem, ProblemKind, ProblemPage};

/// Marks a delivery as delivered.
pub async fn mark_delivered(
    State(app): State<AppState>,
    visitor: Visitor,
    form: Posted,
) -> Result<Response, ProblemPage> {
    let fields: Fields = form?.into();
    let none = || Problem::not_found("delivery");
    let id: DeliveryId = fields.get("id").and_then(|id| id.parse().ok()).ok_or_else(none)?;
    let store = visitor.store(&app);
    let key = store.delivery_key(visitor.caller.whose(), id).await?.ok_or_else(none)?;
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: "Mark this delivery as delivered?".into(),
            says: "Do this if you know that the message arrived. It is not sent again.".into(),
            button: "Mark as delivered".into(),
            action: "/deliveries/mark-delivered".into(),
            fields: fields.repeated(&["id", "back"]),
            back: fields.back(),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    match store.mark_delivered(key).await? {
        Acted::Done => {
            app.tallies.forget();
            Ok(see(Done::one("mark-delivered").at(&fields.back())))
        }
        Acted::Refused { state, .. } => {
            let allowed = "only one that was sent, or that may have arrived, can be marked as delivered";
            Err(Problem::new(ProblemKind::StateConflict, format!("the delivery is {state}; {allowed}")).into())
        }
        Acted::Unclear { .. } | Acted::NotFound => Err(none().into()),
    }
}

/// Cancels what is not sent yet of a notification.
pub async fn cancel(
    State(app): State<AppState>,
    visitor: Visitor,
    Path(id): Path<String>,
    form: Posted,
) -> Result<Response, ProblemPage> {
    let fields: Fields = form?.into();
    let none = || Problem::not_found("notification");
    let uuid: Uuid = id.parse().map_err(|_| none())?;
    let store = visitor.store(&app);
    if store.status(visitor.caller.whose(), uuid).await?.is_none() {
        return Err(none().into());
    }
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: "Cancel this notification?".into(),
            says: "What is not sent yet is never sent. What is being sent now is not tried again.".into(),
            button: "Cancel the notification".into(),
            is_final: true,
            action: format!("/notifications/{uuid}/cancel"),
            fields: fields.repeated(&["back"]),
            back: fields.back(),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    let (cancelled, _) = store.cancel_notification(visitor.caller.whose(), uuid).await?.ok_or_else(none)?;
    app.tallies.forget();
    Ok(see(Done::one("cancel").count(usize::try_from(cancelled).unwrap_or(0)).at(&fields.back())))
}

/// Sends the last message of the entity, event type and channel again.
pub async fn resend(
    State(app): State<AppState>,
    visitor: Visitor,
    Path(id): Path<String>,
    form: Posted,
) -> Result<Response, ProblemPage> {
    let fields: Fields = form?.into();
    let none = || Problem::not_found("notification");
    let id: Uuid = id.parse().map_err(|_| none())?;
    let note = visitor.store(&app).notification(visitor.caller.whose(), id).await?.ok_or_else(none)?;
    let (Some(entity), Some(channel)) = (note.entity, fields.get("channel")) else {
        let detail = "only what was sent over a channel for an entity can be sent again";
        return Err(Problem::new(ProblemKind::StateConflict, detail).into());
    };
    if !fields.is_yes("confirmed") {
        // The id of the request makes sure that a form which is posted twice sends once.
        let mut repeated = fields.repeated(&["channel", "back"]);
        repeated.push(("request_id".into(), Uuid::now_v7().to_string()));
        let question = Question {
            title: "Send this again?".into(),
            says: format!(
                "The last message over {channel} about entity {entity} is sent once more, to the same recipients, although it was \
                 sent before. The copy names you."
            ),
            button: "Send again".into(),
            action: format!("/notifications/{id}/resend"),
            fields: repeated,
            back: fields.back(),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    let request_id = fields.get("request_id").map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    let (channel, event_type) = (channel.to_owned(), Some(note.event_type));
    let wish = Resend { entity, channel, event_type, template: None, recipient: None, of: None, request_id };
    // The notification may belong to another tenant than the caller's own, if the caller sees all tenants.
    let all = visitor.caller.store_of_all(&app);
    let accepted = send_again(&visitor.store(&app), &all, note.tenant, &wish, |request| request).await;
    let accepted = accepted.map_err(Problem::from)?.ok_or_else(none)?;
    Ok(see(Done::one("resend").at(&visitor.link(&format!("/notifications/{}", accepted.id)))))
}
