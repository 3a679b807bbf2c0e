//! The counts that every page shows: live and parked deliveries. Counts that take long are kept for a while, so that
//! open pages do not count a long queue again and again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_engine::db::DbError;
use postcommit_engine::store::{KpiGrouping, Kpis};

use crate::app::App;
use crate::auth::Caller;

/// Counts that took less than this are not kept.
const QUICK: Duration = Duration::from_millis(50);
/// Counts that took long are kept for this many times as long, so that counting uses a twentieth of the time at most.
const REST: u32 = 20;
/// The maximum number of counts that are kept.
const KEPT: usize = 1000;

/// The tenant, the grouping and the interval of counts.
type Key = (Option<i32>, Option<&'static str>, u64);

/// Counts that were read, and until when they are used.
#[derive(Default)]
pub struct Tallies(Mutex<HashMap<Key, (Arc<Kpis>, Instant)>>);

impl Tallies {
    /// The current counts of the caller's tenant, or of all tenants.
    pub async fn current(&self, app: &App, caller: &Caller) -> Result<Arc<Kpis>, DbError> {
        self.over(app, caller, None, app.tools.kpi.interval()).await
    }

    /// The counts with their groups, over an interval.
    pub async fn over(
        &self,
        app: &App,
        caller: &Caller,
        by: Option<KpiGrouping>,
        interval: Duration,
    ) -> Result<Arc<Kpis>, DbError> {
        let key = (caller.whose(), by.map(KpiGrouping::name), interval.as_secs());
        if let Some(known) = self.known(&key) {
            return Ok(known);
        }
        let began = clock::monotonic();
        let kpis = Arc::new(caller.store(app).kpis(caller.whose(), by, app.stuck_after, interval).await?);
        let now = clock::monotonic();
        let (took, until) = (now - began, now + (now - began) * REST);
        if took < QUICK {
            return Ok(kpis);
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT {
            kept.retain(|_, (_, until)| *until > now);
        }
        if kept.len() < KEPT {
            kept.insert(key, (kpis.clone(), until));
        }
        Ok(kpis)
    }

    /// Forgets all counts, because an act of this process changed them.
    pub fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn known(&self, key: &Key) -> Option<Arc<Kpis>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(key).filter(|(_, until)| *until > clock::monotonic()).map(|(kpis, _)| kpis.clone())
    }
}
