//! Templates: compiles and renders the templates of a tenant. Everything is pure: no database, no file, no network.
//! - [`payload`]: the flat view of a payload, in which the spelling of a name does not matter;
//! - `lexer`, `expression` and `translate`: check a part of a template and translate it for the template engine
//!   (minijinja);
//! - `compiled`: a compiled version of a template; `run`: one rendering of it, with its limits;
//! - `filters`, `dates`, `numbers`, `phones`: how values are written;
//! - `plain`: the plain text of an HTML message; [`sms`]: the number of SMS segments of a message.

use std::collections::BTreeMap;
use std::fmt;

use postcommit::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::StoredNotification;

mod compiled;
mod data;
mod dates;
mod expression;
mod filters;
mod lexer;
mod numbers;

pub mod payload;
mod phones;
mod plain;
mod run;
pub mod sms;
mod translate;
mod values;

pub use compiled::Compiled;
pub use dates::check_time_zone;
pub(crate) use dates::zone;
pub use payload::{Ambiguous, FlatPayload, Payload, default_address, flat_name};
pub use plain::text_of_html;

/// The limits of templates and of one rendering, in one place.
pub mod limits {
    use std::time::Duration;

    /// The maximum bytes of all parts of a template together: `to`, subject, text, html and data.
    pub const SOURCE_BYTES: usize = 64 * 1024;
    /// The maximum bytes of a layout or partial.
    pub const LAYOUT_BYTES: usize = 64 * 1024;
    /// The maximum bytes of a translated part, with its layout and partials inserted.
    pub const EXPANDED_BYTES: usize = 512 * 1024;
    /// The maximum number of tags of a part, with its layout and partials inserted.
    pub const TAGS: usize = 5_000;
    /// The maximum number of names, values and operators in one tag.
    pub const TOKENS: usize = 200;
    /// The maximum number of levels of `if`, `for` and `include` inside each other, and of parentheses in one tag.
    pub const DEPTH: usize = 16;
    /// The maximum number of branches of one `if`.
    pub const BRANCHES: usize = 100;
    /// The maximum number of steps of the engine for one rendering.
    pub const FUEL: u64 = 200_000;
    /// The maximum bytes that filters may read and write in one rendering.
    pub const WORK_BYTES: usize = 16 * 1024 * 1024;
    /// The maximum bytes of one value that a filter returns.
    pub const VALUE_BYTES: usize = 256 * 1024;
    /// The maximum time for one rendering. The other limits normally stop a template much earlier.
    pub const TIME: Duration = Duration::from_secs(5);
    /// The maximum bytes of the rendered text, and of the rendered HTML.
    pub const BODY_BYTES: usize = postcommit::limits::BODY_BYTES;
    /// The maximum bytes of the rendered subject.
    pub const SUBJECT_BYTES: usize = postcommit::limits::TITLE_BYTES;
    /// The maximum bytes of the rendered address.
    pub const ADDRESS_BYTES: usize = postcommit::limits::ADDRESS_BYTES;
    /// The maximum bytes of the rendered channel data, as JSON text.
    pub const DATA_BYTES: usize = postcommit::limits::DATA_BYTES;
    /// The maximum number of warnings of one rendering. Further warnings are left out.
    pub const WARNINGS: usize = 50;
    /// The maximum bytes of a placeholder's flat name.
    pub const NAME_BYTES: usize = 255;
    /// The maximum number of characters of a date format.
    pub const DATE_FORMAT_CHARS: usize = 63;
}

/// The format of a date when none is set: `15-Mar-2026`.
pub const DATE_FORMAT: &str = "%d-%b-%Y";

/// The time zone when none is set.
pub const TIME_ZONE: &str = "UTC";

/// A reason why a message has no unsubscribe link: the server does not know its own URL.
pub const NO_PUBLIC_URL: &str = "the setting api.public_url is empty";
/// A reason why a message has no unsubscribe link: users cannot opt out of its event type.
pub const IS_MANDATORY: &str = "the event type is mandatory";

