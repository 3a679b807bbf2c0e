//! The filter of the list of deliveries, as it is in the query of the page's URL. Forms send empty fields, which count
//! as absent. The search field understands qualifiers such as `entity:12345`, which become fields.

use std::borrow::Cow;
use std::time::Duration;

use postcommit::{Timestamp, limits};
use postcommit_channel::model::{DeliveryId, DeliveryState, ErrorClass, Reason};
use postcommit_engine::store::{DeliveryFilter, Position};
use serde::Serialize;
use uuid::Uuid;

use crate::problem::Problem;
use crate::read::check_lengths;
use crate::ui::words::sentence_case;

/// The fields of the filter and their labels.
const FIELDS: [(&str, &str); 19] = [
    ("state", "State"),
    ("title", "Words"),
    ("entity", "Entity"),
    ("recipient", "Recipient"),
    ("correlation_id", "Correlation id"),
    ("channel", "Channel"),
    ("event_type", "Event type"),
    ("provider", "Provider"),
    ("site", "Site"),
    ("list", "List"),
    ("error_class", "Error"),
    ("error_code", "Error code"),
    ("reason", "Parked because"),
    ("unclear", "May have arrived"),
    ("stuck", "Stuck"),
    ("since", "Enqueued in the last"),
    ("from", "Enqueued from"),
    ("until", "Enqueued before"),
    ("notification_id", "Notification"),
];

/// The qualifiers of the search field, and the fields that they become.
const QUALIFIERS: [(&str, &str); 16] = [
    ("state", "state"),
    ("entity", "entity"),
    ("to", "recipient"),
    ("recipient", "recipient"),
    ("correlation", "correlation_id"),
    ("channel", "channel"),
    ("type", "event_type"),
    ("event_type", "event_type"),
    ("provider", "provider"),
    ("site", "site"),
    ("list", "list"),
    ("error", "error_class"),
    ("code", "error_code"),
    ("reason", "reason"),
    ("since", "since"),
    ("id", "notification_id"),
];

/// The periods of the field `since`, and their lengths in seconds.
pub const PERIODS: [(&str, &str, u64); 6] = [
    ("15m", "15 minutes", 900),
    ("1h", "hour", 3600),
    ("24h", "24 hours", 86_400),
    ("48h", "48 hours", 172_800),
    ("7d", "7 days", 604_800),
    ("30d", "30 days", 2_592_000),
];

/// The states of the pill for deliveries that ended without being sent.
pub const ENDED: &str = "discarded,cancelled,expired";

/// The maximum number of words of the search.
const WORDS: usize = 8;
/// The maximum number of earlier pages whose cursors are in the URL of a page.
const TRAIL: usize = 20;

/// The filter: its fields in the order of [`FIELDS`], and the page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    fields: Vec<(String, String)>,
    cursor: Option<String>,
    /// The cursors of the pages before this one. An empty cursor is the first page.
    trail: Vec<String>,
}

/// A field of the filter that is shown above the list, and the URL of the list without it.
#[derive(Serialize)]
pub struct Chip {
    label: &'static str,
    value: String,
    without: String,
}

impl Filter {
    /// Reads the query of a page. The inner result is `Err` if the query comes from a form: it has a shorter URL of the
    /// same list, without empty fields, and with fields in place of the search field's qualifiers.
    pub fn read(query: &str) -> Result<Result<Self, String>, Problem> {
        let pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = form_urlencoded::parse(query.as_bytes()).collect();
        let (mut filter, mut search) = (Self::default(), None);
        let is_page = |name: &str| ["cursor", "trail"].contains(&name);
        let is_of_form = pairs.iter().any(|(name, value)| value.trim().is_empty() && !is_page(name));
        for (name, value) in pairs.iter().filter(|(_, value)| !value.trim().is_empty()) {
            if value.contains('\0') {
                return Err(Problem::invalid(name.as_ref(), "has a NUL character, which no value contains"));
            }
            match name.as_ref() {
                "tenant" | "done" | "full" => {}
                "cursor" => filter.cursor = Some(value.clone().into_owned()),
                "trail" => filter.trail = value.split(',').map(str::to_owned).take(TRAIL).collect(),
                "q" => search = Some(value.clone().into_owned()),
                name if FIELDS.iter().any(|(field, _)| *field == name) => filter.set(name, value.trim()),
                name => {
                    let known = FIELDS.map(|(field, _)| field).join(", ");
                    return Err(Problem::invalid(name, format!("unknown parameter `{name}`; allowed are {known}")));
                }
            }
        }
        if let Some(search) = &search {
            filter.search(search);
        }
        Ok(if search.is_some() || is_of_form { Err(filter.first_page()) } else { Ok(filter) })
    }

