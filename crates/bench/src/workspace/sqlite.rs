//! The SQLite file of the benchmark. Every measurement gets a new file in the workspace's folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use postcommit_server::output::Exit;

use crate::failure::Failure;

/// The current SQLite file, numbered within its folder.
pub struct SqliteFile {
    folder: PathBuf,
    number: AtomicU64,
}

impl SqliteFile {
    pub fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), number: AtomicU64::new(0) }
    }

    pub fn path(&self) -> PathBuf {
        self.numbered(self.number.load(Ordering::Relaxed))
    }

    fn numbered(&self, number: u64) -> PathBuf {
        self.folder.join(format!("bench-{number}.db"))
    }

    /// Deletes the current file and switches to a new one.
    pub fn next(&self) -> Result<(), Failure> {
        let last = self.path();
        self.number.fetch_add(1, Ordering::Relaxed);
        for ending in ["", "-wal", "-shm"] {
            let mut name = last.clone().into_os_string();
            name.push(ending);
            match std::fs::remove_file(&name) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::new(Exit::Failed, format!("{}: {e}", name.display())));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
