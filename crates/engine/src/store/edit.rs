//! Shared code for changes of users, lists, suppressions and event types: revisions, errors, and rows as a parameter.

use postcommit::check;

use crate::db::DbError;
use crate::store::Store;

/// How often a change is tried if concurrent changes prevent it.
pub const TRIES: usize = 64;

/// The reason why a user, list, suppression or event type was not created, changed or deleted. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// A field is wrong. The text is the field's name and the problem.
    #[error("{0}")]
    Refused(String),
    #[error("{what} {name:?} already exists; change it instead")]
    Exists {
        /// The kind of the object, e.g. `user`.
        what: &'static str,
        /// The name or id of the object.
        name: String,
    },
    #[error("there is no {what} {name:?}")]
    Unknown {
        /// The kind of the object, e.g. `user`.
        what: &'static str,
        /// The name or id of the object.
        name: String,
    },
    /// The request names another revision than the object has now.
    #[error(
        "{what} {name:?} has revision {found} by now, not {asked}; read it again, and send the change for that revision"
    )]
    Outdated {
        /// The kind of the object, e.g. `user`.
        what: &'static str,
        /// The name or id of the object.
        name: String,
        /// The revision that the change was made for.
        asked: i32,
        /// The current revision of the object.
        found: i32,
    },
    /// Each of the [`TRIES`] tries was prevented by a concurrent change.
    #[error("others changed {what} {name:?} {TRIES} times during this change; nothing was written, try again")]
    Overtaken {
        /// The kind of the object, e.g. `user`.
        what: &'static str,
        /// The name or id of the object.
        name: String,
    },
    /// The state of other objects does not allow the change.
    #[error("{0}")]
    Conflict(String),
    #[error(transparent)]
    Database(#[from] DbError),
}

/// The object that an [`EditError`] is about: its kind, e.g. `user`, and its name or id.
pub(in crate::store) struct Subject<'a>(pub(in crate::store) &'static str, pub(in crate::store) &'a str);

impl Subject<'_> {
    pub(in crate::store) fn exists(&self) -> EditError {
        EditError::Exists { what: self.0, name: self.1.to_owned() }
    }

    pub(in crate::store) fn unknown(&self) -> EditError {
        EditError::Unknown { what: self.0, name: self.1.to_owned() }
    }

    pub(in crate::store) fn overtaken(&self) -> EditError {
        EditError::Overtaken { what: self.0, name: self.1.to_owned() }
    }

    /// Fails if the request asked for a revision other than `found`, the current one.
    pub(in crate::store) fn is_still(&self, asked: Option<i32>, found: i32) -> Result<(), EditError> {
        match asked.filter(|asked| *asked != found) {
            Some(asked) => Err(EditError::Outdated { what: self.0, name: self.1.to_owned(), asked, found }),
            None => Ok(()),
        }
    }
}

/// Adds the field's name to the text of a failed check.
pub(in crate::store) fn field(name: &str, checked: Result<(), String>) -> Result<(), EditError> {
    checked.map_err(|problem| EditError::Refused(format!("{name}: {problem}")))
}

/// Checks the length of an optional string in characters. Control characters are refused.
pub(in crate::store) fn text(name: &str, text: Option<&str>, max: usize) -> Result<(), EditError> {
    let Some(text) = text else { return Ok(()) };
    let control = text.chars().find(|c| c.is_control());
    field(
        name,
        control.map_or_else(
            || check::chars(text, 1, max),
            |c| Err(format!("holds {c:?}; control characters are not allowed")),
        ),
    )
}

/// Checks a language tag such as `en` or `pt-BR`.
pub(in crate::store) fn language(name: &str, tag: Option<&str>) -> Result<(), EditError> {
    let Some(tag) = tag else { return Ok(()) };
    let mut parts = tag.split('-');
    let is_first = parts
        .next()
        .is_some_and(|first| (2..=3).contains(&first.len()) && first.bytes().all(|b| b.is_ascii_alphabetic()));
    let rest: Vec<&str> = parts.collect();
    let is_part = |part: &&str| (2..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric());
    if is_first && rest.len() <= 3 && rest.iter().all(is_part) {
        return Ok(());
    }
    Err(EditError::Refused(format!("{name}: {tag:?} is not a language tag; write one such as en or pt-BR")))
}

impl Store {
    /// Returns a table `g` for a statement whose parameter number `place` is a JSON array of objects. Each column has a
    /// name and a PostgreSQL type.
    pub(in crate::store) fn rows_given(&self, place: usize, columns: &[(&str, &str)]) -> String {
        let each = |text: fn(&str, &str) -> String| {
            columns.iter().map(|(name, of)| text(name, of)).collect::<Vec<_>>().join(", ")
        };
        match self.db.kind() {
            "postgres" => format!("jsonb_to_recordset(${place}) AS g ({})", each(|name, of| format!("{name} {of}"))),
            _ => {
                let columns = each(|name, _| format!("value ->> '{name}' AS {name}"));
                format!("(SELECT {columns} FROM json_each(${place})) AS g")
            }
        }
    }

    /// Returns the SQL for a time that a column of [`Store::rows_given`] holds as microseconds since 1970.
    pub(in crate::store) fn time_given(&self, column: &str) -> String {
        match self.db.kind() {
            "postgres" => format!("timestamptz 'epoch' + {column} * interval '1 microsecond'"),
            _ => column.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_tags() {
        for tag in ["en", "pt-BR", "deu", "zh-Hant-TW", "es-419"] {
            assert!(language("language", Some(tag)).is_ok(), "{tag}");
        }
        for tag in ["", "e", "english", "en_US", "en-", "en-U", "en-a1b2c3d4e", "en-US-US-US-US", "é"] {
            assert!(language("language", Some(tag)).is_err(), "{tag}");
        }
    }
}
