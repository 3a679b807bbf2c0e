//! The command `postcommit providers callback`.

use clap::Args;
use postcommit_channel::driver;
use postcommit_channel::model::Provider;
use postcommit_channel::secret::KeySource;
use postcommit_engine::store::Store;
use serde_json::{Value, json};

use super::find;
use crate::app;
use crate::callbacks::{self, NoCallback, Rotation};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct CallbackArgs {
    /// Name of the provider
    name: String,
    /// Tenant of the provider
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Make a new URL; the previous one works for another 24 hours
    #[arg(long)]
    rotate: bool,
    /// With --rotate: the previous URLs no longer work
    #[arg(long, requires = "rotate")]
    now: bool,
}

impl CallbackArgs {
    pub async fn run(&self, format: Format, settings: &Settings, store: &Store) -> CommandResult {
        let (_, provider) = find(store, &self.tenant, &self.name).await?;
        let rotation = match (self.rotate, self.now) {
            (false, _) => Rotation::Keep,
            (true, false) => Rotation::Rotate,
            (true, true) => Rotation::RotateNow,
        };
        let public_url = settings.api.public_url.as_str();
        let shown = callbacks::url(store, &app::keys(settings), public_url, &provider, rotation).await;
        let shown = shown.map_err(|not| match not {
            NoCallback::NotTaken(_) => Failure::new(Exit::Refused, not.to_string()),
            NoCallback::Database(problem) => problem.into(),
        })?;
        output::one(format, &shown, |shown| shown.url.clone());
        if format == Format::Text {
            say!("postcommit: {}", shown.help);
            say!("postcommit: callbacks are {}", callbacks::words(shown.trust));
            if public_url.is_empty() {
                say!(
                    "postcommit: put the address under which the provider reaches the server before the path, or set api.public_url"
                );
            }
        }
        Ok(Exit::Ok)
    }
}

/// How callbacks of a provider are verified, for `providers show`. Null if its driver takes no callbacks.
pub(super) fn shown(keys: &KeySource, provider: &Provider) -> Value {
    let is_taken = driver::kind(&provider.driver).is_ok_and(|kind| kind.callback.is_some());
    let trust = || callbacks::trust(keys, provider).map_or("unknown", callbacks::name);
    if is_taken { json!(trust()) } else { Value::Null }
}

pub(super) fn text(shown: &Value) -> Option<String> {
    Some(format!("{}; `postcommit providers callback` shows their URL", callbacks::words(Some(shown.as_str()?))))
}
