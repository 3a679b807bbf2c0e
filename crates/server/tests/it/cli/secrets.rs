//! The key that seals providers' secrets: one for the installation, wherever a command runs.

use std::sync::Barrier;
use std::time::{Duration, SystemTime};

use postcommit_engine::db::Db;
use postcommit_testkit::{Child, HttpServer, RefusedWrite, Reply, Request};
use serde_json::{Value, json};

use super::quick_start::get;
use super::{Ran, Shell};
use crate::api::on_both;
use crate::installation::Kind;

const SECRET: &str = "secret=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ANOTHER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

fn create(shell: &Shell, name: &str, more: &[&str]) -> Ran {
    shell.run(&[&["providers", "create", name, "--driver", "webhook"], more].concat())
}

fn key_file(shell: &Shell) -> std::path::PathBuf {
    shell.path().join("postcommit-data/secret.key")
}

/// Whether the webhook is signed with [`SECRET`].
fn verified(request: &Request) -> bool {
    let secret = SECRET.strip_prefix("secret=").unwrap();
    let header = |name: &'static str| request.header(name);
    postcommit::webhook::verify(secret, header, &request.body, SystemTime::now()).is_ok()
}

/// Runs a statement in the shell's database.
fn execute(shell: &Shell, sql: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let db =
            Db::open(&shell.elsewhere().setting("POSTCOMMIT_DATABASE_URL"), Duration::from_secs(10)).await.unwrap();
        db.execute_one(sql, vec![]).await.unwrap();
    });
}

/// What doctor reports about the provider `hooks`.
fn told(ran: &Ran) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = ran.json();
    let is_it = |one: &&Value| one["check"] == "provider" && text(&one["detail"]).starts_with("hooks: ");
    let found = findings.as_array().unwrap().iter().find(is_it).unwrap_or_else(|| panic!("{findings}")).clone();
    (text(&found["result"]), text(&found["detail"]))
}

