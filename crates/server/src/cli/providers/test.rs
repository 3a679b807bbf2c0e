//! The command `postcommit providers test`.

use clap::Args;
use postcommit_engine::store::Store;

use serde_json::Value;

use super::{find, usage};
use crate::app;
use crate::cli::notifications::CAPTURED;
use crate::cli::value;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::providers::{self, ProviderError, TEST_TEXT, TestResult};
use crate::settings::Settings;

/// An example of `--data`.
const DATA: &str = r#"{"service": "notify.phone"}"#;

#[derive(Debug, Args)]
pub struct Test {
    /// Name of the provider
    name: String,
    /// Tenant of the provider
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Address of the receiver, in the form that the provider expects, e.g. +491701234567 for SMS or a URL for a
    /// webhook
    #[arg(long)]
    address: String,
    /// Text of the message, at most 1000 bytes
    #[arg(long, default_value = TEST_TEXT)]
    text: String,
    /// Further fields for the driver, as JSON, e.g. {"service": "notify.phone"}; @FILE reads a file
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Also print the request and the answer to it, without secrets
    #[arg(long)]
    show_request: bool,
}

impl Test {
    pub async fn run(&self, format: Format, settings: &Settings, store: &Store) -> CommandResult {
        let (_, provider) = find(store, &self.tenant, &self.name).await?;
        let tools = app::tools(settings, store.clone())?;
        let data = self.data.as_deref().map(|text| value::json("--data", DATA, text).map(Value::Object)).transpose()?;
        let result = providers::test(&tools, store, &provider, &self.tenant, &self.address, &self.text, data.as_ref())
            .await
            .map_err(by_option)?;
        output::one(format, &result, |result| match (&result.request, self.show_request) {
            (Some(request), true) => format!("{request}\n\n{}", text(result, true)),
            _ => text(result, false),
        });
        Ok(if ["sent", "delivered"].contains(&result.outcome) { Exit::Ok } else { Exit::Failed })
    }
}

/// Converts a provider error to an error that names the option instead of the field.
fn by_option(error: ProviderError) -> Failure {
    match error {
        ProviderError::Field(problem) => usage(match problem.strip_prefix("address: ") {
            Some(problem) => format!("--address: {problem}"),
            None => format!("--{problem}"),
        }),
        error => error.into(),
    }
}

/// The result of a test in one line. The answer to a failed test is always shown.
fn text(result: &TestResult, with_answer: bool) -> String {
    let word = |text: &Option<String>| text.as_ref().map(|text| format!("  {text}")).unwrap_or_default();
    let note = if result.captured { format!(" ({CAPTURED})") } else { String::new() };
    let answer = result.excerpt.as_ref().filter(|_| with_answer || result.code.is_some());
    let answer = answer.map(|text| format!("\n  answer: {text}")).unwrap_or_default();
    let class = result.error_class.map(|class| format!(" [{class}]")).unwrap_or_default();
    let (reference, code, detail) = (word(&result.provider_ref), word(&result.code), word(&result.detail));
    format!("{}{note}  {} ms{reference}{code}{class}{detail}{answer}", result.outcome, result.latency_ms)
}
