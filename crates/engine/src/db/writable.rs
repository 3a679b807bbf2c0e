//! Checks whether a SQLite file can be written, by a write that is rolled back. A small write alone is not enough: the
//! write-ahead log is overwritten from its beginning, so it may have space although the disk is full. So the free space
//! is checked as well, and the store's last failed write is remembered.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use rustix::fs::{Access, access, statvfs};
use rustix::io::Errno;
use tokio::sync::Mutex;

use super::DbError;

/// How long a result is reused, so that frequent health checks do not load the disk.
const BELIEVED: Duration = Duration::from_secs(1);

/// How long the check waits for another transaction. A health check needs a response within two seconds, so a longer
/// lock is reported as a failure.
const PATIENCE: Duration = Duration::from_secs(1);

/// A disk with fewer free bytes than this counts as full. The log alone may grow to four times this size.
const ROOM: u64 = 16 * 1024 * 1024;
/// How long a failed write is remembered at most. This matters only if no write can be tried, because a long-running
/// reader prevents the log from being truncated.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The last check, and the last failed write of the store.
#[derive(Clone, Default)]
pub(super) struct Writable {
    last_check: Arc<Mutex<Option<WriteCheck>>>,
    failure: Arc<std::sync::Mutex<Option<(Instant, String)>>>,
}

struct WriteCheck {
    at: Instant,
    /// The failed write that was known at the time of the check.
    after: Option<String>,
    is_read_only: Result<bool, String>,
}

impl Writable {
    /// Returns false if the file can be written and true if it is read-only. Any other obstacle, such as a full disk or
    /// a lock, is an error.
    pub(super) async fn is_read_only(&self, path: &Path) -> Result<bool, DbError> {
        let mut last = self.last_check.lock().await;
        let failure = self.failure();
        let check = match last.take() {
            Some(check) if check.at.elapsed() < BELIEVED && check.after == failure => check,
            _ => find(path.to_owned(), failure.clone()).await,
        };
        if failure.is_some() && check.is_read_only == Ok(false) {
            self.succeeded();
        }
        last.insert(check).is_read_only.clone().map_err(DbError::Unreachable)
    }

    /// Records that a commit or a check has written successfully.
    pub(super) fn succeeded(&self) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Records that a commit failed. A lock held by another connection is ignored, because it says nothing about the
    /// disk.
    pub(super) fn failed(&self, error: &rusqlite::Error) {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
        if !matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked)) {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((clock::monotonic(), error.to_string()));
        }
    }

    fn failure(&self) -> Option<String> {
        let last = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < REMEMBERED).map(|(_, problem)| problem.clone())
    }
}

async fn find(path: PathBuf, after: Option<String>) -> WriteCheck {
    let failed = after.clone();
    let tried = tokio::task::spawn_blocking(move || try_to_write(&path, failed)).await;
    WriteCheck { at: clock::monotonic(), after, is_read_only: tried.unwrap_or_else(|e| Err(e.to_string())) }
}

/// Returns whether the file itself is write-protected. Writes go to the log, so a test write would not fail until the
/// log is moved into the file. The file is not opened for this check, because closing a descriptor would release every
/// lock that SQLite holds on the file.
fn is_barred(path: &Path) -> bool {
    matches!(access(path, Access::WRITE_OK), Err(Errno::PERM | Errno::ACCESS | Errno::ROFS))
}

/// Returns an error text if the disk is nearly full. A file system that reports no blocks or cannot be queried counts
/// as having space.
fn lacks_room(path: &Path) -> Option<String> {
    let disk = statvfs(path).ok().filter(|disk| disk.f_blocks > 0)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    (free < ROOM).then(|| format!("{}: only {free} bytes are free on its disk; {ROOM} are needed", path.display()))
}

/// Tries to write on a separate connection. A failure in the writer's transaction would fail other callers' work.
fn try_to_write(path: &Path, failed: Option<String>) -> Result<bool, String> {
    if is_barred(path) {
        return Ok(true);
    }
    if let Some(problem) = lacks_room(path) {
        return Err(problem);
    }
    match write(path, failed.is_some()) {
        Ok(true) => Ok(false),
        Ok(false) => Err(format!("{}: a write failed: {}", path.display(), failed.unwrap_or_default())),
        Err(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == rusqlite::ErrorCode::ReadOnly => Ok(true),
        Err(rusqlite::Error::SqliteFailure(failure, _)) if is_lock(failure.code) => {
            let seconds = PATIENCE.as_secs();
            Err(format!(
                "{}: another connection has held a lock for longer than {seconds} s; writes wait for it",
                path.display()
            ))
        }
        Err(error) => Err(format!("{}: a write failed: {error}", path.display())),
    }
}

fn is_lock(code: rusqlite::ErrorCode) -> bool {
    matches!(code, rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
}

/// Writes a page and rolls it back. With an empty log the page needs new space on the disk. Returns false if the log
/// could not be emptied.
fn write(path: &Path, with_empty_log: bool) -> rusqlite::Result<bool> {
    let mut connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // The checkpoint does not wait for readers, because all writers would have to wait as well.
    connection.busy_timeout(Duration::ZERO)?;
    if with_empty_log && connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get::<_, bool>(0))? {
        return Ok(false);
    }
    connection.busy_timeout(PATIENCE)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // The statement changes a value, because SQLite does not write an unchanged page. The cache is flushed, because
    // otherwise the rollback happens in memory and nothing reaches the disk.
    transaction.execute("UPDATE postcommit_migration SET applied_at = applied_at + 1", ())?;
    transaction.cache_flush()?;
    transaction.rollback()?;
    Ok(true)
}
