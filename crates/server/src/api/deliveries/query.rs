//! The filter of deliveries, of a list and of a job.

use std::time::Duration;

use postcommit::{Timestamp, limits};
use postcommit_channel::model::{DeliveryState, Reason};
use postcommit_engine::store::DeliveryFilter;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::problem::Problem;
use crate::read::check_lengths;

/// Which deliveries. A condition that is left out is not checked.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeliveryQuery {
    /// Only in this state. Retry and discard take `parked` ones alone.
    #[param(inline)]
    #[schema(inline)]
    state: Option<DeliveryState>,
    /// Only parked for this reason.
    #[param(inline)]
    #[schema(inline)]
    reason: Option<Reason>,
    /// Only on this channel.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    channel: Option<String>,
    /// Only of this provider.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    provider: Option<String>,
    /// Only of this event type.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    event_type: Option<String>,
    /// Only about this entity.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    entity: Option<String>,
    /// Only from this site.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    site: Option<String>,
    /// Only of this notification.
    notification: Option<Uuid>,
    /// Only enqueued at this time or later.
    from: Option<Timestamp>,
    /// Only enqueued before this time.
    to: Option<Timestamp>,
    /// Only with this many attempts in this round, or more.
    #[param(minimum = 0, maximum = 65_535)]
    #[schema(minimum = 0, maximum = 65_535)]
    attempts: Option<u16>,
    /// Only with this code of the last error.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    error_code: Option<String>,
    /// Only to exactly this address.
    #[param(max_length = 2048)]
    #[schema(max_length = 2048)]
    target: Option<String>,
    /// `true`: only those that may have arrived without confirmation; `false`: only those that certainly have not.
    unclear: Option<bool>,
    /// `true`: only those due for longer than the threshold and not under way. Parked ones are never stuck.
    stuck: Option<bool>,
}

impl DeliveryQuery {
    /// The filter of the store, without a tenant and a page.
    pub fn filter(self, stuck_after: Duration) -> Result<DeliveryFilter, Problem> {
        let names = [
            ("channel", self.channel.as_deref()),
            ("provider", self.provider.as_deref()),
            ("event_type", self.event_type.as_deref()),
            ("entity", self.entity.as_deref()),
            ("site", self.site.as_deref()),
            ("error_code", self.error_code.as_deref()),
        ];
        check_lengths(&names, limits::NAME_CHARS)?;
        check_lengths(&[("target", self.target.as_deref())], limits::ADDRESS_BYTES)?;
        Ok(DeliveryFilter {
            states: self.state.map(|state| state.name().to_owned()).into_iter().collect(),
            reason: self.reason.map(|reason| reason.name().to_owned()),
            channel: self.channel,
            provider: self.provider,
            event_type: self.event_type,
            entity: self.entity,
            site: self.site,
            notification: self.notification,
            from: self.from,
            to: self.to,
            attempts: self.attempts.map(i64::from),
            error_code: self.error_code,
            target: self.target,
            unclear: self.unclear,
            stuck: self.stuck.unwrap_or(false).then_some(stuck_after),
            ..DeliveryFilter::default()
        })
    }
}
