//! `in_app`: the user's inbox, which is the destination itself. Nothing leaves this process: the content goes back with the report, and is written by the
//! same transaction that settles the delivery.

use postcommit::Recipient;
use serde::Deserialize;

use super::{Driver, Message, Parts, Sending};
use crate::model::{Outcome, Report};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// How long the inbox remembers a delivery: for as long as it holds the message.
    key_window_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { key_window_s: 86_400 }
    }
}

struct InApp;

pub(super) fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let settings: Settings = super::settings(parts.settings)?;
    if !(60..=315_360_000).contains(&settings.key_window_s) {
        return Err(format!("settings.key_window_s: is {}; 60 to 315360000 are allowed", settings.key_window_s));
    }
    Ok(Box::new(InApp))
}

impl Driver for InApp {
    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a> {
        Box::pin(std::future::ready(deliver(message)))
    }
}

fn deliver(message: Message<'_>) -> Report {
    // A recipient that names this provider may hold anything as its address; the inbox would refuse it with the whole batch.
    if let Err(problem) = Recipient::user(message.target).check() {
        return Report::from(Outcome::refused("bad_user")).because(format!("the user id {problem}"));
    }
    Report { inbox: Some(Box::new(message.content)), ..Report::from(Outcome::Delivered) }
}
