//! Acts on a provider: pause, resume, enable, disable, delete. Each act asks for a confirmation first.

use axum::extract::{Path, State};
use axum::response::Response;
use postcommit_channel::driver;
use postcommit_channel::model::Provider;

use super::find;
use crate::app::{App, AppState};
use crate::problem::{Answer, Problem};
use crate::providers::{Change, ProviderError, check_reason, workshop};
use crate::ui::acts::{Done, Fields, Posted, see};
use crate::ui::confirm::{Question, TextField};
use crate::ui::frame::Visitor;
use crate::ui::words::segment;

/// The provider that a form is about, the fields of the form, and the URL of the provider's page.
struct Subject {
    provider: Provider,
    fields: Fields,
    page: String,
}

impl Subject {
    async fn find(app: &App, visitor: &Visitor, name: &str, form: Posted) -> Result<Self, Problem> {
        let fields: Fields = form?.into();
        let provider = find(app, visitor, name).await?;
        let page = visitor.link(&format!("/providers/{}", segment(name)));
        Ok(Self { provider, fields, page })
    }

    fn is_confirmed(&self) -> bool {
        self.fields.is_yes("confirmed")
    }

    /// A question about the provider, with its act as the last part of the path.
    fn question(&self, act: &str) -> Question {
        let action = format!("/providers/{}/{act}", segment(&self.provider.name));
        Question { action, back: self.page.clone(), ..Question::default() }
    }

    fn done(&self, app: &App, act: &str) -> Response {
        app.tallies.forget(Some(self.provider.tenant));
        see(Done::one(act).at(&self.page))
    }
}

/// Pauses a provider with a reason.
pub async fn pause(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let subject = Subject::find(&app, &visitor, &name, form).await?;
    let reason = subject.fields.get("reason").unwrap_or_default().trim();
    let checked = check_reason(reason);
    if subject.is_confirmed() && checked.is_ok() {
        let store = visitor.caller.store_of_one(&app);
        let is_paused = store.pause_lane(subject.provider.id, None, reason).await?;
        return Ok(subject.done(&app, if is_paused { "provider-paused" } else { "nothing" }));
    }
    let question = Question {
        title: format!("Pause {name}?"),
        says: "Its deliveries wait until somebody resumes it. What is being sent now is finished.".into(),
        button: "Pause the provider".into(),
        text: Some(TextField { name: "reason", label: "Reason, for other operators", value: reason.to_owned() }),
        refused: checked.err().filter(|_| subject.is_confirmed()).map(|problem| problem.to_string()),
        ..subject.question("pause")
    };
    question.ask(&app, &visitor).await
}

/// Resumes a provider, or one of its paused or held receivers.
pub async fn resume(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let subject = Subject::find(&app, &visitor, &name, form).await?;
    let host = subject.fields.get("host").map(|host| driver::host_of(host).map_err(|said| Problem::of_field(&said)));
    let host = host.transpose()?;
    if subject.is_confirmed() {
        let store = visitor.caller.store_of_one(&app);
        let (was_closed, act) = match &host {
            Some(host) => (store.resume_host(subject.provider.id, host).await?, "host-resumed"),
            None => (store.resume_lane(subject.provider.id).await?, "provider-resumed"),
        };
        return Ok(subject.done(&app, if was_closed { act } else { "nothing" }));
    }
    let what = host.map_or_else(|| name.clone(), |host| format!("{host} of {name}"));
    let question = Question {
        title: format!("Resume {what}?"),
        says: "What waits is sent now. Deliveries that were parked stay parked; retry them afterwards.".into(),
        button: "Resume".into(),
        fields: subject.fields.repeated(&["host"]),
        ..subject.question("resume")
    };
    question.ask(&app, &visitor).await
}

/// Makes a provider take new deliveries.
pub async fn enable(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    switch(&app, &visitor, &name, form, true).await
}

/// Makes a provider take no new deliveries.
pub async fn disable(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    switch(&app, &visitor, &name, form, false).await
}

async fn switch(app: &App, visitor: &Visitor, name: &str, form: Posted, enabled: bool) -> Answer {
    let subject = Subject::find(app, visitor, name, form).await?;
    if subject.is_confirmed() {
        let store = visitor.caller.store_of_one(app);
        let change = Change { enabled: Some(enabled), ..Change::default() };
        workshop(app, &store, &visitor.caller).update(subject.provider.tenant, name, None, &change).await?;
        return Ok(subject.done(app, if enabled { "provider-enabled" } else { "provider-disabled" }));
    }
    let (verb, says) = match enabled {
        true => ("Enable", "It takes new deliveries again."),
        false => (
            "Disable",
            "It takes no new deliveries. Notifications that name it are refused, and its channel goes on with another \
             default provider, if there is one.",
        ),
    };
    let question = Question {
        title: format!("{verb} {name}?"),
        says: says.into(),
        button: format!("{verb} the provider"),
        ..subject.question(if enabled { "enable" } else { "disable" })
    };
    question.ask(app, visitor).await
}

/// Deletes a provider that no delivery waits for.
pub async fn delete(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let subject = Subject::find(&app, &visitor, &name, form).await?;
    let mut refused = None;
    if subject.is_confirmed() {
        let store = visitor.caller.store_of_one(&app);
        match workshop(&app, &store, &visitor.caller).delete(subject.provider.tenant, &name).await {
            Ok(()) => {
                app.tallies.forget(visitor.caller.whose());
                return Ok(see(Done::one("provider-deleted").at(&visitor.link("/providers"))));
            }
            Err(problem @ ProviderError::Waited(..)) => refused = Some(format!("{problem}.")),
            Err(problem) => return Err(problem.into()),
        }
    }
    let question = Question {
        title: format!("Delete {name}?"),
        says:
            "Its settings and secrets are gone. Its past deliveries and attempts stay. Notifications that name it are \
            then parked."
                .into(),
        button: "Delete the provider".into(),
        is_final: true,
        refused,
        ..subject.question("delete")
    };
    question.ask(&app, &visitor).await
}
