//! What happened to a delivery: a sentence, and a timeline.

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::{DeliveryKey, StoredNotification};
use postcommit_engine::db::DbError;
use postcommit_engine::store::{AttemptRow, AuditFilter, DeliveryRow, ReceiptRow, StateCounts, Store};
use serde::Serialize;

use crate::ui::words::{day, dotted, grouped, relative, sentence_case};

/// The maximum number of entries of the audit log for each subject.
const ACTS: i64 = 20;

/// A step of the timeline.
#[derive(Serialize)]
pub struct Step {
    at: Timestamp,
    /// The day of the step, if the step before was on another day.
    day: Option<String>,
    what: String,
    detail: String,
    /// The beginning of the provider's answer, redacted.
    excerpt: Option<String>,
    tint: &'static str,
}

impl Step {
    fn new(at: Timestamp, what: impl Into<String>, detail: impl Into<String>, tint: &'static str) -> Self {
        Self { at, day: None, what: what.into(), detail: detail.into(), excerpt: None, tint }
    }
}

/// What happened to a delivery, oldest first, with at most `limit` attempts.
pub async fn steps(
    store: &Store,
    note: &StoredNotification,
    row: &DeliveryRow,
    limit: i64,
) -> Result<Vec<Step>, DbError> {
    let attempts =
        store.attempts_of(DeliveryKey { tenant: note.tenant, notification: note.id, n: row.n }, limit).await?;
    let about = note.entity.as_ref().map(|entity| format!(" with entity {entity}")).unwrap_or_default();
    let origin = note.source.as_ref();
    let from = |name: &str| origin.and_then(|source| source.get(name)?.as_str()).map(|text| format!("{name} {text}"));
    let trace = note.correlation_id.as_ref().map(|id| format!("correlation {id}"));
    let detail = dotted([from("site"), from("instance"), from("script"), from("rule"), trace]);
    let mut steps = vec![Step::new(note.created_at, format!("Committed{about}"), detail, "")];
    steps.extend(attempts.into_iter().map(attempt));
    steps.extend(store.receipts(note.tenant, note.id, row.n).await?.into_iter().map(receipt));
    for subject in [row.id.clone(), note.id.to_string()] {
        let filter =
            AuditFilter { tenant: Some(note.tenant), subject: Some(subject), limit: ACTS, ..AuditFilter::default() };
        for entry in store.audit_rows(&filter).await? {
            let what = entry.action.rsplit('.').next().map(sentence_case).unwrap_or_default();
            steps.push(Step::new(entry.at, format!("{what}, by {}", entry.actor), entry.action, ""));
        }
    }
    let ends = ["parked", "delivered", "discarded", "cancelled", "expired", "skipped"];
    if ends.contains(&row.state.as_str()) {
        let tint = if row.state == "parked" { "bad" } else { "" };
        let reason = row.reason.as_deref().or(row.error_code.as_deref()).filter(|_| row.state != "delivered");
        let what = sentence_case(&row.state);
        steps.push(Step::new(row.updated_at, what, reason.map(sentence_case).unwrap_or_default(), tint));
    } else if let Some(next) = row.next_attempt_at.filter(|_| row.state != "sending") {
        let waits = row.waits_for.as_ref().map(|what| format!("waits for {what}")).unwrap_or_default();
        steps.push(Step::new(next, if row.attempts > 0 { "Next attempt" } else { "Due" }, waits, "next"));
    }
    steps.sort_by_key(|step| step.at);
    let mut before = None;
    for step in &mut steps {
        let today = day(&step.at.to_string());
        step.day = (before.as_ref() != Some(&today)).then(|| today.clone());
        before = Some(today);
    }
    Ok(steps)
}

/// Returns the step of a receipt: what the provider reported after the send.
fn receipt(receipt: ReceiptRow) -> Step {
    let by = receipt.provider.map(|provider| format!(" by {provider}")).unwrap_or_default();
    let tint = match receipt.happened.as_str() {
        "delivered" => "good",
        "failed" | "bounced" | "complained" => "bad",
        _ => "",
    };
    let ignored = receipt.reason.map(|why| format!("the state was left as it was: {why}"));
    let waits = (receipt.fate == "waiting").then(|| "waits to be applied".to_owned());
    let what = format!("Receipt{by}: {}", sentence_case(&receipt.happened).to_lowercase());
    Step::new(receipt.received_at, what, dotted([receipt.code, receipt.detail, ignored, waits]), tint)
}

