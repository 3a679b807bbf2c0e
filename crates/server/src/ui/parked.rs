//! Parked deliveries, grouped by the class of their error.

use axum::extract::State;
use minijinja::context;
use postcommit_channel::model::Scope;
use postcommit_engine::store::{DeliveryFilter, KpiGroup, KpiGrouping};
use serde::Serialize;

use super::frame::Visitor;
use super::notifications::filter::Filter;
use super::notifications::row::{Row, rows};
use super::words::{grouped, sentence_case, shown};
use crate::app::{App, AppState};
use crate::problem::{Answer, Problem};

/// The maximum number of groups. There are twelve classes of errors, and a group for deliveries without a class.
const GROUPS: usize = 20;
/// The maximum number of codes that a group names.
const CODES: usize = 4;

/// Parked deliveries with the same class of error.
#[derive(Serialize)]
struct Group {
    title: String,
    count: i64,
    /// How many deliveries of the group may have arrived.
    unclear: i64,
    codes: String,
    /// The list of the group. `None` if no filter selects it.
    href: Option<String>,
    /// The filter of the group, for its acts. `None` if no filter selects it.
    filter: Option<String>,
    advice: &'static str,
    /// The newest delivery of the group.
    example: Option<Row>,
}

/// The page of parked deliveries.
pub async fn page(State(app): State<AppState>, visitor: Visitor) -> Answer {
    let interval = app.tools.kpi.interval();
    let kpis = app.tallies.over(&app, &visitor.caller, Some(KpiGrouping::Error), interval).await?;
    let mut groups = Vec::new();
    for group in kpis.groups.iter().filter(|group| group.kpi.parked.total > 0).take(GROUPS) {
        groups.push(shown_group(&app, &visitor, group).await?);
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    let total = kpis.total.parked.total;
    let content = context! {
        total,
        all => Filter::default().with("state", "parked").query(),
        acts => visitor.may(Scope::Operate),
        groups => shown(groups),
    };
    visitor.page(&app, "parked.html", "Parked", content).await
}

async fn shown_group(app: &App, visitor: &Visitor, group: &KpiGroup) -> Result<Group, Problem> {
    let parked = Filter::default().with("state", "parked");
    let filter = parked.with("error_class", &group.label);
    let class = Some(group.label.clone()).filter(|class| !class.is_empty());
    let newest = DeliveryFilter {
        tenant: visitor.caller.whose(),
        states: vec!["parked".into()],
        error_class: class.clone(),
        limit: 1,
        ..DeliveryFilter::default()
    };
    let example = match class {
        Some(_) => rows(app, visitor, visitor.store(app).delivery_rows(&newest).await?.rows).await?.pop(),
        None => None,
    };
    let codes = group.codes.iter().filter(|code| code.parked > 0).take(CODES);
    let codes: Vec<String> = codes.map(|code| format!("{} ({})", code.code, grouped(code.parked))).collect();
    Ok(Group {
        title: if group.label.is_empty() { "Without an error".into() } else { sentence_case(&group.label) },
        count: group.kpi.parked.total,
        unclear: group.kpi.parked.unclear,
        codes: codes.join(" · "),
        href: class.as_ref().map(|_| filter.first_page()),
        filter: class.map(|_| filter.query()),
        advice: advice(&group.label),
        example,
    })
}

/// What to do about a class of errors before a retry.
fn advice(class: &str) -> &'static str {
    match class {
        "auth_failed" => {
            "The provider does not accept our credentials. Set the right secret, resume the lane, then retry."
        }
        "forbidden" => "Our credentials do not allow this. Ask the provider for the permission, then retry.",
        "rate_limited" => {
            "The provider asked for fewer messages. Lower the provider's rate, then retry at a slow pace."
        }
        "timeout" => "No answer came in time, so some may have arrived. Look at the provider, then retry.",
        "network" => "The provider could not be reached. Retry when it can be.",
        "server_error" => "The provider failed. Retry when it works again.",
        "invalid_address" => {
            "The addresses are wrong or gone. A retry fails again unless they are corrected; otherwise discard."
        }
        "invalid_content" => {
            "The provider refuses the content. Correct the template or the application; a retry sends the same text."
        }
        "template_rejected" => "The template is missing, fails, or is refused. Correct it, then retry.",
        "account" => "The account at the provider is unpaid, suspended or out of credit. Settle that, then retry.",
        "config" => "The provider is missing, disabled or misconfigured. Correct it, then retry.",
        _ => "Open the deliveries and read what the provider said.",
    }
}
