//! The command `postcommit tenants`.

use clap::Subcommand;
use postcommit_engine::store::{MAX_WEIGHT, TenantError, TenantRow};
use serde_json::json;

use super::{LimitArgs, acting, known_tenant};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub enum Tenants {
    /// Create a tenant
    Create {
        /// Name of the tenant, 1 to 63 letters, digits, _, - or .
        name: String,
    },
    /// List tenants, ordered by name
    List {
        /// Only rows after this name: the last name of the previous page
        #[arg(long)]
        after: Option<String>,
        #[command(flatten)]
        page: LimitArgs,
    },
    /// Suspend a tenant: its deliveries wait and are not sent
    Suspend {
        /// Name of the tenant
        name: String,
        /// Reason, shown to operators
        #[arg(long)]
        reason: String,
    },
    /// Resume a suspended tenant
    Resume {
        /// Name of the tenant
        name: String,
    },
    /// Change a tenant's weight: its share of the sends while several tenants have due deliveries
    Update {
        /// Name of the tenant
        name: String,
        /// Weight, 1 to 100; weight 3 gets three times as many sends as weight 1 while both have due deliveries
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..=i64::from(MAX_WEIGHT)))]
        weight: i32,
    },
}

impl Tenants {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        match self {
            Self::Create { name } => {
                store.create_tenant(name).await.map_err(failure)?;
                said(format, name, "created")
            }
            Self::List { after, page } => {
                output::list(format, &store.tenant_rows(after.as_deref(), page.limit).await?, &COLUMNS);
                Ok(Exit::Ok)
            }
            Self::Suspend { name, reason } => {
                let suspended =
                    store.suspend_tenant(known_tenant(&store, name).await?, reason).await.map_err(failure)?;
                said(format, name, if suspended { "suspended" } else { "was already suspended" })
            }
            Self::Resume { name } => {
                let resumed = store.resume_tenant(known_tenant(&store, name).await?).await?;
                said(format, name, if resumed { "resumed" } else { "was not suspended" })
            }
            Self::Update { name, weight } => {
                let weighed = store.weigh_tenant(known_tenant(&store, name).await?, *weight).await.map_err(failure)?;
                said(format, name, if weighed { "updated" } else { "already has this weight" })
            }
        }
    }
}

fn said(format: Format, name: &str, result: &str) -> CommandResult {
    output::one(format, &json!({"tenant": name, "result": result}), |_| format!("tenant {name} {result}"));
    Ok(Exit::Ok)
}

fn failure(error: TenantError) -> Failure {
    match error {
        TenantError::Database(problem) => problem.into(),
        TenantError::Refused(problem) => Failure::new(Exit::Usage, problem),
        TenantError::Taken(_) => Failure::new(Exit::Refused, error.to_string()),
    }
}

const COLUMNS: [output::Column<TenantRow>; 4] = [
    ("name", |tenant| tenant.name.clone()),
    ("weight", |tenant| tenant.weight.to_string()),
    ("created", |tenant| output::seconds(tenant.created_at)),
    ("suspended", |tenant| match (tenant.suspended_at, &tenant.suspended_reason) {
        (Some(at), Some(why)) => format!("{}: {why}", output::seconds(at)),
        _ => "-".into(),
    }),
];
