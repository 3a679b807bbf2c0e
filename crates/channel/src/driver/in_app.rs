//! The `in_app` driver writes to the user's inbox in our own database. Nothing is sent over the network. The report
//! carries the message, and the transaction that settles the delivery writes it.

use postcommit::Recipient;
use serde::Deserialize;
use serde_json::json;

use super::{Destination, Driver, KeyWindow, Kind, Message, Occasion, Parts, ReadyMade, Sending};
use crate::model::{Evidence, Guarantee, IN_APP, Outcome, Report};

/// The longest allowed key window, in seconds. The inbox recognises a repeated delivery for as long as it holds the
/// message. Ten years are longer than any notification lives.
const TEN_YEARS: u64 = 315_360_000;
const KEY_WINDOW: KeyWindow = KeyWindow::day(60..=TEN_YEARS);

pub(super) fn kind() -> Kind {
    Kind {
        destination: Destination::Inbox,
        // A send only passes the message on to the settler, so many may run concurrently.
        ready_made: Some(ReadyMade {
            occasion: Occasion::FirstUse,
            settings: json!({"key_window_s": TEN_YEARS}),
            concurrency: 1000,
        }),
        ..Kind::new(IN_APP, Guarantee::Idempotent, KEY_WINDOW, build)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// The time in seconds for which the inbox recognises a repeated delivery.
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
    // A recipient that names this provider may have any text as its address. The database would refuse an invalid user
    // id, and the whole batch of results would fail with it.
    if let Err(problem) = Recipient::user(message.target).check() {
        return Report::from(Outcome::refused("bad_user")).because(format!("the user id {problem}"));
    }
    // The inbox identifies the message by the delivery's id.
    let evidence = Evidence { provider_ref: Some(message.key.id().to_string()), ..Evidence::default() };
    Report { inbox: Some(Box::new(message.content)), evidence, ..Report::from(Outcome::Delivered) }
}
