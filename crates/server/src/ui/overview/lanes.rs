//! The lanes of the overview: the state, the success and the latency of each provider.

use std::collections::BTreeMap;

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::{Bucket, Provider};
use postcommit_engine::store::{KpiGroup, Kpis};
use serde::Serialize;

use super::Attention;
use super::latency::{Latencies, in_words};
use crate::ui::frame::with_tenant;
use crate::ui::words::{dotted, grouped, relative, segment, waiting_of, waits_in_words};

/// The maximum number of lanes that are shown.
pub const LANES: usize = 12;

/// A provider's lane.
#[derive(Serialize)]
pub struct Lane {
    name: String,
    channel: String,
    tenant: Option<String>,
    /// Why the lane is closed, or `probing` if its breaker lets one send at a time through.
    closed: Option<&'static str>,
    /// How much of the rate limit is free now.
    rate: Option<String>,
    /// Whether the circuit breaker holds the lane. Otherwise the provider asked to wait.
    is_tripped: bool,
    reason: String,
    success: String,
    latency: String,
    waiting: i64,
    retrying: i64,
    /// What waits for the lane, in words.
    waits: String,
    /// The URL of the provider's page.
    page: String,
}

impl Lane {
    /// Returns what a person should know about a closed lane.
    pub fn attention(&self) -> Option<Attention> {
        let (tint, label, advice) = match self.closed? {
            "paused" => ("bad", "Lane paused", "Mend the cause, then resume the provider; nothing is lost."),
            "held" if self.is_tripped => (
                "warn",
                "Breaker tripped",
                "The provider failed several times in a row. It is probed by itself; a resume of the provider ends the wait.",
            ),
            "held" => ("warn", "Lane held", "The provider asked to wait; it goes on by itself."),
            _ => return None,
        };
        let of = self.tenant.as_ref().map(|tenant| format!(" ({tenant})")).unwrap_or_default();
        let says = format!("{}{of}: {}. {}", self.name, self.reason.trim_end_matches('.'), self.waits);
        let href = Some(self.page.clone());
        Some(Attention { tint, label, says, advice: advice.into(), href, open: "Open the provider" })
    }
}

/// The permits in use of each lane with a rate limit.
pub struct Permits {
    pub in_use: BTreeMap<i32, Bucket>,
    /// The current time of the database, with which the free permits are computed.
    pub now: Timestamp,
}

impl Permits {
    /// How much of the provider's rate limit is free.
    fn free(&self, provider: &Provider) -> Option<String> {
        let (rate, bucket) = (provider.rate()?, *self.in_use.get(&provider.id)?);
        let free = rate.permits(rate.refill(bucket, self.now), rate.burst);
        Some(format!("rate: {} of {} free", grouped(free.into()), grouped(rate.burst.into())))
    }
}

/// Returns the lanes of these providers, those that a person should look at first.
pub fn lanes(
    providers: &[Provider],
    tenants: &BTreeMap<i32, String>,
    kpis: &Kpis,
    latencies: &Latencies,
    permits: &Permits,
) -> Vec<Lane> {
    let mut all: Vec<(i64, Lane)> = Vec::with_capacity(providers.len());
    for provider in providers {
        let tenant = tenants.get(&provider.tenant).cloned();
        let group = kpis.groups.iter().find(|group| group.label == provider.name && group.tenant == tenant);
        let busy = group.map_or(0, |group| group.kpi.delivered + group.kpi.captured + group.kpi.queue.total);
        let median = latencies.median_of(provider.tenant, &provider.name);
        let lane = lane(provider, tenant.filter(|_| tenants.len() > 1), group, median);
        all.push((busy, Lane { rate: permits.free(provider), ..lane }));
    }
    all.sort_by_key(|(busy, lane)| (rank(lane.closed), std::cmp::Reverse(*busy)));
    all.into_iter().map(|(_, lane)| lane).collect()
}

/// Returns the place of a lane in the list: closed and probing lanes first, then open lanes, then lanes of disabled
/// providers.
fn rank(closed: Option<&str>) -> u8 {
    match closed {
        Some("paused") => 0,
        Some("held") => 1,
        Some("probing") => 2,
        Some("disabled") => 4,
        _ => 3,
    }
}

fn lane(provider: &Provider, tenant: Option<String>, group: Option<&KpiGroup>, median: Option<i32>) -> Lane {
    let held = provider.held_until.filter(|until| *until > clock::now());
    let (closed, reason) = match (&provider.paused, held) {
        _ if !provider.enabled => (Some("disabled"), String::new()),
        _ if provider.suspended => (Some("tenant suspended"), String::new()),
        (Some(reason), _) => (Some("paused"), reason.clone()),
        (None, Some(until)) => {
            let goes_on = format!("goes on {}", relative(until.as_micros() - clock::now().as_micros()));
            let breaker = provider.hold_reason.as_ref().map(|reason| format!("breaker tripped: {reason}"));
            (Some("held"), dotted([breaker, Some(goes_on)]))
        }
        (None, None) if provider.is_tripped() => (Some("probing"), String::new()),
        (None, None) => (None, String::new()),
    };
    let depth = group.map(|group| &group.kpi.queue);
    Lane {
        name: provider.name.clone(),
        channel: if provider.channel == "*" { "every channel".into() } else { provider.channel.clone() },
        page: with_tenant(&format!("/providers/{}", segment(&provider.name)), tenant.as_deref()),
        tenant,
        closed,
        rate: None,
        is_tripped: held.is_some() && provider.hold_reason.is_some(),
        reason,
        success: success(group),
        latency: median.map_or_else(|| "–".into(), in_words),
        waiting: depth.map_or(0, waiting_of),
        retrying: depth.map_or(0, |depth| depth.retrying),
        waits: waits_in_words(depth),
    }
}

pub fn success(group: Option<&KpiGroup>) -> String {
    let (good, failed) = group.map_or((0, 0), |group| (group.kpi.delivered + group.kpi.captured, group.kpi.failed));
    match good + failed {
        0 => "–".into(),
        _ if failed == 0 => "100 %".into(),
        all => format!("{:.1} %", (good as f64 / all as f64 * 1000.0).floor() / 10.0),
    }
}