/// The built-in layouts: name and HTML. A tenant's own layout of the same name replaces a built-in layout.
pub const LAYOUTS: [(&str, &str); 1] = [("mail", include_str!("template/mail.html"))];

/// The content of one version of a template. The version is self-contained: it holds copies of its layout, partials and
/// brand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Source {
    /// The part that renders the address. `None`: the address is that of the recipient, or [`default_address`].
    pub to: Option<String>,
    /// The subject or heading: one line.
    pub subject: Option<String>,
    /// The message as plain text. `None`: the plain text is derived from `html`.
    pub text: Option<String>,
    /// The message as HTML.
    pub html: Option<String>,
    /// Additional fields for the channel, as JSON. Each string in it is rendered as a template.
    pub data: Option<serde_json::Value>,
    /// The name of the layout into which `html` is inserted. The layout is one of `parts`.
    pub layout: Option<String>,
    /// The layout and the partials, by name.
    pub parts: BTreeMap<String, String>,
    /// Values that templates read as `brand.name`: a JSON object.
    pub brand: serde_json::Value,
    /// The treatment of placeholders without a value.
    pub missing: Missing,
    /// The format of dates without a format of their own, as a strftime pattern. Default: [`DATE_FORMAT`].
    pub date_format: String,
    /// The IANA name of the time zone in which instants are written. Default: [`TIME_ZONE`].
    pub time_zone: String,
}

impl Default for Source {
    fn default() -> Self {
        Self {
            to: None,
            subject: None,
            text: None,
            html: None,
            data: None,
            layout: None,
            parts: BTreeMap::new(),
            brand: serde_json::Value::Object(serde_json::Map::new()),
            missing: Missing::default(),
            date_format: DATE_FORMAT.to_owned(),
            time_zone: TIME_ZONE.to_owned(),
        }
    }
}

/// The treatment of placeholders without a value. A JSON null is not a value; an empty string is a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// Print nothing, with a warning.
    #[default]
    Empty,
    /// Print the placeholder as it is written in the template, with a warning.
    Keep,
    /// Do not send the message: the rendering fails with [`Failure::Missing`].
    Refuse,
}

impl Missing {
    /// All treatments, for help texts and checks.
    pub const ALL: [Self; 3] = [Self::Empty, Self::Keep, Self::Refuse];

    /// The treatment's name in the database, the API and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Keep => "keep",
            Self::Refuse => "refuse",
        }
    }

    /// The treatment with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|missing| missing.name() == name)
    }
}

/// The fields of a notification that templates may read, as `title` or `notification.title`. A field of the payload
/// with the same name takes precedence.
#[derive(Debug, Clone, Copy, Default)]
pub struct Note<'a> {
    /// The notification's id.
    pub id: Option<uuid::Uuid>,
    /// The event type, a dotted name.
    pub event_type: &'a str,
    /// The entity that the notification is about.
    pub entity: Option<&'a str>,
    /// The stream that the notification belongs to.
    pub topic: Option<&'a str>,
    /// The subject or heading.
    pub title: Option<&'a str>,
    /// The text of the message.
    pub body: Option<&'a str>,
    /// The link that the reader should open.
    pub action_url: Option<&'a str>,
    /// The id of the request or trace that caused the notification.
    pub correlation_id: Option<&'a str>,
    /// The notification is not sent before this time.
    pub due_at: Option<Timestamp>,
    /// The time at which the notification was enqueued.
    pub created_at: Option<Timestamp>,
}

impl<'a> From<&'a StoredNotification> for Note<'a> {
    fn from(note: &'a StoredNotification) -> Self {
        Self {
            id: Some(note.id),
            event_type: &note.event_type,
            entity: note.entity.as_deref(),
            topic: note.topic.as_deref(),
            title: note.title.as_deref(),
            body: note.body.as_deref(),
            action_url: note.action_url.as_deref(),
            correlation_id: note.correlation_id.as_deref(),
            due_at: Some(note.due_at),
            created_at: Some(note.created_at),
        }
    }
}

