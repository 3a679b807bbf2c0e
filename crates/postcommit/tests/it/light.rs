//! What an application pays that only enqueues.

use std::process::Command;

#[test]
fn sdk_alone_is_light() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo)
        .args(["tree", "-p", "postcommit", "--no-default-features", "--features", "tokio-postgres"])
        // Offline and locked: nothing is fetched or written, and no build lock is waited for.
        .args(["-e", "normal", "--prefix", "none", "--format", "{lib}", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let crates: Vec<_> = tree.split_whitespace().collect();
    assert!(crates.contains(&"tokio_postgres"), "this is not the SDK's tree: {tree}");
    for heavy in ["axum", "reqwest", "lettre", "minijinja", "rusqlite", "sqlx", "hyper", "postcommit_engine"] {
        assert!(!crates.iter().any(|name| *name == heavy || name.starts_with(&format!("{heavy}_"))), "{heavy} is in {tree}");
    }
}
