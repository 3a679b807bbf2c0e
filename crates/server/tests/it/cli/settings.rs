//! Settings, schema, doctor, completions.

use super::Shell;

#[test]
fn e14_a_bad_setting_is_refused_at_start_with_its_name_and_what_is_allowed() {
    let shell = Shell::empty().with("POSTCOMMIT_DISPATCH_LEASE_S", "1");
    let ran = shell.run(&["serve"]).ends(2);
    assert_eq!(
        ran.stderr,
        "postcommit: dispatch.lease_s: is 1; 2 to 3600 are allowed (from environment POSTCOMMIT_DISPATCH_LEASE_S)\n"
    );
    assert!(!shell.path().join("postcommit-data").exists(), "and nothing was made");
}

#[test]
fn config_show_names_each_value_s_origin() {
    let shell = Shell::empty().with("POSTCOMMIT_DISPATCH_BATCH", "7");
    std::fs::write(shell.path().join("postcommit.toml"), "[dispatch]\nlease_s = 9\nbatch = 8\n").unwrap();
    let shown = shell.run(&["config", "show", "-o", "json", "--setting", "dispatch.interval_ms=500"]).ends(0).json();
    let of = |name: &str| {
        let row = shown.as_array().unwrap().iter().find(|row| row["setting"] == name).unwrap().clone();
        (row["value"].clone(), row["origin"].as_str().unwrap().to_owned())
    };
    assert_eq!(of("dispatch.batch"), (7.into(), "environment POSTCOMMIT_DISPATCH_BATCH".into()));
    assert_eq!(of("dispatch.lease_s"), (9.into(), "file postcommit.toml".into()));
    assert_eq!(of("dispatch.interval_ms"), (500.into(), "flag --setting".into()));
    assert_eq!(of("dispatch.stop_grace_s"), (30.into(), "default".into()));
}

#[test]
fn the_default_file_is_a_file_that_works() {
    let shell = Shell::empty();
    let text = shell.run(&["config", "default"]).ends(0).stdout;
    std::fs::write(shell.path().join("postcommit.toml"), text).unwrap();
    shell.run(&["migrate"]).ends(0);
}

#[test]
fn migrate_dry_run_prints_the_sql_and_runs_nothing() {
    let shell = Shell::empty();
    let ran = shell.run(&["migrate", "--dry-run"]).ends(0);
    assert!(ran.stdout.contains("CREATE TABLE postcommit_notification"));
    let shown = shell.run(&["migrate", "-o", "json"]).ends(0).json();
    assert_eq!((&shown["from"], &shown["applied"][0]), (&0.into(), &"0001_baseline".into()));
    assert!(shell.run(&["migrate"]).ends(0).stdout.contains("nothing to do"));
    assert!(shell.run(&["migrate", "--roles"]).ends(4).stderr.contains("SQLite has no roles"));
}

#[test]
fn a_missing_or_unmigrated_database_says_what_to_do() {
    let shell = Shell::empty();
    assert!(
        shell
            .run(&["notifications", "list"])
            .ends(5)
            .stderr
            .contains("`postcommit serve` or `postcommit migrate` creates it")
    );
    std::fs::create_dir(shell.path().join("postcommit-data")).unwrap();
    std::fs::write(shell.path().join("postcommit-data/postcommit.db"), "").unwrap();
    assert!(shell.run(&["notifications", "list"]).ends(4).stderr.contains("run `postcommit migrate`"));
    assert!(
        shell
            .run(&["serve", "--no-migrate", "--listen", "127.0.0.1:0"])
            .ends(4)
            .stderr
            .contains("run `postcommit migrate`")
    );
    std::fs::write(shell.path().join("postcommit-data/postcommit.db"), "this is no database at all, it is a letter")
        .unwrap();
    assert!(shell.run(&["notifications", "list"]).ends(5).stderr.contains("not a database"));
}