    /// Converts the text of the search field into fields of the filter.
    fn search(&mut self, text: &str) {
        if let Some(number) = phone_number(text) {
            self.set("recipient", &number);
            return self.unset("title");
        }
        let mut words = Vec::new();
        for word in text.split_whitespace() {
            let field = word.split_once(':').and_then(|(name, value)| {
                let field = QUALIFIERS.iter().find(|(qualifier, _)| *qualifier == name)?.1;
                Some((field, value)).filter(|(_, value)| !value.is_empty())
            });
            match field {
                Some((field, value)) => self.set(field, value),
                None if word.parse::<Uuid>().is_ok() => self.set("notification_id", word),
                // The id of a delivery consists of the id of its notification and a number.
                None if word.parse::<DeliveryId>().is_ok() => {
                    self.set("notification_id", word.split('.').next().unwrap_or(word));
                }
                None if is_address(word) => self.set("recipient", word),
                None => words.push(word),
            }
        }
        if words.is_empty() { self.unset("title") } else { self.set("title", &words.join(" ")) }
    }

    fn set(&mut self, name: &str, value: &str) {
        self.unset(name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self.fields.sort_by_key(|(field, _)| FIELDS.iter().position(|(known, _)| known == field));
    }

    fn unset(&mut self, name: &str) {
        self.fields.retain(|(field, _)| field != name);
    }

    /// The value of a field, or an empty text.
    pub fn get(&self, name: &str) -> &str {
        self.fields.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value)
    }

    /// Returns a time in the form that a browser's time field needs: in UTC, without a zone. Empty if the value is not
    /// a time.
    pub fn time_field(&self, name: &str) -> String {
        let at = self.time(name).ok().flatten().map(|at| at.to_string()).unwrap_or_default();
        let at = at.trim_end_matches('Z');
        at.strip_suffix(":00").filter(|minute| minute.len() == 16).unwrap_or(at).to_owned()
    }

    /// Whether the filter has exactly these fields.
    pub fn has_only(&self, names: &[&str]) -> bool {
        self.fields.iter().map(|(field, _)| field.as_str()).eq(names.iter().copied())
    }

    /// The filter with another value of a field. An empty value removes it.
    pub fn with(&self, name: &str, value: &str) -> Self {
        let mut other = Self { fields: self.fields.clone(), ..Self::default() };
        if value.is_empty() {
            other.unset(name);
        } else {
            other.set(name, value);
        }
        other
    }

    /// Returns the fields as a query, without the position of the page.
    pub fn query(&self) -> String {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(&self.fields).finish()
    }

    /// Returns the URL of the first page.
    pub fn first_page(&self) -> String {
        let query = self.query();
        if query.is_empty() { "/notifications".into() } else { format!("/notifications?{query}") }
    }

