//! The description of a job, and how many deliveries it concerns.

use postcommit::Timestamp;
use serde::Serialize;

use crate::db::DbError;
use crate::store::lists::deliveries::DeliveryList;
use crate::store::lists::keyset::Dialect;
use crate::store::{Act, DeliveryFilter, Store};

/// The count of a job's deliveries stops after this many examined rows.
const COUNTED: i64 = 100_000;

/// The description of a new job.
#[derive(Debug, Clone)]
pub struct JobDraft {
    /// The action on each delivery.
    pub act: Act,
    /// The filter that selects the deliveries. Its position and page size are ignored. Retry and discard act on parked
    /// deliveries, and cancel acts on waiting ones, whatever states the filter has. Exception: a retry whose only state
    /// is `retrying` makes those deliveries due now.
    pub filter: DeliveryFilter,
    /// Whether to retry deliveries that may have arrived. Otherwise a retry leaves them out and counts them separately.
    pub unclear: bool,
    /// The pace in deliveries per second, from 1 to [`crate::store::PACE_MOST`]. `None` means [`crate::store::PACE`].
    pub pace_per_s: Option<i32>,
}

/// The number of deliveries that a job would change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobCount {
    /// How many deliveries match.
    pub total: i64,
    /// How many more deliveries match, but may have arrived. A retry leaves them out, unless the request includes them.
    pub left_out: i64,
    /// Whether the counts are exact. If `false`, they are lower bounds.
    pub is_exact: bool,
}

impl JobDraft {
    /// Returns whether the job makes deliveries due that wait for their next attempt.
    #[must_use]
    pub fn brings_forward(&self) -> bool {
        self.act.brings_forward(&self.filter.states)
    }

    /// Returns whether the job leaves out deliveries that may have arrived although its filter includes them.
    fn leaves_out(&self) -> bool {
        self.act == Act::Retry && !self.brings_forward() && !self.unclear && self.filter.unclear != Some(false)
    }

    /// Returns the filter for the deliveries that the job acts on.
    pub(in crate::store) fn wanted(&self) -> DeliveryFilter {
        let unclear = if self.leaves_out() { Some(false) } else { self.filter.unclear };
        DeliveryFilter { unclear, ..self.filter.clone() }
    }

    /// Returns the filter for the deliveries that the job leaves out because they may have arrived, if there can be
    /// any.
    fn left_out(&self) -> Option<DeliveryFilter> {
        self.leaves_out().then(|| DeliveryFilter { unclear: Some(true), ..self.filter.clone() })
    }
}

impl Store {
    /// Counts the deliveries that the job would act on if it were created now.
    pub async fn count_for_job(&self, tenant: Option<i32>, draft: &JobDraft) -> Result<JobCount, DbError> {
        self.count_for_job_as_of(tenant, draft, self.now().await?).await
    }

    /// Counts the deliveries that [`Store::create_job_as_of`] with the same time would act on.
    pub async fn count_for_job_as_of(
        &self,
        tenant: Option<i32>,
        draft: &JobDraft,
        bound: Timestamp,
    ) -> Result<JobCount, DbError> {
        let count = async |filter| self.count_for(draft.act, &DeliveryFilter { tenant, ..filter }, bound).await;
        let (total, is_exact) = count(draft.wanted()).await?;
        let (left_out, all_out) = match draft.left_out() {
            Some(filter) => count(filter).await?,
            None => (0, true),
        };
        Ok(JobCount { total, left_out, is_exact: is_exact && all_out })
    }

    async fn count_for(&self, act: Act, filter: &DeliveryFilter, bound: Timestamp) -> Result<(i64, bool), DbError> {
        let filter = bounded(act, filter, bound);
        let list = list_of(act, &filter, bound, self.dialect());
        self.count(&list, list.start(), COUNTED).await
    }
}

/// Returns the filter of a job: with the states that its action allows and, for waiting deliveries, only those that
/// were enqueued before `bound`.
pub(in crate::store) fn bounded(act: Act, filter: &DeliveryFilter, bound: Timestamp) -> DeliveryFilter {
    let states = if act.brings_forward(&filter.states) { filter.states.clone() } else { act.states() };
    // The time is rounded down to milliseconds, because that is the resolution of notification ids.
    let cut = |until: Timestamp| Timestamp::from_micros(until.min(bound).as_micros() / 1000 * 1000);
    let until = if concerns_waiting(act, filter) { Some(cut(filter.until.unwrap_or(bound))) } else { filter.until };
    DeliveryFilter { states, until, before: None, stuck: None, ..filter.clone() }
}

pub(in crate::store) fn list_of(
    act: Act,
    filter: &DeliveryFilter,
    bound: Timestamp,
    dialect: Dialect,
) -> DeliveryList<'_> {
    let mut list = DeliveryList::new(filter, None, dialect);
    list.ended_before = (!concerns_waiting(act, filter)).then_some(bound);
    list
}

/// Returns whether the action concerns deliveries that wait in the queue, and not parked ones.
fn concerns_waiting(act: Act, filter: &DeliveryFilter) -> bool {
    act == Act::Cancel || act.brings_forward(&filter.states)
}
