//! The command `postcommit jobs`: actions on many deliveries.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Subcommand;
use postcommit_channel::clock;
use postcommit_engine::db::DbError;
use postcommit_engine::dispatch::run_job_once;
use postcommit_engine::store::{Act, Job, SliceOutcome, Store};
use serde_json::json;
use uuid::Uuid;

use super::{IdArg, LimitArgs};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;

/// The interval at which the progress of a job of another process is read.
const LOOK: Duration = Duration::from_millis(200);
/// The length of the progress bar in characters.
const BAR: usize = 30;

#[derive(Debug, Subcommand)]
pub enum Jobs {
    /// List jobs, newest first
    List {
        /// Only jobs of this tenant [default: every tenant]
        #[arg(long)]
        tenant: Option<String>,
        /// Only jobs older than this job: the last id of the previous page
        #[arg(long, value_name = "ID", value_parser = super::id)]
        before: Option<Uuid>,
        #[command(flatten)]
        page: LimitArgs,
    },
    /// Show the progress of one job
    Show(IdArg),
    /// Stop a job after its current batch; deliveries that it has changed stay changed
    Cancel(IdArg),
}

impl Jobs {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = super::acting(settings).await?;
        match self {
            Self::List { tenant, before, page } => {
                let tenant = super::tenant(&store, tenant.as_deref()).await?;
                output::list(format, &store.jobs(tenant, *before, page.limit).await?, &COLUMNS);
                Ok(Exit::Ok)
            }
            Self::Show(IdArg { id }) => {
                print(format, &found(&store, *id).await?);
                Ok(Exit::Ok)
            }
            Self::Cancel(IdArg { id }) => {
                found(&store, *id).await?;
                let was_open = store.cancel_job(None, *id).await?;
                let job = found(&store, *id).await?;
                if !was_open {
                    return Err(Failure::new(
                        Exit::Refused,
                        format!("the job is already {} and cannot be cancelled", job.state),
                    ));
                }
                print(format, &job);
                Ok(Exit::Ok)
            }
        }
    }
}

async fn found(store: &Store, id: Uuid) -> Result<Job, Failure> {
    store.job(None, id).await?.ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no job {id}")))
}

const COLUMNS: [output::Column<Job>; 9] = [
    ("id", |job| job.id.to_string()),
    ("asked", |job| output::seconds(job.asked_at)),
    ("tenant", |job| job.tenant_name.clone().unwrap_or_else(|| "(all)".into())),
    ("does", |job| job.kind.name().to_owned()),
    ("state", |job| job.state.clone()),
    ("done", progress),
    ("left out", |job| job.left_out.to_string()),
    ("by", |job| job.asked_by.clone()),
    ("which", which),
];

fn progress(job: &Job) -> String {
    format!("{} of {}{}", job.done, job.total, if job.is_exact { "" } else { " or more" })
}

fn which(job: &Job) -> String {
    let told = output::pairs(&json!(job.filter));
    let all = if job.kind == Act::Cancel { "all waiting deliveries" } else { "all parked deliveries" };
    if told.is_empty() { all.into() } else { told }
}

/// Prints one job.
pub fn print(format: Format, job: &Job) {
    output::one(format, job, |job| {
        let fields = [
            ("tenant", Some(job.tenant_name.clone().unwrap_or_else(|| "(all)".into()))),
            ("which", Some(which(job))),
            ("done", Some(progress(job))),
            (
                "skipped",
                (job.skipped > 0)
                    .then(|| format!("{}: another process or operator changed these deliveries first", job.skipped)),
            ),
            (
                "left out",
                (job.left_out > 0)
                    .then(|| format!("{}: these deliveries may have arrived; --unclear selects them", job.left_out)),
            ),
            ("pace", Some(format!("{} a second", job.pace_per_s))),
            ("asked", Some(format!("{} by {}", job.asked_at, job.asked_by))),
            ("finished", job.finished_at.map(|at| at.to_string())),
            ("last error", job.last_error.clone()),
        ];
        let lines = fields.iter().filter_map(|(name, value)| Some(format!("  {name:<12}{}", value.as_ref()?)));
        std::iter::once(format!("{}  {} {}", job.id, job.kind.name(), job.state))
            .chain(lines)
            .collect::<Vec<_>>()
            .join("\n")
    });
}

/// Processes the job until it has ended, together with other processes. No server is needed. If this command is
/// stopped, running servers continue the job.
pub async fn follow(store: &Store, job: Job) -> Result<Job, Failure> {
    let (id, mut bar) = (job.id, ProgressBar::new());
    let mut now = job;
    while ["queued", "running"].contains(&now.state.as_str()) {
        bar.draw(&now);
        match run_job_once(store).await {
            Ok(SliceOutcome::Moved { .. } | SliceOutcome::Lost) => {}
            Err(problem @ DbError::Unreachable(_)) => return Err(problem.into()),
            // The error is stored with the job that failed, which may be another job than this one.
            Ok(SliceOutcome::Nothing) | Err(_) => {
                let due = store.next_slice_in().await?.unwrap_or(LOOK);
                tokio::time::sleep(due.clamp(Duration::from_millis(5), LOOK)).await;
            }
        }
        now = store
            .job(None, id)
            .await?
            .ok_or_else(|| Failure::new(Exit::NotFound, format!("job {id} no longer exists")))?;
    }
    Ok(now)
}

/// Shows the progress on a terminal. Without a terminal it prints nothing.
struct ProgressBar {
    since: Instant,
    is_shown: bool,
}

impl ProgressBar {
    fn new() -> Self {
        Self { since: clock::monotonic(), is_shown: std::io::stderr().is_terminal() }
    }

    fn draw(&mut self, job: &Job) {
        if !self.is_shown {
            return;
        }
        let looked_at = usize::try_from((job.done + job.skipped).min(job.total)).unwrap_or(0);
        let full = looked_at * BAR / usize::try_from(job.total).unwrap_or(0).max(1);
        let line = format!("{}{}", "█".repeat(full), "░".repeat(BAR - full));
        let _ = write!(
            std::io::stderr(),
            "\r\x1b[K{} {line} {}  {} s",
            job.kind.name(),
            progress(job),
            self.since.elapsed().as_secs()
        );
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
