//! The checklist before an installation sends to real people.

use axum::extract::State;
use minijinja::context;

use super::frame::Visitor;
use super::words::shown;
use crate::app::AppState;
use crate::go_live::{self, Standing};
use crate::problem::Answer;

pub async fn page(State(app): State<AppState>, visitor: Visitor) -> Answer {
    // The checklist is about the whole installation, whichever tenant was chosen.
    let store = visitor.caller.store_of_all(&app);
    let lines = go_live::checklist(&app, &store).await?;
    let left = lines.iter().filter(|line| line.standing == Standing::ToDo).count();
    let content = context! { lines => shown(lines), left, in_demo => app.demo.is_some() };
    visitor.page(&app, "go_live.html", "Go live", content).await
}
