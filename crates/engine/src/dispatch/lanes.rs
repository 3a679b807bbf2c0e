//! One lane per provider, and lane 0 for what is not expanded or routed yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Tools;
use crate::channel::{self, Driver};
use crate::db::DbError;
use crate::model::Provider;
use crate::secret::Secrets;
use crate::store::Want;

/// The lane of what is not expanded or routed yet.
pub const EXPANSION: i32 = 0;
/// Notifications expanded at once.
const EXPANSION_SLOTS: usize = 500;
/// A send must be over this long before its lease is: time to judge and to settle.
pub const MARGIN: Duration = Duration::from_secs(2);

/// A provider at work.
pub struct Lane {
    /// Its description.
    pub provider: Provider,
    /// Its code; or why it cannot be made.
    pub driver: Result<Box<dyn Driver>, String>,
    /// Sends that may be under way at once.
    pub slots: Arc<Semaphore>,
}

/// All lanes this process knows.
pub struct Lanes {
    known: HashMap<i32, Arc<Lane>>,
    expansion: Arc<Semaphore>,
    lease: Duration,
}

impl Lanes {
    pub fn new(tools: &Tools) -> Self {
        let lease = Duration::from_secs(tools.settings.lease_s);
        Self { known: HashMap::new(), expansion: Arc::new(Semaphore::new(EXPANSION_SLOTS)), lease }
    }

    /// Reads the providers and makes anew what has changed. A lane keeps its slots while its concurrency stays.
    pub async fn refresh(&mut self, tools: &Tools) -> Result<(), DbError> {
        let providers = tools.store.providers().await?;
        self.known.retain(|id, _| providers.iter().any(|p| p.id == *id));
        for provider in providers {
            let known = self.known.get(&provider.id);
            // One that could not be used is tried again: the key may be back.
            if known.is_some_and(|lane| lane.provider.revision == provider.revision && lane.driver.is_ok()) {
                continue;
            }
            let same_slots = known.filter(|lane| lane.provider.concurrency == provider.concurrency).map(|lane| lane.slots.clone());
            let known_problem = known.and_then(|lane| lane.driver.as_ref().err().cloned());
            let lane = open_lane(tools, provider, same_slots, known_problem.as_deref());
            self.known.insert(lane.provider.id, Arc::new(lane));
        }
        Ok(())
    }

    pub fn lane(&self, id: i32) -> Option<Arc<Lane>> {
        self.known.get(&id).cloned()
    }

    pub fn expansion(&self) -> Arc<Semaphore> {
        self.expansion.clone()
    }

    /// What could be started now, by the length of lease it needs: one claim each, nearly always one in all.
    pub fn wants(&self, batch: i32) -> BTreeMap<Duration, Vec<Want>> {
        let mut wants: BTreeMap<Duration, Vec<Want>> = BTreeMap::new();
        let mut want = |lane, free: usize, lease| {
            let quota = i32::try_from(free).unwrap_or(batch).min(batch);
            if quota > 0 {
                wants.entry(lease).or_default().push(Want { lane, quota });
            }
        };
        want(EXPANSION, self.expansion.available_permits(), self.lease);
        // A lane that this process cannot serve, e.g. for want of the key, is left to those who can; doctor tells.
        let open = |lane: &Lane| lane.provider.paused.is_none() && lane.driver.is_ok();
        for (id, lane) in self.known.iter().filter(|(_, lane)| open(lane)) {
            want(*id, lane.slots.available_permits(), self.lease_of(&lane.provider));
        }
        wants
    }

    pub fn longest_lease(&self) -> Duration {
        self.known.values().map(|lane| self.lease_of(&lane.provider)).max().unwrap_or(self.lease).max(self.lease)
    }

    /// Every send must fit into its lease, with a margin on either side.
    fn lease_of(&self, provider: &Provider) -> Duration {
        self.lease.max(provider.timeout() + 2 * MARGIN)
    }
}

/// Takes the slots of what was just claimed, before anything else can count them as free. A pass by hand may go beyond: then there are none to take.
pub fn take(slots: &Arc<Semaphore>, count: usize) -> Option<OwnedSemaphorePermit> {
    slots.clone().try_acquire_many_owned(u32::try_from(count).ok()?).ok()
}

fn open_lane(tools: &Tools, provider: Provider, slots: Option<Arc<Semaphore>>, known_problem: Option<&str>) -> Lane {
    let driver =
        open_secrets(tools, &provider).and_then(|secrets| channel::of_provider(&provider, &secrets, &tools.egress, &tools.capture_fail_on));
    if let Err(problem) = &driver
        && known_problem != Some(problem)
    {
        tracing::error!(provider = provider.name, problem, "this process cannot use a provider; what waits for it is left alone");
    }
    let concurrency = usize::try_from(provider.concurrency).unwrap_or(1);
    Lane { slots: slots.unwrap_or_else(|| Arc::new(Semaphore::new(concurrency))), provider, driver }
}

fn open_secrets(tools: &Tools, provider: &Provider) -> Result<Secrets, String> {
    match &provider.secrets {
        None => Ok(Secrets::new()),
        Some(sealed) => {
            let ring = tools.keys.existing().map_err(|e| e.to_string())?;
            ring.open(sealed, provider.tenant, &provider.name).map_err(|e| e.to_string())
        }
    }
}
