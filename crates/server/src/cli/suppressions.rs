//! The command `postcommit suppressions`.

use clap::{Args, Subcommand};
use postcommit::Timestamp;
use postcommit_engine::store::{SuppressionDraft, SuppressionFilter, SuppressionRow};
use serde_json::json;

use super::transfer::{self, ExportArgs, ImportArgs};
use super::{LimitArgs, acting, known_tenant};
use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub enum Suppressions {
    /// List suppressions, ordered by channel and address
    List {
        /// Only suppressions of this tenant [default: every tenant]
        #[arg(long)]
        tenant: Option<String>,
        /// Only suppressions of this channel, and suppressions of all channels (*)
        #[arg(long)]
        channel: Option<String>,
        /// Only suppressions of this address
        #[arg(long)]
        address: Option<String>,
        #[command(flatten)]
        page: LimitArgs,
    },
    /// Suppress an address on a channel; replaces an earlier suppression of that address on that channel
    Add {
        #[command(flatten)]
        which: Which,
        /// Reason of the suppression
        #[arg(long, default_value = "by hand")]
        reason: String,
        /// End of the suppression, RFC 3339 [default: never]
        #[arg(long, value_name = "TIME")]
        until: Option<Timestamp>,
    },
    /// Remove a suppression
    Remove(Which),
    /// Import suppressions from a CSV or JSONL file; exits 7 if lines were refused
    Import(ImportArgs),
    /// Export all suppressions of a tenant to stdout
    Export(ExportArgs),
}

#[derive(Debug, Args)]
pub struct Which {
    /// Channel, e.g. email; * means every channel
    channel: String,
    /// Suppressed address
    address: String,
    /// Tenant of the suppression
    #[arg(long, default_value = "default")]
    tenant: String,
}

impl Suppressions {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        match self {
            Self::List { tenant, channel, address, page } => {
                let tenant = super::tenant(&store, tenant.as_deref()).await?;
                let (channel, address) = (channel.clone(), address.clone());
                let filter = SuppressionFilter { tenant, channel, address, after: None, limit: page.limit };
                output::bounded_list(format, &store.suppression_rows(&filter).await?, &COLUMNS);
                Ok(Exit::Ok)
            }
            Self::Add { which, reason, until } => {
                let tenant = known_tenant(&store, &which.tenant).await?;
                let (channel, address) = (which.channel.clone(), which.address.clone());
                let draft = SuppressionDraft { channel, address, reason: reason.clone(), until: *until };
                let (made, _) = store.suppress(tenant, &draft).await?;
                which.said(format, &made.address, "suppressed")
            }
            Self::Remove(which) => {
                let tenant = known_tenant(&store, &which.tenant).await?;
                if store.remove_suppression(tenant, &which.channel, &which.address).await? {
                    return which.said(format, &which.address, "no longer suppressed");
                }
                let (channel, address) = (&which.channel, &which.address);
                Err(Failure::new(
                    Exit::NotFound,
                    format!(
                        "{address} is not suppressed on channel {channel}; `postcommit suppressions list` lists them"
                    ),
                ))
            }
            Self::Import(ImportArgs { source, tenant }) => {
                transfer::suppressions::import(format, &store, tenant, source).await
            }
            Self::Export(ExportArgs { target, tenant }) => transfer::suppressions::export(&store, tenant, target).await,
        }
    }
}

impl Which {
    fn said(&self, format: Format, address: &str, result: &str) -> CommandResult {
        let channel = &self.channel;
        let value = json!({"channel": channel, "address": address, "result": result});
        output::one(format, &value, |_| format!("{address} is {result} on channel {channel}"));
        Ok(Exit::Ok)
    }
}

const COLUMNS: [output::Column<SuppressionRow>; 7] = [
    ("channel", |row| row.channel.clone()),
    ("address", |row| row.address.clone()),
    ("tenant", |row| row.tenant.clone()),
    ("since", |row| output::seconds(row.created_at)),
    ("until", |row| or_dash(&row.until.map(output::seconds))),
    ("by", |row| row.created_by.clone()),
    ("reason", |row| row.reason.clone()),
];
