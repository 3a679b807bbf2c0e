//! What a list shows of the keys that its walk finds.

use postcommit_channel::model::DeliveryKey;
use serde_json::json;

use crate::db::{Db, DbError, Row, Value, sqlite};
use crate::store::Store;

/// How one row of a list is read by its key: $1 is the tenant, $2 the notification, $3 the number of the target. `{provider}` among the columns is the
/// provider's name.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Shown {
    pub columns: &'static str,
    pub of_one: &'static str,
}

/// By the lane of the row that was found. Joined to the view's own rows, it would give the planner a reason to walk through the queue in the order of its lanes.
const PROVIDER_OF_K: &str = "(SELECT p.name FROM postcommit.provider p WHERE p.tenant = k.tenant AND p.id = k.lane)";

impl Shown {
    /// One row, by its key.
    pub(in crate::store) fn statement(self) -> String {
        format!("SELECT {} FROM {}", self.columns.replace("{provider}", "provider"), self.of_one)
    }

    /// Found and read by one statement, on PostgreSQL. With two, what is expanded in between would be missing: it has other keys then.
    pub(in crate::store) fn joined_to(self, found: &str) -> String {
        format!(
            "SELECT k.tenant, k.id, k.n, s.* FROM ({found}) k CROSS JOIN LATERAL ({} OFFSET 0) s ORDER BY k.id DESC, k.tenant DESC, k.n",
            self.of_k()
        )
    }

    /// The same on SQLite: in one transaction, because there no join goes through a view of two tables by their indexes.
    pub(in crate::store) async fn read(self, db: &sqlite::Sqlite, found: &str, parameters: Vec<Value>) -> Result<Vec<Row>, DbError> {
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
        let of_one = self.of_one.replace("$1", "k.tenant").replace("$2", "k.id").replace("$3", "k.n");
        format!("SELECT {} FROM {of_one}", self.columns.replace("{provider}", PROVIDER_OF_K))
    }
}

impl Store {
    /// What is shown of notifications, in the order of their keys. They stay where they are, so what was found a moment ago is there.
    pub(in crate::store) async fn shown(&self, keys: &[DeliveryKey], shown: Shown) -> Result<Vec<Row>, DbError> {
        match &self.db {
            Db::Postgres(_) => {
                let places = keys.iter().zip(0..).map(|(key, place)| json!({"place": place, "tenant": key.tenant, "id": key.notification}));
                let sql = format!(
                    "SELECT s.* FROM jsonb_to_recordset($1::jsonb) AS k (place int, tenant int, id uuid)
                     CROSS JOIN LATERAL ({} OFFSET 0) s ORDER BY k.place",
                    shown.of_k()
                );
                self.db.query(&sql, vec![Value::Json(json!(places.collect::<Vec<_>>()).to_string())]).await
            }
            Db::Sqlite(db) => {
                let (keys, sql) = (keys.to_vec(), sqlite::dialect(&shown.statement()));
                db.read(move |connection| {
                    let mut rows = Vec::with_capacity(keys.len());
                    for key in keys {
                        rows.extend(sqlite::query(connection, &sql, &[Value::from(key.tenant), key.notification.into()])?);
                    }
                    Ok(rows)
                })
                .await
            }
        }
    }
}
