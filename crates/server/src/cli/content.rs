//! The command `postcommit content`: the settings that all templates of a tenant share.

use clap::{Args, Subcommand};

use super::layouts::say_effect;
use super::value;
use super::{acting, known_tenant};
use crate::output::{self, CommandResult, Exit, Format, or_dash};
use crate::settings::Settings;
use crate::templates::Templates;
use crate::templates::layouts::SettingsChange;

#[derive(Debug, Subcommand)]
pub enum Content {
    /// Show the content settings of a tenant
    Show {
        /// Tenant of the content settings
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// Change the given content settings and keep the others; templates that use them get a new version
    Update(Update),
}

/// An example of brand values.
const BRAND: &str = r#"{"name": "Sea View"}"#;

#[derive(Debug, Args)]
pub struct Update {
    /// Tenant of the content settings
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Language of users without a language, e.g. pt-BR; an empty string removes it
    #[arg(long)]
    language: Option<String>,
    /// Time zone in which templates write times, e.g. Asia/Kolkata
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Format of dates without a format of their own, as a strftime pattern
    #[arg(long, value_name = "FORMAT")]
    date_format: Option<String>,
    /// Treatment of placeholders without a value: empty, keep or refuse
    #[arg(long)]
    missing: Option<String>,
    /// Values that templates read as brand.name: a JSON object, @FILE, or - for stdin; replaces all brand values
    #[arg(long, value_name = "JSON")]
    brand: Option<String>,
    /// Change the content settings only if they still have this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<i32>,
    /// List the templates that would get a new version, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Content {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        match self {
            Self::Show { tenant } => {
                let shown = store.content_settings(known_tenant(&store, tenant).await?).await?;
                output::one(format, &shown, |shown| {
                    let fields = [
                        ("language", or_dash(&shown.language)),
                        ("time zone", shown.time_zone.clone()),
                        ("date format", shown.date_format.clone()),
                        ("missing", shown.missing.name().to_owned()),
                        ("brand", output::pairs(&shown.brand)),
                    ];
                    fields.map(|(name, value)| format!("{name:<13}{value}").trim_end().to_owned()).join("\n")
                });
                Ok(Exit::Ok)
            }
            Self::Update(update) => {
                let tenant = store.tenant_or_new(&update.tenant).await?;
                let change = SettingsChange {
                    language: update.language.clone().map(|tag| Some(tag).filter(|tag| !tag.is_empty())),
                    time_zone: update.time_zone.clone(),
                    date_format: update.date_format.clone(),
                    missing: update.missing.clone(),
                    brand: update.brand.as_ref().map(|text| value::json("--brand", BRAND, text)).transpose()?,
                };
                let rules = Templates { store: &store, tenant };
                let effect = rules.update_settings(update.revision, &change, update.dry_run).await?;
                say_effect(format, ("content", "settings"), "updated", update.dry_run, &effect)
            }
        }
    }
}
