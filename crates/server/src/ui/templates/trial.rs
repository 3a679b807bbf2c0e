//! A test send of a template: its preview, sent through a provider without the queue.

use axum::extract::{Path, State};
use minijinja::{Value, context};
use postcommit_engine::dispatch::TrialContent;

use super::super::acts::{Fields, Posted};
use super::super::frame::Visitor;
use super::super::typed::Typed;
use super::super::words::shown;
use super::draft::FIELDS;
use super::editor::Editor;
use crate::app::AppState;
use crate::problem::{Answer, Problem, ProblemKind};
use crate::providers::{self, TestResult};

/// Sends the previewed message to the typed address, and shows the result beside the form.
pub async fn send(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let mut editor = Editor::of(&app, &visitor, &id).await?;
    let typed = Typed::of(&fields, &[&FIELDS[..], &["address", "provider"]].concat());
    if editor.typed.locked {
        // Only people who may edit templates test a draft. Other people test the stored template.
        for name in ["payload", "loaded", "address", "provider"] {
            editor.typed.set(name, typed.get(name));
        }
    } else {
        editor.typed = typed;
    }
    match tried(&editor).await {
        Ok(result) => editor.draw(Some(told(&result, editor.typed.get("provider")))).await,
        Err(problem) => editor.refused(problem).await,
    }
}

async fn tried(editor: &Editor<'_>) -> Result<TestResult, Problem> {
    let preview = editor.preview().await?;
    if let Some(failure) = preview.failure {
        return Err(Problem::new(ProblemKind::Invalid, format!("nothing was sent: {}", failure.detail)));
    }
    let (tenant, name) = (editor.visitor.caller.tenant(), editor.typed.get("provider"));
    let wrong = || Problem::invalid("provider", "is not a provider of this tenant; choose one of the list");
    let provider = editor.store.provider(tenant, name).await?.ok_or_else(wrong)?;
    let content = TrialContent { subject: preview.subject, text: preview.text, html: preview.html, data: preview.data };
    let (tools, address) = (&editor.app.tools, editor.typed.get("address"));
    let tenant_name = editor.visitor.caller.tenant_name();
    Ok(providers::test_with(tools, &editor.store, &provider, tenant_name, address, &content).await?)
}

/// Returns the result of the test send in a sentence, with its details.
fn told(result: &TestResult, provider: &str) -> Value {
    let is_good = ["sent", "delivered"].contains(&result.outcome);
    let says = match result.outcome {
        _ if is_good && result.captured => format!("{provider} recorded the test. Nothing left this server."),
        _ if is_good => format!("{provider} took the test in {} ms.", result.latency_ms),
        "unclear" => format!("It is not known whether {provider} took the test."),
        _ => format!("{provider} did not take the test."),
    };
    context! { is_good, says, result => shown(result) }
}
