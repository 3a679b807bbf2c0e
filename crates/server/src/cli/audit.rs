//! `postcommit audit`.

use clap::Args;
use postcommit::Timestamp;
use postcommit_engine::store::{AuditFilter, AuditRow};

use super::{known_tenant, store};
use crate::output::{self, CommandResult, Exit, Format, or_dash};
use crate::settings::Settings;

#[derive(Debug, Args)]
pub struct Audit {
    /// Only this tenant's
    #[arg(long)]
    tenant: Option<String>,
    /// Only by this actor, e.g. key:…
    #[arg(long)]
    actor: Option<String>,
    /// Only this action, e.g. delivery.retry
    #[arg(long)]
    action: Option<String>,
    /// Only on this subject, e.g. a provider's name
    #[arg(long)]
    subject: Option<String>,
    /// Only at this time or later, RFC 3339
    #[arg(long, value_name = "TIME")]
    from: Option<Timestamp>,
    /// Only before this time
    #[arg(long, value_name = "TIME")]
    to: Option<Timestamp>,
    /// Only with a smaller id: the next page
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// Most entries, 1 to 200
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=200))]
    limit: i64,
}

impl Audit {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = store(settings).await?;
        let whose = match &self.tenant {
            Some(name) => Some(known_tenant(&store, name).await?),
            None => None,
        };
        let filter = AuditFilter {
            tenant: whose,
            actor: self.actor.clone(),
            action: self.action.clone(),
            subject: self.subject.clone(),
            from: self.from,
            to: self.to,
            before: self.before,
            limit: self.limit,
        };
        output::bounded_list(format, &store.audit_rows(&filter).await?, &COLUMNS);
        Ok(Exit::Ok)
    }
}

const COLUMNS: [output::Column<AuditRow>; 9] = [
    ("id", |entry| entry.id.to_string()),
    ("at", |entry| output::seconds(entry.at)),
    ("tenant", |entry| entry.tenant.clone()),
    ("who", |entry| entry.actor.clone()),
    ("did", |entry| entry.action.clone()),
    ("on", |entry| entry.subject.clone()),
    ("count", |entry| entry.count.to_string()),
    // All entries of a job name the job, so that they can be recognised.
    ("by request", |entry| or_dash(&entry.request_id)),
    ("details", |entry| entry.details.as_ref().map_or_else(|| "-".into(), output::pairs)),
];
