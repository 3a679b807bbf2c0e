//! Commands of operators: which workers run, what is parked and why, the audit log; and actions on all matches. On both
//! databases.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;

use postcommit_testkit::Child;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use super::{Ran, Shell};
use crate::api::on_both;
use crate::installation::{Kind, wait_until};

/// Parks `count` deliveries of this event type as rejected.
fn park(shell: &Shell, event_type: &str, count: usize) -> Vec<String> {
    let ids = (0..count).map(|_| shell.enqueue(event_type, &[])).collect();
    shell.dispatch();
    ids
}

/// A shell whose capture provider rejects the event types `these` and `others`.
fn rejecting(kind: Kind) -> Shell {
    Shell::ready_on(kind).with("POSTCOMMIT_CAPTURE_FAIL_ON", "permanent=these,permanent=others")
}

fn parked(shell: &Shell) -> usize {
    shell.run(&["deliveries", "list", "--state", "parked", "-o", "json"]).ends(0).json().as_array().unwrap().len()
}

/// What doctor reports for one check.
fn told(ran: &Ran, check: &str) -> (String, String) {
    let found = ran.json().as_array().unwrap().iter().find(|finding| finding["check"] == check).cloned().unwrap();
    let text = |name: &str| found[name].as_str().unwrap().to_owned();
    (text("result"), text("detail"))
}