    fn page(&self, cursor: &str, trail: &[String]) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&self.fields);
        if !cursor.is_empty() {
            query.append_pair("cursor", cursor).append_pair("trail", &trail.join(","));
        }
        let query = query.finish();
        if query.is_empty() { "/notifications".into() } else { format!("/notifications?{query}") }
    }

    /// Returns the URL of the page with older deliveries, which begins at `more`.
    pub fn older(&self, more: Position) -> String {
        let mut trail = self.trail.clone();
        trail.push(self.cursor.clone().unwrap_or_default());
        if trail.len() > TRAIL {
            trail.remove(0);
        }
        self.page(&more.to_string(), &trail)
    }

    /// Returns the URL of the page with newer deliveries, from which this page was opened.
    pub fn newer(&self) -> Option<String> {
        self.cursor.as_ref()?;
        let (last, before) = self.trail.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
        Some(self.page(last, before))
    }

    pub fn is_first_page(&self) -> bool {
        self.cursor.is_none()
    }

    /// Returns the fields that are shown above the list: all fields, except the search words and a state that a pill
    /// shows.
    pub fn chips(&self) -> Vec<Chip> {
        let has_pill = |name: &str, value: &str| match name {
            "state" => !value.contains(',') || value == ENDED,
            "stuck" | "title" => true,
            _ => false,
        };
        let shown = self.fields.iter().filter(|(name, value)| !has_pill(name, value));
        let chip = |(name, value): &(String, String)| {
            let label = FIELDS.iter().find(|(field, _)| field == name).map_or("", |(_, label)| label);
            Chip { label, value: told(name, value), without: self.with(name, "").first_page() }
        };
        shown.map(chip).collect()
    }

    /// The filter of the store, with the position of the page and without a tenant.
    pub fn of_store(&self, now: Timestamp, stuck_after: Duration) -> Result<DeliveryFilter, Problem> {
        for (name, value) in &self.fields {
            let most = if name == "recipient" { limits::ADDRESS_BYTES } else { limits::NAME_CHARS };
            check_lengths(&[(name, Some(value))], most)?;
        }
        let words: Vec<String> = self.get("title").split_whitespace().map(str::to_owned).collect();
        if words.len() > WORDS {
            return Err(Problem::invalid("title", format!("has {} words; at most {WORDS} are allowed", words.len())));
        }
        // If both `since` and `from` are given, the later time applies.
        let since = self.owned("since").map(|period| ago(now, &period)).transpose()?;
        let from = self.time("from")?.max(since);
        let before = self.cursor.as_deref().map(str::parse).transpose();
        Ok(DeliveryFilter {
            states: self.states()?,
            words,
            reason: self.one_of("reason", &Reason::ALL.map(Reason::name))?,
            error_class: self.one_of("error_class", &ErrorClass::ALL.map(ErrorClass::name))?,
            channel: self.owned("channel"),
            provider: self.owned("provider"),
            event_type: self.owned("event_type"),
            entity: self.owned("entity"),
            site: self.owned("site"),
            list: self.owned("list"),
            recipient: self.owned("recipient"),
            correlation_id: self.owned("correlation_id"),
            error_code: self.owned("error_code"),
            notification_id: self.id()?,
            from,
            until: self.time("until")?,
            unclear: self.one_of("unclear", &["true", "false"])?.map(|unclear| unclear == "true"),
            stuck: self.one_of("stuck", &["true"])?.map(|_| stuck_after),
            before: before.map_err(|problem: String| Problem::invalid("cursor", problem))?,
            ..DeliveryFilter::default()
        })
    }

    fn owned(&self, name: &str) -> Option<String> {
        Some(self.get(name)).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    fn one_of(&self, name: &str, known: &[&str]) -> Result<Option<String>, Problem> {
        match self.owned(name) {
            Some(value) if !known.contains(&value.as_str()) => {
                Err(Problem::invalid(name, format!("is {value:?}; allowed are {}", known.join(", "))))
            }
            value => Ok(value),
        }
    }

    fn states(&self) -> Result<Vec<String>, Problem> {
        let known = DeliveryState::ALL.map(DeliveryState::name);
        let states: Vec<String> =
            self.get("state").split(',').filter(|state| !state.is_empty()).map(str::to_owned).collect();
        match states.iter().find(|state| !known.contains(&state.as_str())) {
            Some(state) => {
                Err(Problem::invalid("state", format!("{state:?} is not a state; allowed are {}", known.join(", "))))
            }
            None => Ok(states),
        }
    }

    fn id(&self) -> Result<Option<Uuid>, Problem> {
        let wrong = |id: &str| Problem::invalid("notification_id", format!("{id:?} is not the id of a notification"));
        self.owned("notification_id").map(|id| id.parse().map_err(|_| wrong(&id))).transpose()
    }

    fn time(&self, name: &str) -> Result<Option<Timestamp>, Problem> {
        self.owned(name).map(|value| time(name, &value)).transpose()
    }
}

