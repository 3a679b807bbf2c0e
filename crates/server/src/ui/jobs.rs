//! Jobs: acts on many deliveries, their progress, and how to stop them.

use axum::extract::{Path, RawQuery, State};
use minijinja::context;
use postcommit_channel::model::Scope;
use postcommit_engine::store::{Act, Job, StateCounts};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::acts::{Fields, Posted, see};
use super::confirm::Question;
use super::frame::Visitor;
use super::words::{counted, grouped, sentence_case, shown};
use crate::app::AppState;
use crate::problem::{Answer, Problem};

/// The number of jobs of a page.
const JOBS: i64 = 50;

/// A job as the pages show it.
#[derive(Serialize)]
struct Shown {
    id: Uuid,
    tenant: Option<String>,
    title: String,
    state: String,
    filter: String,
    asked_by: String,
    asked_at: String,
    finished_at: Option<String>,
    total: i64,
    done: i64,
    skipped: i64,
    left_out: i64,
    is_exact: bool,
    pace: i32,
    error: Option<String>,
    is_open: bool,
}

impl From<Job> for Shown {
    fn from(job: Job) -> Self {
        let conditions = serde_json::to_value(&job.filter).unwrap_or_default();
        let filter: Vec<String> = conditions.as_object().into_iter().flatten().map(condition).collect();
        Self {
            title: format!("{} {}", sentence_case(job.kind.name()), counted(job.total)),
            is_open: ["queued", "running"].contains(&job.state.as_str()),
            id: job.id,
            tenant: job.tenant_name,
            state: job.state,
            filter: filter.join(" · "),
            asked_by: job.asked_by,
            asked_at: job.asked_at.to_string(),
            finished_at: job.finished_at.map(|at| at.to_string()),
            total: job.total,
            done: job.done,
            skipped: job.skipped,
            left_out: job.left_out,
            is_exact: job.is_exact,
            pace: job.pace_per_s,
            error: job.last_error,
        }
    }
}

/// A condition of a job's filter in words.
fn condition((name, value): (&String, &Value)) -> String {
    match (name.as_str(), value) {
        ("unclear", Value::Bool(false)) => "without those that may have arrived".into(),
        ("unclear", _) => "only those that may have arrived".into(),
        (name, Value::String(text)) => format!("{} {text}", sentence_case(name)),
        (name, Value::Array(items)) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            format!("{} {}", sentence_case(name), items.join(" "))
        }
        (name, other) => format!("{} {other}", sentence_case(name)),
    }
}

/// The list of jobs, newest first.
pub async fn list(State(app): State<AppState>, visitor: Visitor, RawQuery(query): RawQuery) -> Answer {
    let query = query.unwrap_or_default();
    let before = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "before");
    let before =
        before.map(|(_, id)| id.parse::<Uuid>().map_err(|_| Problem::invalid("before", "is not the id of a job")));
    let before = before.transpose()?;
    let mut jobs = visitor.store(&app).jobs(visitor.caller.whose(), before, JOBS + 1).await?;
    let has_more = i64::try_from(jobs.len()).is_ok_and(|count| count > JOBS);
    jobs.truncate(usize::try_from(JOBS).unwrap_or(0));
    let older = jobs.last().filter(|_| has_more).map(|job| format!("/jobs?before={}", job.id));
    let jobs: Vec<Shown> = jobs.into_iter().map(Shown::from).collect();
    let is_first_page = before.is_none();
    visitor.page(&app, "jobs.html", "Jobs", context! { jobs => shown(jobs), older, is_first_page }).await
}

/// The progress of a job.
pub async fn page(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>) -> Answer {
    let job = find(&app, &visitor, &id).await?;
    let outcome = match job.kind {
        Act::Retry if job.done > 0 => outcome(&visitor.store(&app).job_outcome(&job).await?, job.done),
        _ => None,
    };
    let job = Shown::from(job);
    let title = job.title.clone();
    let may_cancel = job.is_open && visitor.may(Scope::Operate);
    visitor.page(&app, "job.html", &title, context! { job => shown(job), outcome, may_cancel }).await
}

/// What became of the deliveries that a job retried, in words. `done` is their number.
fn outcome(states: &StateCounts, done: i64) -> Option<String> {
    let live = ["pending", "sending", "retrying"];
    let told =
        |words: &str, of: &[&str]| Some(states.of(of)).filter(|n| *n > 0).map(|n| format!("{} {words}", grouped(n)));
    let known = [
        told("sent", &["sent"]),
        told("delivered", &["delivered"]),
        told("parked again", &["parked"]),
        told("still waiting", &live),
        told("ended otherwise", &["discarded", "cancelled", "expired", "skipped"]),
    ];
    let said: Vec<String> = known.into_iter().flatten().collect();
    let part =
        if states.total() < done { format!("of the first {}: ", grouped(states.total())) } else { String::new() };
    (!said.is_empty()).then(|| format!("{part}{}", said.join(", ")))
}

async fn find(app: &AppState, visitor: &Visitor, id: &str) -> Result<Job, Problem> {
    let none = || Problem::not_found("job");
    let id: Uuid = id.parse().map_err(|_| none())?;
    visitor.store(app).job(visitor.caller.whose(), id).await?.ok_or_else(none)
}

/// Stops a job after its current batch.
pub async fn cancel(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let job = find(&app, &visitor, &id).await?;
    let page = visitor.link(&format!("/jobs/{}", job.id));
    if !fields.is_yes("confirmed") {
        let question = Question {
            title: "Stop this job?".into(),
            says: "It stops after its current batch. Deliveries that it has changed stay changed.".into(),
            button: "Stop the job".into(),
            is_final: true,
            action: format!("/jobs/{}/cancel", job.id),
            back: page,
            ..Question::default()
        };
        return question.ask(&app, &visitor).await;
    }
    // If the job has ended meanwhile, its page says so.
    visitor.store(&app).cancel_job(visitor.caller.whose(), job.id).await?;
    Ok(see(page))
}
