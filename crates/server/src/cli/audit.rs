//! The command `postcommit audit`.

use clap::Args;
use postcommit::Timestamp;
use postcommit_engine::store::{AuditFilter, AuditRow};

use super::LimitArgs;
use crate::app;
use crate::output::{self, CommandResult, Exit, Format, or_dash};
use crate::settings::Settings;

#[derive(Debug, Args)]
pub struct Audit {
    /// Only entries of this tenant [default: every tenant]
    #[arg(long)]
    tenant: Option<String>,
    /// Only entries by this actor, e.g. key:…
    #[arg(long)]
    actor: Option<String>,
    /// Only entries of this action, e.g. delivery.retry
    #[arg(long)]
    action: Option<String>,
    /// Only entries about this subject, e.g. a provider's name
    #[arg(long)]
    subject: Option<String>,
    /// Only entries at this time or later, RFC 3339, e.g. 2026-03-15T09:30:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<Timestamp>,
    /// Only entries before this time
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
    /// Only entries older than the entry with this id: the last id of the previous page
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    #[command(flatten)]
    page: LimitArgs,
}

impl Audit {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = app::store(settings).await?;
        let filter = AuditFilter {
            tenant: super::tenant(&store, self.tenant.as_deref()).await?,
            actor: self.actor.clone(),
            action: self.action.clone(),
            subject: self.subject.clone(),
            from: self.from,
            until: self.until,
            before: self.before,
            limit: self.page.limit,
            ..AuditFilter::default()
        };
        output::bounded_list(format, &store.audit_rows(&filter).await?, &COLUMNS);
        Ok(Exit::Ok)
    }
}

const COLUMNS: [output::Column<AuditRow>; 9] = [
    ("id", |entry| entry.id.to_string()),
    ("at", |entry| output::seconds(entry.at)),
    ("tenant", |entry| entry.tenant.clone()),
    ("actor", |entry| entry.actor.clone()),
    ("action", |entry| entry.action.clone()),
    ("subject", |entry| entry.subject.clone()),
    ("count", |entry| entry.count.to_string()),
    // All entries of one job have the id of the job as their request id.
    ("request id", |entry| or_dash(&entry.request_id)),
    ("details", |entry| entry.details.as_ref().map_or_else(|| "-".into(), output::pairs)),
];
