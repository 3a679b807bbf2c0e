//! Detects when the files of a SQLite database are moved, deleted or replaced while they are open. Files are identified
//! by device and inode. After such a change this process would write into a file that no other process sees, and
//! acknowledged writes would be lost.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The device and inode of a file.
type Identity = (u64, u64);

/// The opened files, and whether other files have replaced them. Clones share this state.
#[derive(Clone)]
pub(super) struct Files {
    path: PathBuf,
    own: Option<Identity>,
    /// The write-ahead log and its index, known after the first write. SQLite keeps both files while a connection is
    /// open, and the writer's connection stays open.
    log: Arc<OnceLock<[(PathBuf, Identity); 2]>>,
    replaced: Arc<OnceLock<String>>,
}

impl Files {
    pub(super) fn opened(path: &Path) -> Self {
        Self { path: path.to_owned(), own: identity(path), log: Arc::default(), replaced: Arc::default() }
    }

    /// Records the identity of the log files. The writer calls this after a commit, when the files exist.
    pub(super) fn note_log(&self) {
        if self.log.get().is_none()
            && let [Some(log), Some(index)] = ["-wal", "-shm"].map(|ending| beside(&self.path, ending))
        {
            let _ = self.log.set([log, index]);
        }
    }

    /// Compares the files that are now at the paths with the opened files.
    pub(super) fn look(&self) {
        let opened = self.log.get().into_iter().flatten().map(|(path, own)| (path.as_path(), Some(*own)));
        let missing =
            std::iter::once((self.path.as_path(), self.own)).chain(opened).find(|(path, own)| identity(path) != *own);
        if let Some((path, _)) = missing {
            let what = format!(
                "{} was moved, deleted or replaced while it was open; restart postcommit to use the file that is now \
                 at this path",
                path.display()
            );
            if self.replaced.set(what.clone()).is_ok() {
                tracing::error!("{what}");
            }
        }
    }

    /// Returns the error text if a file was replaced. It stays set until the process restarts.
    pub(super) fn replaced(&self) -> Option<&str> {
        self.replaced.get().map(String::as_str)
    }
}

fn identity(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn beside(path: &Path, ending: &str) -> Option<(PathBuf, Identity)> {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    let path = PathBuf::from(name);
    identity(&path).map(|own| (path, own))
}
