//! The deliveries that a filter matches, as a CSV or JSONL file. Addresses are masked, as on the page.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use postcommit_engine::store::{DeliveryFilter, DeliveryRow, Store};

use super::filter::Filter;
use crate::app::AppState;
use crate::problem::{Answer, Problem};
use crate::table_file::csv_line;
use crate::ui::frame::Visitor;

/// The maximum number of rows of a file.
pub const ROWS: usize = 10_000;
/// The number of rows that are read together.
const PAGE: i64 = 500;
/// The maximum number of pages that are read. A page may be empty, because it examines a limited part of the history.
const PAGES: usize = 100;

/// The columns of a file: the name, and the value of a row.
type Column = (&'static str, fn(&DeliveryRow) -> String);
const COLUMNS: [Column; 16] = [
    ("id", |row| row.id.clone()),
    ("tenant", |row| row.tenant.clone()),
    ("state", |row| row.state.clone()),
    ("reason", |row| row.reason.clone().unwrap_or_default()),
    ("event_type", |row| row.event_type.clone()),
    ("title", |row| row.title.clone().unwrap_or_default()),
    ("entity", |row| row.entity.clone().unwrap_or_default()),
    ("channel", |row| row.channel.clone().unwrap_or_default()),
    ("provider", |row| row.provider.clone().unwrap_or_default()),
    ("target", |row| row.target.clone().unwrap_or_default()),
    ("attempts", |row| row.attempts.to_string()),
    ("error_class", |row| row.error_class.clone().unwrap_or_default()),
    ("error_code", |row| row.error_code.clone().unwrap_or_default()),
    ("last_error", |row| row.last_error.clone().unwrap_or_default()),
    ("created_at", |row| row.created_at.to_string()),
    ("sent_at", |row| row.sent_at.map(|at| at.to_string()).unwrap_or_default()),
];

/// The file with the newest deliveries that match, at most [`ROWS`].
pub async fn export(State(app): State<AppState>, visitor: Visitor, RawQuery(query): RawQuery) -> Answer {
    let query = query.unwrap_or_default();
    let (format, fields): (Vec<_>, Vec<_>) =
        form_urlencoded::parse(query.as_bytes()).partition(|(name, _)| name == "format");
    let format = format.first().map_or("csv", |(_, format)| format.as_ref());
    let (kind, write): (&str, fn(&[DeliveryRow]) -> String) = match format {
        "csv" => ("text/csv; charset=utf-8", csv),
        "jsonl" => ("application/jsonl; charset=utf-8", jsonl),
        other => return Err(Problem::invalid("format", format!("is {other:?}; allowed are csv and jsonl")).into()),
    };
    let fields = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let filter =
        Filter::read(&fields)?.map_err(|_| Problem::invalid("q", "is only allowed on the page of the list"))?;
    let store = visitor.store(&app);
    let filter = filter.of_store(store.now().await?, app.stuck_after)?;
    let (rows, is_complete) =
        read(&store, DeliveryFilter { tenant: visitor.caller.whose(), limit: PAGE, ..filter }).await?;
    // A person keeps only the file, so the name of an incomplete file says that it is incomplete.
    let name = if is_complete { "deliveries".into() } else { format!("deliveries-newest-{}-incomplete", rows.len()) };
    let name = format!("attachment; filename=\"{name}.{format}\"");
    Ok((StatusCode::OK, [(CONTENT_TYPE, kind.to_owned()), (CONTENT_DISPOSITION, name)], write(&rows)).into_response())
}

/// Returns the newest rows that match, and whether these are all rows that match.
async fn read(store: &Store, mut filter: DeliveryFilter) -> Result<(Vec<DeliveryRow>, bool), Problem> {
    let mut rows = Vec::new();
    for _ in 0..PAGES {
        let page = store.delivery_rows(&filter).await?;
        rows.extend(page.rows);
        filter.before = page.more;
        if page.more.is_none() || rows.len() >= ROWS {
            break;
        }
    }
    let is_complete = filter.before.is_none() && rows.len() <= ROWS;
    rows.truncate(ROWS);
    Ok((rows, is_complete))
}

fn csv(rows: &[DeliveryRow]) -> String {
    let head = csv_line(COLUMNS.map(|(name, _)| name));
    let line = |row: &DeliveryRow| {
        let cells = COLUMNS.map(|(_, cell)| cell(row));
        csv_line(cells.iter().map(String::as_str))
    };
    std::iter::once(head).chain(rows.iter().map(line)).map(|line| line + "\n").collect()
}

fn jsonl(rows: &[DeliveryRow]) -> String {
    rows.iter().filter_map(|row| serde_json::to_string(row).ok()).map(|line| line + "\n").collect()
}
