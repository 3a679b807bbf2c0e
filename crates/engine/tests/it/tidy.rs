//! The dependencies between the parts, and other rules of style that are tested.

use std::path::{Path, PathBuf};

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            all.push(path);
        }
    }
    all.sort();
    all
}

/// Source files of the product, by their path below `crates`. Files that hold only tests are left out.
fn sources() -> Vec<(String, String)> {
    let read = |path: PathBuf| {
        (path.strip_prefix(crates()).unwrap().display().to_string(), std::fs::read_to_string(&path).unwrap())
    };
    let all = ["postcommit", "channel", "engine", "server"]
        .iter()
        .flat_map(|name| files(&crates().join(name).join("src"), "rs"));
    all.filter(|path| path.file_name().is_some_and(|name| name != "tests.rs")).map(read).collect()
}

/// The code without its tests and comments.
fn code(text: &str) -> String {
    let product = text.split("#[cfg(test)]").next().unwrap_or("");
    product.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Files outside `home` that contain one of `words`.
fn strays(words: &[&str], home: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| !home(path)) {
        for line in code(text).lines().filter(|line| words.iter().any(|word| line.contains(word))) {
            found.push(format!("{path}: {}", line.trim()));
        }
    }
    found
}

#[test]
fn there_is_no_sql_outside_store_and_db() {
    let sql = ["SELECT ", "INSERT INTO", "UPDATE postcommit", "DELETE FROM", "PRAGMA ", "LISTEN "];
    // The SDK's statements are the enqueue contract itself. Help texts of the command line may quote SQL.
    let home = |path: &str| {
        path.starts_with("engine/src/store")
            || path.starts_with("engine/src/db")
            || path.starts_with("postcommit/src/")
            || path.contains("server/src/doctor")
    };
    assert_eq!(strays(&sql, home), Vec::<String>::new());
}

#[test]
fn nothing_connects_outwards_but_egress() {
    // Sockets and resolvers, and whole HTTP clients.
    let sockets =
        ["TcpStream::connect", "TcpSocket", "UdpSocket", "UnixStream::connect", "lookup_host", "ToSocketAddrs"];
    let http = ["hyper::client", "HttpConnector", "reqwest", "connect_async("];
    // Clients of mail and brokers resolve and connect by themselves, past the filter of addresses. They may run over a
    // stream of `Egress::dial`, but not dial: `connect_with_transport` of lettre is fine, for example.
    let lettre = ["SmtpTransport", "SmtpConnection::connect("];
    let mqtt = ["rumqttc::AsyncClient", "rumqttc::Client", "AsyncClient::new", "MqttOptions::new", "paho_mqtt"];
    let amqp = ["lapin::Connection", "Connection::connect(", "Connection::connect_uri", "amqprs::connection"];
    let nats = ["async_nats::connect", "ConnectOptions::new", "ConnectOptions::with_", "nats::connect"];
    let kafka = ["rskafka::client", "ClientBuilder::new", "rdkafka", "FutureProducer", "kafka::producer"];
    let redis = ["redis::Client", "ConnectionManager::new", "fred::clients"];
    let words = [&sockets[..], &http, &lettre, &mqtt, &amqp, &nats, &kafka, &redis].concat();
    // The SDK's client runs in applications, and connects only to the server it was given.
    let home = |path: &str| path.starts_with("channel/src/egress") || path.starts_with("postcommit/src/http");
    assert_eq!(strays(&words, home), Vec::<String>::new());
}

#[test]
fn no_code_depends_on_the_name_of_a_driver() {
    // A difference between drivers must be a fact of `driver::Kind`, because a recipe, which is data, must be able to
    // state it as well.
    let words = ["driver == \"", "driver != \"", ".driver.as_str() {", ".driver.as_str())", "kind.name == \""];
    assert_eq!(strays(&words, |path| path.starts_with("channel/src/driver")), Vec::<String>::new());
}

#[test]
fn there_is_one_clock() {
    assert_eq!(
        strays(&["SystemTime::now", "Instant::now"], |path| path == "channel/src/clock.rs"),
        Vec::<String>::new()
    );
}

