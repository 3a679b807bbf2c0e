//! Retry and discard: deliveries by id, immediately; or all deliveries that match a filter, as a job.

use clap::Args;
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{Act, Acted, Job, JobCount, PACE, PACE_MOST, Store};
use serde_json::{Value, json};

use super::which::Which;
use crate::acts::{self, FilterError, MAY_HAVE_ARRIVED};
use crate::cli::{self, jobs};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct ActArgs {
    /// Ids of deliveries (NOTIFICATION.N); without ids, the options below select the deliveries
    pub ids: Vec<DeliveryId>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: ActOptions,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "How")]
struct ActOptions {
    /// Only count the matching deliveries and change nothing
    #[arg(long, conflicts_with_all = ["yes", "no_wait", "pace_per_s"])]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Create the job and exit; the running servers process it
    #[arg(long)]
    no_wait: bool,
    /// Change at most this many deliveries per second [default: 500]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(i32).range(1..=i64::from(PACE_MOST)))]
    pace_per_s: Option<i32>,
}

impl ActArgs {
    /// Whether a filter is given. Ids and a filter exclude each other.
    pub fn by_filter(&self) -> Result<bool, Failure> {
        // With ids, --unclear is not a condition: it allows a retry of deliveries that may have arrived.
        let is_any = self.which.is_any() || (!self.ids.is_empty() && self.which.is_only_unclear());
        match (self.ids.is_empty(), is_any) {
            (true, true) => Err(usage(
                "no deliveries are selected; give their ids, or a filter, e.g. --state parked for all parked deliveries",
            )),
            (false, false) => Err(usage("both ids and a filter are given; give only one of them")),
            (is_filter, _) => Ok(is_filter),
        }
    }

    /// Whether the operator allows a retry of deliveries that may have arrived.
    pub fn unclear(&self) -> bool {
        self.which.unclear == Some(true)
    }

    pub async fn run(&self, format: Format, store: &Store, act: Act) -> CommandResult {
        let filter = self.which.filter(store).await?;
        let tenant = filter.tenant;
        let mut draft = acts::job(act, filter, false, self.how.pace_per_s).map_err(|error| match error {
            FilterError::NotParked(_) | FilterError::NotRetriable(_) => usage(&format!("--state {error}")),
            FilterError::Stuck | FilterError::Empty => usage(&error.to_string()),
        })?;
        let done = if draft.brings_forward() { "brought forward" } else { done(act) };
        let counted = store.count_for_job(tenant, &draft).await?;
        if self.how.dry_run {
            let mut counts = json!(counted);
            counts["kind"] = json!(act);
            output::one(format, &counts, |_| will("would be", done, counted));
            return Ok(Exit::Ok);
        }
        if counted.total == 0 && counted.left_out > 0 {
            draft.unclear = consent(counted.left_out)?;
        } else if counted.total > 0 && !self.how.yes {
            cli::confirm(&will("will be", done, counted), " (--dry-run only counts)")?;
        }
        let job = store.create_job(tenant, &draft).await?;
        if self.how.no_wait {
            jobs::print(format, &job);
            return Ok(Exit::Ok);
        }
        self.follow(format, store, job).await
    }

    async fn follow(&self, format: Format, store: &Store, job: Job) -> CommandResult {
        let seconds = job.total / i64::from(self.how.pace_per_s.unwrap_or(PACE));
        if seconds > 2 {
            say!("postcommit: job {} takes about {seconds} s; `postcommit jobs cancel {}` ends it", job.id, job.id);
        }
        let job = jobs::follow(store, job).await?;
        jobs::print(format, &job);
        Ok(ending(&job))
    }
}

/// Asks for consent when every matching delivery may have arrived. Without a terminal it refuses.
fn consent(left_out: i64) -> Result<bool, Failure> {
    let what = format!("deliveries that may have arrived: {left_out}; a retry sends them again");
    match cli::ask(&what) {
        Some(true) => Ok(true),
        Some(false) => Err(Failure::new(Exit::Refused, format!("{what}: nothing was done"))),
        None => Err(Failure::new(Exit::Refused, format!("{what}: nothing was done; add --unclear to retry them"))),
    }
}