/// Whether a word of the search is a mail address or a URL, which is never a word of a title.
fn is_address(word: &str) -> bool {
    let is_mail = word.rsplit_once('@').is_some_and(|(name, domain)| {
        !name.is_empty() && domain.contains('.') && !domain.starts_with('.') && !domain.ends_with('.')
    });
    is_mail || word.starts_with("https://") || word.starts_with("http://")
}

/// Returns the phone number that the whole search is, without its spaces, hyphens and parentheses. A number needs its
/// plus sign or the prefix 00, because other digits may be words of a title.
fn phone_number(search: &str) -> Option<String> {
    let joined: String = search.chars().filter(|c| !" -.()/".contains(*c)).collect();
    let digits = joined.strip_prefix('+').or_else(|| joined.strip_prefix("00"))?;
    let is_number = (7..=15).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_digit());
    is_number.then(|| format!("+{digits}"))
}

/// Returns the value of a field of the filter in words.
fn told(name: &str, value: &str) -> String {
    match name {
        "since" => PERIODS.iter().find(|(period, ..)| *period == value).map_or(value, |(_, words, _)| words).to_owned(),
        "error_class" | "reason" => sentence_case(value),
        "state" => value.replace(',', ", "),
        "unclear" if value == "true" => "yes".into(),
        _ => value.to_owned(),
    }
}

fn ago(now: Timestamp, period: &str) -> Result<Timestamp, Problem> {
    let Some((_, _, seconds)) = PERIODS.iter().find(|(known, ..)| *known == period) else {
        let known = PERIODS.map(|(period, ..)| period).join(", ");
        return Err(Problem::invalid("since", format!("is {period:?}; allowed are {known}")));
    };
    let micros = i64::try_from(*seconds * 1_000_000).unwrap_or(i64::MAX);
    Ok(Timestamp::from_micros(now.as_micros().saturating_sub(micros)))
}

/// Parses a time as a browser's time field sends it, `2026-03-15T08:12`, in UTC; or with seconds and a zone.
pub fn time(name: &str, value: &str) -> Result<Timestamp, Problem> {
    let wrong = || {
        Problem::invalid(
            name,
            format!("is {value:?}; write a time in UTC such as 2026-03-15T08:12 or 2026-03-15T08:12:03Z"),
        )
    };
    let text = value.replace(' ', "T");
    [text.clone(), format!("{text}Z"), format!("{text}:00Z"), format!("{text}T00:00:00Z")]
        .iter()
        .find_map(|text| text.parse().ok())
        .ok_or_else(wrong)
}

/// The classes of errors and the reasons for the selects of the form.
pub fn error_classes() -> Vec<(&'static str, String)> {
    ErrorClass::ALL.map(|class| (class.name(), sentence_case(class.name()))).to_vec()
}

