//! Adapts the report on an answer to the message: whom the answer concerns, and which of its data was not sent.

use crate::model::{Because, ErrorClass, Outcome, Report};

/// How many unknown fields a warning names.
const FIELDS_NAMED: usize = 5;
/// How many characters of an unknown field a warning shows.
const FIELD_CHARS: usize = 64;

/// The report on a message that was sent over the provider's own URL and account. A refused account says nothing about
/// the address.
pub(super) fn of_account(mut report: Report) -> Report {
    if matches!(report.outcome, Outcome::Rejected { because: Because::Config, .. }) {
        report.suppress = None;
    }
    report
}

/// The report on a receiver whose URL is the address. Its answer says nothing about other URLs, even of the same host,
/// so it affects only this delivery. A host that fails is another matter: the breaker of the host counts that.
pub(super) fn of_one_receiver(mut report: Report) -> Report {
    let is_of_host =
        matches!(report.class(), Some(ErrorClass::Timeout | ErrorClass::Network | ErrorClass::ServerError));
    report.only_delivery |= !is_of_host;
    if let Outcome::Rejected { because, .. } = &mut report.outcome
        && *because == Because::Config
    {
        *because = Because::Refused;
    }
    report
}

/// Adds a warning about fields of the channel data that the recipe does not know, e.g. because they are misspelt. They
/// were not sent. A detail without a code does not count as an error.
pub(super) fn warned(mut report: Report, channel: &str, unknown: &[String]) -> Report {
    if unknown.is_empty() {
        return report;
    }
    let name = |field: &String| format!("{:?}", field.chars().take(FIELD_CHARS).collect::<String>());
    let named: Vec<String> = unknown.iter().take(FIELDS_NAMED).map(name).collect();
    let more = match unknown.len().saturating_sub(FIELDS_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let warning = format!("warning: data.{channel}: unknown fields were not sent: {}{more}", named.join(", "));
    let told = report.evidence.detail.take();
    report.evidence.detail = Some(told.map_or(warning.clone(), |told| format!("{told}; {warning}")));
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_names_some_fields_and_ends_the_text_of_an_error() {
        let fields = |count: usize| (0..count).map(|n| format!("f{n}")).collect::<Vec<_>>();
        let detail = |report: Report| report.evidence.detail;
        assert_eq!(detail(warned(Report::from(Outcome::Sent), "sms", &[])), None);
        let long = vec!["x".repeat(100), "a\nb".to_owned()];
        let shown = format!("warning: data.sms: unknown fields were not sent: {:?}, \"a\\nb\"", "x".repeat(64));
        assert_eq!(detail(warned(Report::from(Outcome::Sent), "sms", &long)), Some(shown));
        let failed = Report::from(Outcome::deferred("http_503")).because("the service answered 503");
        let wanted = "the service answered 503; warning: data.sms: unknown fields were not sent: \"f0\", \"f1\", \"f2\", \"f3\", \"f4\" and 2 more";
        assert_eq!(detail(warned(failed, "sms", &fields(7))).as_deref(), Some(wanted));
    }
}
