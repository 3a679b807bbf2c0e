//! The command `postcommit export`: writes the configuration of a tenant to a folder.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::providers::egress;
use super::{acting, known_tenant};
use crate::app;
use crate::folder::Stored;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::providers::Workshop;
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct Export {
    /// Folder to write to; existing files of the same names are overwritten, other files are kept
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Tenant to export
    #[arg(long, default_value = "default")]
    tenant: String,
}

impl Export {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        let tenant = known_tenant(&store, &self.tenant).await?;
        let (keys, egress) = (app::keys(settings), egress(settings)?);
        let (is_local, new_key) = (true, false);
        let workshop =
            Workshop { store: &store, installation: store.clone(), keys: &keys, egress: &egress, is_local, new_key };
        let state = Stored { store: &store, tenant, workshop }.read().await?;
        let others = state.write(&self.folder).map_err(|problem| Failure::new(Exit::Failed, problem))?;
        for other in &others {
            say!("this file has no counterpart in the database and was kept: {}", other.display());
        }
        let folder = self.folder.display().to_string();
        output::one(format, &json!({"folder": folder, "others": others}), |_| format!("written to {folder}"));
        Ok(Exit::Ok)
    }
}
