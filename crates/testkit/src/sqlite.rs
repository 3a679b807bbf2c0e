//! SQLite: a file per test, copied from one that was prepared once.

use std::path::Path;

/// Makes `path` a copy of a file that `prepare` makes the first time for this `fingerprint` of what it does. It is given the path of
/// the file, and must leave nothing beside it.
///
/// # Panics
/// When a file cannot be written.
pub async fn copy(fingerprint: &str, path: &Path, prepare: impl AsyncFnOnce(&Path)) {
    let template = std::env::temp_dir().join(format!("postcommit-template-{fingerprint}.db"));
    if !template.exists() {
        // Renamed when it is complete: other processes may do the same concurrently, and the last one counts.
        let draft = tempfile::tempdir().unwrap_or_else(|problem| panic!("a folder for a template: {problem}"));
        let file = draft.path().join("template.db");
        prepare(&file).await;
        std::fs::rename(&file, &template).unwrap_or_else(|problem| panic!("{}: {problem}", template.display()));
    }
    std::fs::copy(&template, path).unwrap_or_else(|problem| panic!("copy {}: {problem}", template.display()));
}
