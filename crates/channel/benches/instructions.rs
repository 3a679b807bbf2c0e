//! `instructions NAME COUNT`: goes COUNT times through one part of the hot path, for `tests/it/instructions.rs` to count the instructions. No time is
//! taken, and nothing is random but the seeds of hash tables.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::egress::HttpAnswer;
use postcommit_channel::model::{
    self, Case, Guarantee, Outcome, Policy, Provider, ProviderDraft, Routes, StoredNotification,
};
use postcommit_channel::{bench_points, driver};
use serde_json::json;
use uuid::Uuid;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let [name, count] = arguments.as_slice() else {
        return eprintln!("usage: instructions expand|judge|render|classify|sign COUNT");
    };
    let count = count.parse().unwrap();
    match name.as_str() {
        "expand" => expand(count),
        "judge" => judge(count),
        "render" => render(count),
        "classify" => classify(count),
        "sign" => sign(count),
        _ => panic!("{name:?} is not known"),
    }
}

/// One recipient, two providers to choose from.
fn expand(count: usize) {
    let (note, providers) = (notification(), [provider(1, "capture", "*"), provider(2, "hooks", "webhook")]);
    for _ in 0..count {
        black_box(model::expand(black_box(&note), Routes(black_box(&providers))));
    }
}

/// Each kind of outcome in turn.
fn judge(count: usize) {
    let policy = Policy::default();
    let outcomes = [
        (Outcome::Sent, None),
        (Outcome::deferred("http_429"), Some(Duration::from_secs(30))),
        (Outcome::deferred("refused"), None),
        (Outcome::refused("http_400"), None),
        (Outcome::unclear("timeout"), None),
    ];
    for (outcome, after) in outcomes.iter().cycle().take(count) {
        let case = Case {
            outcome,
            after: *after,
            attempt: 2,
            lost: None,
            policy: &policy,
            guarantee: Guarantee::Idempotent,
            key_window: Duration::from_secs(86_400),
            first_try_at: NOW,
            expires_at: NOW.plus(Duration::from_secs(86_400)),
            now: NOW.plus(Duration::from_secs(60)),
            chance: 0.5,
        };
        black_box(model::judge(black_box(&case)));
    }
}

/// The body of a webhook.
fn render(count: usize) {
    let note = notification();
    for _ in 0..count {
        black_box(bench_points::render(black_box(&note)));
    }
}

/// An answer that is good, one that asks to wait, one that says why not, and one that broke.
fn classify(count: usize) {
    let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned(), "/hooks/booking?token=hush".to_owned()];
    let answers = [
        answer(200, None, "ok"),
        answer(429, Some("30"), ""),
        answer(422, None, r#"{"error": "the field amount is missing", "field": "amount"}"#),
        answer(502, None, "<html><head><title>502 Bad Gateway</title></head></html>"),
    ];
    for answer in answers.iter().cycle().take(count) {
        black_box(bench_points::classify(black_box(answer).clone(), black_box(&secrets)));
    }
}

/// One key, over the body of a webhook.
fn sign(count: usize) {
    let (keys, body) = (vec![vec![7; 32]], bench_points::render(&notification()));
    for _ in 0..count {
        black_box(driver::sign(
            black_box(&keys),
            black_box("0198f0c0-0000-7000-8000-000000000000.1"),
            1_800_000_000,
            black_box(&body),
        ));
    }
}

fn answer(status: u16, retry_after: Option<&'static str>, body: &'static str) -> HttpAnswer {
    let mut headers = http::HeaderMap::new();
    headers.insert("content-type", http::HeaderValue::from_static("text/plain"));
    if let Some(value) = retry_after {
        headers.insert("retry-after", http::HeaderValue::from_static(value));
    }
    HttpAnswer { status, headers, body: body.into(), truncated: false, body_complete: true }
}

fn provider(id: i32, name: &str, channel: &str) -> Provider {
    let kind = driver::kind("capture").unwrap();
    let draft = ProviderDraft {
        channel: channel.into(),
        driver: name.into(),
        guarantee: Guarantee::Idempotent,
        is_default: true,
        ..kind.draft(name)
    };
    Provider {
        tenant: 1,
        id,
        draft,
        guarantee_since: NOW,
        paused: None,
        suspended: false,
        held_until: None,
        hold_reason: None,
        trips: 0,
        revision: 1,
        is_readable: true,
    }
}

/// With a payload of about 300 bytes, as the benchmark's.
fn notification() -> StoredNotification {
    let payload = json!({
        "booking": 4711, "guest": "Ada Lovelace", "nights": 3, "total": "412.50", "currency": "EUR", "from": "2027-03-01", "to": "2027-03-04",
        "room": {"number": "214", "kind": "double", "view": "garden"}, "notes": "arrives late; a quiet room, please, and an early breakfast on the last day",
    });
    let raw = |value: serde_json::Value| serde_json::value::to_raw_value(&value).unwrap();
    StoredNotification {
        tenant: 1,
        tenant_name: "default".into(),
        id: Uuid::from_u128(0x0198_f0c0_0000_7000_8000_0000_0000_0000),
        event_type: "booking.confirmed".into(),
        entity: Some("booking:4711".into()),
        topic: None,
        schema_version: Some(1),
        idempotency_key: "booking:4711:confirmed:1".into(),
        payload: raw(payload).into(),
        recipients: json!([{"webhook": "https://hooks.example.com/booking"}]),
        channels: vec![],
        title: Some("Your booking is confirmed".into()),
        body: None,
        action_url: Some("https://example.com/bookings/4711".into()),
        data: Some(raw(json!({"webhook": {"version": 2}}))),
        priority: 5,
        due_at: NOW,
        expires_at: NOW.plus(Duration::from_secs(86_400)),
        source: None,
        correlation_id: None,
        created_at: NOW,
        cancelled: vec![],
    }
}
