//! The filter of deliveries, of a list and of an act on all that match.

use clap::Args;
use postcommit::Timestamp;
use postcommit_channel::model::{DeliveryState, Reason};
use postcommit_engine::store::{DeliveryFilter, Store};
use uuid::Uuid;

use crate::cli;
use crate::output::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Which deliveries")]
pub struct Which {
    /// Only this tenant's [default: every tenant's]
    #[arg(long)]
    tenant: Option<String>,
    /// Their state
    #[arg(long, value_parser = DeliveryState::ALL.map(DeliveryState::name))]
    pub state: Option<String>,
    /// Only parked for this reason
    #[arg(long, value_parser = Reason::ALL.map(Reason::name))]
    reason: Option<String>,
    #[arg(long)]
    channel: Option<String>,
    #[arg(long)]
    provider: Option<String>,
    #[arg(long)]
    event_type: Option<String>,
    /// About this entity
    #[arg(long)]
    entity: Option<String>,
    /// From this site
    #[arg(long)]
    site: Option<String>,
    #[arg(long, value_name = "ID", value_parser = cli::id)]
    notification: Option<Uuid>,
    /// Enqueued at this time or later, RFC 3339
    #[arg(long, value_name = "TIME")]
    from: Option<Timestamp>,
    /// Enqueued before this time
    #[arg(long, value_name = "TIME")]
    to: Option<Timestamp>,
    /// With this many attempts in this round, or more
    #[arg(long, value_name = "COUNT")]
    attempts: Option<u16>,
    /// With this code of the last error, e.g. http_503
    #[arg(long, value_name = "CODE")]
    error_code: Option<String>,
    /// To exactly this address
    #[arg(long, value_name = "ADDRESS")]
    target: Option<String>,
    /// Those that may have arrived without confirmation; =false: those that certainly have not
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    unclear: Option<bool>,
}

impl Which {
    /// Whether no condition is given.
    pub fn is_any(&self) -> bool {
        let texts = [
            &self.tenant,
            &self.state,
            &self.reason,
            &self.channel,
            &self.provider,
            &self.event_type,
            &self.entity,
            &self.site,
            &self.error_code,
            &self.target,
        ];
        let others = [
            self.notification.is_some(),
            self.from.is_some(),
            self.to.is_some(),
            self.attempts.is_some(),
            self.unclear.is_some(),
        ];
        texts.iter().all(|text| text.is_none()) && !others.contains(&true)
    }

    /// The filter of the store, without a page.
    pub async fn filter(&self, store: &Store) -> Result<DeliveryFilter, Failure> {
        Ok(DeliveryFilter {
            tenant: cli::tenant(store, self.tenant.as_deref()).await?,
            states: self.state.iter().cloned().collect(),
            reason: self.reason.clone(),
            channel: self.channel.clone(),
            provider: self.provider.clone(),
            event_type: self.event_type.clone(),
            entity: self.entity.clone(),
            site: self.site.clone(),
            notification: self.notification,
            from: self.from,
            to: self.to,
            attempts: self.attempts.map(i64::from),
            error_code: self.error_code.clone(),
            target: self.target.clone(),
            unclear: self.unclear,
            ..DeliveryFilter::default()
        })
    }
}
