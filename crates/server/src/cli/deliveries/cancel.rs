//! The command `postcommit deliveries cancel`: deliveries by id, or all deliveries about an entity.

use std::collections::BTreeSet;

use clap::Args;
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{Act, DeliveryFilter, Store};

use crate::cli;
use crate::cli::notifications::ONLY_UNSENT;
use crate::output::{CommandResult, Failure, Format};
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// Ids of deliveries (NOTIFICATION.N), one or more
    #[arg(required_unless_present = "entity", conflicts_with = "entity")]
    ids: Vec<DeliveryId>,
    /// Cancel all deliveries about this entity that are not sent yet, e.g. the reminders of a cancelled booking
    #[arg(long)]
    entity: Option<String>,
    /// With --entity: cancel only deliveries of this event type
    #[arg(long, requires = "entity")]
    event_type: Option<String>,
    /// Tenant of the entity
    #[arg(long, requires = "entity", default_value = "default")]
    tenant: String,
}

impl CancelArgs {
    pub async fn run(&self, format: Format, store: &Store) -> CommandResult {
        let Some(entity) = &self.entity else {
            return super::act::on_ids(format, store, &self.ids, Act::Cancel, false).await;
        };
        let tenant = cli::known_tenant(store, &self.tenant).await?;
        let counts = store.cancel_entity(tenant, entity, self.event_type.as_deref()).await?;
        if counts == (0, 0) {
            say!("postcommit: {}", self.why_nothing(store, tenant, entity).await?);
        }
        cli::notifications::taken_back(format, counts)
    }

    async fn why_nothing(&self, store: &Store, tenant: i32, entity: &str) -> Result<String, Failure> {
        let filter = DeliveryFilter {
            tenant: Some(tenant),
            entity: Some(entity.to_owned()),
            event_type: self.event_type.clone(),
            limit: 200,
            ..DeliveryFilter::default()
        };
        let rows = store.delivery_rows(&filter).await?.rows;
        let of_type = self.event_type.as_ref().map(|name| format!(" of event type {name:?}")).unwrap_or_default();
        if rows.is_empty() {
            return Ok(format!("tenant {:?} has no delivery{of_type} about entity {entity:?}", self.tenant));
        }
        let states: BTreeSet<String> = rows.into_iter().map(|row| row.state).collect();
        let discard =
            if states.contains("parked") { "; `postcommit deliveries discard` discards parked deliveries" } else { "" };
        let states = states.into_iter().collect::<Vec<_>>().join(", ");
        Ok(format!("the deliveries{of_type} about entity {entity:?} are {states}; {ONLY_UNSENT}{discard}"))
    }
}
