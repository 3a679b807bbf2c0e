//! One bounded pass, for cron and `pg_cron` (B9).

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

/// Longest time a pass may claim for, in seconds.
const SECONDS_MAX: u64 = 300;

/// How long to claim.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PassQuery {
    /// Nothing more is claimed after this many seconds; what is under way is finished. Default 30.
    #[param(minimum = 1, maximum = 300)]
    seconds: Option<u64>,
}

/// The result of a pass.
#[derive(Debug, Serialize, ToSchema)]
pub struct PassResult {
    /// Sent or delivered.
    sent: u64,
    /// To be retried.
    again: u64,
    /// Parked.
    parked: u64,
    /// Expired, cancelled or skipped.
    dropped: u64,
    /// The time was up before everything due was claimed: call again.
    more: bool,
}

/// Delivers what is due now, and answers when that is done.
///
/// Safe to repeat and to call from many machines: no delivery is sent twice by it. One pass runs at a time: while
/// another is under way, in any process, the answer is 409 and nothing is claimed. A killed pass blocks others for at
/// most 30 seconds.
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
    // In its own task: a client that hangs up must not cancel sends under way.
    let passing = tokio::spawn(async move {
        let _alone = alone;
        dispatcher.pass_alone(Duration::from_secs(seconds)).await
    });
    let more =
        match passing.await.map_err(|_| Problem::new(ProblemKind::Internal, "the pass ended without a result"))?? {
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
    Problem::new(ProblemKind::StateConflict, "a pass is under way; it delivers what is due").retry_after(1)
}
