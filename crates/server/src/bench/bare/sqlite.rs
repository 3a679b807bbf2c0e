//! Plain SQL on SQLite, through rusqlite, prepared, in WAL mode with `synchronous = FULL`; one thread.

use std::path::Path;

use rusqlite::Connection;

/// A connection as durable as ours.
pub fn open(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY")?;
    Ok(connection)
}

/// Brings what is in the log into the file.
pub fn checkpoint(file: &Path) -> rusqlite::Result<()> {
    open(file)?.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA optimize")
}
