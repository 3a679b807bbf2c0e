//! The filter of deliveries, for lists and for jobs.

use std::time::Duration;

use postcommit::{Timestamp, limits};
use postcommit_channel::model::{ErrorClass, Reason};
use postcommit_engine::store::DeliveryFilter;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::api::notifications::title_words;
use crate::api::states::States;
use crate::problem::Problem;
use crate::read::check_lengths;

/// The filter of deliveries. Omitted conditions are not checked.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeliveryQuery {
    /// Only deliveries in one of these states, separated by commas. Retry and discard allow only `parked`.
    #[param(inline)]
    #[schema(inline)]
    state: Option<States>,
    /// Only deliveries that are parked for this reason.
    #[param(inline)]
    #[schema(inline)]
    reason: Option<Reason>,
    /// Only deliveries over this channel.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    channel: Option<String>,
    /// Only deliveries of this provider.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    provider: Option<String>,
    /// Only deliveries of this event type.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    event_type: Option<String>,
    /// Only deliveries about this entity.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    entity: Option<String>,
    /// Only deliveries whose notification came from this site (the field `source.site`).
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    site: Option<String>,
    /// Only deliveries of notifications to this list.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    list: Option<String>,
    /// Only deliveries whose notification has each of these words in its title, or in its event type if it has no
    /// title, ignoring case; at most 8 words. On SQLite, case is ignored only for ASCII letters.
    #[param(max_length = 998)]
    #[schema(max_length = 998)]
    title: Option<String>,
    /// Only deliveries of this notification.
    notification_id: Option<Uuid>,
    /// Only deliveries that were enqueued at this time or later.
    from: Option<Timestamp>,
    /// Only deliveries that were enqueued before this time.
    until: Option<Timestamp>,
    /// Only deliveries with at least this many attempts since they were enqueued or last retried by an operator.
    #[param(minimum = 0, maximum = 65_535)]
    #[schema(minimum = 0, maximum = 65_535)]
    attempts: Option<u16>,
    /// Only deliveries whose last error has this code.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    error_code: Option<String>,
    /// Only deliveries whose last error has this class.
    #[param(inline)]
    #[schema(inline)]
    error_class: Option<ErrorClass>,
    /// Only deliveries to exactly this user id or address. A delivery that is not expanded yet matches by the
    /// recipients of its notification.
    #[param(max_length = 2048)]
    #[schema(max_length = 2048)]
    #[serde(alias = "target")]
    recipient: Option<String>,
    /// Only deliveries whose notification has this correlation id.
    #[param(max_length = 255)]
    #[schema(max_length = 255)]
    correlation_id: Option<String>,
    /// `true`: only deliveries that may have arrived although the outcome is unknown. `false`: only deliveries without
    /// an unclear attempt.
    unclear: Option<bool>,
    /// `true`: only stuck deliveries: first due longer ago than the setting `kpi.stuck_after_s`, not finished and not
    /// being sent. Retries do not reset this time. A parked delivery is never stuck.
    stuck: Option<bool>,
    /// In a list, `true`: return the full address in `address`. It needs the scope `operate`; for other callers it has
    /// no effect.
    pub full: Option<bool>,
}

/// Whether the full address of a delivery is shown.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FullQuery {
    /// `true`: return the full address in `address`. It needs the scope `operate`; for other callers it has no effect.
    pub full: Option<bool>,
}

impl DeliveryQuery {
    /// Converts the query to a filter of the store, without a tenant and a page.
    pub fn filter(self, stuck_after: Duration) -> Result<DeliveryFilter, Problem> {
        let names = [
            ("channel", self.channel.as_deref()),
            ("provider", self.provider.as_deref()),
            ("event_type", self.event_type.as_deref()),
            ("entity", self.entity.as_deref()),
            ("site", self.site.as_deref()),
            ("list", self.list.as_deref()),
            ("correlation_id", self.correlation_id.as_deref()),
            ("error_code", self.error_code.as_deref()),
        ];
        check_lengths(&names, limits::NAME_CHARS)?;
        let words = title_words(self.title.as_deref())?;
        check_lengths(&[("recipient", self.recipient.as_deref())], limits::ADDRESS_BYTES)?;
        Ok(DeliveryFilter {
            states: self.state.map(States::names).unwrap_or_default(),
            reason: self.reason.map(|reason| reason.name().to_owned()),
            channel: self.channel,
            provider: self.provider,
            event_type: self.event_type,
            entity: self.entity,
            site: self.site,
            list: self.list,
            words,
            notification_id: self.notification_id,
            from: self.from,
            until: self.until,
            attempts: self.attempts.map(i64::from),
            error_code: self.error_code,
            error_class: self.error_class.map(|class| class.name().to_owned()),
            recipient: self.recipient,
            correlation_id: self.correlation_id,
            unclear: self.unclear,
            stuck: self.stuck.unwrap_or(false).then_some(stuck_after),
            ..DeliveryFilter::default()
        })
    }
}
