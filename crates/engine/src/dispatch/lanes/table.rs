//! An immutable view of all lanes.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Fate, Guarantee, Provider, Routes, Target};

use super::{Lane, lease_of};
use crate::dispatch::content::ContentIndex;
use crate::dispatch::cow_map::CowMap;

/// An immutable view of all lanes, taken at a claim.
#[derive(Clone)]
pub struct Table {
    pub(super) lanes: CowMap<Arc<Lane>>,
    /// The lanes whose provider names a next provider (failover).
    pub chained: Arc<BTreeSet<i32>>,
    pub(super) by_tenant: CowMap<Arc<Vec<Provider>>>,
    /// The templates of tenants, and their other settings that affect how notifications are expanded.
    pub content: ContentIndex,
    pub(super) lease: Duration,
    /// When a change last could have altered the routing. Earlier notifications may have gone to another provider.
    pub rerouted_at: Timestamp,
}

impl Table {
    pub fn routes(&self, tenant: i32) -> Routes<'_> {
        Routes(self.by_tenant.get(tenant).map_or(&[], |providers| providers.as_slice()))
    }

    pub fn lane(&self, id: i32) -> Option<&Arc<Lane>> {
        self.lanes.get(id)
    }

    pub(super) fn of_tenant(&self, tenant: i32) -> impl Iterator<Item = &Arc<Lane>> {
        self.routes(tenant).0.iter().filter_map(|provider| self.lane(provider.id))
    }

    pub(super) fn put(&mut self, lane: Arc<Lane>) {
        let mut providers = self.without(lane.provider.tenant, lane.provider.id);
        let place = providers.partition_point(|known| known.id < lane.provider.id);
        providers.insert(place, lane.provider.clone());
        self.by_tenant.insert(lane.provider.tenant, providers.into());
        self.chain(lane.provider.id, lane.provider.failover.is_some());
        self.lanes.insert(lane.provider.id, lane);
    }

    /// Records whether the provider of a lane names a next provider.
    fn chain(&mut self, id: i32, is_chained: bool) {
        if self.chained.contains(&id) != is_chained {
            let chained = Arc::make_mut(&mut self.chained);
            if is_chained {
                chained.insert(id)
            } else {
                chained.remove(&id)
            };
        }
    }

    pub(super) fn remove(&mut self, id: i32) {
        self.chain(id, false);
        if let Some(lane) = self.lanes.remove(id) {
            let providers = self.without(lane.provider.tenant, id);
            self.by_tenant.insert(lane.provider.tenant, providers.into());
        }
    }

    /// Returns the tenant's providers except the one with this id.
    fn without(&self, tenant: i32, id: i32) -> Vec<Provider> {
        self.routes(tenant).0.iter().filter(|known| known.id != id).cloned().collect()
    }

    pub fn lane_of(&self, target: &Target) -> Option<&Arc<Lane>> {
        match target.fate {
            Fate::Lane(lane) => self.lane(lane),
            Fate::Ended { .. } => None,
        }
    }

    /// Returns whether a notification with one target may be sent on this lane from its own row, without a row for the
    /// target. It may not if the send must be announced, needs a longer lease or a permit, or would overtake waiting
    /// deliveries.
    pub fn may_send_from_own_row(&self, lane: &Lane, now: Timestamp) -> bool {
        lane.provider.guarantee != Guarantee::AtMostOnce && self.may_keep_lease(lane, now)
    }

    /// Returns whether the only target of a notification may keep the lease under which it was expanded, and be sent
    /// without another claim. It may not if the send needs a longer lease or a permit, or would overtake waiting
    /// deliveries.
    pub fn may_keep_lease(&self, lane: &Lane, now: Timestamp) -> bool {
        !lane.is_limited()
            && lane.is_open(now)
            && lease_of(&lane.provider, self.lease) == self.lease
            && !lane.backlog.load(Ordering::Relaxed)
    }
}

/// The table that the dispatcher used last, for tasks that it started with an earlier table.
#[derive(Clone)]
pub struct LatestTable(Arc<RwLock<Arc<Table>>>);

impl LatestTable {
    pub(super) fn new(table: Arc<Table>) -> Self {
        Self(Arc::new(RwLock::new(table)))
    }

    pub fn get(&self) -> Arc<Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, table: Arc<Table>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = table;
    }
}
