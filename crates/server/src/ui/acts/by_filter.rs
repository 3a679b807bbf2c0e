//! Acts on all deliveries that match a filter, as a job. The confirmation page counts them. The job changes only
//! deliveries that were counted, and none that were parked or enqueued after the count.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_engine::store::{Act, JobCount, JobDraft, PACE, PACE_MOST};

use super::{AGAIN_UNCLEAR, Fields, also_unclear, question, see};
use crate::acts::{self, FilterError};
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::ui::confirm::Question;
use crate::ui::frame::Visitor;
use crate::ui::notifications::filter::Filter;
use crate::ui::words::{grouped, span, time};

/// More deliveries than this are discarded only after their number is typed.
const TYPED_OVER: i64 = 100;
/// The paces that the page offers, in deliveries per second.
const PACES: [i32; 4] = [1, 10, 100, PACE];
/// The pace that is preselected. It is slow enough to leave time to stop the job.
const FIRST_PACE: i32 = 10;
/// How long a count can be confirmed. After that, the page counts again and asks again.
const ANSWERABLE: Duration = Duration::from_secs(3600);

/// The count that a form confirms: when the deliveries were counted, and the number that was shown.
#[derive(Clone, Copy)]
struct Answered {
    as_of: Timestamp,
    shown: i64,
}

impl Answered {
    fn read(fields: &Fields, now: Timestamp) -> Option<Self> {
        let as_of: Timestamp = fields.get("as_of")?.parse().ok()?;
        let is_recent = as_of <= now && now.since(as_of) <= ANSWERABLE;
        Some(Self { as_of, shown: fields.get("shown")?.parse().ok()? }).filter(|_| is_recent)
    }
}

/// What a person must confirm: the job, and how many deliveries it concerns as of a time.
struct Asked {
    draft: JobDraft,
    counted: JobCount,
    as_of: Timestamp,
    /// Whether all deliveries to retry may have arrived, so that the retry needs the ticked box.
    is_unclear: bool,
    /// Whether the job changes deliveries of several tenants.
    concerns_all: bool,
}

pub async fn act(app: &App, visitor: &Visitor, fields: &Fields, act: Act) -> Answer {
    let filter = Filter::read(fields.get("filter").unwrap_or_default())?;
    let filter = filter
        .map_err(|_| Problem::invalid("filter", "has a search text (q) or an empty field; open the list again"))?;
    let store = visitor.store(app);
    let now = store.now().await?;
    let answered = Answered::read(fields, now);
    let as_of = answered.map_or(now, |answered| answered.as_of);
    let of_store = filter.of_store(as_of, app.stuck_after)?;
    let selects_unclear = of_store.unclear == Some(true);
    let draft = acts::job(act, of_store, fields.is_yes("unclear"), pace(fields)?).map_err(refused)?;
    let retries = act == Act::Retry && !draft.brings_forward();
    let count = async |unclear| {
        let counted = JobDraft { unclear, ..draft.clone() };
        store.count_for_job_as_of(visitor.caller.whose(), &counted, as_of).await
    };
    let mut is_unclear = selects_unclear && retries;
    let mut counted = count(is_unclear).await?;
    // If all deliveries to retry may have arrived, the page asks about these.
    if retries && !is_unclear && counted.total == 0 && counted.left_out > 0 {
        is_unclear = true;
        counted = count(true).await?;
    }
    let concerns_all = visitor.must_choose(app).await?;
    let asked = Asked { draft, counted, as_of, is_unclear, concerns_all };
    let refusal = if fields.is_yes("confirmed") { asked.refusal(fields, answered) } else { Some(String::new()) };
    if let Some(refusal) = refusal {
        let refused = Some(refusal).filter(|said| !said.is_empty());
        return Question { refused, ..asked.question(fields) }.ask(app, visitor).await;
    }
    let job = store.create_job_as_of(visitor.caller.whose(), &asked.draft, as_of).await?;
    app.tallies.forget(visitor.caller.whose());
    Ok(see(visitor.link(&format!("/jobs/{}", job.id))))
}

impl Asked {
    /// Whether a person must type the number of deliveries to confirm the act.
    fn is_typed(&self, number: i64) -> bool {
        self.concerns_all || (self.draft.act == Act::Discard && number > TYPED_OVER)
    }

