//! The command `postcommit kpis`.

use clap::{Args, ValueEnum};
use postcommit_engine::store::{ClosedCount, Kpi, KpiGroup, KpiGrouping, Kpis, Parked};

use crate::output::{self, CommandResult, Exit, Format};
use crate::settings::Settings;

#[derive(Debug, Args)]
pub struct Show {
    /// Also show the KPIs by group, the group with the most deliveries first; `error` groups by the class of the last
    /// error
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Only deliveries of this tenant [default: every tenant]
    #[arg(long)]
    tenant: Option<String>,
    /// Count delivered, captured and failed deliveries of the last SECONDS seconds, 60 to 172800 [default: the
    /// setting kpi.interval_s]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(60..=172_800))]
    interval_s: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum By {
    Error,
    Provider,
    Channel,
    EventType,
    Site,
    Tenant,
}

impl From<By> for KpiGrouping {
    fn from(by: By) -> Self {
        match by {
            By::Error => Self::Error,
            By::Provider => Self::Provider,
            By::Channel => Self::Channel,
            By::EventType => Self::EventType,
            By::Site => Self::Site,
            By::Tenant => Self::Tenant,
        }
    }
}

impl Show {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = crate::app::store(settings).await?;
        let tenant = super::tenant(&store, self.tenant.as_deref()).await?;
        let interval = self.interval_s.map_or(settings.kpi.interval(), std::time::Duration::from_secs);
        let kpis = store.kpis(tenant, self.by.map(Into::into), settings.kpi.stuck_after(), interval).await?;
        output::one(format, &kpis, text);
        Ok(Exit::Ok)
    }
}

fn text(kpis: &Kpis) -> String {
    let none = match kpis.by {
        Some(KpiGrouping::Site) | None => "(no site)",
        Some(KpiGrouping::Channel) => "(not expanded)",
        Some(KpiGrouping::Provider) => "(not routed)",
        Some(KpiGrouping::EventType) => "(not known)",
        Some(KpiGrouping::Error) => "(no error)",
        Some(KpiGrouping::Tenant) => "(no tenant)",
    };
    let all = KpiGroup { label: "all".into(), tenant: None, kpi: kpis.total.clone(), codes: vec![] };
    let named = |one: &KpiGroup| KpiGroup {
        label: if one.label.is_empty() { none.into() } else { one.label.clone() },
        ..one.clone()
    };
    let rows: Vec<KpiGroup> = std::iter::once(all).chain(kpis.groups.iter().map(named)).collect();
    let (minutes, stuck) = (kpis.interval_s / 60, kpis.stuck_after_s);
    let legend = format!(
        "delivered, captured and failed: in the last {minutes} minutes; stuck: first due more than {stuck} s ago; \
         oldest: seconds since the oldest delivery was first due"
    );
    let shut = shut(&kpis.shut).map(|shut| format!("\n{shut}")).unwrap_or_default();
    let mut columns: Vec<output::Column<KpiGroup>> =
        vec![(kpis.by.map_or("site", KpiGrouping::name), |one| one.label.clone())];
    if has_several_tenants(kpis) {
        columns.push(("tenant", |one| one.tenant.clone().unwrap_or_else(|| "-".into())));
    }
    columns.extend(COLUMNS);
    if kpis.by == Some(KpiGrouping::Error) {
        columns.push(("codes", codes));
    }
    format!("{}\n\n{legend}{shut}", output::table(&rows, &columns))
}

/// Whether the groups belong to more than one tenant, so that their labels alone are ambiguous.
fn has_several_tenants(kpis: &Kpis) -> bool {
    let mut tenants = kpis.groups.iter().filter_map(|one| one.tenant.as_deref());
    let first = tenants.next();
    tenants.any(|tenant| Some(tenant) != first)
}

/// The codes of an error class, each with the number of its queued and parked deliveries.
fn codes(one: &KpiGroup) -> String {
    let told: Vec<String> =
        one.codes.iter().map(|code| format!("{} {}", code.queue + code.parked, code.code)).collect();
    told.join(", ")
}

/// The number of closed lanes and hosts by cause, as text. `None` if all are open.
fn shut(shut: &ClosedCount) -> Option<String> {
    let counts = [
        ("lanes paused", shut.lanes_paused),
        ("lanes held", shut.lanes_held),
        ("lanes that no worker can serve", shut.lanes_unopened),
        ("hosts paused", shut.hosts_paused),
        ("hosts held", shut.hosts_held),
        ("lanes with a tripped breaker", shut.lanes_tripped),
        ("hosts with a tripped breaker", shut.hosts_tripped),
    ];
    let told: Vec<String> =
        counts.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{what}: {count}")).collect();
    (!told.is_empty()).then(|| format!("{}; `postcommit providers show NAME` says why", told.join(", ")))
}

const COLUMNS: &[output::Column<KpiGroup>] = &[
    ("pending", |one| of(one, |kpi| kpi.queue.pending)),
    ("sending", |one| of(one, |kpi| kpi.queue.sending)),
    ("retrying", |one| of(one, |kpi| kpi.queue.retrying)),
    ("scheduled", |one| of(one, |kpi| kpi.queue.scheduled)),
    ("stuck", |one| of(one, |kpi| kpi.stuck)),
    ("parked", |one| parked(&one.kpi.parked)),
    ("delivered", |one| of(one, |kpi| kpi.delivered)),
    ("captured", |one| of(one, |kpi| kpi.captured)),
    ("failed", |one| of(one, |kpi| kpi.failed)),
    ("oldest", |one| of(one, |kpi| kpi.oldest_pending_s)),
];

/// The number of parked deliveries, with their reasons.
fn parked(parked: &Parked) -> String {
    let reasons = [
        ("rejected", parked.rejected),
        ("exhausted", parked.exhausted),
        ("outcome_unknown", parked.outcome_unknown),
        ("config", parked.config),
    ];
    let told: Vec<String> =
        reasons.iter().filter(|(_, count)| *count > 0).map(|(reason, count)| format!("{count} {reason}")).collect();
    if told.is_empty() { "0".into() } else { format!("{} ({})", parked.total, told.join(", ")) }
}

fn of(one: &KpiGroup, number: fn(&Kpi) -> i64) -> String {
    number(&one.kpi).to_string()
}
