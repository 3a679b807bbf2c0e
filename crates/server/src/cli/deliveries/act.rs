//! Retry and discard: by ids, answered immediately; or all that match, as a job.

use clap::Args;
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{Act, Job, PACE, PACE_MOST, Store};
use serde_json::json;

use super::which::Which;
use crate::acts::{self, FilterError};
use crate::cli::{self, jobs};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct ActArgs {
    /// Ids of deliveries, NOTIFICATION.N; or none, with the options below as a filter
    pub ids: Vec<DeliveryId>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: ActOptions,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "How")]
struct ActOptions {
    /// Only count what matches
    #[arg(long, conflicts_with_all = ["yes", "no_wait", "pace"])]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Leave it to the processes that deliver, and do not wait for it
    #[arg(long)]
    no_wait: bool,
    /// At most this many per second [default: 500]
    #[arg(long, value_name = "A SECOND", value_parser = clap::value_parser!(i32).range(1..=i64::from(PACE_MOST)))]
    pace: Option<i32>,
}

impl ActArgs {
    /// Whether a filter is given. Ids and a filter exclude each other.
    pub fn by_filter(&self) -> Result<bool, Failure> {
        match (self.ids.is_empty(), self.which.is_any()) {
            (true, true) => {
                Err(usage("name deliveries by their ids, or say which, e.g. --state parked for all that are parked"))
            }
            (false, false) => Err(usage("give either ids or a filter, not both")),
            (is_filter, _) => Ok(is_filter),
        }
    }

    pub async fn run(&self, format: Format, store: &Store, act: Act) -> CommandResult {
        let filter = self.which.filter(store).await?;
        let tenant = filter.tenant;
        let draft = acts::job(act, filter, self.how.pace).map_err(|error| match error {
            FilterError::NotParked(_) => usage(&format!("--state {error}")),
            FilterError::Stuck | FilterError::Empty => usage(&error.to_string()),
        })?;
        let (count, is_exact) = store.count_for_job(tenant, &draft).await?;
        let counted = format!("{}{count}", if is_exact { "" } else { "at least " });
        if self.how.dry_run {
            let counts = json!({"kind": act, "total": count, "is_exact": is_exact});
            output::one(format, &counts, |_| format!("{counted} would be {}", done(act)));
            return Ok(Exit::Ok);
        }
        if count > 0 && !self.how.yes {
            cli::confirm(&format!("{counted} will be {}", done(act)), " (--dry-run only counts)")?;
        }
        let job = store.create_job(tenant, &draft).await?;
        if self.how.no_wait {
            jobs::print(format, &job);
            return Ok(Exit::Ok);
        }
        self.follow(format, store, job).await
    }

    async fn follow(&self, format: Format, store: &Store, job: Job) -> CommandResult {
        let seconds = job.total / i64::from(self.how.pace.unwrap_or(PACE));
        if seconds > 2 {
            say!("postcommit: job {} takes about {seconds} s; `postcommit jobs cancel {}` ends it", job.id, job.id);
        }
        let job = jobs::follow(store, job).await?;
        jobs::print(format, &job);
        Ok(ending(&job))
    }
}

/// The exit code for an ended job.
fn ending(job: &Job) -> Exit {
    match (job.state.as_str(), job.done, job.skipped) {
        ("done", _, 0) => Exit::Ok,
        ("done", 0, _) => Exit::Refused,
        ("failed", 0, _) => Exit::Failed,
        ("cancelled", 0, _) => Exit::Refused,
        _ => Exit::Partly,
    }
}

fn done(act: Act) -> &'static str {
    match act {
        Act::Retry => "retried",
        Act::Discard => "discarded",
        Act::Cancel => "cancelled",
    }
}

fn usage(problem: &str) -> Failure {
    Failure::new(Exit::Usage, problem)
}
