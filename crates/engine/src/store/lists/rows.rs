//! Reads the rows of a list by their keys.

use postcommit_channel::model::DeliveryKey;
use serde_json::json;

use crate::db::{Db, DbError, Row, Value, sqlite};
use crate::store::Store;

/// A query for one row of a list by its key: `$1` is the tenant, `$2` the notification and `$3` the target's number.
/// These parameters may also occur in `columns`, where `{provider}` is replaced with the expression for the provider's
/// name.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct RowQuery {
    pub columns: &'static str,
    pub of_one: &'static str,
}

/// The SQL for the provider's name of the row `k` that the list found. If the view joined the provider instead, the
/// planner might read the queue in the order of lanes.
const PROVIDER_OF_K: &str = "(SELECT p.name FROM postcommit.provider p WHERE p.tenant = k.tenant AND p.id = k.lane)";

impl RowQuery {
    /// Returns the statement that reads one row.
    pub(in crate::store) fn statement(self) -> String {
        format!("SELECT {} FROM {}", self.columns.replace("{provider}", "provider"), self.of_one)
    }

    /// On PostgreSQL, returns one statement that finds the keys and reads their rows. With two statements, a
    /// notification that is expanded between them would be missing, because its rows get new keys.
    pub(in crate::store) fn joined_to(self, found: &str) -> String {
        format!(
            "SELECT k.tenant, k.id, k.n, s.*
             FROM ({found}) k
             CROSS JOIN LATERAL ({} OFFSET 0) s
             ORDER BY k.id DESC, k.tenant DESC, k.n",
            self.of_k()
        )
    }

    /// On SQLite, finds the keys and reads their rows in one transaction. One statement would be slow, because SQLite
    /// uses no indexes when it joins a view of two tables.
    pub(in crate::store) async fn read(
        self,
        db: &sqlite::Sqlite,
        found: &str,
        parameters: Vec<Value>,
    ) -> Result<Vec<Row>, DbError> {
        let found = sqlite::dialect(found);
        let of_one = sqlite::dialect(&self.statement());
        db.read(move |connection| {
            let keys = sqlite::query(connection, &found, &parameters)?;
            let mut rows = Vec::with_capacity(keys.len());
            for key in keys {
                let key = key.0.get(..3).unwrap_or_default();
                let shown = sqlite::query(connection, &of_one, key)?;
                rows.extend(shown.into_iter().map(|row| Row(key.iter().cloned().chain(row.0).collect())));
            }
            Ok(rows)
        })
        .await
    }

    fn of_k(self) -> String {
        let Self { columns, of_one } = self;
        let of_one = format!("SELECT {} FROM {of_one}", columns.replace("{provider}", PROVIDER_OF_K));
        of_one.replace("$1", "k.tenant").replace("$2", "k.id").replace("$3", "k.n")
    }
}

impl Store {
    /// Reads notifications by key, in the order of `keys`. A separate statement is safe here, because the key of a
    /// notification never changes.
    pub(in crate::store) async fn read_rows(
        &self,
        keys: &[DeliveryKey],
        row_query: RowQuery,
    ) -> Result<Vec<Row>, DbError> {
        match &self.db {
            Db::Postgres(_) => {
                let places = keys
                    .iter()
                    .zip(0..)
                    .map(|(key, place)| json!({"place": place, "tenant": key.tenant, "id": key.notification}));
                let sql = format!(
                    "SELECT s.* FROM jsonb_to_recordset($1::jsonb) AS k (place int, tenant int, id uuid)
                     CROSS JOIN LATERAL ({} OFFSET 0) s ORDER BY k.place",
                    row_query.of_k()
                );
                self.db.query(&sql, vec![Value::Json(json!(places.collect::<Vec<_>>()).to_string())]).await
            }
            Db::Sqlite(db) => {
                let (keys, sql) = (keys.to_vec(), sqlite::dialect(&row_query.statement()));
                db.read(move |connection| {
                    let mut rows = Vec::with_capacity(keys.len());
                    for key in keys {
                        rows.extend(sqlite::query(
                            connection,
                            &sql,
                            &[Value::from(key.tenant), key.notification.into()],
                        )?);
                    }
                    Ok(rows)
                })
                .await
            }
        }
    }
}
