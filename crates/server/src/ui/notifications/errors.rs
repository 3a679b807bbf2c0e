//! The errors of live and parked deliveries, shown beside the list: each class and code with its count, as a link that
//! filters the list.

use postcommit_engine::db::DbError;
use postcommit_engine::store::{CodeCount, KpiGrouping, OTHER};
use serde::Serialize;

use super::filter::Filter;
use crate::app::App;
use crate::ui::frame::Visitor;
use crate::ui::words::{dotted, sentence_case};

/// The maximum number of errors that are named, the most frequent first.
const NAMED: usize = 8;
/// The states of deliveries that can have an error and are counted. The others are history.
const COUNTED: &str = "retrying,parked";

/// Deliveries with the same class and code of their last error.
#[derive(Serialize)]
pub struct ErrorGroup {
    label: String,
    count: i64,
    href: String,
    is_chosen: bool,
}

/// The most frequent errors. They are counted for the whole tenant. If the filter has a condition other than a state
/// and an error, none are returned, because the numbers would be larger than the lists behind the links.
pub async fn groups(app: &App, visitor: &Visitor, filter: &Filter) -> Result<Vec<ErrorGroup>, DbError> {
    let states = match filter.get("state") {
        "" => COUNTED,
        states if ["retrying", "parked", COUNTED].contains(&states) => states,
        _ => return Ok(vec![]),
    };
    let others = filter.with("state", "").with("error_class", "").with("error_code", "");
    if !others.has_only(&[]) || !filter.is_first_page() {
        return Ok(vec![]);
    }
    let interval = app.tools.kpi.interval();
    let kpis = app.tallies.over(app, &visitor.caller, Some(KpiGrouping::Error), interval).await?;
    let count = |code: &CodeCount| match states {
        "parked" => code.parked,
        "retrying" => code.queue,
        _ => code.parked + code.queue,
    };
    let mut all = Vec::new();
    for group in kpis.groups.iter().filter(|group| !group.label.is_empty()) {
        for code in group.codes.iter().filter(|code| count(code) > 0 && code.code != OTHER) {
            let narrowed = others.with("state", states).with("error_class", &group.label);
            let narrowed = narrowed.with("error_code", &code.code);
            all.push(ErrorGroup {
                label: told(&group.label, &code.code),
                count: count(code),
                is_chosen: narrowed.query() == filter.query(),
                href: narrowed.first_page(),
            });
        }
    }
    all.sort_by_key(|group| std::cmp::Reverse(group.count));
    all.truncate(NAMED);
    Ok(all)
}

/// The class and the code. A code that only repeats its class is left out.
fn told(class: &str, code: &str) -> String {
    dotted([Some(sentence_case(class)), Some(code.to_owned()).filter(|code| code != class)])
}
