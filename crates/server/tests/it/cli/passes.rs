//! `dispatch --once` from cron: limited in time, and one at a time.

use postcommit_testkit::Child;
use serde_json::json;

use super::Shell;
use crate::api::on_both;
use crate::installation::{Kind, wait_until_frozen};

const LONG_AGO_POSTGRES: &str = "UPDATE postcommit.duty SET ran_at = ran_at - interval '1 minute' \
    WHERE name = 'passing'";
const LONG_AGO_SQLITE: &str = "UPDATE postcommit_duty SET ran_at = ran_at - 60000000 WHERE name = 'passing'";

/// Makes the last heartbeat of the pass a minute old.
fn age_the_heartbeat(shell: &Shell, kind: Kind) {
    match kind {
        Kind::Sqlite => {
            let file = rusqlite::Connection::open(shell.path().join("postcommit-data/postcommit.db")).unwrap();
            assert_eq!(file.execute(LONG_AGO_SQLITE, []).unwrap(), 1);
        }
        Kind::Postgres => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (client, connection) =
                    tokio_postgres::connect(&shell.setting("POSTCOMMIT_DATABASE_URL"), tokio_postgres::NoTls)
                        .await
                        .unwrap();
                tokio::spawn(connection);
                assert_eq!(client.execute(LONG_AGO_POSTGRES, &[]).await.unwrap(), 1);
            });
        }
    }
}

on_both! {
    fn a_second_pass_ends_immediately_and_a_killed_pass_blocks_no_other(kind) {
        let shell = Shell::ready_on(kind);
        shell.enqueue("a", &[]);
        let mut command = shell.command(&["dispatch", "--once"]);
        command.env("POSTCOMMIT_CRASH", "claim.after_commit:1:stop");
        let first = Child::spawn(command);
        wait_until_frozen(&first);
        let second = shell.run(&["dispatch", "--once", "-o", "json"]).ends(0).json();
        assert_eq!((&second["running"], &second["sent"]), (&json!(true), &json!(0)), "{second}");
        assert!(shell.run(&["dispatch", "--once"]).ends(0).stdout.contains("another dispatch pass is running"));
        // A manual pass for one notification does not wait.
        let id = shell.enqueue("b", &[]);
        assert_eq!(shell.run(&["dispatch", "--once", "--id", &id, "-o", "json"]).ends(0).json()["sent"], 1);
        first.kill9();
        shell.enqueue("c", &[]);
        assert_eq!(shell.dispatch()["running"], true, "the pass still counts as running");
        age_the_heartbeat(&shell, kind);
        let next = shell.dispatch();
        assert_eq!((&next["running"], &next["more"]), (&json!(false), &json!(false)), "{next}");
        assert!(next["sent"].as_u64() >= Some(1), "{next}");
        assert_eq!(shell.dispatch()["running"], false, "a pass that has ended is no longer under way");
    }
}

#[test]
fn the_option_for_limits_a_pass() {
    let shell = Shell::ready();
    shell.enqueue("a", &[]);
    for seconds in ["0", "3601", "-1", "x"] {
        shell.run(&["dispatch", "--once", "--for", seconds]).ends(2);
    }
    let ran = shell.run(&["dispatch", "--once", "--for", "3600", "-o", "json"]).ends(0).json();
    assert_eq!((&ran["sent"], &ran["more"]), (&json!(1), &json!(false)));
}
