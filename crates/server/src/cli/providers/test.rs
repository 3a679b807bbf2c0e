//! `postcommit providers test`.

use clap::Args;
use postcommit::Recipient;
use postcommit_channel::driver::{self, Destination};
use postcommit_engine::dispatch::try_provider;
use postcommit_engine::store::{AuditEntry, Store, masked};
use serde_json::{Value, json};

use super::{find, usage};
use crate::app;
use crate::output::{self, Done, Exit, Failure, Format};
use crate::settings::Settings;

#[derive(Debug, Args)]
pub struct Test {
    name: String,
    #[arg(long, default_value = "default")]
    tenant: String,
    /// An address that the provider understands
    #[arg(long, value_name = "ADDRESS")]
    to: String,
    /// What to say, at most 1000 bytes
    #[arg(long, default_value = "This is a test of the provider.")]
    text: String,
}

impl Test {
    pub async fn run(&self, format: Format, settings: &Settings, store: &Store) -> Done {
        let (tenant, provider) = find(store, &self.tenant, &self.name).await?;
        let destination = driver::destination(&provider.driver);
        if destination == Destination::Inbox {
            let instead = "an inbox's message is written by the delivery that brings it; enqueue one to the user instead";
            return Err(Failure::new(Exit::Refused, instead));
        }
        Recipient::at(&self.name, &self.to).check().map_err(|problem| usage(format!("--to: {problem}")))?;
        if self.text.len() > 1000 {
            return Err(usage(format!("--text: has {} bytes; at most 1000 are allowed", self.text.len())));
        }
        let tools = app::tools(settings, store.clone())?;
        let tried = try_provider(&tools, &provider, &self.tenant, &self.to, &self.text).await.map_err(|e| Failure::new(Exit::Failed, e))?;
        let (outcome, evidence) = (tried.report.outcome, tried.report.evidence);
        let mut told = json!({
            "outcome": outcome.name(), "code": outcome.code(), "detail": evidence.detail, "provider_ref": evidence.provider_ref,
            "latency_ms": u64::try_from(tried.latency.as_millis()).unwrap_or(u64::MAX),
        });
        // The log has no excerpt: what a driver records may be the message itself, with the address in full.
        let mut details = told.clone();
        details["address"] = masked(&self.to).into();
        store.note(AuditEntry::new(tenant, "provider.test", self.name.as_str()).details(details)).await?;
        told["excerpt"] = json!(evidence.excerpt);
        output::one(format, &told, |told| text(told, destination == Destination::Record));
        Ok(if ["sent", "delivered"].contains(&outcome.name()) { Exit::Ok } else { Exit::Failed })
    }
}

fn text(told: &Value, is_captured: bool) -> String {
    let word = |name: &str| told[name].as_str().map(|text| format!("  {text}")).unwrap_or_default();
    let note = if is_captured { " (recorded, not sent)" } else { "" };
    let outcome = told["outcome"].as_str().unwrap_or_default();
    let answer =
        told["excerpt"].as_str().filter(|_| told["code"].is_string()).map(|text| format!("\n  answer: {text}")).unwrap_or_default();
    format!("{outcome}{note}  {} ms{}{}{}{answer}", told["latency_ms"], word("provider_ref"), word("code"), word("detail"))
}
