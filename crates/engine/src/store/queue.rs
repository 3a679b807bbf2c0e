//! The delivery queue: claims due rows and records their outcomes. This is the hot path, so each database has its own
//! SQL, and both versions are written side by side.

pub(in crate::store) mod claim;
pub(in crate::store) mod closed;
pub(in crate::store) mod due_lanes;
pub(in crate::store) mod enter;
pub(in crate::store) mod expand;
pub(in crate::store) mod failover;
pub(in crate::store) mod limited;
pub(in crate::store) mod low_water;
pub(in crate::store) mod pacing;
pub(in crate::store) mod parts;
pub(in crate::store) mod row;
pub(in crate::store) mod settle;
mod workers;

/// For tests: a delivery in the given lane that was never attempted.
#[cfg(test)]
pub(crate) fn delivery_in(lane: i32, tenant: i32) -> postcommit_channel::model::Delivery {
    let (at, nil) = (postcommit::Timestamp::from_micros(0), uuid::Uuid::nil());
    postcommit_channel::model::Delivery {
        key: postcommit_channel::model::DeliveryKey { tenant, notification: nil, n: 0 },
        row: 0,
        lane,
        priority: 5,
        due_at: at,
        leased_at: at,
        attempts: 0,
        losses: 0,
        seq: 0,
        moves: 0,
        lost_since: None,
        intent_stands: false,
        unclear: false,
        first_try_at: None,
        facts: postcommit_channel::model::Facts::default(),
        token: nil,
    }
}
