//! The acts on users: create, save, delete, and changes of their addresses and preferences.

use axum::extract::{Path, State};
use axum::response::Response;
use postcommit_engine::store::{PreferenceDraft, UserAddress, UserChange};

use super::super::acts::{Done, Fields, Posted, see};
use super::super::confirm::Question;
use super::super::frame::Visitor;
use super::super::typed::Typed;
use super::one::{FIELDS, One, draft};
use super::path;
use crate::app::AppState;
use crate::problem::{Answer, Problem, ProblemKind};

/// The reason that is stored if a person disables an address without giving a reason.
const DISABLED: &str = "disabled by a person";

/// Creates a user.
pub async fn create(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let mut typed = Typed::of(&form?.into(), &FIELDS);
    let id = typed.get("id").to_owned();
    let made = async {
        visitor.has_chosen(&app).await?;
        let mut user = draft(&typed)?;
        let given = ["email", "phone"].map(|kind| typed.some(kind).map(|address| new_address(kind, address)));
        user.addresses = given.into_iter().flatten().collect();
        let made = visitor.caller.store_of_one(&app).create_user(visitor.caller.tenant(), &id, &user).await;
        made.map_err(|error| of_first_address(error.into(), &user.addresses))
    };
    match made.await {
        Ok(_) => Ok(saved_page(&visitor, &id)),
        Err(problem) => {
            typed.refused(problem)?;
            super::new(&app, &visitor, &typed).await
        }
    }
}

fn new_address(kind: &str, address: String) -> UserAddress {
    UserAddress { kind: kind.to_owned(), address, verified_at: None, disabled_reason: None }
}

/// Moves a problem of an address to the field in which the address was typed.
fn of_first_address(problem: Problem, given: &[UserAddress]) -> Problem {
    let place =
        problem.field().and_then(|field| field.strip_prefix("addresses[")?.split(']').next()?.parse::<usize>().ok());
    match place.and_then(|place| given.get(place)) {
        Some(address) => problem.about(&address.kind),
        None => problem,
    }
}

/// Saves the profile of a user.
pub async fn save(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let mut one = One::of(&app, &visitor, &id).await?;
    one.profile = Typed::of(&form?.into(), &FIELDS);
    let saved = async {
        let to = draft(&one.profile)?;
        let change = UserChange {
            name: Some(to.name),
            language: Some(to.language),
            time_zone: Some(to.time_zone),
            quiet_hours: Some(to.quiet_hours),
            data: Some(to.data),
            addresses: None,
        };
        let revision = one.profile.get("revision").parse().ok();
        Ok(one.store.update_user(visitor.caller.tenant(), &id, revision, &change).await?)
    };
    match saved.await {
        Ok(_) => Ok(saved_page(&visitor, &id)),
        Err(problem) => {
            one.profile.refused(problem)?;
            one.draw().await
        }
    }
}

fn saved_page(visitor: &Visitor, id: &str) -> Response {
    see(Done::one("user-saved").at(&visitor.link(&path(id))))
}

/// Adds, removes, disables or enables an address of a user.
pub async fn address(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let mut one = One::of(&app, &visitor, &id).await?;
    one.address = Typed::of(&fields, &["kind", "address"]);
    if fields.get("act") == Some("remove") && !fields.is_yes("confirmed") {
        let to = one.address.get("address");
        let question = Question {
            title: "Remove this address?".into(),
            says: format!("{to} is removed from {id}. What is sent to it already goes on."),
            button: "Remove the address".into(),
            is_final: true,
            action: format!("{}/address", path(&id)),
            fields: fields.repeated(&["act", "kind", "address"]),
            back: visitor.link(&path(&id)),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    let changed = async {
        let addresses = changed(&one, &fields)?;
        let change = UserChange { addresses: Some(addresses), ..UserChange::default() };
        Ok(one.store.update_user(visitor.caller.tenant(), &id, Some(one.row.revision), &change).await?)
    };
    match changed.await {
        Ok(_) => Ok(saved_page(&visitor, &id)),
        Err(problem) => {
            one.address.refused(problem)?;
            one.draw().await
        }
    }
}

/// Returns the user's addresses after the act that the form names.
fn changed(one: &One<'_>, fields: &Fields) -> Result<Vec<UserAddress>, Problem> {
    let mut all = one.row.user.addresses.clone();
    let (kind, to) = (one.address.get("kind"), one.address.get("address"));
    let act = fields.get("act").unwrap_or("add");
    if act == "add" {
        all.push(new_address(kind, to.to_owned()));
        return Ok(all);
    }
    let place = all.iter().position(|known| known.kind == kind && known.address == to);
    let place =
        place.ok_or_else(|| Problem::new(ProblemKind::StateConflict, "the user has no such address any more"))?;
    match act {
        "remove" => drop(all.remove(place)),
        "disable" => all[place].disabled_reason = Some(DISABLED.to_owned()),
        "enable" => all[place].disabled_reason = None,
        other => {
            return Err(Problem::invalid("act", format!("is {other:?}; allowed are add, remove, disable and enable")));
        }
    }
    Ok(all)
}

/// Sets or removes a preference of a user.
pub async fn preference(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let mut one = One::of(&app, &visitor, &id).await?;
    one.preference = Typed::of(&fields, &["event_type", "channel", "allowed"]);
    let any = |name: &str| fields.get(name).unwrap_or("*").to_owned();
    let allowed = match fields.get("allowed") {
        Some("yes") => Some(true),
        Some("no") => Some(false),
        _ => None,
    };
    let draft = PreferenceDraft { event_type: any("event_type"), channel: any("channel"), allowed };
    match one.store.set_preferences(visitor.caller.tenant(), &id, &[draft]).await {
        Ok(()) => Ok(saved_page(&visitor, &id)),
        Err(error) => {
            one.preference.refused(error.into())?;
            one.draw().await
        }
    }
}

/// Deletes a user.
pub async fn delete(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let one = One::of(&app, &visitor, &id).await?;
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: "Delete this user?".into(),
            says: format!(
                "{id} is deleted with addresses, preferences and places in lists. Deliveries stay in the history."
            ),
            button: "Delete the user".into(),
            is_final: true,
            action: format!("{}/delete", path(&id)),
            back: visitor.link(&path(&id)),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    one.store.delete_user(visitor.caller.tenant(), &id).await?;
    Ok(see(Done::one("user-deleted").at(&visitor.link("/users"))))
}
