//! `in_app`: the user's inbox, which is the destination itself. Nothing leaves this process: the message goes back with
//! the report, and is written by the same transaction that settles the delivery.

use std::sync::Arc;

use postcommit::Recipient;
use serde::Deserialize;
use serde_json::json;

use super::{Destination, Driver, KeyWindow, Kind, Message, Occasion, Parts, ReadyMade, Sending};
use crate::model::{Guarantee, IN_APP, Outcome, Report};

/// The longest key window, in seconds. An inbox knows a delivery for as long as it holds the message: ten years outlast
/// every notification.
const TEN_YEARS: u64 = 315_360_000;
const KEY_WINDOW: KeyWindow = KeyWindow::day(60..=TEN_YEARS);

pub(super) fn kind() -> Kind {
    Kind {
        name: "in_app".into(),
        channel: IN_APP.into(),
        guarantee: Guarantee::Idempotent,
        destination: Destination::Inbox,
        secrets: vec![],
        new_secret: None,
        key_window: KEY_WINDOW,
        local_settings: vec![],
        // A send only hands the message on, so that many may be concurrent.
        ready_made: Some(ReadyMade {
            occasion: Occasion::FirstUse,
            settings: json!({"key_window_s": TEN_YEARS}),
            concurrency: 1000,
        }),
        build: Arc::new(build),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// How long the inbox remembers a delivery: for as long as it holds the message.
    key_window_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { key_window_s: KEY_WINDOW.default_s }
    }
}

struct InApp;

fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let settings: Settings = super::settings(parts.settings)?;
    KEY_WINDOW.check(settings.key_window_s)?;
    Ok(Box::new(InApp))
}

impl Driver for InApp {
    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a> {
        Box::pin(std::future::ready(deliver(message)))
    }
}

fn deliver(message: Message<'_>) -> Report {
    // A recipient that names this provider may hold any text as its address. The inbox would refuse a bad one, and the
    // whole batch of results with it.
    if let Err(problem) = Recipient::user(message.target).check() {
        return Report::from(Outcome::refused("bad_user")).because(format!("the user id {problem}"));
    }
    Report { inbox: Some(Box::new(message.content)), ..Report::from(Outcome::Delivered) }
}
