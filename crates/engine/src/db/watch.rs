//! Hearing that something was committed: by NOTIFY on PostgreSQL, by the file's version on SQLite. Only a hint.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls};

use super::Db;
use super::postgres::Postgres;
use super::sqlite::Sqlite;

/// How often a SQLite file is looked at: the version number lives in shared memory, so a look costs nearly nothing.
const LOOK: Duration = Duration::from_millis(25);

/// What can be listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bell {
    /// Something was enqueued.
    Work,
    /// Something has changed in an inbox.
    Inbox,
}

impl Bell {
    fn channel(self) -> &'static str {
        match self {
            Self::Work => "postcommit_wake",
            Self::Inbox => "postcommit_inbox",
        }
    }
}

impl Db {
    /// Calls `rung` whenever a commit may have brought something, until dropped: with what the bell says, or with nothing, which may be anything.
    pub async fn watch(self, bell: Bell, rung: impl Fn(&str) + Send + Sync) {
        match self {
            Self::Postgres(db) => listen_forever(db, bell, &rung).await,
            Self::Sqlite(db) => look_forever(db, &rung).await,
        }
    }
}

/// A connection of its own, drained all the time: one that is not would hold back vacuum.
async fn listen_forever(db: Postgres, bell: Bell, rung: &(impl Fn(&str) + Send + Sync)) {
    let mut wait = Duration::from_millis(100);
    loop {
        if let Err(problem) = listen(&db, bell, rung, &mut wait).await {
            tracing::debug!(%problem, "the doorbell's connection broke; the poll goes on");
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(10));
    }
}

async fn listen(db: &Postgres, bell: Bell, rung: &(impl Fn(&str) + Send + Sync), wait: &mut Duration) -> Result<(), tokio_postgres::Error> {
    match db.tls() {
        Some(tls) => {
            let (client, connection) = db.config().connect(tls).await?;
            hear(&client, connection, bell, rung, wait).await
        }
        None => {
            let (client, connection) = db.config().connect(NoTls).await?;
            hear(&client, connection, bell, rung, wait).await
        }
    }
}

async fn hear<S, T>(
    client: &Client,
    mut connection: Connection<S, T>,
    bell: Bell,
    rung: &(impl Fn(&str) + Send + Sync),
    wait: &mut Duration,
) -> Result<(), tokio_postgres::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut messages = std::pin::pin!(futures_util::stream::poll_fn(move |cx| connection.poll_message(cx)));
    let listen = format!("LISTEN {}", bell.channel());
    let mut listening = std::pin::pin!(client.batch_execute(&listen).fuse());
    let mut heard = false;
    loop {
        tokio::select! {
            listened = &mut listening, if !heard => {
                listened?;
                heard = true;
                *wait = Duration::from_millis(100);
                // What was committed while nobody listened.
                rung("");
            }
            message = messages.next() => match message {
                Some(Ok(AsyncMessage::Notification(said))) => rung(said.payload()),
                Some(Ok(_)) => {}
                Some(Err(problem)) => return Err(problem),
                None => return Ok(()),
            },
        }
    }
}

/// Any commit by any process changes the version that another connection sees.
async fn look_forever(db: Sqlite, rung: &(impl Fn(&str) + Send + Sync)) {
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
        db.check_identity();
        if let Ok(Some((kept, version))) = looked.await {
            connection = Some(kept);
            if version != seen {
                seen = version;
                rung("");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
