//! Handles rows with values of a wrong type. Such values were written by hand, by an older version, or by an
//! application whose driver bound text as bytes. Such a row does not prevent other rows from being shown or sent. Its
//! readable columns are shown, or the row is left out and logged. `doctor` reports the columns with such values.

use crate::db::{Cells, Db, DbError, FromValue, Row, Value, sqlite};

use crate::store::Store;

/// How many rows of a table `doctor` examines, the newest first. Most tables have fewer.
const LOOKED_AT: i64 = 100_000;

/// Columns that hold JSON as text.
const JSON: [(&str, &str); 17] = [
    ("postcommit_notification", "payload"),
    ("postcommit_notification", "recipients"),
    ("postcommit_notification", "channels"),
    ("postcommit_notification", "data"),
    ("postcommit_provider", "settings"),
    ("postcommit_provider", "policy"),
    ("postcommit_api_key", "scopes"),
    ("postcommit_audit", "details"),
    ("postcommit_job", "filter"),
    ("postcommit_user_profile", "data"),
    ("postcommit_user_profile", "quiet_hours"),
    ("postcommit_event_type", "sample"),
    ("postcommit_event_type", "placeholders"),
    ("postcommit_template_version", "data"),
    ("postcommit_template_version", "parts"),
    ("postcommit_template_version", "brand"),
    ("postcommit_content_settings", "brand"),
];

/// A column of a SQLite file with values of a wrong type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The name of the table in the file.
    pub table: String,
    /// The name of the column.
    pub column: String,
    /// How many of the newest 100,000 rows are affected.
    pub rows: i64,
    /// A statement that finds these rows.
    pub sql: String,
}

/// Leaves out unreadable rows, and logs each of them with the name of the list.
pub(in crate::store) fn legible<T>(list: &'static str, rows: impl IntoIterator<Item = Result<T, DbError>>) -> Vec<T> {
    let tell = |problem: &DbError| {
        tracing::error!(
            list, %problem,
            "a row of this list cannot be read and is left out; `postcommit doctor` names the column"
        );
    };
    rows.into_iter().filter_map(|row| row.inspect_err(tell).ok()).collect()
}

/// Reads a row, and replaces unreadable values with defaults.
pub(in crate::store) struct Reader<'a> {
    row: &'a Row,
    problem: Option<String>,
}

impl<'a> Reader<'a> {
    pub(in crate::store) fn of(row: &'a Row) -> Self {
        Self { row, problem: None }
    }

    /// Returns the value of column `place`, or `otherwise` if it is unreadable.
    pub(in crate::store) fn or<T: FromValue>(&mut self, place: usize, column: &str, otherwise: T) -> T {
        self.row.get(place).unwrap_or_else(|_| {
            self.problem.get_or_insert_with(|| format!("unreadable: the value of column {column} has the wrong type"));
            otherwise
        })
    }

    /// Returns an error text that names the first unreadable column, if there is one.
    pub(in crate::store) fn problem(self) -> Option<String> {
        self.problem
    }
}

/// A row for display, in which unreadable values are replaced. It must not be used for sending, as [`Row::get`]
/// explains.
pub(in crate::store) struct AsShown(pub(in crate::store) Row);

impl Cells for AsShown {
    /// Reads a value. An unreadable number or time becomes 0.
    fn take<T: FromValue>(&mut self, place: usize) -> Result<T, DbError> {
        self.0.get(place).or_else(|problem| T::from_value(Value::Int(0)).ok_or(problem))
    }
}

impl Store {
    /// Finds columns that contain values of a wrong type. The result is always empty on PostgreSQL, which enforces
    /// types.
    pub async fn unreadable(&self) -> Result<Vec<Unreadable>, DbError> {
        let Db::Sqlite(db) = &self.db else { return Ok(vec![]) };
        db.read(|connection| {
            let tables = sqlite::query(
                connection,
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'postcommit_*' ORDER BY name",
                &[],
            )?;
            let mut found = Vec::new();
            for table in tables {
                found.extend(unreadable_in(connection, &table.get::<String>(0)?)?);
            }
            Ok(found)
        })
        .await
    }
}

/// Examines all columns of a table in one statement.
fn unreadable_in(connection: &rusqlite::Connection, table: &str) -> Result<Vec<Unreadable>, DbError> {
    let columns =
        sqlite::query(connection, "SELECT name, type, pk FROM pragma_table_info(?1) ORDER BY cid", &[table.into()])?;
    let columns: Vec<(String, String, i64)> =
        columns.iter().map(|row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).collect::<Result<_, DbError>>()?;
    let wrong = columns
        .iter()
        .map(|(name, kind, _)| format!("count(*) FILTER (WHERE {})", is_wrong(table, name, kind)))
        .collect::<Vec<_>>()
        .join(", ");
    let mut key: Vec<(i64, &str)> =
        columns.iter().filter(|(.., place)| *place > 0).map(|(name, _, place)| (*place, name.as_str())).collect();
    key.sort_unstable();
    let newest = key.iter().map(|(_, name)| format!("{name} DESC")).collect::<Vec<_>>().join(", ");
    let newest = if newest.is_empty() { newest } else { format!(" ORDER BY {newest}") };
    let rows = sqlite::query(
        connection,
        &format!("SELECT {wrong} FROM (SELECT * FROM {table}{newest} LIMIT {LOOKED_AT})"),
        &[],
    )?;
    let counts = rows.first().map(|row| row.0.as_slice()).unwrap_or_default();
    let unreadable = columns.into_iter().zip(counts).filter_map(|((column, kind, _), count)| match count {
        Value::Int(rows) if *rows > 0 => {
            let sql =
                format!("SELECT {column}, typeof({column}), * FROM {table} WHERE {}", is_wrong(table, &column, &kind));
            Some(Unreadable { table: table.to_owned(), column, rows: *rows, sql })
        }
        _ => None,
    });
    Ok(unreadable.collect())
}

fn is_wrong(table: &str, column: &str, kind: &str) -> String {
    let allowed = match kind {
        "TEXT" => "'text', 'null'",
        "INTEGER" => "'integer', 'null'",
        "REAL" => "'real', 'integer', 'null'",
        _ => "'blob', 'null'",
    };
    let no_json = if JSON.contains(&(table, column)) { format!(" OR NOT json_valid({column})") } else { String::new() };
    format!("typeof({column}) NOT IN ({allowed}){no_json}")
}
