//! SQLite: a database file per test, copied from a file that was prepared once.

use std::path::Path;

/// Makes `path` a copy of a prepared file. If no file exists for this `fingerprint`, `prepare` creates it at the path
/// that it is given. It must leave no other files next to it, such as a WAL. The fingerprint must change when `prepare`
/// changes.
///
/// # Panics
/// When a file cannot be written.
pub async fn copy(fingerprint: &str, path: &Path, prepare: impl AsyncFnOnce(&Path)) {
    let template = std::env::temp_dir().join(format!("postcommit-template-{fingerprint}.db"));
    if !template.exists() {
        // The file is renamed when it is complete. Other processes may do the same concurrently, and the last rename
        // wins.
        let draft = tempfile::tempdir().unwrap_or_else(|problem| panic!("a folder for a template: {problem}"));
        let file = draft.path().join("template.db");
        prepare(&file).await;
        std::fs::rename(&file, &template).unwrap_or_else(|problem| panic!("{}: {problem}", template.display()));
    }
    std::fs::copy(&template, path).unwrap_or_else(|problem| panic!("copy {}: {problem}", template.display()));
}
