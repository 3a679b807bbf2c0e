//! `postcommit deliveries resend`.

use clap::Args;
use postcommit_engine::store::{Resend, Store};
use serde_json::json;
use uuid::Uuid;

use crate::cli;
use crate::notifications::resend;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct ResendArgs {
    /// The entity, e.g. a booking's id
    entity: String,
    /// The channel
    #[arg(long)]
    channel: String,
    /// Only of this event type [default: the last one sent]
    #[arg(long)]
    event_type: Option<String>,
    /// A repeated id is not sent again [default: every call is a new send]
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Wait until it is sent or parked, and show it
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

impl ResendArgs {
    pub async fn run(&self, format: Format, store: &Store) -> CommandResult {
        let tenant = cli::known_tenant(store, &self.tenant).await?;
        let wish = Resend {
            entity: self.entity.clone(),
            channel: self.channel.clone(),
            event_type: self.event_type.clone(),
            request_id: self.request_id.clone().unwrap_or_else(|| Uuid::now_v7().to_string()),
        };
        let none =
            || Failure::new(Exit::NotFound, format!("nothing was sent for {:?} over {:?}", self.entity, self.channel));
        let accepted =
            resend(store, store, tenant, &wish, |incoming| incoming).await.map_err(cli::refused)?.ok_or_else(none)?;
        if accepted.conflict {
            let problem = format!(
                "--request-id {} was used before, for notification {}; nothing is sent",
                wish.request_id, accepted.id
            );
            return Err(Failure::new(Exit::Refused, problem));
        }
        if accepted.duplicate {
            say!("postcommit: --request-id {} was used before; the id is that one's", wish.request_id);
        }
        if self.wait {
            return cli::enqueue::wait(format, store, accepted.id, self.timeout).await;
        }
        output::one(format, &json!({"id": accepted.id, "duplicate": accepted.duplicate}), |_| accepted.id.to_string());
        Ok(Exit::Ok)
    }
}