/// Runs the command in all shells concurrently.
fn concurrently(shells: &[Shell], command: impl Fn(&Shell, usize) -> Ran + Sync) -> Vec<Ran> {
    let (together, command) = (Barrier::new(shells.len()), &command);
    std::thread::scope(|scope| {
        let begin = |(i, shell)| {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                command(shell, i)
            })
        };
        let threads: Vec<_> = shells.iter().enumerate().map(begin).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the place of the one command that succeeded. The others were refused for this reason.
fn the_one_that_succeeded(ran: &[Ran], reason: &str) -> usize {
    let told: Vec<_> = ran.iter().map(|ran| (ran.code, ran.stderr.as_str())).collect();
    let succeeded: Vec<usize> = (0..ran.len()).filter(|i| ran[*i].code == 0).collect();
    assert_eq!(succeeded.len(), 1, "{told:?}");
    assert!(told.iter().all(|(code, text)| *code == 0 || (*code == 4 && text.contains(reason))), "{told:?}");
    succeeded[0]
}

on_both! {
    fn a_secret_is_sealed_with_the_key_of_the_installation_alone(kind) {
        let server = Shell::ready_on(kind);
        create(&server, "hooks", &[]).ends(0);
        let elsewhere = server.elsewhere();
        let sealing = ["providers create more --driver webhook".to_owned(), format!("providers update hooks --secret {SECRET}")];
        for command in sealing {
            let refused = elsewhere.run(&command.split(' ').collect::<Vec<_>>()).ends(4).stderr;
            assert!(refused.contains("are encrypted with another key"), "{refused}");
            assert!(refused.contains("--new-secrets-key"), "{refused}");
            assert!(refused.contains(&key_file(&elsewhere).display().to_string()), "{refused}");
        }
        assert!(!key_file(&elsewhere).exists(), "and no new key was made");
        let wrong = elsewhere.with("POSTCOMMIT_SECRETS_KEY", ANOTHER_KEY);
        let refused = create(&wrong, "more", &[]).ends(4).stderr;
        assert!(refused.starts_with("postcommit: secrets.key: ") && !refused.contains(ANOTHER_KEY), "{refused}");
        // What holds no secret needs no key.
        wrong.run(&["providers", "create", "more", "--driver", "capture", "--channel", "sms"]).ends(0);
        wrong.run(&["providers", "delete", "more", "--yes"]).ends(0);
        let named = server.elsewhere().with("POSTCOMMIT_SECRETS_KEY_FILE", key_file(&server).to_str().unwrap());
        create(&named, "more", &[]).ends(0);
        // The key is lost: another one is used from now on, and the other providers need their secrets anew.
        create(&wrong, "third", &["--new-secrets-key"]).ends(0);
        create(&server, "fourth", &[]).ends(4);
        wrong.run(&["providers", "update", "hooks", "--secret", SECRET]).ends(0);
        let audit = server.run(&["audit", "-o", "json"]).ends(0).json();
        assert!(audit.as_array().unwrap().iter().any(|entry| entry["action"] == "secrets.key"), "{audit}");
    }

    fn of_concurrent_first_secrets_with_different_keys_one_is_stored(kind) {
        let server = Shell::ready_on(kind);
        let shells: Vec<Shell> = (0..4).map(|_| server.elsewhere()).collect();
        let ran = concurrently(&shells, |shell, i| create(shell, &format!("hooks{i}"), &["--is-default", "false"]));
        let right = the_one_that_succeeded(&ran, "are encrypted with another key");
        // The key of that command is the installation's.
        create(&shells[right], "more", &[]).ends(0);
        // Concurrent replacements: one key wins, and the others are not taken by the way.
        let sealing = format!("providers update hooks{right} --secret {SECRET} --new-secrets-key");
        let sealing: Vec<&str> = sealing.split(' ').collect();
        let wrong: Vec<Shell> = (0..2).map(|_| server.elsewhere()).collect();
        let ran = concurrently(&wrong, |shell, _| shell.run(&sealing));
        // One after another, both may replace the key: then the last key is the installation's.
        let succeeded = ran.iter().filter(|ran| ran.code == 0).count();
        let refused = |ran: &Ran| ran.code == 4 && ran.stderr.contains("another command replaced the key");
        assert!(succeeded >= 1 && ran.iter().all(|ran| ran.code == 0 || refused(ran)));
        let open = |shell: &&Shell| create(shell, "last", &[]).code == 0;
        assert_eq!(wrong.iter().filter(open).count(), 1);
    }

    fn a_new_key_is_possible_while_no_secret_is_sealed(kind) {
        let server = Shell::ready_on(kind);
        create(&server, "hooks", &[]).ends(0);
        let elsewhere = server.elsewhere();
        create(&elsewhere, "more", &[]).ends(4);
        server.run(&["providers", "delete", "hooks", "--yes"]).ends(0);
        create(&elsewhere, "hooks", &[]).ends(0);
        assert!(key_file(&elsewhere).exists());
        create(&server, "more", &[]).ends(4);
    }

    fn a_pass_by_hand_without_the_key_is_no_evidence_against_the_server(kind) {
        let server = Shell::ready_on(kind);
        create(&server, "hooks", &[]).ends(0);
        let elsewhere = server.elsewhere();
        elsewhere.run(&["dispatch", "--once"]).ends(0);
        let (result, detail) = told(&server.run(&["doctor", "-o", "json"]));
        assert_eq!((result.as_str(), detail.as_str()), ("ok", "hooks: webhook on webhook"));
        // Two passes look like cron. The report names them, and never advises another key.
        elsewhere.run(&["dispatch", "--once"]).ends(0);
        let (result, detail) = told(&server.run(&["doctor", "-o", "json"]).ends(1));
        assert_eq!(result, "problem");
        assert!(detail.contains("the pass cannot read its key, secrets.key_file (reported by `postcommit dispatch --once` at 2"), "{detail}");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert!(detail.contains(&format!("the passes on host {} have no usable key", host.trim())), "{detail}");
        assert!(!detail.contains("--new-secrets-key"), "{detail}");
    }

    fn a_lane_whose_secrets_the_server_cannot_open_is_shown_closed(kind) {
        let right = Shell::ready_on(kind);
        create(&right, "hooks", &[]).ends(0);
        let listen = "POSTCOMMIT_SERVER_LISTEN";
        let (wrong, looking) = (right.elsewhere().with(listen, "127.0.0.1:0"), right.elsewhere());
        let server = Child::spawn(wrong.command(&["serve"]));
        let health = server.wait_for_line("/healthz");
        let address = health.split("http://").nth(1).unwrap().trim_end_matches("/healthz").to_owned();
        let lane = || looking.run(&["providers", "list"]).ends(0).stdout;
        let reason = "closed: its secrets cannot be decrypted: the server cannot read its key, secrets.key_file";
        crate::installation::wait_until("the lane is shown closed", || lane().contains(reason));
        let shown = looking.run(&["providers", "show", "hooks", "-o", "json"]).ends(0).json();
        assert_eq!(shown["unopened"], "the server cannot read its key, secrets.key_file");
        let (result, detail) = told(&looking.run(&["doctor", "-o", "json"]).ends(1));
        assert_eq!(result, "problem");
        assert!(detail.starts_with("hooks: nothing is sent, because its secrets cannot be decrypted"), "{detail}");
        assert_eq!(looking.run(&["kpis", "-o", "json"]).ends(0).json()["shut"]["lanes_unopened"], 1);
        assert!(looking.run(&["kpis"]).ends(0).stdout.contains("lanes that no worker can serve: 1"));
        let ready = get(&address, "/readyz");
        assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
        assert!(ready.contains("ready\nlanes closed: 1, because the secrets"), "{ready}");
        assert!(get(&address, "/metrics").contains("\npostcommit_lanes_unopened 1\n"));
        server.term();
        server.wait();

        let right = right.with(listen, "127.0.0.1:0");
        let server = Child::spawn(right.command(&["serve"]));
        server.wait_for_line("is ready");
        crate::installation::wait_until("a worker is heard of", || {
            looking.run(&["doctor"]).stdout.contains("running dispatchers: 1, the last heartbeat ")
        });
        // Elsewhere there is no key, and a worker has opened the secrets.
        let (result, detail) = told(&looking.run(&["doctor", "-o", "json"]).ends(0));
        assert_eq!((result.as_str(), detail.as_str()), ("ok", "hooks: webhook on webhook"));
        assert!(!lane().contains("closed"), "{}", lane());
        server.term();
        server.wait();
    }

    fn a_new_key_takes_over_while_the_server_goes_on(kind) {
        let receiver = HttpServer::start(|_| Reply::ok());
        let shell = Shell::ready_on(kind).with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0").with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.1");
        let lonely = shell.run(&["secrets", "rotate"]).ends(3).stderr;
        assert!(lonely.contains("no provider has secrets yet"), "{lonely}");
        create(&shell, "hooks", &["--secret", SECRET]).ends(0);
        create(&shell, "more", &["--is-default", "false"]).ends(0);
        let server = Child::spawn(shell.command(&["serve"]));
        server.wait_for_line("is ready");
        let send = || {
            let to = format!("webhook:{}", receiver.url("/"));
            shell.enqueue("booking.confirmed", &["--title", "Booked", "--to", &to]);
        };
        send();
        crate::installation::wait_until("the first webhook has arrived", || receiver.requests().len() == 1);
        let old = std::fs::read_to_string(key_file(&shell)).unwrap();
        let told = shell.run(&["secrets", "rotate"]).ends(0).stdout;
        assert!(told.starts_with("the secrets of 2 providers were encrypted with the new key\n"), "{told}");
        let new = std::fs::read_to_string(key_file(&shell)).unwrap();
        assert!(new.lines().count() == 1 && new.trim() != old.trim());
        send();
        crate::installation::wait_until("the second webhook has arrived", || receiver.requests().len() == 2);
        assert!(receiver.requests().iter().all(verified), "both are signed with the same secret");
        let status = shell.run(&["secrets", "status", "-o", "json"]).ends(0).json();
        assert_eq!((&status["sealed"], &status["by_old_key"], &status["is_rotating"]), (&json!(2), &json!(0), &json!(false)));
        let behind = shell.elsewhere().with("POSTCOMMIT_SECRETS_KEY", old.trim());
        assert!(create(&behind, "third", &[]).ends(4).stderr.contains("are encrypted with another key"));
        assert!(behind.run(&["secrets", "rotate"]).ends(4).stderr.contains("are encrypted with another key"));
        let audit = shell.run(&["audit", "-o", "json"]).ends(0).json();
        let count = |action: &str| audit.as_array().unwrap().iter().filter(|entry| entry["action"] == action).count();
        assert_eq!((count("secrets.rotate"), count("provider.reseal")), (1, 2));
        server.term();
        server.wait();
    }

    fn a_rotation_that_was_interrupted_goes_on(kind) {
        let shell = Shell::ready_on(kind);
        create(&shell, "hooks", &[]).ends(0);
        create(&shell, "more", &["--is-default", "false"]).ends(0);
        shell.run(&["secrets", "rotate", "--prepare"]).ends(0);
        let both = std::fs::read_to_string(key_file(&shell)).unwrap();
        assert_eq!(both.lines().count(), 2);
        assert!(shell.run(&["secrets", "rotate", "--prepare"]).ends(0).stdout.starts_with("there is a second key already"));
        create(&shell, "third", &["--is-default", "false"]).ends(0);
        let sealed_by_old = shell.elsewhere().with("POSTCOMMIT_SECRETS_KEY", both.lines().next().unwrap());
        create(&sealed_by_old, "fourth", &["--is-default", "false"]).ends(0);
        // The database refuses to write the secrets of one provider, after the new key has become the installation's.
        let is_postgres = kind == Kind::Postgres;
        let refusal = RefusedWrite::of("UPDATE", "provider").when("NEW.name = 'more'");
        refusal.begin(is_postgres).iter().for_each(|sql| execute(&shell, sql));
        let failed = shell.run(&["secrets", "rotate"]).ends(4).stderr;
        assert!(failed.contains(postcommit_testkit::refused_write::REFUSED), "{failed}");
        assert_eq!(std::fs::read_to_string(key_file(&shell)).unwrap(), both, "both keys are still there");
        let status = shell.run(&["secrets", "status"]).ends(0).stdout;
        assert!(status.contains("a rotation has begun; 2 providers still have the old key"), "{status}");
        create(&shell, "fifth", &["--is-default", "false"]).ends(0);
        execute(&shell, &refusal.end(is_postgres));
        let told = shell.run(&["secrets", "rotate", "-o", "json"]).ends(0).json();
        assert_eq!(told, json!({"rotated": 2, "sealed": 5, "lost": []}));
        assert_eq!(std::fs::read_to_string(key_file(&shell)).unwrap().trim(), both.lines().nth(1).unwrap());
        // On another machine the file still has both keys.
        let copy = shell.elsewhere().with("POSTCOMMIT_SECRETS_KEY", both.trim());
        assert_eq!(copy.run(&["secrets", "rotate", "-o", "json"]).ends(0).json()["rotated"], 0);
        create(&copy, "sixth", &["--is-default", "false"]).ends(0);
    }

    fn a_key_that_is_a_setting_is_rotated_by_two_keys(kind) {
        let old = Shell::ready_on(kind).with("POSTCOMMIT_SECRETS_KEY", ANOTHER_KEY);
        create(&old, "hooks", &[]).ends(0);
        let refused = old.run(&["secrets", "rotate"]).ends(4).stderr;
        assert!(refused.contains("openssl rand -base64 32") && !refused.contains(ANOTHER_KEY), "{refused}");
        let new = "bmV3IGtleSBvZiB0aGlydHktdHdvIGJ5dGVzISEhISE=";
        let both = old.elsewhere().with("POSTCOMMIT_SECRETS_KEY", &format!("{ANOTHER_KEY} {new}"));
        let told = both.run(&["secrets", "rotate"]).ends(0).stdout;
        assert!(told.contains("now set the new key alone, everywhere, as secrets.key"), "{told}");
        let alone = old.elsewhere().with("POSTCOMMIT_SECRETS_KEY", new);
        assert_eq!(alone.run(&["secrets", "status", "-o", "json"]).ends(0).json()["sealed"], 1);
        create(&alone, "more", &["--is-default", "false"]).ends(0);
        let lost = old.run(&["secrets", "status"]).ends(1).stdout;
        assert!(lost.contains("no key decrypts the secrets of more, hooks"), "{lost}");
    }
}
