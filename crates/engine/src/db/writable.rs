//! Whether a SQLite file takes writes, found by writing; nothing of that remains. A small write tells too little: the log beside the file is written over
//! from its beginning, so there is room in it when the disk has none. So the free space is looked at as well, and it is remembered when a true write failed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use rustix::fs::{Access, access, statvfs};
use rustix::io::Errno;
use tokio::sync::Mutex;

use super::DbError;

/// How long a finding is believed: whoever asks every moment must not make the disk busy.
const BELIEVED: Duration = Duration::from_secs(1);

/// How long somebody else's transaction is waited for. Whoever asks wants to be answered within two seconds, and a lock that lasts is an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A disk with fewer bytes free than this is as good as full: the log alone is let grow to four times as much.
const ROOM: u64 = 16 * 1024 * 1024;
/// How long a write that failed is remembered at most, where nothing is written and nothing can be tried: somebody reads for hours and keeps the log as it is.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What the last try found, and how the last true write went.
#[derive(Clone, Default)]
pub(super) struct Writable {
    finding: Arc<Mutex<Option<Finding>>>,
    failure: Arc<std::sync::Mutex<Option<(Instant, String)>>>,
}

struct Finding {
    at: Instant,
    /// The failed write that was known then.
    after: Option<String>,
    is_read_only: Result<bool, String>,
}

impl Writable {
    /// False when the file can be written, true when it is read-only; an error when something else is in the way: a full disk, or somebody who holds it.
    pub(super) async fn is_read_only(&self, path: &Path) -> Result<bool, DbError> {
        let mut last = self.finding.lock().await;
        let failure = self.failure();
        let finding = match last.take() {
            Some(finding) if finding.at.elapsed() < BELIEVED && finding.after == failure => finding,
            _ => find(path.to_owned(), failure.clone()).await,
        };
        if failure.is_some() && finding.is_read_only == Ok(false) {
            self.succeeded();
        }
        last.insert(finding).is_read_only.clone().map_err(DbError::Unreachable)
    }

    /// A commit has changed something, or would have.
    pub(super) fn succeeded(&self) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A commit failed. That somebody else holds the file says nothing about the disk.
    pub(super) fn failed(&self, error: &rusqlite::Error) {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
        if !matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked)) {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some((clock::monotonic(), error.to_string()));
        }
    }

    fn failure(&self) -> Option<String> {
        let last = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < REMEMBERED).map(|(_, problem)| problem.clone())
    }
}

async fn find(path: PathBuf, after: Option<String>) -> Finding {
    let failed = after.clone();
    let tried = tokio::task::spawn_blocking(move || try_to_write(&path, failed)).await;
    Finding { at: clock::monotonic(), after, is_read_only: tried.unwrap_or_else(|e| Err(e.to_string())) }
}

/// Whether the file itself may not be written. Writes go to the log beside it, so trying alone would not tell until the log is to be brought in. It is
/// asked and not opened: closing a descriptor of ours would give up every lock that SQLite has on the file.
fn is_barred(path: &Path) -> bool {
    matches!(access(path, Access::WRITE_OK), Err(Errno::PERM | Errno::ACCESS | Errno::ROFS))
}

/// Why there is no room on the file's disk, if there is none. A file system that counts no blocks, or is not told of, may have any.
fn lacks_room(path: &Path) -> Option<String> {
    let disk = statvfs(path).ok().filter(|disk| disk.f_blocks > 0)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    (free < ROOM).then(|| format!("{}: {free} bytes are free on its disk; {ROOM} are needed", path.display()))
}

/// On a connection of its own: a failure in the writer's transaction would be its neighbours' too.
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
                "{}: another connection has held a lock for longer than {seconds} s; what is to be written waits for it",
                path.display()
            ))
        }
        Err(error) => Err(format!("{}: a write failed: {error}", path.display())),
    }
}

fn is_lock(code: rusqlite::ErrorCode) -> bool {
    matches!(code, rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
}

/// Writes a page and takes it back. With an empty log the page needs room on the disk; false when the log could not be emptied.
fn write(path: &Path, with_empty_log: bool) -> rusqlite::Result<bool> {
    let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // Without waiting for readers: everybody who writes would wait with us.
    connection.busy_timeout(Duration::ZERO)?;
    if with_empty_log && connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get::<_, bool>(0))? {
        return Ok(false);
    }
    connection.busy_timeout(PATIENCE)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // A true change, for a page whose content stays is not written; and flushed, for what is rolled back from memory never meets the disk.
    transaction.execute("UPDATE postcommit_migration SET applied_at = applied_at + 1", ())?;
    transaction.cache_flush()?;
    transaction.rollback()?;
    Ok(true)
}
