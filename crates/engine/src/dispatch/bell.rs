//! Wakes the dispatcher when something was committed. Only a hint: everything is found by the poll as well.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::db::Db;
use crate::db::postgres::Postgres;
use crate::db::sqlite::Sqlite;
use crate::store::Store;

/// How often a SQLite file is looked at: the version number lives in shared memory, so a look costs nearly nothing.
const LOOK: Duration = Duration::from_millis(25);

/// Rings when a commit may have brought work.
pub struct Bell {
    rung: Arc<Notify>,
    ringing: tokio::task::JoinHandle<()>,
}

impl Bell {
    pub fn hang(store: &Store) -> Self {
        let rung = Arc::new(Notify::new());
        let ringing = match store.db() {
            Db::Postgres(db) => tokio::spawn(listen_forever(db.clone(), rung.clone())),
            Db::Sqlite(db) => tokio::spawn(watch_forever(db.clone(), rung.clone())),
        };
        Self { rung, ringing }
    }

    pub async fn rung(&self) {
        self.rung.notified().await;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ringing.abort();
    }
}

/// A connection of its own, drained all the time: one that is not would hold back vacuum.
async fn listen_forever(db: Postgres, rung: Arc<Notify>) {
    let mut wait = Duration::from_millis(100);
    loop {
        if let Err(problem) = listen(&db, &rung, &mut wait).await {
            tracing::debug!(%problem, "the doorbell's connection broke; the poll goes on");
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(10));
    }
}

async fn listen(db: &Postgres, rung: &Notify, wait: &mut Duration) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = db.config().connect(NoTls).await?;
    let mut messages = std::pin::pin!(futures_util::stream::poll_fn(move |cx| connection.poll_message(cx)));
    let listening = client.batch_execute("LISTEN postcommit_wake");
    let mut listening = std::pin::pin!(futures_util::FutureExt::fuse(listening));
    loop {
        tokio::select! {
            listened = &mut listening => {
                listened?;
                *wait = Duration::from_millis(100);
                // What was committed while nobody listened.
                rung.notify_one();
            }
            message = futures_util::StreamExt::next(&mut messages) => match message {
                Some(Ok(AsyncMessage::Notification(_))) => rung.notify_one(),
                Some(Ok(_)) => {}
                Some(Err(problem)) => return Err(problem),
                None => return Ok(()),
            },
        }
    }
}

/// Any commit by any process changes the version that another connection sees.
async fn watch_forever(db: Sqlite, rung: Arc<Notify>) {
    let mut seen = -1_i64;
    let mut connection = None;
    loop {
        let taken = connection.take();
        let file = db.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let connection = match taken {
                Some(connection) => connection,
                None => file.reader().ok()?,
            };
            let version = connection.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).ok()?;
            Some((connection, version))
        });
        if let Ok(Some((kept, version))) = looked.await {
            connection = Some(kept);
            if version != seen {
                seen = version;
                rung.notify_one();
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
