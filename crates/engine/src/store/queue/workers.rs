//! Records which dispatchers are idle, so that an enqueue notifies them only when one is waiting.

use std::time::Duration;

use uuid::Uuid;

use crate::db::{Db, DbError};
use crate::store::Store;

impl Store {
    /// Records that `worker` is idle for the duration `nap`. On SQLite this does nothing, because the dispatcher
    /// watches the file's version.
    pub async fn fall_idle(&self, worker: Uuid, nap: Duration) -> Result<(), DbError> {
        let Db::Postgres(_) = self.db else { return Ok(()) };
        let sql = "INSERT INTO postcommit.idle (worker, until) VALUES ($1, clock_timestamp() + $2::float8 * interval '1 second')
            ON CONFLICT (worker) DO UPDATE SET until = EXCLUDED.until";
        self.db.execute_one(sql, vec![worker.into(), crate::db::Value::Real(nap.as_secs_f64())]).await.map(drop)
    }

    /// Records that `worker` is busy again. Also deletes idle records of other workers that ended more than an hour
    /// ago.
    pub async fn wake_up(&self, worker: Uuid) -> Result<(), DbError> {
        let Db::Postgres(_) = self.db else { return Ok(()) };
        self.db
            .execute_one(
                "DELETE FROM postcommit.idle WHERE worker = $1 OR until < clock_timestamp() - interval '1 hour'",
                vec![worker.into()],
            )
            .await
            .map(drop)
    }
}
