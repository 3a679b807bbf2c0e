//! The files of a SQLite database, by device and number: they stay what they are while we have them open. Somebody who moves, deletes or replaces one of them under us
//! leaves us with a file that nobody else sees, and what we acknowledge would be lost.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Device and number of a file.
type Identity = (u64, u64);

/// Which files were opened, and whether others stand in their place. Cheap to clone and to look.
#[derive(Clone)]
pub(super) struct Files {
    path: PathBuf,
    own: Option<Identity>,
    /// The log and its index. SQLite keeps both for as long as one connection is open, and ours is; they are known once something was written.
    log: Arc<OnceLock<[(PathBuf, Identity); 2]>>,
    replaced: Arc<OnceLock<String>>,
}

impl Files {
    pub(super) fn opened(path: &Path) -> Self {
        Self { path: path.to_owned(), own: identity(path), log: Arc::default(), replaced: Arc::default() }
    }

    /// Remembers the log that the writer has just written to.
    pub(super) fn note_log(&self) {
        if self.log.get().is_none()
            && let [Some(log), Some(index)] = ["-wal", "-shm"].map(|ending| beside(&self.path, ending))
        {
            let _ = self.log.set([log, index]);
        }
    }

    /// Compares what is there with what was opened.
    pub(super) fn look(&self) {
        let opened = self.log.get().into_iter().flatten().map(|(path, own)| (path.as_path(), Some(*own)));
        let missing = std::iter::once((self.path.as_path(), self.own)).chain(opened).find(|(path, own)| identity(path) != *own);
        if let Some((path, _)) = missing {
            let what = format!("{} was moved, deleted or replaced under us; restart to use what is there now", path.display());
            if self.replaced.set(what.clone()).is_ok() {
                tracing::error!("{what}");
            }
        }
    }

    /// What was found so, if anything; for good.
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
