//! Signals that another process has committed: NOTIFY on PostgreSQL, and the file's data version on SQLite. A signal is
//! only a hint, because polling finds all changes as well.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls};

use super::Db;
use super::postgres::Postgres;
use super::sqlite::Sqlite;

/// How often the data version of a SQLite file is read. It is in shared memory, so reading it costs almost nothing.
const LOOK: Duration = Duration::from_millis(25);

/// A signal that a process can watch for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// A notification was enqueued.
    Work,
    /// An inbox has changed.
    Inbox,
}

impl Signal {
    fn channel(self) -> &'static str {
        match self {
            Self::Work => "postcommit_wake",
            Self::Inbox => "postcommit_inbox",
        }
    }
}

impl Db {
    /// Calls `notified` with the payload of each signal until the future is dropped. An empty payload means that
    /// anything may have changed.
    pub async fn watch(self, signal: Signal, notified: impl Fn(&str) + Send + Sync) {
        match self {
            Self::Postgres(db) => listen_forever(db, signal, &notified).await,
            Self::Sqlite(db) => look_forever(db, &notified).await,
        }
    }
}

/// Listens on a separate connection and reconnects when it breaks. Its messages are always read, because an unread
/// connection would hold back vacuum.
async fn listen_forever(db: Postgres, signal: Signal, notified: &(impl Fn(&str) + Send + Sync)) {
    let mut wait = Duration::from_millis(100);
    loop {
        if let Err(problem) = listen(&db, signal, notified, &mut wait).await {
            tracing::debug!(%problem, "the connection for LISTEN broke; the process polls until it is connected again");
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(10));
    }
}

async fn listen(
    db: &Postgres,
    signal: Signal,
    notified: &(impl Fn(&str) + Send + Sync),
    wait: &mut Duration,
) -> Result<(), tokio_postgres::Error> {
    match db.tls() {
        Some(tls) => {
            let (client, connection) = db.config().connect(tls).await?;
            hear(&client, connection, signal, notified, wait).await
        }
        None => {
            let (client, connection) = db.config().connect(NoTls).await?;
            hear(&client, connection, signal, notified, wait).await
        }
    }
}

async fn hear<S, T>(
    client: &Client,
    mut connection: Connection<S, T>,
    signal: Signal,
    notified: &(impl Fn(&str) + Send + Sync),
    wait: &mut Duration,
) -> Result<(), tokio_postgres::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut messages = std::pin::pin!(futures_util::stream::poll_fn(move |cx| connection.poll_message(cx)));
    let listen = format!("LISTEN {}", signal.channel());
    let mut listening = std::pin::pin!(client.batch_execute(&listen).fuse());
    let mut heard = false;
    loop {
        tokio::select! {
            listened = &mut listening, if !heard => {
                listened?;
                heard = true;
                *wait = Duration::from_millis(100);
                // Reports commits that were made while no connection was listening.
                notified("");
            }
            message = messages.next() => match message {
                Some(Ok(AsyncMessage::Notification(message))) => notified(message.payload()),
                Some(Ok(_)) => {}
                Some(Err(problem)) => return Err(problem),
                None => return Ok(()),
            },
        }
    }
}

/// Polls the data version of the file, which changes when another connection commits.
async fn look_forever(db: Sqlite, notified: &(impl Fn(&str) + Send + Sync)) {
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
                notified("");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