#[test]
fn commands_say_which_database_they_use_and_where_that_came_from() {
    let shell = Shell::empty();
    let of = |name: &str| format!("postcommit: database sqlite:{}/{name}", shell.path().display());
    let by_default = shell.run(&["migrate"]).ends(0).stderr;
    assert!(by_default.starts_with(&format!("{} (default)\n", of("postcommit-data/postcommit.db"))), "{by_default}");
    let flag = shell.run(&["migrate", "--database-url", "sqlite:other.db"]).ends(0).stderr;
    assert!(flag.starts_with(&format!("{} (flag --database-url)\n", of("other.db"))), "{flag}");
    std::fs::write(shell.path().join("postcommit.toml"), "[database]\nurl = \"sqlite:other.db\"\n").unwrap();
    let enqueue = shell.run(&["enqueue", "a", "--to", "user:ada"]).ends(0).stderr;
    assert!(enqueue.starts_with(&format!("{} (file postcommit.toml)\n", of("other.db"))), "{enqueue}");
    // What another program calls it is used when nothing of ours is set.
    let url = "postgres://u:hush@127.0.0.1:1/d";
    for (name, code) in [("DATABASE_URL", 5), ("POSTCOMMIT_DATABASE_URL", 5)] {
        let ran = Shell::empty().with(name, url).run(&["serve"]).ends(code).stderr;
        let said = format!("postcommit: database postgres://u@127.0.0.1:1/d (environment {name})\n");
        assert!(ran.starts_with(&said) && !ran.contains("hush"), "{ran}");
    }
}

#[test]
fn an_unreachable_database_ends_with_five() {
    let ran =
        Shell::empty().with("POSTCOMMIT_DATABASE_URL", "postgres://u:hush@127.0.0.1:1/d").run(&["doctor"]).ends(1);
    assert!(
        ran.stdout.contains("cannot reach the database: 127.0.0.1 port 1: ") && !ran.stdout.contains("hush"),
        "{}",
        ran.stdout
    );
    Shell::empty().with("POSTCOMMIT_DATABASE_URL", "postgres://127.0.0.1:1/d").run(&["notifications", "list"]).ends(5);
    Shell::empty().with("POSTCOMMIT_DATABASE_URL", "mysql://h/d").run(&["notifications", "list"]).ends(2);
}

#[test]
fn a_misspelt_database_url_starts_no_server_on_a_new_file() {
    let shell = Shell::empty().with("DATABASE_URL", "postgress://u:hush@127.0.0.1:1/d");
    let ran = shell.run(&["serve"]).ends(2);
    assert!(
        ran.stderr.contains("environment DATABASE_URL: has the scheme \"postgress\"; postgres://…"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("set POSTCOMMIT_DATABASE_URL") && !ran.stderr.contains("hush"), "{}", ran.stderr);
    assert_eq!(std::fs::read_dir(shell.path()).unwrap().count(), 0, "no file was made");
}

#[test]
fn doctor_ends_with_one_only_for_problems() {
    let shell = Shell::ready();
    shell.run(&["doctor"]).ends(0);
    shell.run(&["providers", "pause", "capture", "--reason", "moving house"]).ends(0);
    let ran = shell.run(&["doctor", "-o", "jsonl"]).ends(1);
    assert!(
        ran.stdout.contains("paused: moving house; fix the cause, then `postcommit providers resume capture`"),
        "{}",
        ran.stdout
    );
}

#[test]
fn doctor_names_suspended_tenants_and_ignores_variables_of_other_programs() {
    let shell = Shell::ready().with("POSTCOMMIT_KEY", "pc_0_0").with("POSTCOMMIT_URL", "https://notify.example.com");
    shell.run(&["tenants", "create", "acme"]).ends(0);
    shell.run(&["tenants", "suspend", "acme", "--reason", "unpaid"]).ends(0);
    let ran = shell.run(&["doctor"]).ends(0);
    assert!(ran.stdout.contains("acme is suspended: unpaid; `postcommit tenants resume acme`"), "{}", ran.stdout);
    assert!(ran.stderr.is_empty(), "they are not reported as misspelt settings: {}", ran.stderr);
    assert!(
        shell.with("POSTCOMMIT_KEYS", "x").run(&["doctor"]).ends(0).stderr.contains("POSTCOMMIT_KEYS is not a setting")
    );
}

#[test]
fn completions_are_printed_for_the_usual_shells() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(Shell::empty().run(&["completions", shell]).ends(0).stdout.contains("deliveries"));
    }
}

#[test]
fn a_shipped_binary_has_no_crash_points() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let arguments = [
        "tree",
        "--offline",
        "--locked",
        "-p",
        "postcommit-server",
        "-e",
        "normal,features",
        "--prefix",
        "none",
        "--manifest-path",
    ];
    let output = std::process::Command::new(cargo)
        .args(arguments)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && tree.contains("postcommit-engine"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!tree.contains("crash-points"));
}
