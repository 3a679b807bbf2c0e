//! The dependencies of an application that only enqueues.

use std::collections::BTreeSet;
use std::process::Command;

/// The crates that an application gets with one feature.
fn crates_with(feature: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo)
        .args(["tree", "-p", "postcommit", "--no-default-features", "--features", feature])
        // Offline and locked: nothing is fetched or written, and the command waits for no build lock.
        .args(["-e", "normal", "--prefix", "none", "--format", "{lib}", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    String::from_utf8(tree.stdout)
        .unwrap()
        .split_whitespace()
        .filter(|word| *word != "(*)")
        .map(str::to_owned)
        .collect()
}

fn refute(crates: &BTreeSet<String>, heavy: &[&str]) {
    for heavy in heavy {
        let found = crates.iter().find(|name| *name == heavy || name.starts_with(&format!("{heavy}_")));
        assert!(found.is_none(), "{heavy} is in {crates:?}");
    }
}

#[test]
fn sdk_alone_is_light() {
    let crates = crates_with("tokio-postgres");
    assert!(crates.contains("tokio_postgres"), "this is not the SDK's tree: {crates:?}");
    refute(
        &crates,
        &["axum", "reqwest", "lettre", "minijinja", "rusqlite", "rustls", "sqlx", "hyper", "postcommit_engine"],
    );
}

/// A hash and base64: a receiver of webhooks needs no runtime, no HTTP and no database for it.
#[test]
fn sdk_with_webhook_is_light() {
    let crates = crates_with("webhook");
    assert!(crates.contains("hmac"), "this is not the SDK's tree: {crates:?}");
    refute(&crates, &["tokio", "hyper", "http", "rustls", "sqlx", "rusqlite", "postcommit_engine"]);
    assert!(crates.len() <= 40, "{} crates: {crates:?}", crates.len());
}

/// HTTP/1.1 and TLS only: no URL parser, no HTTP/2, no cookies, no decompression.
#[test]
fn sdk_with_http_is_light() {
    let crates = crates_with("http");
    assert!(crates.contains("hyper"), "this is not the SDK's tree: {crates:?}");
    refute(
        &crates,
        &[
            "axum",
            "reqwest",
            "h2",
            "url",
            "idna",
            "tower_http",
            "rusqlite",
            "sqlx",
            "tokio_postgres",
            "postcommit_engine",
        ],
    );
    assert!(crates.len() <= 65, "{} crates: {crates:?}", crates.len());
}

/// Cargo finds the versions and features that docs/clients.md tells an application to depend on.
#[test]
fn the_dependencies_of_the_clients_page_resolve() {
    let here = env!("CARGO_MANIFEST_DIR");
    let page = std::fs::read_to_string(format!("{here}/../../docs/clients.md")).unwrap();
    let (_, block) = page.split_once("```toml\n").unwrap();
    let (dependencies, _) = block.split_once("```").unwrap();
    let written = "../postcommit/crates/postcommit";
    assert!(dependencies.contains(written), "{dependencies}");
    let folder = tempfile::tempdir().unwrap();
    let package = "[package]\nname = \"app\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n";
    let manifest = format!("{package}{}", dependencies.replace(written, here));
    std::fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::write(folder.path().join("lib.rs"), "").unwrap();
    // The versions of this repository, which are there without a network.
    std::fs::copy(format!("{here}/../../Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo).args(["tree", "--offline"]).current_dir(folder.path()).output().unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
}
