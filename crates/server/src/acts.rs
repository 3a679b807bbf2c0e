//! The rules for retrying, discarding and cancelling deliveries that the API and the command line share.

use postcommit_channel::model::{DeliveryId, DeliveryKey};
use postcommit_engine::db::DbError;
use postcommit_engine::store::{Act, Acted, DeliveryFilter, JobDraft, MAX_IDS, Store};

/// The warning before a delivery that may have arrived is retried. The delivery's id or another subject precedes it.
pub const MAY_HAVE_ARRIVED: &str = "may have arrived, and a retry sends it again";

/// Performs `act` on deliveries by their ids and returns a result for each, in the order of `ids`. An id that is `None`
/// counts as not found. `tenant` restricts the deliveries to one tenant. `unclear` allows retrying deliveries that may
/// have arrived.
pub async fn on_ids(
    store: &Store,
    tenant: Option<i32>,
    act: Act,
    ids: &[Option<DeliveryId>],
    unclear: bool,
) -> Result<Vec<Acted>, DbError> {
    let mut keys: Vec<Option<DeliveryKey>> = Vec::with_capacity(ids.len());
    for id in ids {
        keys.push(match id {
            Some(id) => store.delivery_key(tenant, *id).await?,
            None => None,
        });
    }
    let found: Vec<DeliveryKey> = keys.iter().flatten().copied().collect();
    let mut acted = Vec::with_capacity(found.len());
    for some in found.chunks(MAX_IDS) {
        acted.extend(store.act_on_many(act, some, unclear).await?);
    }
    let mut acted = acted.into_iter();
    Ok(keys.iter().map(|key| key.and_then(|_| acted.next()).unwrap_or(Acted::NotFound)).collect())
}

/// The name of a result, and the current state of the delivery.
pub fn told(act: Act, acted: Acted) -> (&'static str, Option<String>) {
    match acted {
        Acted::Done => ("done", Some(act.result().to_owned())),
        Acted::Refused { state, .. } => ("refused", Some(state)),
        Acted::Unclear { .. } => ("unclear", Some("parked".to_owned())),
        Acted::NotFound => ("not_found", None),
    }
}

/// The reason why the deliveries that match a filter cannot be retried or discarded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The filter selects a state that cannot be retried.
    #[error("is {0}; a retry needs either parked or retrying deliveries")]
    NotRetriable(String),
    /// The filter selects a state that cannot be discarded.
    #[error("is {0}; only parked deliveries can be discarded")]
    NotParked(String),
    /// The filter has the condition `stuck`, which jobs do not support.
    #[error(
        "is not allowed in the filter of a retry or a discard, because parked deliveries are never stuck; remove it, \
        and select retrying deliveries by other conditions"
    )]
    Stuck,
    /// The filter has no conditions. It may have been forgotten, so a request for all parked deliveries must say so
    /// explicitly.
    #[error("the filter is empty; give at least one condition")]
    Empty,
}

/// Returns the job that retries or discards every parked delivery that matches the filter. Deliveries that may have
/// arrived are retried only with `unclear`, or if the filter selects them by its field `unclear`. A retry with the
/// state `retrying` makes the matching deliveries due now.
pub fn job(
    act: Act,
    mut filter: DeliveryFilter,
    unclear: bool,
    pace_per_s: Option<i32>,
) -> Result<JobDraft, FilterError> {
    filter.states.dedup();
    let is_retry_of_one = act == Act::Retry && filter.states == ["retrying"];
    if let Some(state) = filter.states.iter().find(|state| *state != "parked" && !is_retry_of_one) {
        let error = if act == Act::Retry { FilterError::NotRetriable } else { FilterError::NotParked };
        return Err(error(if act == Act::Retry { filter.states.join(",") } else { state.clone() }));
    }
    if filter.stuck.is_some() {
        return Err(FilterError::Stuck);
    }
    if filter == DeliveryFilter::default() {
        return Err(FilterError::Empty);
    }
    let unclear = unclear || filter.unclear == Some(true);
    Ok(JobDraft { act, filter, unclear, pace_per_s })
}
