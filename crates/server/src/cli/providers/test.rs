//! `postcommit providers test`.

use clap::Args;
use postcommit_channel::driver::{self, Destination};
use postcommit_engine::store::Store;

use super::{find, usage};
use crate::app;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::providers::{self, ProviderError, TEST_TEXT, TestResult};
use crate::settings::Settings;

#[derive(Debug, Args)]
pub struct Test {
    name: String,
    #[arg(long, default_value = "default")]
    tenant: String,
    /// An address that the provider understands
    #[arg(long, value_name = "ADDRESS")]
    to: String,
    /// The text, at most 1000 bytes
    #[arg(long, default_value = TEST_TEXT)]
    text: String,
}

impl Test {
    pub async fn run(&self, format: Format, settings: &Settings, store: &Store) -> CommandResult {
        let (_, provider) = find(store, &self.tenant, &self.name).await?;
        let tools = app::tools(settings, store.clone())?;
        let result =
            providers::test(&tools, store, &provider, &self.tenant, &self.to, &self.text).await.map_err(by_option)?;
        let is_record = driver::destination(&provider.driver) == Destination::Record;
        output::one(format, &result, |result| text(result, is_record));
        Ok(if ["sent", "delivered"].contains(&result.outcome) { Exit::Ok } else { Exit::Failed })
    }
}

/// Names the option instead of the field.
fn by_option(error: ProviderError) -> Failure {
    match error {
        ProviderError::Field(problem) => usage(match problem.strip_prefix("address: ") {
            Some(problem) => format!("--to: {problem}"),
            None => format!("--{problem}"),
        }),
        error => error.into(),
    }
}

fn text(result: &TestResult, is_captured: bool) -> String {
    let word = |text: &Option<String>| text.as_ref().map(|text| format!("  {text}")).unwrap_or_default();
    let note = if is_captured { " (recorded, not sent)" } else { "" };
    let answer = result.excerpt.as_ref().filter(|_| result.code.is_some());
    let answer = answer.map(|text| format!("\n  answer: {text}")).unwrap_or_default();
    let (reference, code, detail) = (word(&result.provider_ref), word(&result.code), word(&result.detail));
    format!("{}{note}  {} ms{reference}{code}{detail}{answer}", result.outcome, result.latency_ms)
}
