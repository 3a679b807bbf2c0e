//! The command `postcommit deliveries resend`.

use clap::Args;
use postcommit::channel_name;
use postcommit_engine::store::{NotAccepted, Resend, Store};
use serde_json::json;
use uuid::Uuid;

use crate::cli;
use crate::notifications::resend;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct ResendArgs {
    /// Entity of the notification, e.g. the id of a booking
    entity: String,
    /// Channel over which the copy is sent
    #[arg(long)]
    channel: String,
    /// Resend only a notification of this event type [default: any event type]
    #[arg(long)]
    event_type: Option<String>,
    /// Send the current text of this template, with the newest event [default: a copy of the text that was sent]
    #[arg(long, value_name = "ID")]
    template: Option<String>,
    /// Send to this recipient, written as for `enqueue --to` [default: the recipients of the original]
    #[arg(long, value_name = "RECIPIENT")]
    to: Option<String>,
    /// Id of this request; a second request with the same id sends nothing [default: every command sends]
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Tenant of the entity
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Wait until the copy is sent or parked, then show it
    #[arg(long)]
    wait: bool,
    /// Longest wait of --wait, in seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

impl ResendArgs {
    pub async fn run(&self, format: Format, store: &Store) -> CommandResult {
        let tenant = cli::known_tenant(store, &self.tenant).await?;
        let wish = Resend {
            entity: self.entity.clone(),
            channel: channel_name(&self.channel).to_owned(),
            event_type: self.event_type.clone(),
            template: self.template.clone(),
            recipient: self.to.as_deref().map(cli::enqueue::recipient).transpose()?,
            of: None,
            request_id: self.request_id.clone().unwrap_or_else(|| Uuid::now_v7().to_string()),
        };
        let of_type = self.event_type.as_ref().map(|name| format!(" with event type {name:?}")).unwrap_or_default();
        let Some(accepted) = resend(store, store, tenant, &wish, |incoming| incoming).await.map_err(by_option)? else {
            let hint = self.hint(store).await?;
            let none = format!("no notification was enqueued for entity {:?}{of_type}{hint}", self.entity);
            return Err(Failure::new(Exit::NotFound, none));
        };
        if accepted.conflict {
            let problem = format!(
                "--request-id {} was used before, for notification {}; nothing is sent",
                wish.request_id, accepted.id
            );
            return Err(Failure::new(Exit::Refused, problem));
        }
        if accepted.duplicate {
            say!(
                "postcommit: --request-id {} was used before; nothing is sent, and the id is that of the first copy",
                wish.request_id
            );
        }
        if self.wait {
            return cli::enqueue::wait(format, store, accepted.id, self.timeout).await;
        }
        output::one(format, &json!({"id": accepted.id, "duplicate": accepted.duplicate}), |_| accepted.id.to_string());
        Ok(Exit::Ok)
    }
}

impl ResendArgs {
    /// The correct command, if the given entity is the id of a notification or delivery.
    async fn hint(&self, store: &Store) -> Result<String, Failure> {
        let id = match cli::any_id(&self.entity) {
            Ok(cli::AnyId::Notification(id)) => id,
            Ok(cli::AnyId::Delivery(id)) => id.notification,
            Err(_) => return Ok(String::new()),
        };
        let Some(note) = store.notification(None, id).await? else { return Ok(String::new()) };
        let Some(entity) = note.entity else {
            return Ok(format!(
                "; notification {id} has no entity, so it cannot be resent; enqueue it again with a new key"
            ));
        };
        let (tenant, channel) = (&note.tenant_name, &self.channel);
        let flag = if tenant == "default" { String::new() } else { format!(" --tenant {tenant}") };
        Ok(format!(
            "; the given entity is the id of a notification or delivery. Give the entity of the notification: \
             `postcommit deliveries resend {entity} --channel {channel}{flag}`"
        ))
    }
}

/// Converts a refusal to an error that names the option instead of the field.
fn by_option(refusal: NotAccepted) -> Failure {
    cli::refused(match refusal {
        NotAccepted::Invalid { field: Some(field), problem } => {
            let option = match field.split('.').next() {
                Some("recipient") => "--to".to_owned(),
                Some("channel" | "event_type" | "request_id") => format!("--{}", field.replace('_', "-")),
                _ => field,
            };
            NotAccepted::Invalid { field: Some(option), problem: problem.replace("`recipient`", "--to") }
        }
        other => other,
    })
}