pub fn reasons() -> Vec<(&'static str, String)> {
    Reason::ALL.map(|reason| (reason.name(), sentence_case(reason.name()))).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Filter {
        Filter::read(query).unwrap().unwrap()
    }

    #[test]
    fn qualifiers_of_the_search_become_fields() {
        let to = Filter::read("q=entity:12345+since:1h+booking+confirmed&state=parked&channel=").unwrap().unwrap_err();
        assert_eq!(to, "/notifications?state=parked&title=booking+confirmed&entity=12345&since=1h");
        let id = "0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e";
        assert_eq!(
            Filter::read(&format!("q={id}")).unwrap().unwrap_err(),
            format!("/notifications?notification_id={id}")
        );
        assert_eq!(
            Filter::read(&format!("q={id}.3")).unwrap().unwrap_err(),
            format!("/notifications?notification_id={id}")
        );
        // A plain address or phone number is a recipient.
        for (typed, recipient) in [
            ("ada%40example.com", "ada%40example.com"),
            ("%2B91+98765-43210", "%2B919876543210"),
            ("0091+98765+43210", "%2B919876543210"),
            ("https%3A%2F%2Fhooks.example.com%2Fx", "https%3A%2F%2Fhooks.example.com%2Fx"),
        ] {
            let to = Filter::read(&format!("q={typed}&title=old")).unwrap().unwrap_err();
            assert_eq!(to, format!("/notifications?recipient={recipient}"));
        }
        for word in ["ada%40home", "12345678", "007", "%40x.y", "%2B12"] {
            assert_eq!(
                Filter::read(&format!("q={word}")).unwrap().unwrap_err(),
                format!("/notifications?title={word}")
            );
        }
        // A text with a colon that is no qualifier is a word. A new search replaces the words of the previous one.
        assert_eq!(Filter::read("q=re:+x&title=old").unwrap().unwrap_err(), "/notifications?title=re%3A+x");
    }

    #[test]
    fn pages_remember_the_way_back() {
        let first = read("state=parked");
        assert_eq!(first.newer(), None);
        let at = |n: u128| Position::behind(Uuid::from_u128(n));
        let second = first.older(at(9));
        let second = read(second.split_once('?').unwrap().1);
        let third = read(second.older(at(8)).split_once('?').unwrap().1);
        assert_eq!(third.newer(), Some(first.older(at(9))));
        assert_eq!(second.newer(), Some("/notifications?state=parked".into()));
        let mut page = first;
        for n in 0..50 {
            page = read(page.older(at(n)).split_once('?').unwrap().1);
        }
        assert_eq!(page.trail.len(), TRAIL);
    }

    #[test]
    fn times_and_periods_are_read_or_refused_with_the_field() {
        let now: Timestamp = "2026-03-15T08:00:00Z".parse().unwrap();
        let store = |query: &str| read(query).of_store(now, Duration::from_secs(600));
        let from = |query: &str| store(query).unwrap().from.unwrap().to_string();
        assert!(from("since=1h").starts_with("2026-03-15T07:00:00"));
        assert!(from("from=2026-03-01T10:30").starts_with("2026-03-01T10:30:00"));
        assert!(from("from=2026-03-01").starts_with("2026-03-01T00:00:00"));
        assert!(from("from=2020-01-01&since=1h").starts_with("2026-03-15T07"));
        assert!(from("from=2026-03-15T07:30&since=1h").starts_with("2026-03-15T07:30"));
        // The form gets a time with a zone in UTC, with all its digits.
        for (given, field) in [
            ("2026-03-15T08:12", "2026-03-15T08:12"),
            ("2026-03-15", "2026-03-15T00:00"),
            ("2026-03-15T08:12:03%2B05:30", "2026-03-15T02:42:03"),
            ("2026-03-15T08:12:03.250Z", "2026-03-15T08:12:03.250"),
            ("soon", ""),
        ] {
            assert_eq!(read(&format!("until={given}")).time_field("until"), field, "{given}");
        }
        for (query, field) in
            [("since=1y", "since"), ("until=soon", "until"), ("state=dead", "state"), ("cursor=x", "cursor")]
        {
            let problem = serde_json::to_value(store(query).unwrap_err().body()).unwrap();
            assert_eq!(problem["field"], field, "{problem}");
        }
        assert!(Filter::read("nonsense=1").is_err() && Filter::read("entity=%00").is_err());
    }
}
