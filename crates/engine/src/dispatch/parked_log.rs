//! The log line of a parked delivery. It contains ids, names and codes, and never the address.

use postcommit_channel::model::{Delivery, DeliveryKey, Finish, FinishedState, Reason, StoredNotification};

/// The names that describe a parked delivery in the log.
#[derive(Debug, Clone)]
pub struct About {
    tenant: String,
    event_type: String,
    channel: String,
    provider: Option<String>,
}

impl About {
    pub fn new(note: &StoredNotification, channel: &str, provider: Option<&str>) -> Self {
        Self {
            tenant: note.tenant_name.clone(),
            event_type: note.event_type.clone(),
            channel: channel.to_owned(),
            provider: provider.map(str::to_owned),
        }
    }

    /// Describes a delivery whose notification cannot be read.
    pub fn orphan(delivery: &Delivery) -> Self {
        let channel = delivery.facts.channel().to_owned();
        Self { tenant: format!("#{}", delivery.key.tenant), event_type: "unknown".into(), channel, provider: None }
    }

    /// Logs that the delivery is parked and an operator must act.
    pub fn warn(&self, delivery: DeliveryKey, reason: Reason, code: Option<&str>) {
        let Self { tenant, event_type, channel, provider } = self;
        let (delivery, provider, reason) = (delivery.id(), provider.as_deref(), reason.name());
        tracing::warn!(tenant, event_type, channel, provider, %delivery, reason, code, "delivery parked, operator action needed");
    }
}

/// Returns whether a delivery was parked. Details for the log line are collected only for parked deliveries.
pub fn is_parked(finish: Finish) -> bool {
    matches!(finish, Finish::Ended(FinishedState::Parked(_)))
}