on_both! {
    fn doctor_reports_that_no_worker_runs_and_what_to_do(kind) {
        let shell = Shell::ready_on(kind).with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0");
        let doctor = || shell.run(&["doctor", "-o", "json"]);
        let (result, detail) = told(&doctor().ends(0), "delivering");
        assert!(result == "warning" && detail.starts_with("no process delivers; 0 due"), "{detail}");
        shell.enqueue("a", &[]);
        let (result, detail) = told(&doctor().ends(1), "delivering");
        assert!(result == "problem" && detail.contains("1 due") && detail.contains("`postcommit serve --role worker`") && detail.contains("`postcommit dispatch --once`"), "{detail}");
        shell.dispatch();
        shell.enqueue("a", &[]);
        let (result, detail) = told(&doctor().ends(0), "delivering");
        assert!(result == "ok" && detail.starts_with("by passes"), "where cron delivers, no worker runs between two passes: {detail}");
        let server = Child::spawn(shell.command(&["serve"]));
        server.wait_for_line("is ready");
        wait_until("the server to be seen", || told(&doctor(), "delivering").1.starts_with("1 running"));
        server.term();
        server.wait();
        let left = told(&doctor().ends(0), "delivering").1;
        assert!(left.starts_with("by passes"), "who stops says so: {left}");
    }

    fn deliveries_are_retried_and_discarded_by_filter(kind) {
        let shell = rejecting(kind);
        park(&shell, "these", 3);
        park(&shell, "others", 2);
        let counted = shell.run(&["deliveries", "retry", "--event-type", "these", "--dry-run", "-o", "json"]).ends(0);
        assert_eq!(counted.json(), json!({"kind": "retry", "total": 3, "is_exact": true}));
        assert_eq!(shell.run(&["deliveries", "discard", "--state", "parked", "--dry-run"]).ends(0).stdout, "5 would be discarded\n");
        let ran = shell.run(&["deliveries", "retry", "--event-type", "these"]).ends(4);
        assert!(ran.stderr.contains("3 will be retried: nothing is done without --yes") && parked(&shell) == 5, "{}", ran.stderr);
        let ran = shell.run(&["deliveries", "retry", "--channel", "email", "--event-type", "these", "--yes", "-o", "json"]).ends(0);
        let job = ran.json();
        assert_eq!((&job["state"], &job["done"], &job["total"], &job["tenant"]), (&json!("done"), &json!(3), &json!(3), &Value::Null));
        assert!(ran.stderr.is_empty(), "no progress bar without a terminal: {:?}", ran.stderr);
        assert_eq!(parked(&shell), 2);
        let ran = shell.run(&["deliveries", "discard", "--tenant", "default", "--reason", "rejected", "--yes"]).ends(0);
        assert!(ran.stdout.contains("discard done") && ran.stdout.contains("2 of 2") && ran.stdout.contains("reason=rejected"), "{}", ran.stdout);
        assert_eq!(parked(&shell), 0);
        shell.run(&["deliveries", "discard", "--state", "parked", "--yes"]).ends(0);
    }

    fn an_action_takes_either_ids_or_a_filter_of_parked_deliveries(kind) {
        let shell = rejecting(kind);
        let id = format!("{}.1", park(&shell, "these", 1)[0]);
        for (arguments, expected) in [
            (vec!["deliveries", "retry"], "name deliveries by their ids, or say which"),
            (vec!["deliveries", "retry", &id, "--channel", "email"], "either ids or a filter"),
            (vec!["deliveries", "discard", "--state", "sent", "--yes"], "only what is parked"),
            (vec!["deliveries", "discard", "--state", "parked", "--yes", "--pace", "0"], "--pace"),
        ] {
            let ran = shell.run(&arguments).ends(2);
            assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        }
        shell.run(&["deliveries", "discard", "--tenant", "nobody", "--yes"]).ends(3);
        assert_eq!(parked(&shell), 1);
    }

    fn c11_the_notifications_of_an_entity_are_resent(kind) {
        let shell = Shell::ready_on(kind);
        let first = shell.enqueue("booking.confirmed", &["--entity", "b-1"]);
        shell.dispatch();
        let resend = |more: &[&str]| shell.run(&[&["deliveries", "resend", "b-1", "--channel", "email"], more].concat());
        let again = resend(&["--request-id", "r-1"]).ends(0).stdout.trim().to_owned();
        shell.dispatch();
        let told = shell.run(&["notifications", "show", &again]).ends(0).stdout;
        assert!(told.contains("manual:b-1:email::r-1") && told.contains("resend by cli:"), "{told}");
        let repeated = resend(&["--request-id", "r-1"]).ends(0);
        assert!(repeated.stdout.trim() == again && repeated.stderr.contains("was used before"), "{} {}", repeated.stdout, repeated.stderr);
        assert_ne!(resend(&[]).ends(0).stdout.trim(), first);
        assert_eq!(shell.run(&["deliveries", "list", "--entity", "b-1", "-o", "json"]).ends(0).json().as_array().unwrap().len(), 3);
        assert!(resend(&["--event-type", "booking.reminder"]).ends(3).stderr.contains("nothing was sent for"), "and it says so");
        resend(&["--tenant", "nobody"]).ends(3);
        assert!(resend(&["--request-id", "a b"]).ends(2).stderr.contains("request_id"));
        let waited = resend(&["--wait", "--timeout", "0"]).ends(1);
        assert!(waited.stdout.contains("event type  booking.confirmed") && waited.stderr.contains("not finished within 0 s"), "{}", waited.stderr);
    }

    fn jobs_are_listed_shown_and_ended(kind) {
        let shell = rejecting(kind);
        park(&shell, "these", 2);
        let job = shell.run(&["deliveries", "retry", "--state", "parked", "--yes", "--no-wait", "-o", "json"]).ends(0).json();
        assert_eq!((&job["state"], &job["done"]), (&json!("queued"), &json!(0)));
        let doctor = told(&shell.run(&["doctor", "-o", "json"]), "delivering").1;
        assert!(doctor.contains("1 job to be done"), "{doctor}");
        let id = job["id"].as_str().unwrap();
        assert_eq!(shell.run(&["jobs", "cancel", id, "-o", "json"]).ends(0).json()["state"], "cancelled");
        assert!(shell.run(&["jobs", "cancel", id]).ends(4).stderr.contains("the job is cancelled"));
        assert!(shell.run(&["jobs", "show", id]).ends(0).stdout.contains("0 of 2"));
        for verb in ["show", "cancel"] {
            shell.run(&["jobs", verb, "0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e"]).ends(3);
        }
        shell.run(&["deliveries", "discard", "--tenant", "default", "--error-code", "capture_permanent", "--yes"]).ends(0);
        let listed = shell.run(&["jobs", "list"]).ends(0).stdout;
        let lines: Vec<&str> = listed.lines().skip(1).collect();
        assert!(lines.len() == 2 && lines[0].contains("default") && lines[0].contains("error_code=capture_permanent"), "{listed}");
        assert!(lines[1].contains("(all)") && lines[1].contains("cancelled") && lines[1].contains("all that is parked"), "{listed}");
        assert_eq!(shell.run(&["jobs", "list", "--before", id, "-o", "json"]).ends(0).json(), json!([]));
    }

    fn the_audit_log_shows_actor_filter_and_job_in_order(kind) {
        let shell = rejecting(kind);
        let id = park(&shell, "these", 1).remove(0);
        let job = shell.run(&["deliveries", "retry", "--event-type", "these", "--yes", "-o", "json"]).ends(0).json();
        shell.dispatch();
        shell.run(&["deliveries", "discard", &format!("{id}.1")]).ends(0);
        let story = shell.run(&["notifications", "show", &id]).ends(0).stdout;
        let place = |needle: &str| story.lines().position(|line| line.contains(needle)).unwrap_or_else(|| panic!("{needle}: {story}"));
        let job = format!("job:{}", job["id"].as_str().unwrap());
        let order = [place("     1 "), place(" retry by cli:"), place("     2 "), place(" discard by cli:")];
        assert!(order.is_sorted() && story.lines().any(|line| line.contains(" retry by ") && line.contains(&job)), "{story}");
        let log = shell.run(&["audit"]).ends(0).stdout;
        let created = log.lines().find(|line| line.contains("job.create")).unwrap();
        assert!(created.contains("act=retry filter.event_type=these") && created.contains("  1  "), "{log}");
        assert!(log.lines().any(|line| line.contains("delivery.retry") && line.contains(&job)), "{log}");
    }

    fn rows_name_their_tenant_only_when_there_are_several(kind) {
        let shell = Shell::ready_on(kind);
        shell.enqueue("a", &[]);
        for list in ["deliveries", "notifications"] {
            assert!(!shell.run(&[list, "list"]).ends(0).stdout.contains("TENANT"));
        }
        shell.enqueue("a", &["--tenant", "acme"]);
        for list in ["deliveries", "notifications"] {
            let all = shell.run(&[list, "list"]).ends(0).stdout;
            assert!(all.contains("TENANT") && all.contains("acme"), "{all}");
            assert!(!shell.run(&[list, "list", "--tenant", "acme"]).ends(0).stdout.contains("TENANT"));
        }
    }

    fn kpis_say_why_something_is_parked(kind) {
        let shell = rejecting(kind);
        park(&shell, "these", 2);
        assert!(shell.run(&["kpis"]).ends(0).stdout.contains("2 (2 rejected)"));
    }

    fn a_payload_arrives_digit_for_digit(kind) {
        let shell = Shell::ready_on(kind);
        let digits = "12345678901234567890123";
        let payload = format!(r#"{{"n":{digits},"x":0.1000}}"#);
        let whole = format!(r#"{{"event_type": "a", "tenant": "acme", "recipients": [{{"email": "a@example.com"}}], "payload": {payload}}}"#);
        let ran = shell.run(&["enqueue", "a", "--to", "a@example.com", "--payload", &payload, "--data", &format!(r#"{{"email":{payload}}}"#)]).ends(0);
        for id in [ran.stdout.trim().to_owned(), shell.run(&["enqueue", "--json", &whole]).ends(0).stdout.trim().to_owned()] {
            let shown = shell.run(&["notifications", "show", &id]).ends(0).stdout;
            assert!(shown.contains(digits) && shown.contains("0.1000"), "{shown}");
        }
        let story = shell.run(&["notifications", "show", ran.stdout.trim(), "-o", "json"]).ends(0).stdout;
        assert_eq!(story.matches(digits).count(), 2, "in the data too: {story}");
    }

    fn the_actor_of_a_command_has_a_name_even_without_one_in_the_environment(kind) {
        let shell = Shell::ready_on(kind);
        let mut pause = shell.command(&["providers", "pause", "capture"]);
        for name in ["SUDO_USER", "USER", "LOGNAME"] {
            pause.env_remove(name);
        }
        assert!(pause.status().unwrap().success());
        let text = |program: &str, argument: &str| {
            let ran = std::process::Command::new(program).arg(argument).output().unwrap();
            String::from_utf8(ran.stdout).unwrap().trim().to_owned()
        };
        let log = shell.run(&["audit", "--action", "provider.pause", "-o", "json"]).ends(0).json();
        assert_eq!(log[0]["actor"], format!("cli:{}@{}", text("id", "-un"), text("uname", "-n")));
    }

    fn the_command_that_a_start_suggests_works_without_a_provider(kind) {
        let shell = Shell::empty_on(kind).with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0");
        shell.run(&["migrate"]).ends(0);
        let server = Child::spawn(shell.command(&["serve", "--role", "worker"]));
        let line = server.wait_for_line("enqueue booking.confirmed");
        let mut trial = shell.command(&[]);
        trial = {
            let mut again = std::process::Command::new("sh");
            again.args(["-c", line.trim()]).current_dir(shell.path());
            again.envs(trial.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))));
            again
        };
        let ran: Ran = trial.output().unwrap().into();
        assert!(ran.ends(0).stdout.contains("in_app to "));
        server.term();
        server.wait();
        let api = Child::spawn(shell.command(&["serve", "--role", "api"]));
        api.wait_for_line("is ready");
        api.term();
        api.wait();
        assert!(!api.output().iter().any(|line| line.contains("--wait")), "no process would deliver it");
    }
}

/// A terminal for a command: our end, and the command's.
fn terminal() -> (File, impl Fn() -> Stdio) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let end = move || Stdio::from(File::options().read(true).write(true).open(&name).unwrap());
    (File::from(master), end)
}

#[test]
fn on_a_terminal_a_command_asks_and_shows_progress() {
    let shell = rejecting(Kind::Sqlite);
    park(&shell, "these", 2);
    let answered = |answer: &[u8]| {
        let (mut master, end) = terminal();
        let mut command = shell.command(&["deliveries", "retry", "--event-type", "these"]);
        let child = command.stdin(end()).stderr(end()).stdout(Stdio::piped()).spawn().unwrap();
        // Only the command holds the terminal's other end now: the output ends with the command.
        drop((command, end));
        master.write_all(answer).unwrap();
        let mut said = Vec::new();
        let _ = master.read_to_end(&mut said);
        (Ran::from(child.wait_with_output().unwrap()), String::from_utf8(said).unwrap())
    };
    let (ran, said) = answered(b"\n");
    assert!(ran.code == 4 && said.contains("2 will be retried. Go on? [y/N]") && parked(&shell) == 2, "{said}");
    let (ran, said) = answered(b"y\n");
    assert!(ran.ends(0).stdout.contains("2 of 2") && said.contains("░") && said.ends_with("\u{1b}[K"), "{said:?}");
    assert_eq!(parked(&shell), 0);
}
