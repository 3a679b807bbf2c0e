//! Whether a SQLite file takes writes, found by writing. Nothing of it remains.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use tokio::sync::Mutex;

use super::DbError;
use super::sqlite::BUSY;
use crate::clock;

/// How long a finding is believed: whoever asks every moment must not make the disk busy.
const BELIEVED: Duration = Duration::from_secs(1);

/// What the last try found.
#[derive(Clone, Default)]
pub(super) struct Writable(Arc<Mutex<Option<Finding>>>);

struct Finding {
    at: Instant,
    is_read_only: Result<bool, String>,
}

impl Writable {
    /// False when the file can be written, true when it is read-only; an error when something else is in the way: a full disk, or somebody who holds it.
    pub(super) async fn is_read_only(&self, path: &Path) -> Result<bool, DbError> {
        let mut last = self.0.lock().await;
        let finding = match last.take() {
            Some(finding) if finding.at.elapsed() < BELIEVED => finding,
            _ => find(path.to_owned()).await,
        };
        last.insert(finding).is_read_only.clone().map_err(DbError::Unreachable)
    }
}

async fn find(path: PathBuf) -> Finding {
    let tried = tokio::task::spawn_blocking(move || try_to_write(&path)).await;
    Finding { at: clock::monotonic(), is_read_only: tried.unwrap_or_else(|e| Err(e.to_string())) }
}

/// Whether the file itself may not be written. Writes go to the log beside it, so trying alone would not tell until the log is to be brought in. It is
/// asked and not opened: closing a descriptor of ours would give up every lock that SQLite has on the file.
fn is_barred(path: &Path) -> bool {
    matches!(access(path, Access::WRITE_OK), Err(Errno::PERM | Errno::ACCESS | Errno::ROFS))
}

/// On a connection of its own: a failure in the writer's transaction would be its neighbours' too.
fn try_to_write(path: &Path) -> Result<bool, String> {
    if is_barred(path) {
        return Ok(true);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let write = || {
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // A true change, for a page whose content stays is not written; and flushed, for what is rolled back from memory never meets the disk.
        transaction.execute("UPDATE postcommit_migration SET applied_at = applied_at + 1", ())?;
        transaction.cache_flush()?;
        transaction.rollback()
    };
    match write() {
        Ok(()) => Ok(false),
        Err(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == rusqlite::ErrorCode::ReadOnly => Ok(true),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
