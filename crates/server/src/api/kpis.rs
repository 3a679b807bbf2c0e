//! The current KPIs, and series over time.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use postcommit::Timestamp;
use postcommit_engine::store::{GroupBy, KpiGrouping, KpiSeries, Kpis, SlotLength, TimeRange};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::Reader;
use crate::problem::Problem;
use crate::read::Params;

/// The grouping and the intervals of the KPIs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct KpiQuery {
    /// Also return the KPIs of each group. `error` groups by the class of the last error and lists its codes.
    /// For a request over all tenants (scope `ops`), `tenant` groups by tenant, and a group by `provider` also has the
    /// name of its tenant.
    #[param(inline)]
    by: Option<KpiGrouping>,
    /// Count the deliveries that were delivered, captured or failed within this many seconds before now. Default: the
    /// setting `kpi.interval_s`.
    #[param(minimum = 60, maximum = 172_800)]
    interval_s: Option<u64>,
    /// A delivery counts as stuck if it was first due more than this many seconds ago. Default: the setting
    /// `kpi.stuck_after_s`.
    #[param(minimum = 1, maximum = 2_592_000)]
    stuck_after_s: Option<u64>,
}

fn seconds(field: &str, given: Option<u64>, low: u64, high: u64, default: Duration) -> Result<Duration, Problem> {
    match given {
        None => Ok(default),
        Some(given) if (low..=high).contains(&given) => Ok(Duration::from_secs(given)),
        Some(given) => Err(Problem::invalid(field, format!("is {given}; {low} to {high} are allowed"))),
    }
}

/// Returns the current KPIs: queued, stuck and parked deliveries, the age of the oldest delivery, and the results of
/// the last interval.
#[utoipa::path(get, path = "/v1/kpis", tag = "kpis", security(("key" = ["read"])), params(KpiQuery, TenantQuery),
    responses((status = 200, description = "The current KPIs", body = Kpis), ProblemResponses))]
pub async fn get_kpis(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Params(wanted): Params<KpiQuery>,
) -> Result<Json<Kpis>, Problem> {
    let kpi = &app.tools.kpi;
    let interval = seconds("interval_s", wanted.interval_s, 60, 172_800, kpi.interval())?;
    let stuck_after = seconds("stuck_after_s", wanted.stuck_after_s, 1, 2_592_000, kpi.stuck_after())?;
    Ok(Json(caller.store(&app).kpis(caller.whose(), wanted.by, stuck_after, interval).await?))
}

/// The grouping and the time range of a series.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SeriesQuery {
    /// The interval that each count of the series covers. Default `minute`.
    #[param(inline)]
    per: Option<SlotLength>,
    /// The grouping of the lines. Default `state`. With `channel` and `site`, only deliveries that were sent, delivered
    /// or parked are counted.
    #[param(inline)]
    by: Option<GroupBy>,
    /// The series begins with the slot that contains this time. Default: 60 slots before `until`.
    from: Option<Timestamp>,
    /// The series ends before this time. Default: now.
    until: Option<Timestamp>,
}

/// Returns the number of deliveries that entered each state per time slot, for charts. At most 2,880 slots and 20
/// lines. An empty slot is 0.
#[utoipa::path(get, path = "/v1/kpis/series", tag = "kpis", security(("key" = ["read"])), params(SeriesQuery, TenantQuery),
    responses((status = 200, description = "The series", body = KpiSeries), ProblemResponses))]
pub async fn get_kpi_series(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Params(wanted): Params<SeriesQuery>,
) -> Result<Json<KpiSeries>, Problem> {
    let per = wanted.per.unwrap_or(SlotLength::Minute);
    let until = match wanted.until {
        Some(until) => until,
        // The series ends before `until`, so one millisecond more includes a slot that begins now.
        None => app.store.now().await?.plus(Duration::from_millis(1)),
    };
    let span = match wanted.from {
        Some(from) => TimeRange::new(per, from, until),
        None => TimeRange::last(per, until),
    };
    let span = span.map_err(|problem| {
        let (field, detail) = problem.split_once(": ").unwrap_or(("from", problem.as_str()));
        Problem::invalid(field, detail)
    })?;
    Ok(Json(caller.store(&app).series(caller.whose(), span, wanted.by.unwrap_or(GroupBy::State)).await?))
}
