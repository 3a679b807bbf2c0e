//! The output and the exit codes of commands. Data goes to stdout as a table, as one JSON document or as JSON lines.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};

use postcommit_engine::db::DbError;
use postcommit_engine::store::EditError;
use serde::Serialize;

use crate::telemetry::say;

/// The output format of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table or text for people
    Text,
    /// One JSON document
    Json,
    /// One JSON document per line
    Jsonl,
}

/// The exit codes. Scripts may rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Refused = 4,
    Unreachable = 5,
    Partly = 7,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        (exit as u8).into()
    }
}

/// The failure of a command: its message and its exit code.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    pub fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<DbError> for Failure {
    fn from(error: DbError) -> Self {
        let exit = match &error {
            DbError::Unreachable(_) => Exit::Unreachable,
            DbError::Url(_) => Exit::Usage,
            DbError::TooNew { .. } | DbError::TooOld { .. } | DbError::OtherFunctions | DbError::Refused { .. } => {
                Exit::Refused
            }
            DbError::Unreadable(_) => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<EditError> for Failure {
    fn from(error: EditError) -> Self {
        let exit = match &error {
            EditError::Refused(_) => Exit::Usage,
            EditError::Unknown { .. } => Exit::NotFound,
            EditError::Exists { .. }
            | EditError::Outdated { .. }
            | EditError::Overtaken { .. }
            | EditError::Conflict(_) => Exit::Refused,
            EditError::Database(_) => Exit::Failed,
        };
        match error {
            EditError::Database(problem) => problem.into(),
            other => Self::new(exit, other.to_string()),
        }
    }
}

pub type CommandResult = Result<Exit, Failure>;

/// A column of a table: its heading, and the function that renders the cell of a row.
pub type Column<T> = (&'static str, fn(&T) -> String);

pub fn list<T: Serialize>(format: Format, rows: &[T], columns: &[Column<T>]) {
    match format {
        Format::Text => print(&table(rows, columns)),
        Format::Json => print(&json(rows)),
        Format::Jsonl => rows.iter().for_each(|row| print(&line(row))),
    }
}

/// The maximum number of characters of a line of a bounded list on a terminal.
const WIDEST: usize = 160;

/// Prints a list whose last column may be long. On a terminal, lines are cut to [`WIDEST`]. In a pipe or a file, they
/// are complete.
pub fn bounded_list<T: Serialize>(format: Format, rows: &[T], columns: &[Column<T>]) {
    if format != Format::Text || !std::io::stdout().is_terminal() {
        return list(format, rows, columns);
    }
    print(&table(rows, columns).lines().map(cut).collect::<Vec<_>>().join("\n"));
}

fn cut(line: &str) -> String {
    if line.chars().count() <= WIDEST {
        line.to_owned()
    } else {
        line.chars().take(WIDEST - 1).chain(['…']).collect()
    }
}

/// Prints one object. `text` renders it as text.
pub fn one<T: Serialize>(format: Format, value: &T, text: impl FnOnce(&T) -> String) {
    match format {
        Format::Text => print(&harmless(&text(value))),
        Format::Json => print(&json(value)),
        Format::Jsonl => print(&line(value)),
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    escaped(serde_json::to_string_pretty(value).unwrap_or_default())
}

fn line<T: Serialize>(value: &T) -> String {
    escaped(serde_json::to_string(value).unwrap_or_default())
}

/// Escapes characters in JSON that move a cursor, reverse text or end a line, in the form `\u2028`. They can only occur
/// inside of strings.
pub fn escaped(json: String) -> String {
    let is_plain = |c: char| c == '\n' || !acts(c);
    if json.chars().all(is_plain) {
        return json;
    }
    json.chars().map(|c| if is_plain(c) { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) }).collect()
}

/// Whether a terminal or a program that reads lines interprets the character instead of showing it.
fn acts(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Renders a table whose columns are as wide as their widest cell. Control characters are replaced, so that they cannot
/// move the cursor of a terminal.
pub fn table<T>(rows: &[T], columns: &[Column<T>]) -> String {
    let plain = |text: String| harmless(&text).replace('\n', " ");
    let mut cells: Vec<Vec<String>> = vec![columns.iter().map(|(name, _)| name.to_uppercase()).collect()];
    cells.extend(rows.iter().map(|row| columns.iter().map(|(_, cell)| plain(cell(row))).collect()));
    let width = |place: usize| cells.iter().map(|row: &Vec<String>| row[place].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        row.iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect::<Vec<_>>()
            .join("  ")
            .trim_end()
            .to_owned()
    };
    cells.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Replaces characters that move the cursor of a terminal or reverse text.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if acts(c) && c != '\n' { ' ' } else { c }).collect()
}

/// Prints to stdout. A closed pipe, as with `| head`, ends the process without an error. Any other problem, such as a
/// full disk, is an error.
pub fn print(text: &str) {
    if let Err(problem) = writeln!(std::io::stdout(), "{text}") {
        if problem.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        say!("postcommit: cannot write to stdout: {problem}");
        std::process::exit(1);
    }
}

/// The value as text, or a dash if it is `None`.
pub fn or_dash<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)
}

/// Formats a JSON object on one line: `name=value`, and `outer.name=value` for nested objects. The strings of a list
/// are separated by commas.
pub fn pairs(object: &serde_json::Value) -> String {
    let mut told = Vec::new();
    tell(object, "", &mut told);
    told.join(" ")
}

fn tell(value: &serde_json::Value, name: &str, told: &mut Vec<String>) {
    use serde_json::Value;
    match value {
        Value::Object(fields) => {
            let below = |field: &String| if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
            fields.iter().for_each(|(field, value)| tell(value, &below(field), told));
        }
        Value::Null => {}
        Value::String(text) => told.push(format!("{name}={text}")),
        Value::Array(texts) if texts.iter().all(Value::is_string) => {
            let texts: Vec<&str> = texts.iter().filter_map(Value::as_str).collect();
            told.push(format!("{name}={}", texts.join(",")));
        }
        other => told.push(format!("{name}={other}")),
    }
}

/// Formats a time, rounded down to the second.
pub fn seconds(at: postcommit::Timestamp) -> String {
    let whole = at.as_micros().div_euclid(1_000_000) * 1_000_000;
    postcommit::Timestamp::from_micros(whole).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_wide_says_that_it_goes_on() {
        assert_eq!(cut(&"é".repeat(WIDEST)), "é".repeat(WIDEST));
        let shown = cut(&"é".repeat(WIDEST + 1));
        assert!(shown.ends_with('…') && shown.chars().count() == WIDEST);
    }

    #[test]
    fn what_somebody_else_wrote_ends_no_line_and_moves_no_cursor() {
        let text = "a\u{2028}b\u{2029}c\u{85}d\u{1b}[2Je\u{9b}f\u{202e}g\u{7f}é";
        assert_eq!(harmless(text), "a b c d [2Je f g é");
        let said = line(&serde_json::json!({text: text}));
        assert_eq!(said.matches("\\u2028b\\u2029c\\u0085d\\u001b[2Je\\u009bf\\u202eg\\u007fé").count(), 2, "{said}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&said).unwrap()[text], text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json(&[text])).unwrap()[0], text);
    }
}
