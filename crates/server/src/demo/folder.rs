//! The temporary folder of a demo. It is removed when the demo ends. The folder of a killed demo is removed by the next
//! demo, which sees by its free lock that it is not in use.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use postcommit_channel::secret::random;
use rustix::process::getuid;

const PREFIX: &str = "postcommit-demo-";
const LOCK: &str = "lock";
/// How often the removal is tried. SQLite may create a file while the folder is removed.
const REMOVALS: usize = 5;

pub struct Folder {
    path: PathBuf,
    /// The lock file. Its lock is held as long as the folder is in use.
    _lock: File,
}

impl Folder {
    /// Creates a folder that only this user can read, and removes the folders that killed demos left.
    pub fn make() -> io::Result<Self> {
        let place = std::env::temp_dir();
        remove_leftovers(&place);
        let path = place.join(format!("{PREFIX}{:016x}", u64::from_be_bytes(random::<8>())));
        DirBuilder::new().mode(0o700).create(&path)?;
        // The lock file gets its final name after it is locked, so that another demo never sees its lock free.
        let unnamed = path.join("lock.new");
        let lock = File::create_new(&unnamed)?;
        lock.lock()?;
        fs::rename(unnamed, path.join(LOCK))?;
        Ok(Self { path, _lock: lock })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            match fs::remove_dir_all(&self.path) {
                Err(problem) if problem.kind() != io::ErrorKind::NotFound => {
                    tracing::debug!(%problem, "could not remove the folder of the demo yet");
                }
                _ => return,
            }
        }
    }
}

/// Removes the folders of killed demos. A folder that cannot be removed stays.
fn remove_leftovers(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let is_ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX))
            && fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && found.uid() == getuid().as_raw());
        // The lock is held until the folder is removed, so that no two demos remove it.
        let lock = is_ours.then(|| File::open(path.join(LOCK)).ok()).flatten();
        if let Some(lock) = lock.filter(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(&path);
            drop(lock);
        }
    }
}