/// Describes an action by filter: the number of deliveries, and the number that is left out.
fn will(verb: &str, done: &str, counted: JobCount) -> String {
    let least = if counted.is_exact { "" } else { "at least " };
    let left_out = match counted.left_out {
        0 => String::new(),
        some => format!("; left out because they may have arrived: {least}{some} (--unclear selects them)"),
    };
    format!("{least}{} {verb} {done}{left_out}", counted.total)
}

/// Acts on each id and prints the results. The exit code depends on the number of successes. A retry of a delivery that
/// may have arrived needs `unclear`, or a confirmation on the terminal.
pub async fn on_ids(format: Format, store: &Store, ids: &[DeliveryId], act: Act, unclear: bool) -> CommandResult {
    let given: Vec<Option<DeliveryId>> = ids.iter().copied().map(Some).collect();
    let mut acted = acts::on_ids(store, None, act, &given, unclear).await?;
    let is_unclear = |acted: &Acted| matches!(acted, Acted::Unclear { .. });
    let doubtful: Vec<_> = given.iter().zip(&acted).filter(|(_, acted)| is_unclear(acted)).map(|(id, _)| *id).collect();
    if !doubtful.is_empty() && cli::ask(&unclear_line(&doubtful)) == Some(true) {
        let again = acts::on_ids(store, None, act, &doubtful, true).await?;
        for (old, new) in acted.iter_mut().filter(|acted| is_unclear(acted)).zip(again) {
            *old = new;
        }
    }
    let (mut results, mut failed) = (Vec::with_capacity(ids.len()), (0, Exit::Ok));
    for (id, acted) in ids.iter().zip(acted) {
        if let Some((exit, problem)) = problem(*id, act, &acted) {
            failed = (failed.0 + 1, exit);
            say!("postcommit: {problem}");
        }
        let (result, state) = acts::told(act, acted);
        results.push(json!({"id": id.to_string(), "result": result, "state": state}));
    }
    fn text(value: &Value) -> String {
        value.as_str().unwrap_or("-").to_owned()
    }
    output::list(
        format,
        &results,
        &[("id", |row| text(&row["id"])), ("result", |row| text(&row["result"])), ("state", |row| text(&row["state"]))],
    );
    Ok(if failed.0 > 0 && failed.0 < ids.len() { Exit::Partly } else { failed.1 })
}

fn unclear_line(ids: &[Option<DeliveryId>]) -> String {
    match ids {
        [Some(id)] => format!("{id} {MAY_HAVE_ARRIVED}"),
        _ => format!("{} of the deliveries may have arrived, and a retry sends them again", ids.len()),
    }
}

/// The exit code and the error text if the action was refused.
fn problem(id: DeliveryId, act: Act, acted: &Acted) -> Option<(Exit, String)> {
    let why_not = match act {
        Act::Retry => {
            "only parked deliveries can be retried; `postcommit dispatch --once --id NOTIFICATION` sends a waiting \
             delivery now"
        }
        Act::Discard => "only parked deliveries can be discarded",
        Act::Cancel => "only waiting deliveries can be cancelled",
    };
    match acted {
        Acted::Done => None,
        Acted::Refused { state, .. } => Some((Exit::Refused, format!("{id} is {state}: {why_not}"))),
        Acted::Unclear { reason } => {
            let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            Some((Exit::Refused, format!("{id} is parked{reason}: it {MAY_HAVE_ARRIVED}; add --unclear to retry it")))
        }
        Acted::NotFound => Some((Exit::NotFound, format!("there is no delivery {id}"))),
    }
}

/// The exit code for an ended job. Deliveries that the job left out count as failed.
fn ending(job: &Job) -> Exit {
    match (job.state.as_str(), job.done, job.skipped + job.left_out) {
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