/// The values that a template may read.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The event's data.
    pub payload: &'a FlatPayload,
    /// The fields of the notification that the template may read.
    pub note: Note<'a>,
    /// The user that receives the message: a JSON object. Templates read its fields as `user.name`.
    pub user: Option<&'a serde_json::Value>,
    /// A language tag, which decides how numbers are written. `None` means English.
    pub language: Option<&'a str>,
    /// The time zone of the recipient. `None` or an unknown name: the time zone of the template is used.
    pub time_zone: Option<&'a str>,
    /// The link by which the recipient unsubscribes, read as `unsubscribe_url`. `Err` holds the reason why there is no
    /// link, such as [`NO_PUBLIC_URL`].
    pub unsubscribe_url: Result<&'a str, &'static str>,
}

/// A place in a template.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Place {
    /// `to`, `subject`, `text`, `html`, `data`, `layout NAME` or `partial NAME`; `data` is followed by the path of the
    /// string, such as `data.a[0]`.
    pub part: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

/// An error in a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The part, as in [`Place::part`], or the setting.
    pub part: String,
    /// The line, from 1.
    pub line: Option<usize>,
    /// The column in characters, from 1.
    pub column: Option<usize>,
    /// A sentence that says what is wrong and what to do.
    pub message: String,
}

impl Problem {
    pub(crate) fn of_part(part: impl Into<String>, message: impl Into<String>) -> Self {
        Self { part: part.into(), line: None, column: None, message: message.into() }
    }

    pub(crate) fn at(place: Place, message: impl Into<String>) -> Self {
        Self { part: place.part, line: Some(place.line), column: Some(place.column), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, "{}, line {line}, column {column}: {}", self.part, self.message),
            _ => write!(f, "{}: {}", self.part, self.message),
        }
    }
}

impl std::error::Error for Problem {}

/// A warning about a rendering or a saved template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Warning {
    /// The part, as in [`Place::part`].
    pub part: String,
    /// The line, from 1.
    pub line: Option<usize>,
    /// The column in characters, from 1.
    pub column: Option<usize>,
    /// The text of the warning.
    pub message: String,
    /// The placeholder that the warning is about, as it is written in the template.
    pub placeholder: Option<String>,
}

/// A name that a template reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placeholder {
    /// The name as it is written in the template, such as `guest.Phone`.
    pub name: String,
    /// The first place with this spelling of the name.
    pub place: Place,
}

/// A limit of a rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cap {
    /// [`limits::FUEL`].
    Steps,
    /// [`limits::WORK_BYTES`].
    Work,
    /// [`limits::VALUE_BYTES`].
    Value,
    /// [`limits::TIME`], in milliseconds.
    Time,
    /// The bytes of a rendered part.
    Output,
}

/// The reason why a template could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Placeholders have no value, and the template's setting `missing` is `refuse`.
    Missing {
        /// The placeholders as they are written in the template, in order.
        names: Vec<String>,
    },
    /// A part exceeded a limit.
    Limit {
        /// The part of the template that exceeded the limit, such as `html`.
        part: String,
        /// The limit that was exceeded.
        what: Cap,
        /// The value of the limit.
        limit: u64,
    },
    /// A filter failed.
    Failed(Problem),
}

impl Failure {
    /// The error code of a delivery that is parked because of this failure.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing_data",
            Self::Limit { .. } => "template_limit",
            Self::Failed(_) => "template_failed",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { names } => write!(f, "the payload has no value for {}", names.join(", ")),
            Self::Limit { part, what, limit } => {
                let limit = match what {
                    Cap::Steps => format!("{limit} steps"),
                    Cap::Work => format!("{limit} bytes handled by filters"),
                    Cap::Value => format!("{limit} bytes in one value"),
                    Cap::Time => format!("{limit} ms"),
                    Cap::Output => format!("{limit} bytes of output"),
                };
                write!(f, "{part}: the template was stopped at its limit of {limit}")
            }
            Self::Failed(problem) => problem.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests;
