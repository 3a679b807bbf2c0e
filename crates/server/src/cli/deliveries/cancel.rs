//! `postcommit deliveries cancel`: by ids, or all about an entity.

use clap::Args;
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{Act, Store};

use crate::cli;
use crate::output::{CommandResult, Format};

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// Ids of deliveries, NOTIFICATION.N; one or more
    #[arg(required_unless_present = "entity", conflicts_with = "entity")]
    ids: Vec<DeliveryId>,
    /// Everything about this entity that is not sent yet, e.g. the reminders of a cancelled booking
    #[arg(long)]
    entity: Option<String>,
    /// Of that, only this event type
    #[arg(long, requires = "entity")]
    event_type: Option<String>,
    /// The entity's tenant
    #[arg(long, requires = "entity", default_value = "default")]
    tenant: String,
}

impl CancelArgs {
    pub async fn run(&self, format: Format, store: &Store) -> CommandResult {
        let Some(entity) = &self.entity else {
            return super::act_on_ids(format, store, &self.ids, Act::Cancel).await;
        };
        let tenant = cli::known_tenant(store, &self.tenant).await?;
        let (cancelled, under_way) = store.cancel_entity(tenant, entity, self.event_type.as_deref()).await?;
        cli::notifications::taken_back(format, cancelled, under_way)
    }
}
