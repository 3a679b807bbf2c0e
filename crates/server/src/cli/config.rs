//! The command `postcommit config`.

use clap::Subcommand;
use serde_json::json;

use crate::output::{self, CommandResult, Exit, Format};
use crate::settings::{DEFAULTS, Layers};
use crate::telemetry::say;

#[derive(Debug, Subcommand)]
pub enum Config {
    /// Show every setting with its value and its source
    Show,
    /// Print the default settings with comments, as a file to start from
    Default,
}

impl Config {
    pub fn run(&self, format: Format, layers: &Layers) -> CommandResult {
        match self {
            Self::Default => output::print(DEFAULTS.trim_end()),
            Self::Show => {
                let rows: Vec<_> = layers
                    .origins()
                    .into_iter()
                    .map(|o| json!({"setting": o.name, "value": o.value, "origin": o.origin}))
                    .collect();
                output::list(
                    format,
                    &rows,
                    &[
                        ("setting", |row| plain(&row["setting"])),
                        ("value", |row| plain(&row["value"])),
                        ("origin", |row| plain(&row["origin"])),
                    ],
                );
            }
        }
        // The settings are printed even if a value is invalid, because the operator is looking for that value.
        if let Err(problem) = layers.settings() {
            say!("postcommit: {problem}");
            return Ok(Exit::Usage);
        }
        Ok(Exit::Ok)
    }
}

fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