    /// Returns why the confirmation is not accepted. `None` if the job can begin.
    fn refusal(&self, fields: &Fields, answered: Option<Answered>) -> Option<String> {
        let total = self.counted.total;
        let Some(Answered { shown, .. }) = answered else {
            return Some("The deliveries were counted too long ago. They were counted again.".into());
        };
        if self.counted.is_exact && total > shown {
            return Some("More deliveries match than were shown. They were counted again.".into());
        }
        let typed = fields.get("typed").map(|typed| typed.replace([',', ' ', '.', '\u{a0}'], ""));
        let is_ticked = fields.is_yes("unclear");
        let concerned = if is_ticked { shown + self.counted.left_out } else { shown };
        if self.is_typed(total.max(concerned)) && typed != Some(concerned.to_string()) {
            return Some(format!(
                "The number is not the one above. {} deliveries would be concerned.",
                grouped(concerned)
            ));
        }
        (self.is_unclear && !is_ticked).then(|| "These deliveries may have arrived. Tick the box to retry them.".into())
    }

    fn question(&self, fields: &Fields) -> Question {
        let Self { draft, counted, as_of, .. } = self;
        let total = counted.total;
        let asked = question(draft.act, total);
        let later = if draft.brings_forward() { "enqueued" } else { "parked" };
        let as_of_time = time(&as_of.to_string());
        let says = if draft.brings_forward() {
            "They wait for their next attempt, and are tried now. They keep their attempts."
        } else {
            asked.says.as_str()
        };
        let mut repeated = fields.repeated(&["all", "filter", "back"]);
        repeated.extend([("as_of".into(), as_of.to_string()), ("shown".into(), total.to_string())]);
        let leaves_out = counted.left_out > 0 && draft.act == Act::Retry;
        let unclear_beside = if leaves_out && !self.is_unclear { counted.left_out } else { 0 };
        let unclear = match self.is_unclear {
            true => Some(AGAIN_UNCLEAR.to_owned()),
            false => leaves_out.then(|| also_unclear(counted.left_out)),
        };
        Question {
            says: format!("{says} Counted at {as_of_time} UTC; what is {later} later is not included."),
            warning: self.warning(&as_of_time),
            fields: repeated,
            unclear,
            is_unclear_required: self.is_unclear,
            is_unclear_ticked: fields.is_yes("unclear"),
            paces: PACES.map(|pace| (pace, pace_in_words(pace, total))).to_vec(),
            pace: draft.pace_per_s.unwrap_or(FIRST_PACE),
            typed: self.is_typed(total).then(|| match unclear_beside {
                0 => total.to_string(),
                more => format!("{total}, or {} with the box ticked,", total + more),
            }),
            back: fields.back(),
            ..asked
        }
    }

    fn warning(&self, as_of: &str) -> Option<String> {
        let all =
            "This concerns the deliveries of all tenants. Choose a tenant in the menu to act on its deliveries alone.";
        let many =
            format!("There are more than {}; all that matched at {as_of} are included.", grouped(self.counted.total));
        let said: Vec<&str> = [(self.concerns_all, all), (!self.counted.is_exact, many.as_str())]
            .into_iter()
            .filter(|(is, _)| *is)
            .map(|(_, said)| said)
            .collect();
        Some(said.join(" ")).filter(|said| !said.is_empty())
    }
}

fn pace(fields: &Fields) -> Result<Option<i32>, Problem> {
    let Some(given) = fields.get("pace") else { return Ok(None) };
    let pace = given.parse().ok().filter(|pace| (1..=PACE_MOST).contains(pace));
    pace.map(Some).ok_or_else(|| {
        Problem::invalid("pace", format!("is {given:?}; 1 to {PACE_MOST} deliveries a second are allowed"))
    })
}

fn pace_in_words(pace: i32, total: i64) -> String {
    let seconds = u64::try_from(total / i64::from(pace)).unwrap_or(0);
    let lasts = if seconds < 2 { "a moment".into() } else { format!("about {}", span(seconds)) };
    format!("{} a second, {lasts}", grouped(pace.into()))
}

fn refused(error: FilterError) -> Problem {
    Problem::invalid("filter", error.to_string())
}
