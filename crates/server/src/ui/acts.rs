//! Acts on deliveries: by their ids, or by a filter as a job. Each is a form that asks for confirmation first.

mod by_filter;

use std::convert::Infallible;

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{Act, Acted};

use super::confirm::Question;
use super::frame::{Visitor, own_path};
use super::notifications::row::rows;
use super::words::{counted, sentence_case};
use crate::acts;
use crate::app::{App, AppState};
use crate::problem::{Answer, Problem};
use crate::read::Form;

/// The maximum number of deliveries that can be ticked one by one. A page shows fewer.
const CHOSEN: usize = 200;

/// The fields of a form. A field may be given several times.
#[derive(Default)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    pub fn is_yes(&self, name: &str) -> bool {
        self.get(name) == Some("yes")
    }

    /// Returns the names and the values of all fields.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(field, _)| field == name).map(|(_, value)| value.as_str()).collect()
    }

    pub fn back(&self) -> String {
        own_path(self.get("back").unwrap_or("/notifications"))
    }

    /// Returns the fields that the confirmation page must repeat.
    pub fn repeated(&self, names: &[&str]) -> Vec<(String, String)> {
        self.0.iter().filter(|(field, _)| names.contains(&field.as_str())).cloned().collect()
    }
}

/// The fields of a form that is sent as a query.
impl<S: Send + Sync> FromRequestParts<S> for Fields {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect()))
    }
}

impl From<Form<Vec<(String, String)>>> for Fields {
    fn from(form: Form<Vec<(String, String)>>) -> Self {
        Self(form.0)
    }
}

/// The form of an act, or the problem with it.
pub type Posted = Result<Form<Vec<(String, String)>>, Problem>;

/// The result of an act, which the next page shows. The URL of that page carries only a known name and numbers, so that
/// a forged link cannot put words on the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    act: &'static str,
    done: usize,
    unclear: usize,
    refused: usize,
}

impl Done {
    /// The results that count no deliveries, with their sentences.
    const SAID: &[(&str, &str)] = &[
        ("resend", "A copy is enqueued."),
        ("template-saved", "The template is saved as a new version."),
        ("template-same", "The template already has these values, so nothing was saved."),
        ("template-settings", "The settings of the template are saved. Its texts did not change."),
        ("template-created", "The template is created."),
        ("template-active", "The template is active."),
        ("template-inactive", "The template is not active. Deliveries that use it already keep it."),
        ("template-deleted", "The template is deleted. Its versions are kept."),
        ("user-saved", "The user is saved."),
        ("user-deleted", "The user is deleted."),
        ("list-saved", "The list is saved."),
        ("list-deleted", "The list is deleted."),
        ("members-changed", "The members of the list are changed."),
        ("suppressed", "The address is suppressed."),
        ("not-suppressed", "The suppression is removed."),
        ("key-revoked", "The key is revoked, and its sessions have ended."),
        ("signed-out", "The person is signed out."),
        ("event-type-created", "The event type is declared."),
        ("event-type-saved", "The event type is saved."),
        ("event-type-deleted", "The declaration is deleted. Notifications of the event type are still accepted."),
        ("view-saved", "The view is saved in this browser."),
        ("view-deleted", "The view is deleted."),
        ("provider-created", "The provider is created. Test it before you rely on it."),
        ("provider-changed", "The provider is changed."),
        ("provider-same", "The provider had these values already."),
        ("provider-paused", "The provider is paused. Its deliveries wait."),
        ("provider-resumed", "The provider is open."),
        ("host-resumed", "The receiver is open. What waited for it is due."),
        ("provider-enabled", "The provider takes new deliveries."),
        ("provider-disabled", "The provider takes no new deliveries."),
        ("provider-deleted", "The provider is deleted."),
        ("nothing", "Nothing had to be changed."),
    ];
    const ACTS: [(&str, &str); 4] = [
        ("retry", "pending again"),
        ("discard", "discarded"),
        ("mark-delivered", "marked as delivered"),
        ("cancel", "cancelled"),
    ];

    fn known() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        Self::ACTS.iter().chain(Self::SAID)
    }

    pub fn one(act: &str) -> Self {
        let act = Self::known().find(|(name, _)| *name == act).map_or("retry", |(name, _)| name);
        Self { act, done: 1, unclear: 0, refused: 0 }
    }

    pub fn count(mut self, done: usize) -> Self {
        self.done = done;
        self
    }

    fn of(act: Act, results: &[Acted]) -> Self {
        let count = |is: fn(&Acted) -> bool| results.iter().filter(|acted| is(acted)).count();
        let unclear = count(|acted| matches!(acted, Acted::Unclear { .. }));
        let done = count(|acted| *acted == Acted::Done);
        Self { done, unclear, refused: results.len() - done - unclear, ..Self::one(act.name()) }
    }

    /// Reads the result from the URL of a page.
    pub fn read(here: &str) -> Option<Self> {
        let query = here.split('#').next()?.split_once('?')?.1;
        let told = query.split('&').find_map(|pair| pair.strip_prefix("done="))?;
        let mut parts = told.split('.');
        let named = parts.next()?;
        let (act, _) = Self::known().find(|(name, _)| *name == named)?;
        let mut number = || parts.next()?.parse().ok();
        Some(Self { act, done: number()?, unclear: number()?, refused: number()? })
    }

    /// Returns the URL of a page that shows the result.
    pub fn at(&self, page: &str) -> String {
        let (page, fragment) = page.split_once('#').unwrap_or((page, ""));
        let joint = if page.contains('?') { '&' } else { '?' };
        let fragment = if fragment.is_empty() { String::new() } else { format!("#{fragment}") };
        format!("{page}{joint}done={}.{}.{}.{}{fragment}", self.act, self.done, self.unclear, self.refused)
    }

    pub fn sentence(&self) -> String {
        if let Some((_, said)) = Self::SAID.iter().find(|(name, _)| *name == self.act) {
            return (*said).to_owned();
        }
        let result = Self::ACTS.iter().find(|(name, _)| *name == self.act).map_or("", |(_, result)| result);
        let (noun, verb) = if self.done == 1 { ("delivery", "is") } else { ("deliveries", "are") };
        let mut said = format!("{} {noun} {verb} {result}.", self.done);
        if self.unclear > 0 {
            said.push_str(&format!(" {} may have arrived, so nothing was sent again.", left(self.unclear)));
        }
        if self.refused > 0 {
            said.push_str(&format!(" {} changed in the meantime and cannot be acted on.", left(self.refused)));
        }
        said
    }
}

