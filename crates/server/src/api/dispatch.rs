//! Sends due deliveries in one pass of limited duration, for cron and `pg_cron`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use postcommit_engine::dispatch::{self, Dispatcher};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::ProblemResponses;
use crate::app::AppState;
use crate::auth::Ops;
use crate::problem::{Problem, ProblemKind};
use crate::read::Params;

/// The longest time for which a pass may claim deliveries, in seconds.
const SECONDS_MAX: u64 = 300;

/// The duration of a pass.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PassQuery {
    /// The pass stops claiming deliveries after this many seconds; running sends are finished. Default 30.
    #[param(minimum = 1, maximum = 300)]
    seconds: Option<u64>,
}

/// The number of deliveries that the pass processed, by result.
#[derive(Debug, Serialize, ToSchema)]
pub struct PassResult {
    /// Deliveries that were sent or delivered.
    sent: u64,
    /// Deliveries that failed and will be retried.
    again: u64,
    /// Deliveries that were parked.
    parked: u64,
    /// Deliveries that had expired, were cancelled or were skipped.
    dropped: u64,
    /// Whether the time ended before all due deliveries were claimed. If true, repeat the request.
    more: bool,
}

/// Sends the deliveries that are due now, and answers when the pass has ended.
///
/// The request can be repeated and sent from many machines safely: no delivery is sent twice by it. One pass runs
/// at a time. While another pass runs in any process, the answer is 409 and nothing is claimed. A killed pass blocks
/// other passes for at most 30 seconds.
#[utoipa::path(post, path = "/v1/dispatch", tag = "dispatch", security(("key" = ["ops"])), params(PassQuery),
    responses((status = 200, description = "Done", body = PassResult), ProblemResponses))]
pub async fn dispatch(
    State(app): State<AppState>,
    Ops(_): Ops,
    Params(bound): Params<PassQuery>,
) -> Result<Json<PassResult>, Problem> {
    let seconds = bound.seconds.unwrap_or(30);
    if !(1..=SECONDS_MAX).contains(&seconds) {
        return Err(Problem::invalid("seconds", format!("is {seconds}; 1 to {SECONDS_MAX} are allowed")));
    }
    let Ok(alone) = app.passing.clone().try_lock_owned() else {
        return Err(under_way());
    };
    let mut dispatcher = Dispatcher::new(app.tools.clone()).await?;
    let tally = dispatcher.tally();
    // The pass runs in its own task, so that a client that disconnects does not cancel running sends.
    let passing = tokio::spawn(async move {
        let _alone = alone;
        dispatcher.pass_alone(Duration::from_secs(seconds)).await
    });
    let more = match passing.await.map_err(|_| {
        Problem::new(ProblemKind::Internal, "the dispatch pass ended without a result; the server's log has details")
    })?? {
        dispatch::PassOutcome::Done { more } => more,
        dispatch::PassOutcome::Elsewhere => return Err(under_way()),
    };
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    Ok(Json(PassResult {
        sent: count(&tally.sent),
        again: count(&tally.again),
        parked: count(&tally.parked),
        dropped: count(&tally.dropped),
        more,
    }))
}

fn under_way() -> Problem {
    Problem::new(
        ProblemKind::StateConflict,
        "another dispatch pass is running and sends the due deliveries; repeat the request after it",
    )
    .retry_after(1)
}