fn attempt(attempt: AttemptRow) -> Step {
    let by = attempt.provider.as_ref().map(|provider| format!(" by {provider}")).unwrap_or_default();
    let tint = match attempt.outcome.as_str() {
        "sent" | "delivered" => "good",
        "deferred" => "warn",
        _ => "bad",
    };
    let outcome = if attempt.captured { "captured, not sent" } else { &attempt.outcome };
    let (code, class) = (attempt.code.clone(), attempt.error_class.clone());
    let told = dotted([
        Some(outcome.to_owned()),
        class.or(code.clone()).filter(|class| Some(class) != code.as_ref() || !class.is_empty()),
        attempt.detail.clone(),
        attempt.provider_ref.as_ref().map(|id| format!("provider's id {id}")),
    ]);
    let what = format!("Attempt {}{by}, {} ms", attempt.seq, attempt.latency_ms);
    Step { excerpt: attempt.excerpt, ..Step::new(attempt.at, what, told, tint) }
}

/// The states of a notification's deliveries in a sentence, and what to do about the chosen one.
pub fn sentence(states: &StateCounts, chosen: &DeliveryRow) -> String {
    let all = states.total();
    if all <= 1 {
        return of_one(chosen);
    }
    let (parked, arrived) = (states.of(&["parked"]), states.of(&["sent", "delivered"]));
    let live = states.of(&["pending", "sending", "retrying"]);
    let others = all - parked - arrived - live;
    let (more, least) = if states.is_exact() { ("", "") } else { ("more than ", "at least ") };
    let told = |n: i64, words: &str| (n > 0).then(|| format!("{least}{} {words}", grouped(n)));
    let parts = [
        told(parked, if parked == 1 { "is parked and needs a person" } else { "are parked and need a person" }),
        told(live, if live == 1 { "is on its way" } else { "are on their way" }),
        told(arrived, if arrived == 1 { "was sent" } else { "were sent" }),
        told(others, "ended otherwise"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("Of {more}{} deliveries, {}. The chosen one: {}", grouped(all), parts.join(", "), of_one(chosen))
}

/// The state of a delivery in a sentence, and what to do.
fn of_one(row: &DeliveryRow) -> String {
    let provider = row.provider.as_deref().unwrap_or("the provider");
    let error =
        row.last_error.clone().or_else(|| row.error_code.clone()).unwrap_or_else(|| "no error was reported".into());
    let error = error.trim_end_matches('.').to_owned();
    let channel = row.channel.as_deref().unwrap_or("its channel");
    let next = row.next_attempt_at.filter(|at| *at > clock::now());
    let next = match next.map(|at| relative(at.as_micros() - clock::now().as_micros())) {
        Some(next) => format!("is {next}"),
        None => format!("is due and waits for {}", row.waits_for.as_deref().unwrap_or("its turn")),
    };
    match (row.state.as_str(), row.reason.as_deref()) {
        ("pending", _) => match &row.waits_for {
            Some(what) => format!("It is not sent yet and waits for {what}."),
            None => "It is not sent yet.".into(),
        },
        ("sending", _) => format!("It is being sent by {provider}."),
        ("retrying", _) => {
            format!("Attempt {} failed: {error}. The next attempt {next}.", row.attempts)
        }
        ("sent", _) if row.captured => format!("{provider} captured it; nothing was sent."),
        ("sent", _) => format!("{provider} accepted it. Nothing says yet whether it arrived."),
        ("delivered", _) => format!("It arrived over {channel}."),
        ("parked", Some("rejected")) => {
            format!("{provider} rejected it: {error}. Mend the cause, then retry it; or discard it.")
        }
        ("parked", Some("exhausted")) if row.unclear => format!(
            "All {} attempts failed, and one of them may have arrived: {error}. Ask {provider} or the recipient; a retry sends it again.",
            row.attempts
        ),
        ("parked", Some("exhausted")) => {
            format!(
                "All {} attempts failed. The last said: {error}. Retry it when {provider} works again.",
                row.attempts
            )
        }
        ("parked", Some("outcome_unknown")) => format!(
            "It may have arrived: {error}. Ask {provider} or the recipient. Mark it as delivered if it arrived; a retry sends it again."
        ),
        ("parked", _) => format!("It cannot be sent as things are set up: {error}. Correct that, then retry it."),
        ("discarded", _) if row.unclear => {
            "A person discarded it. Its outcome is unknown: an earlier attempt may have arrived. It is not sent again."
                .into()
        }
        ("discarded", _) => "A person discarded it; it is not sent.".into(),
        ("cancelled", _) if row.unclear => {
            "It was cancelled. Its outcome is unknown: an earlier attempt may have arrived. It is not sent again."
                .into()
        }
        ("expired", _) if row.unclear => {
            "It expired. Its outcome is unknown: an earlier attempt may have arrived. It is not sent again.".into()
        }
        ("cancelled", _) => "It was cancelled before it was sent.".into(),
        ("expired", _) => "It expired before it could be sent.".into(),
        ("skipped", _) => format!("It was left out: {error}."),
        (state, _) => format!("It is {state}."),
    }
}
