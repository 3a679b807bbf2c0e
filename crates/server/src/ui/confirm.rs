//! The page that asks before something is changed. Its form repeats the request, with the confirmation.

use axum::http::StatusCode;
use minijinja::context;
use serde::Serialize;

use super::frame::Visitor;
use super::words::shown;
use crate::app::App;
use crate::problem::Answer;

/// A question, and the form that answers it.
#[derive(Default, Serialize)]
pub struct Question {
    pub title: String,
    /// A sentence that says what the act will do.
    pub says: String,
    /// A warning that is shown before the confirmation.
    pub warning: Option<String>,
    /// The text of the button.
    pub button: String,
    /// Whether the act ends something for good, so that its button is red.
    pub is_final: bool,
    /// The path to which the form is posted.
    pub action: String,
    /// The fields that the form repeats.
    pub fields: Vec<(String, String)>,
    /// The label of a box that includes deliveries that may have arrived.
    pub unclear: Option<String>,
    /// Whether the box about deliveries that may have arrived must be ticked.
    pub is_unclear_required: bool,
    /// Whether the box about deliveries that may have arrived was ticked in the last answer.
    pub is_unclear_ticked: bool,
    /// The paces to choose from: value and label.
    pub paces: Vec<(i32, String)>,
    /// The chosen pace, in deliveries per second.
    pub pace: i32,
    /// The number that must be typed before many deliveries, or those of all tenants, are changed.
    pub typed: Option<String>,
    /// The problem with the last answer, if it was refused.
    pub refused: Option<String>,
    /// The deliveries that are concerned.
    pub rows: Vec<super::notifications::row::Row>,
    /// The choices of a select: its name, its label, and the values with their labels.
    pub choice: Option<Choice>,
    /// A text to type, such as a reason: its name, its label and what was typed before.
    pub text: Option<TextField>,
    /// The page to which the question leads back.
    pub back: String,
}

#[derive(Serialize)]
pub struct Choice {
    pub name: &'static str,
    pub label: &'static str,
    pub options: Vec<(String, String)>,
}

#[derive(Serialize)]
pub struct TextField {
    pub name: &'static str,
    pub label: &'static str,
    pub value: String,
}

impl Question {
    /// Draws the question. If the last answer was refused, the status is 422, as for a refused form.
    pub async fn ask(self, app: &App, visitor: &Visitor) -> Answer {
        let title = self.title.clone();
        let status = if self.refused.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
        let visitor = visitor.asked_on(&self.back);
        visitor.page_as(app, status, "confirm.html", &title, context! { question => shown(self) }).await
    }
}
