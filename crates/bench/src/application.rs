//! An application that enqueues in a transaction and commits.

use std::time::Instant;

use postcommit_channel::clock;
use postcommit_engine::db::Value;
use tokio_postgres::{Client, Statement};

use crate::failure::Failure;
use crate::load::{Load, payload};
use crate::workspace::{Backend, Workspace};

/// A PostgreSQL connection with a prepared enqueue.
pub struct Enqueuer {
    client: Client,
    enqueue: Statement,
}

impl Enqueuer {
    pub async fn on(workspace: &Workspace) -> Result<Self, Failure> {
        let client = workspace.client().await?;
        let sql = "\
            SELECT postcommit.enqueue($1::text, $2::jsonb, $3::text, recipients => $4::jsonb, priority => $5::int)";
        let enqueue = client.prepare(sql).await?;
        Ok(Self { client, enqueue })
    }

    /// Enqueues notification `i` in the open transaction, or in a transaction of its own.
    pub async fn enqueue(&self, load: &Load, i: u64) -> Result<(), Failure> {
        let (payload, key, recipients) = (Value::Json(payload(i)), load.key(i), Value::Json(load.recipients.clone()));
        self.client
            .query_one(&self.enqueue, &[&load.event_type, &payload, &key, &recipients, &i32::from(load.priority)])
            .await?;
        Ok(())
    }
}

/// An application on either database.
pub enum Application {
    Postgres(Enqueuer),
    Sqlite(rusqlite::Connection),
}

impl Application {
    pub async fn on(workspace: &Workspace) -> Result<Self, Failure> {
        match workspace.backend() {
            Backend::Postgres(_) => Ok(Self::Postgres(Enqueuer::on(workspace).await?)),
            Backend::Sqlite(file) => Ok(Self::Sqlite(crate::bare::sqlite::open(&file.path())?)),
        }
    }

    /// Begins, enqueues and commits. Returns the time right before the COMMIT.
    pub async fn commit(&mut self, load: &Load, i: u64) -> Result<Instant, Failure> {
        match self {
            Self::Postgres(writer) => {
                writer.client.batch_execute("BEGIN").await?;
                writer.enqueue(load, i).await?;
                let given = clock::monotonic();
                writer.client.batch_execute("COMMIT").await?;
                Ok(given)
            }
            Self::Sqlite(connection) => tokio::task::block_in_place(|| {
                connection.execute_batch("BEGIN IMMEDIATE")?;
                load.insert_sqlite(connection, i)?;
                let given = clock::monotonic();
                connection.execute_batch("COMMIT")?;
                Ok(given)
            }),
        }
    }
}
