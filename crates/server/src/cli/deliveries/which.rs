//! The options that filter deliveries, for lists and for actions by filter.

use clap::Args;
use postcommit::Timestamp;
use postcommit_channel::model::{DeliveryState, ErrorClass, Reason};
use postcommit_engine::store::{DeliveryFilter, Store};
use uuid::Uuid;

use crate::cli;
use crate::output::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Which deliveries")]
pub struct Which {
    /// Only deliveries of this tenant [default: every tenant]
    #[arg(long)]
    tenant: Option<String>,
    /// Only deliveries in this state; repeatable, or several with commas
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',',
        value_parser = DeliveryState::ALL.map(DeliveryState::name))]
    states: Vec<String>,
    /// Only deliveries that are parked for this reason
    #[arg(long, value_parser = Reason::ALL.map(Reason::name))]
    reason: Option<String>,
    /// Only deliveries over this channel
    #[arg(long)]
    channel: Option<String>,
    /// Only deliveries of this provider
    #[arg(long)]
    provider: Option<String>,
    /// Only deliveries of this event type
    #[arg(long)]
    event_type: Option<String>,
    /// Only deliveries about this entity
    #[arg(long)]
    entity: Option<String>,
    /// Only deliveries whose notification came from this site (the field source.site)
    #[arg(long)]
    site: Option<String>,
    /// Only deliveries of this notification
    #[arg(long, value_name = "ID", value_parser = cli::id)]
    notification_id: Option<Uuid>,
    /// Only deliveries that were enqueued at this time or later, RFC 3339
    #[arg(long, value_name = "TIME")]
    from: Option<Timestamp>,
    /// Only deliveries that were enqueued before this time
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
    /// Only deliveries with at least this many attempts since they were enqueued or last retried by an operator
    #[arg(long, value_name = "COUNT")]
    attempts: Option<u16>,
    /// Only deliveries whose last error has this code, e.g. http_503
    #[arg(long, value_name = "CODE")]
    error_code: Option<String>,
    /// Only deliveries whose last error has this class
    #[arg(long, value_name = "CLASS", value_parser = ErrorClass::ALL.map(ErrorClass::name))]
    error_class: Option<String>,
    /// Only deliveries to exactly this user id or address; the form of `enqueue --to` is accepted, too: user:ID
    #[arg(long, value_name = "ADDRESS", value_parser = cli::address)]
    recipient: Option<String>,
    /// Only deliveries that may have arrived although the outcome is unknown; `retry` needs this option to send them
    /// again. =false: only deliveries without an unclear attempt
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub unclear: Option<bool>,
}

impl Which {
    /// Whether no condition is given.
    pub fn is_any(&self) -> bool {
        self.unclear.is_none() && self.is_only_unclear()
    }

    /// Whether no condition other than --unclear is given.
    pub fn is_only_unclear(&self) -> bool {
        let texts = [
            &self.tenant,
            &self.reason,
            &self.channel,
            &self.provider,
            &self.event_type,
            &self.entity,
            &self.site,
            &self.error_code,
            &self.error_class,
            &self.recipient,
        ];
        let others =
            [self.notification_id.is_some(), self.from.is_some(), self.until.is_some(), self.attempts.is_some()];
        self.states.is_empty() && texts.iter().all(|text| text.is_none()) && !others.contains(&true)
    }

    /// Converts the options to a filter of the store.
    pub async fn filter(&self, store: &Store) -> Result<DeliveryFilter, Failure> {
        Ok(DeliveryFilter {
            tenant: cli::tenant(store, self.tenant.as_deref()).await?,
            states: self.states.clone(),
            reason: self.reason.clone(),
            channel: self.channel.clone(),
            provider: self.provider.clone(),
            event_type: self.event_type.clone(),
            entity: self.entity.clone(),
            site: self.site.clone(),
            notification_id: self.notification_id,
            from: self.from,
            until: self.until,
            attempts: self.attempts.map(i64::from),
            error_code: self.error_code.clone(),
            error_class: self.error_class.clone(),
            recipient: self.recipient.clone(),
            unclear: self.unclear,
            ..DeliveryFilter::default()
        })
    }
}