#[test]
fn dependencies_between_parts_point_one_way() {
    // The compiler checks that crates/channel does not use the store: it does not depend on crates/engine.
    let forbidden: [(&str, &[&str]); 14] = [
        ("engine/src/store", &["postcommit_channel::driver", "crate::dispatch", "postcommit_channel::egress"]),
        (
            "engine/src/db",
            &["crate::store", "postcommit_channel::driver", "crate::dispatch", "postcommit_channel::model"],
        ),
        ("channel/src/model", &["crate::driver", "crate::egress", "tokio", "std::fs", "std::net"]),
        ("channel/src/egress", &["crate::driver", "crate::model"]),
        ("server/src/auth", &["crate::api", "crate::ui", "crate::read", "crate::router"]),
        ("server/src/door", &["crate::api", "crate::ui", "crate::auth", "crate::app"]),
        ("server/src/cli", &["crate::api", "crate::ui", "crate::auth"]),
        ("server/src/api", &["crate::ui", "crate::cli"]),
        ("server/src/ui", &["crate::api", "crate::cli"]),
        ("server/src/app", &["crate::api", "crate::ui", "crate::cli"]),
        ("server/src/problem", &["crate::api", "crate::ui", "crate::auth", "crate::app"]),
        ("server/src/read", &["crate::api", "crate::ui", "crate::app"]),
        ("server/src/notifications", &["crate::api", "crate::ui", "crate::cli"]),
        ("server/src/providers", &["crate::api", "crate::ui", "crate::cli"]),
    ];
    for (part, words) in forbidden {
        assert_eq!(strays(words, |path| !path.starts_with(part)), Vec::<String>::new(), "{part}");
    }
}

#[test]
fn migrations_are_pairs_without_gaps() {
    let names = |dialect: &str| {
        let all = files(&crates().join("engine/migrations").join(dialect), "sql");
        let names = all.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
        names.filter(|name| name.starts_with(char::is_numeric)).collect::<Vec<_>>()
    };
    assert_eq!(names("postgres"), names("sqlite"));
    for (i, name) in names("postgres").iter().enumerate() {
        assert!(name.starts_with(&format!("{:04}_", i + 1)), "{name}");
    }
}

/// `migrate` applies these files again. So each object is defined once, in a way that keeps its grants.
#[test]
fn functions_triggers_and_views_have_one_definition() {
    for (dialect, verb) in [("postgres", "CREATE OR REPLACE"), ("sqlite", "CREATE")] {
        let folder = crates().join("engine/migrations").join(dialect);
        let plan = postcommit_engine::db::MigrationPlan::fresh();
        let (repeated, numbered): (Vec<_>, Vec<_>) =
            plan.scripts(dialect == "postgres").into_iter().partition(|(name, _)| !name.starts_with(char::is_numeric));
        let mut listed: Vec<_> = repeated.iter().map(|(name, _)| folder.join(name)).collect();
        listed.sort();
        let mut there = files(&folder.join("functions"), "sql");
        there.push(folder.join("views.sql"));
        assert_eq!(listed, there, "db/repeatable.rs lists all files");
        let made = repeated.iter().flat_map(|(_, sql)| sql.lines()).filter(|line| line.starts_with("CREATE"));
        let mut names = std::collections::BTreeSet::new();
        for line in made {
            let rest = line.strip_prefix(verb).unwrap_or_else(|| panic!("{dialect}: not {verb}: {line}"));
            let name: Vec<&str> = rest.split([' ', '(']).filter(|word| !word.is_empty()).take(2).collect();
            assert!(names.insert(name.clone()), "{dialect}: {name:?} is defined twice");
        }
        let kinds = ["FUNCTION", "TRIGGER", "VIEW"];
        assert!(names.iter().all(|name| kinds.contains(&name[0])), "{dialect}: {names:?}");
        let strays = numbered.iter().flat_map(|(_, sql)| sql.lines()).filter(|line| line.starts_with("CREATE"));
        let strays: Vec<_> = strays.filter(|line| line.split(' ').any(|word| kinds.contains(&word))).collect();
        assert!(strays.is_empty(), "{dialect}: numbered migrations are for tables: {strays:?}");
    }
}

#[test]
fn no_module_has_a_catch_all_name() {
    let drawers = ["util", "utils", "helper", "helpers", "common", "types", "manager", "misc", "shared"];
    let stems: Vec<String> =
        sources().iter().map(|(path, _)| Path::new(path).file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert!(stems.iter().all(|stem| !drawers.contains(&stem.as_str())), "{stems:?}");
}

#[test]
fn every_statement_is_counted() {
    // `db` counts the statements that go through it; tests/it/trips.rs limits their number on the hot path.
    let home = |path: &str| path.starts_with("engine/src/db") || path.starts_with("postcommit/src/");
    assert_eq!(strays(&["params_from_iter", ".prepare(", "deadpool_postgres"], home), Vec::<String>::new());
}

#[test]
fn files_stay_readable() {
    let all = files(&crates(), "rs").into_iter().filter(|path| !path.display().to_string().contains("/target/"));
    let long: Vec<_> = all
        .map(|path| (std::fs::read_to_string(&path).unwrap().lines().count(), path))
        .filter(|(lines, _)| *lines > 600)
        .collect();
    assert!(long.is_empty(), "which noun is missing? {long:?}");
}

#[test]
fn a_database_call_is_never_cancelled() {
    let calls = ["timeout(store", "timeout(self.store", "timeout(tools.store", "timeout(client", "timeout(db."];
    assert_eq!(strays(&calls, |_| false), Vec::<String>::new());
}
