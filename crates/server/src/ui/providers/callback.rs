//! The URL to which a provider sends its callbacks. It is a secret, so it is shown only on request.

use axum::extract::{Path, State};
use minijinja::context;

use super::find;
use crate::app::AppState;
use crate::callbacks::{self, NoCallback, Rotation};
use crate::problem::{Answer, Problem, ProblemKind};
use crate::ui::acts::{Fields, Posted};
use crate::ui::confirm::Question;
use crate::ui::frame::Visitor;
use crate::ui::words::segment;

/// Shows the URL. The first call creates it; a call with `rotate` replaces it after a question.
pub async fn show(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let store = visitor.caller.store_of_one(&app);
    let provider = find(&app, &visitor, &name).await?;
    let base = format!("/providers/{}", segment(&name));
    let rotation = match fields.get("rotate") {
        Some("now") => Rotation::RotateNow,
        Some(_) => Rotation::Rotate,
        None => Rotation::Keep,
    };
    if rotation != Rotation::Keep && !fields.is_yes("confirmed") {
        let says = match rotation {
            Rotation::RotateNow => {
                "The previous URLs stop working immediately. Callbacks that are still sent to them are lost."
            }
            _ => "The previous URL works for another 24 hours, so that it can be changed at the service.",
        };
        let question = Question {
            title: format!("Make a new callback URL for {name}?"),
            says: says.into(),
            button: "Make a new URL".into(),
            is_final: rotation == Rotation::RotateNow,
            action: format!("{base}/callback"),
            fields: fields.repeated(&["rotate"]),
            back: visitor.link(&base),
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    let tools = &app.tools;
    let shown = callbacks::url(&store, &tools.keys, &tools.public_url, &provider, rotation).await;
    let shown = shown.map_err(|not| match not {
        NoCallback::NotTaken(_) => Problem::new(ProblemKind::StateConflict, not.to_string()),
        NoCallback::Database(problem) => problem.into(),
    })?;
    let content = context! {
        base,
        url => shown.url,
        help => shown.help,
        trust => callbacks::words(shown.trust),
        is_path => tools.public_url.is_empty(),
    };
    visitor.page(&app, "callback.html", &format!("Callback URL of {name}"), content).await
}
