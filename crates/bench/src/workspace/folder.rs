//! The folder of a benchmark run. Its lock is held while the run lasts: a folder whose lock is free was left by a
//! killed run.

use std::fs::File;
use std::path::{Path, PathBuf};

use postcommit_channel::secret::random;
use postcommit_server::output::Exit;

use crate::failure::Failure;

const PREFIX: &str = "postcommit-bench-";
const LOCK: &str = "lock";

/// The folder of a run and its lock.
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Creates a folder, and removes the folders of killed runs in the same parent.
    pub fn make_in(parent: &Path) -> Result<Self, Failure> {
        remove_leftovers(parent);
        let path = parent.join(format!("{PREFIX}{:016x}", u64::from_be_bytes(random::<8>())));
        let made = std::fs::create_dir(&path).and_then(|()| {
            let lock = File::create_new(path.join(LOCK))?;
            lock.lock()?;
            Ok(lock)
        });
        let lock = made.map_err(|e| Failure::new(Exit::Refused, format!("{}: {e}", path.display())))?;
        Ok(Self { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn remove(&self) -> Result<(), Failure> {
        std::fs::remove_dir_all(&self.path)
            .map_err(|e| Failure::new(Exit::Failed, format!("could not remove {}: {e}", self.path.display())))
    }
}

fn remove_leftovers(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // A folder without a lock file is just being created. A lock file that cannot be opened belongs to another
        // user.
        if ours && File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_lock_is_removed_by_the_next_run() {
        let parent = tempfile::tempdir().unwrap();
        let held = Folder::make_in(parent.path()).unwrap();
        let left = Folder::make_in(parent.path()).unwrap().path().to_owned();
        std::fs::create_dir(parent.path().join("postcommit-bench-of-a-user")).unwrap();
        assert!(left.exists(), "a dropped folder is not removed, like that of a killed run");
        let next = Folder::make_in(parent.path()).unwrap();
        assert!(held.path().exists() && !left.exists());
        next.remove().unwrap();
        held.remove().unwrap();
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1, "a folder of another program stays");
    }
}
