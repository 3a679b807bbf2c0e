//! The doorbell's other side: a dispatcher says that it sleeps, so that enqueue knows someone would hear the bell.

use std::time::Duration;

use uuid::Uuid;

use crate::db::{Db, DbError};
use crate::store::Store;

impl Store {
    /// Says that `worker` sleeps for so long. On SQLite there is nothing to say: the file's version is watched.
    pub async fn fall_idle(&self, worker: Uuid, nap: Duration) -> Result<(), DbError> {
        let Db::Postgres(_) = self.db else { return Ok(()) };
        let sql = "INSERT INTO postcommit.idle (worker, until) VALUES ($1, clock_timestamp() + $2::float8 * interval '1 second')
            ON CONFLICT (worker) DO UPDATE SET until = EXCLUDED.until";
        self.db.execute_one(sql, vec![worker.into(), crate::db::Value::Real(nap.as_secs_f64())]).await.map(drop)
    }

    /// Says that `worker` is awake.
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
