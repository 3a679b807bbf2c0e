//! Tests a provider: one message is sent immediately, and its outcome is shown.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use minijinja::context;
use postcommit_channel::driver::{self, Destination};
use postcommit_channel::model::Provider;
use serde_json::Value;

use super::catalogue::Entry;
use super::{find, form};
use crate::app::{App, AppState};
use crate::problem::{Answer, Problem, ProblemKind};
use crate::providers::{TEST_TEXT, TestResult, recipe_of, test as send};
use crate::ui::acts::{Fields, Posted};
use crate::ui::frame::Visitor;
use crate::ui::words::{segment, shown};

/// The typed values of the form, and the problem with them.
#[derive(Default)]
struct Typed {
    address: String,
    text: String,
    data: String,
    /// The field that was refused, and the problem.
    wrong: Option<(String, String)>,
}

/// The form of a test.
pub async fn page(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>) -> Answer {
    let provider = find(&app, &visitor, &name).await?;
    let typed = Typed { text: TEST_TEXT.to_owned(), ..Typed::default() };
    draw(&app, &visitor, &provider, typed, None).await
}

/// Sends a test message and shows its outcome.
pub async fn test(State(app): State<AppState>, visitor: Visitor, Path(name): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let provider = find(&app, &visitor, &name).await?;
    let typed = |name: &str| fields.get(name).unwrap_or_default().to_owned();
    let mut typed = Typed { address: typed("address"), text: typed("text"), data: typed("data"), wrong: None };
    let data = match typed.data.trim() {
        "" => None,
        text => match serde_json::from_str::<Value>(text).ok().filter(Value::is_object) {
            Some(data) => Some(data),
            None => {
                let problem = r#"must be a JSON object, such as {"service": "notify.phone"}"#;
                typed.wrong = Some(("data".into(), problem.into()));
                return draw(&app, &visitor, &provider, typed, None).await;
            }
        },
    };
    let (store, tenant) = (visitor.caller.store_of_one(&app), visitor.caller.tenant_name());
    let address = typed.address.trim().to_owned();
    let text = if typed.text.is_empty() { TEST_TEXT } else { &typed.text };
    match send(&app.tools, &store, &provider, tenant, &address, text, data.as_ref()).await {
        Ok(result) => draw(&app, &visitor, &provider, typed, Some(result)).await,
        Err(problem) => {
            let problem = Problem::from(problem);
            if !matches!(problem.kind(), ProblemKind::Invalid | ProblemKind::StateConflict) {
                return Err(problem.into());
            }
            typed.wrong = Some((problem.field().unwrap_or_default().to_owned(), problem.to_string()));
            draw(&app, &visitor, &provider, typed, None).await
        }
    }
}

async fn draw(app: &App, visitor: &Visitor, provider: &Provider, typed: Typed, result: Option<TestResult>) -> Answer {
    let status = if typed.wrong.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let of = |name: &str| typed.wrong.as_ref().filter(|(field, _)| field == name).map(|(_, problem)| problem.clone());
    let other = typed.wrong.as_ref().filter(|(field, _)| !["address", "text", "data"].contains(&field.as_str()));
    let recipe = recipe_of(provider);
    let known = recipe.iter().flat_map(|recipe| recipe.data.iter());
    let known: Vec<(String, String, bool)> =
        known.map(|(name, field)| (name.clone(), field.help.clone(), field.is_required())).collect();
    let content = context! {
        base => format!("/providers/{}", segment(&provider.name)),
        address => typed.address, text => typed.text, data => typed.data,
        wrong_address => of("address"), wrong_text => of("text"), wrong_data => of("data"),
        problem => other.map(|(field, problem)| if field.is_empty() { problem.clone() } else { format!("{}: {problem}", form::label(field)) }),
        entry => shown(Entry::of(&provider.driver)),
        is_inbox => driver::destination(&provider.driver) == Destination::Inbox,
        known => shown(known),
        is_good => result.as_ref().is_some_and(|result| ["sent", "delivered"].contains(&result.outcome)),
        result => shown(&result),
    };
    visitor.page_as(app, status, "provider_test.html", &format!("Test {}", provider.name), content).await
}
