//! Reports columns of a SQLite file that contain values of the wrong type.

use postcommit_engine::store::Store;

use super::{Finding, finding};
use crate::output::Failure;

/// Returns one finding per column. On PostgreSQL there are no findings.
pub async fn look(store: &Store) -> Result<Vec<Finding>, Failure> {
    let found = store.unreadable().await?;
    let tell = |found: &postcommit_engine::store::Unreadable| {
        let (table, column, rows, sql) = (&found.table, &found.column, found.rows, &found.sql);
        let detail = format!(
            "{table}.{column} has a value of the wrong type in {rows} of the newest 100,000 rows: these rows are shown \
             as unreadable and not sent; `{sql}` finds them"
        );
        finding("unreadable", "warning", detail)
    };
    Ok(found.iter().map(tell).collect())
}
