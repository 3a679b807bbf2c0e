//! Enqueueing on our own connection, for the command line. It goes through the SDK, as any application would.

use postcommit::{Error, Notification, adapters};
use uuid::Uuid;

use super::Store;
use crate::crash_point;
use crate::db::{Db, DbError};

/// Why our own enqueue did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// The notification was refused.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The database could not be reached.
    #[error(transparent)]
    Database(#[from] DbError),
}

impl Store {
    /// Enqueues and commits. The id is durable when this returns.
    ///
    /// # Errors
    /// When the notification is refused or the database cannot be reached.
    pub async fn enqueue(&self, note: &Notification) -> Result<Uuid, EnqueueError> {
        crash_point!("enqueue.before");
        let id = match &self.db {
            Db::Postgres(db) => {
                let mut client = db.client().await?;
                let begun = client.transaction().await.map_err(crate::db::postgres::refused)?;
                let id = adapters::tokio_postgres::enqueue(begun.for_sdk(), note).await?;
                crash_point!("enqueue.in_tx");
                begun.commit().await.map_err(crate::db::postgres::refused)?;
                id
            }
            Db::Sqlite(db) => {
                let note = note.clone();
                let written = db.write(move |connection| {
                    let id = adapters::rusqlite::enqueue(connection, &note);
                    crash_point!("enqueue.in_tx");
                    Ok(id)
                });
                written.await??
            }
        };
        crash_point!("enqueue.after_commit");
        Ok(id)
    }
}
