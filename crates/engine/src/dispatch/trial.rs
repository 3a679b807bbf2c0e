//! A test send: one immediate send that bypasses the queue, even if the lane is closed. It is not retried, and this
//! module stores nothing about it.

use std::time::Duration;

use postcommit_channel::clock;
use postcommit_channel::driver::{self, Message, RawEvent};
use postcommit_channel::model::{DeliveryKey, Facts, Provider, Report, StoredNotification};
use postcommit_channel::render::{Content, render};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use uuid::Uuid;

use super::Tools;
use super::attempt::call;
use super::drivers::open_secrets;

/// The result of a test send.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The outcome and the evidence that the driver reported.
    pub report: Report,
    /// The request as text, without secrets.
    pub request: Option<String>,
    /// How long the send took.
    pub latency: Duration,
}

/// The content of a test message.
#[derive(Debug, Default)]
pub struct TrialContent {
    /// The subject or heading.
    pub subject: Option<String>,
    /// The message as plain text.
    pub text: Option<String>,
    /// The message as HTML.
    pub html: Option<String>,
    /// Additional fields for the channel.
    pub data: Option<serde_json::Value>,
}

/// Sends a test message to an address. Its event type is `postcommit.test`.
pub async fn try_provider(
    tools: &Tools,
    provider: &Provider,
    tenant_name: &str,
    address: &str,
    test: &TrialContent,
) -> Result<Trial, String> {
    let secrets = open_secrets(tools, provider).map_err(|e| e.to_string())?;
    let driver = driver::of_provider(provider, &secrets, &tools.egress, &tools.capture_fail_on)?;
    let mut note = test_note(provider, tenant_name, address);
    (note.title, note.body) = (test.subject.clone(), test.text.clone());
    note.data = test.data.as_ref().and_then(|data| to_raw_value(&json!({ provider.channel.as_str(): data })).ok());
    let key = DeliveryKey { tenant: provider.tenant, notification: note.id, n: 1 };
    let channel = if provider.channel == "*" { "any" } else { &provider.channel };
    let facts = Facts::new(channel, address);
    let message = Message {
        content: Content { html: test.html.clone(), ..render(&note, &facts) },
        raw_event: RawEvent::from(&note),
        key,
        channel,
        target: address,
        attempt: 1,
        timeout: provider.timeout(),
        traceparent: None,
    };
    let began = clock::monotonic();
    let request = driver.shown_request(&message);
    let report = call(driver.as_ref(), &provider.name, message).await;
    Ok(Trial { report, request, latency: began.elapsed() })
}

fn test_note(provider: &Provider, tenant_name: &str, address: &str) -> StoredNotification {
    let (id, now) = (Uuid::now_v7(), clock::now());
    StoredNotification {
        tenant: provider.tenant,
        tenant_name: tenant_name.to_owned(),
        id,
        event_type: "postcommit.test".into(),
        entity: None,
        topic: None,
        schema_version: None,
        idempotency_key: format!("postcommit.test:{id}"),
        payload: RawValue::NULL.to_owned().into(),
        recipients: json!([{"provider": provider.name, "address": address}]),
        channels: Vec::new(),
        title: None,
        body: None,
        action_url: None,
        data: None,
        priority: 5,
        due_at: now,
        expires_at: now.plus(Duration::from_secs(3600)),
        source: None,
        correlation_id: None,
        created_at: now,
        cancelled: Vec::new(),
    }
}
