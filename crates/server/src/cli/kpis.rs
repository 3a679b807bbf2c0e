//! `postcommit kpis`.

use clap::{Args, ValueEnum};
use postcommit_engine::store::{ClosedCount, Kpi, Kpis, Parked, SiteKpi};

use crate::output::{self, CommandResult, Exit, Format};
use crate::settings::Settings;

#[derive(Debug, Args)]
pub struct Show {
    /// Also for each of these
    #[arg(long, value_enum)]
    by: Option<Grouping>,
    /// Only of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Over how many seconds delivered and failed are counted: 60 to 172800 [setting kpi.interval_s]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(60..=172_800))]
    interval: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Grouping {
    Site,
}

impl Show {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = super::store(settings).await?;
        let tenant = super::tenant(&store, self.tenant.as_deref()).await?;
        let interval = self.interval.map_or(settings.kpi.interval(), std::time::Duration::from_secs);
        let kpis = store.kpis(tenant, self.by == Some(Grouping::Site), settings.kpi.stuck_after(), interval).await?;
        output::one(format, &kpis, text);
        Ok(Exit::Ok)
    }
}

fn text(kpis: &Kpis) -> String {
    let all = SiteKpi { site: "all".into(), kpi: kpis.total.clone() };
    let named = |one: &SiteKpi| SiteKpi {
        site: if one.site.is_empty() { "(no site)".into() } else { one.site.clone() },
        kpi: one.kpi.clone(),
    };
    let rows: Vec<SiteKpi> = std::iter::once(all).chain(kpis.sites.iter().map(named)).collect();
    let (minutes, stuck) = (kpis.interval_s / 60, kpis.stuck_after_s);
    let legend = format!(
        "delivered and failed: in the last {minutes} minutes; stuck: for longer than {stuck} s; oldest: seconds"
    );
    let shut = shut(&kpis.shut).map(|shut| format!("\n{shut}")).unwrap_or_default();
    format!("{}\n\n{legend}{shut}", output::table(&rows, COLUMNS))
}

/// How many lanes and hosts are paused or held.
fn shut(shut: &ClosedCount) -> Option<String> {
    let counts = [
        ("lanes paused", shut.lanes_paused),
        ("lanes held", shut.lanes_held),
        ("hosts paused", shut.hosts_paused),
        ("hosts held", shut.hosts_held),
    ];
    let told: Vec<String> =
        counts.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{what}: {count}")).collect();
    (!told.is_empty()).then(|| format!("{}; `postcommit providers show NAME` says why", told.join(", ")))
}

const COLUMNS: &[output::Column<SiteKpi>] = &[
    ("site", |one| one.site.clone()),
    ("pending", |one| of(one, |kpi| kpi.queue.pending)),
    ("sending", |one| of(one, |kpi| kpi.queue.sending)),
    ("retrying", |one| of(one, |kpi| kpi.queue.retrying)),
    ("scheduled", |one| of(one, |kpi| kpi.queue.scheduled)),
    ("stuck", |one| of(one, |kpi| kpi.stuck)),
    ("parked", |one| parked(&one.kpi.parked)),
    ("delivered", |one| of(one, |kpi| kpi.delivered)),
    ("failed", |one| of(one, |kpi| kpi.failed)),
    ("oldest", |one| of(one, |kpi| kpi.oldest_pending_s)),
];

/// How many, and why.
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

fn of(one: &SiteKpi, number: fn(&Kpi) -> i64) -> String {
    number(&one.kpi).to_string()
}