fn left(count: usize) -> String {
    if count == 1 { "1 other delivery".into() } else { format!("{count} other deliveries") }
}

pub fn see(place: String) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, place)]).into_response()
}

/// Sets parked deliveries back to pending.
pub async fn retry(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    act(&app, &visitor, &form?.into(), Act::Retry).await
}

/// Discards parked deliveries.
pub async fn discard(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    act(&app, &visitor, &form?.into(), Act::Discard).await
}

async fn act(app: &App, visitor: &Visitor, fields: &Fields, act: Act) -> Answer {
    if fields.is_yes("all") {
        return by_filter::act(app, visitor, fields, act).await;
    }
    let ids = fields.all("id");
    if ids.is_empty() || ids.len() > CHOSEN {
        let detail = format!("{} deliveries are ticked; tick 1 to {CHOSEN}, then press the button again", ids.len());
        return Err(Problem::invalid("id", detail).into());
    }
    let ids: Vec<Option<DeliveryId>> = ids.iter().map(|id| id.parse().ok()).collect();
    if !fields.is_yes("confirmed") {
        return ask_about(app, visitor, fields, act, &ids).await;
    }
    let unclear = fields.is_yes("unclear");
    let results = acts::on_ids(&visitor.store(app), visitor.caller.whose(), act, &ids, unclear).await?;
    app.tallies.forget(visitor.caller.whose());
    Ok(see(Done::of(act, &results).at(&fields.back())))
}

/// Asks for a confirmation of an act on ticked deliveries, and lists them.
async fn ask_about(app: &App, visitor: &Visitor, fields: &Fields, act: Act, ids: &[Option<DeliveryId>]) -> Answer {
    let store = visitor.store(app);
    let mut found = Vec::with_capacity(ids.len());
    for id in ids.iter().flatten() {
        found.extend(store.delivery_row(visitor.caller.whose(), *id, false).await?);
    }
    if found.is_empty() {
        return Err(Problem::not_found("delivery").into());
    }
    let unclear = found.iter().filter(|row| row.unclear && row.state == "parked").count();
    let rows = rows(app, visitor, found).await?;
    let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let asks = act == Act::Retry && unclear > 0;
    let question = Question {
        unclear: asks.then(|| match unclear == rows.len() {
            true => AGAIN_UNCLEAR.to_owned(),
            false => also_unclear(i64::try_from(unclear).unwrap_or(i64::MAX)),
        }),
        // If all deliveries may have arrived, a retry without the ticked box would do nothing.
        is_unclear_required: asks && unclear == rows.len(),
        fields: fields.repeated(&["id", "back"]),
        rows,
        ..question(act, count)
    };
    Question { back: fields.back(), ..question }.ask(app, visitor).await
}

fn question(act: Act, count: i64) -> Question {
    let verb = sentence_case(act.name());
    let deliveries = counted(count);
    let says = match act {
        Act::Retry => "They become pending again, with new attempts. What was sent already is not sent again.",
        _ => "Nothing more is sent for them. They stay in the history as discarded.",
    };
    Question {
        title: format!("{verb} {deliveries}?"),
        says: says.into(),
        button: format!("{verb} {deliveries}"),
        is_final: act != Act::Retry,
        action: format!("/deliveries/{}", act.name()),
        ..Question::default()
    }
}

/// The label of the box that must be ticked if all deliveries of a retry may have arrived.
const AGAIN_UNCLEAR: &str = "Retry although it may have arrived. A person may get the message twice.";

fn also_unclear(count: i64) -> String {
    format!("Also retry {} that may have arrived. A person may get the message twice.", counted(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_told_by_the_next_page_in_our_words_alone() {
        let results = [Acted::Done, Acted::Done, Acted::Unclear { reason: None }, Acted::NotFound];
        let done = Done::of(Act::Retry, &results);
        assert_eq!(Done::read(&done.at("/notifications?state=parked#x")), Some(done.clone()));
        let said = "2 deliveries are pending again. 1 other delivery may have arrived, so nothing was sent again. 1 other \
            delivery changed in the meantime and cannot be acted on.";
        assert_eq!(done.sentence(), said);
        for forged in ["/x?done=<b>.1.1.1", "/x?done=retry.a.0.0", "/x?done=retry.1", "/x?done=", "/x"] {
            assert_eq!(Done::read(forged), None, "{forged}");
        }
    }
}
