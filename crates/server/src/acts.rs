//! The rules for acting on deliveries that the API and the command line share.

use postcommit_channel::model::{DeliveryId, DeliveryKey};
use postcommit_engine::db::DbError;
use postcommit_engine::store::{Act, Acted, DeliveryFilter, JobDraft, MAX_IDS, Store};

/// Acts on the deliveries of a tenant, or of any, by their ids; answers for each, in the order given. None is no id.
pub async fn on_ids(
    store: &Store,
    tenant: Option<i32>,
    act: Act,
    ids: &[Option<DeliveryId>],
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
        acted.extend(store.act_on_many(act, some).await?);
    }
    let mut acted = acted.into_iter();
    Ok(keys.iter().map(|key| key.and_then(|_| acted.next()).unwrap_or(Acted::NotFound)).collect())
}

/// Why a filter cannot be acted on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Only parked deliveries can be retried or discarded.
    #[error("is {0}; only what is parked can be retried or discarded")]
    NotParked(String),
    /// What is parked is never stuck.
    #[error("only what is parked can be retried or discarded, and that is never stuck")]
    Stuck,
    /// A filter that was forgotten looks like an empty one: all parked deliveries must be asked for expressly.
    #[error("name at least one condition")]
    Empty,
}

/// The job that retries or discards every parked delivery that matches.
pub fn job(act: Act, filter: DeliveryFilter, pace_per_s: Option<i32>) -> Result<JobDraft, FilterError> {
    if let Some(state) = filter.states.iter().find(|state| *state != "parked") {
        return Err(FilterError::NotParked(state.clone()));
    }
    if filter.stuck.is_some() {
        return Err(FilterError::Stuck);
    }
    if filter == DeliveryFilter::default() {
        return Err(FilterError::Empty);
    }
    Ok(JobDraft { act, filter, pace_per_s })
}
