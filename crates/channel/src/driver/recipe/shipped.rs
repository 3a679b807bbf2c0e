//! The recipes that come with the program. Each is read when it is first needed.

use std::sync::{Arc, OnceLock};

use super::{Kind, Recipe};

/// A recipe that comes with the program.
pub(in crate::driver) struct Shipped {
    pub(in crate::driver) name: &'static str,
    text: &'static str,
    kind: OnceLock<Arc<Kind>>,
}

impl Shipped {
    const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, kind: OnceLock::new() }
    }

    /// The driver of the recipe.
    pub(in crate::driver) fn kind(&self) -> Result<Arc<Kind>, String> {
        if let Some(kind) = self.kind.get() {
            return Ok(Arc::clone(kind));
        }
        let recipe = Recipe::read(self.text).map_err(|problem| {
            format!("driver: the recipe {:?} cannot be read: {problem}; report it as a bug", self.name)
        })?;
        Ok(Arc::clone(self.kind.get_or_init(|| Arc::new(recipe.into_kind()))))
    }
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        /// All recipes that come with the program, sorted by name.
        pub(in crate::driver) static SHIPPED: [Shipped; [$($name),*].len()] =
            [$(Shipped::new($name, include_str!(concat!("../../../recipes/", $name, ".toml")))),*];
    };
}

shipped![
    "brevo",
    "discord",
    "fcm",
    "google_chat",
    "gotify",
    "home_assistant",
    "interakt",
    "mailgun",
    "matrix",
    "mattermost",
    "msg91",
    "ntfy",
    "opsgenie",
    "pagerduty",
    "postal",
    "postmark",
    "pushover",
    "resend",
    "rocketchat",
    "sendgrid",
    "ses",
    "slack",
    "slack_api",
    "sns",
    "teams",
    "telegram",
    "twilio",
    "vonage",
    "whatsapp_cloud",
];
