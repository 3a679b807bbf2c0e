//! Commands of operators: which workers run, what is parked and why, the audit log; and actions on all matches. On both
//! databases.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use postcommit_testkit::{Child, HttpServer, Reply};
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

fn resend_over(shell: &Shell, channel: &str, more: &[&str]) -> Ran {
    shell.run(&[&["deliveries", "resend", "b-1", "--channel", channel], more].concat())
}

/// A shell whose capture provider never learns what became of the event type `u`, and rejects `p`.
fn unclear(kind: Kind) -> Shell {
    let shell = Shell::ready_on(kind).with("POSTCOMMIT_CAPTURE_FAIL_ON", "unclear=u,permanent=p");
    shell.run(&["providers", "update", "capture", "--guarantee", "at_most_once"]).ends(0);
    shell
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
        wait_until("the server to be seen", || told(&doctor(), "delivering").1.starts_with("running dispatchers: 1, the last heartbeat "));
        server.term();
        server.wait();
        let left = told(&doctor().ends(0), "delivering").1;
        assert!(left.starts_with("by passes"), "who stops says so: {left}");
    }

    fn what_a_delivery_waits_for_is_shown(kind) {
        let shell = Shell::ready_on(kind);
        let id = shell.enqueue("a", &[]);
        shell.run(&["tenants", "suspend", "default", "--reason", "unpaid"]).ends(0);
        let waits = "its tenant, which is suspended";
        let shown = shell.run(&["notifications", "show", &id]).ends(0).stdout;
        assert!(shown.contains(&format!("not expanded yet  waits for {waits}")), "{shown}");
        let shown = shell.run(&["deliveries", "show", &format!("{id}.0")]).ends(0).stdout;
        assert!(shown.contains(&format!("  waits for   {waits}")), "{shown}");
        let listed = shell.run(&["deliveries", "list"]).ends(0).stdout;
        let (head, row) = listed.trim().split_once('\n').unwrap();
        assert!(head.ends_with("  WAITS FOR") && row.ends_with(waits), "{listed}");
        assert_eq!(shell.run(&["deliveries", "list", "-o", "json"]).ends(0).json()[0]["waits_for"], waits);
        let waited = shell.run(&["enqueue", "a", "--to", "email:guest@example.com", "--wait", "--timeout", "0"]).ends(1).stderr;
        assert!(waited.contains(&format!("it is pending and waits for {waits}")), "{waited}");
    }

    fn lists_show_when_the_next_attempt_is_and_what_may_have_arrived(kind) {
        let shell = Shell::ready_on(kind).with("POSTCOMMIT_CAPTURE_FAIL_ON", "unclear=lost,permanent=no");
        shell.run(&["providers", "update", "capture", "--guarantee", "at_most_once"]).ends(0);
        shell.enqueue("lost", &[]);
        shell.enqueue("no", &[]);
        shell.enqueue("later", &["--due-at", "2099-01-01T00:00:00Z"]);
        shell.dispatch();
        let parked = shell.run(&["deliveries", "list", "--state", "parked"]).ends(0).stdout;
        assert!(parked.contains("parked (outcome_unknown): it may have arrived"), "{parked}");
        let later = shell.run(&["deliveries", "list", "--event-type", "later"]).ends(0).stdout;
        assert!(later.contains("  NEXT  ") && later.contains("  2099-01-01T00:00:00Z  "), "{later}");
        shell.run(&["deliveries", "retry", "--state", "parked", "--yes"]);
        let jobs = shell.run(&["jobs", "list"]).ends(0).stdout;
        let (head, row) = jobs.trim().split_once('\n').unwrap_or_else(|| panic!("{jobs}"));
        let place = head.find("LEFT OUT").unwrap_or_else(|| panic!("{jobs}"));
        assert!(row[place..].starts_with("1 "), "{jobs}");
    }

    fn a_resume_names_what_stays_parked(kind) {
        let shell = Shell::ready_on(kind).with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8");
        let is_mended = AtomicBool::new(false);
        let server = HttpServer::start(move |_| Reply::status(if is_mended.swap(true, Ordering::Relaxed) { 200 } else { 401 }));
        shell.run(&["providers", "create", "crm", "--driver", "webhook", "--set", "isolate=lane"]).ends(0);
        shell.run(&["enqueue", "a", "--to", &format!("webhook:{}", server.url("/hook"))]).ends(0);
        let log = shell.run(&["dispatch", "--once"]).ends(0).stderr;
        assert!(log.contains("provider paused; ") && log.contains("\"tenant\":\"default\",\"provider\":\"crm\""), "{log}");
        let retry = "deliveries parked as config: 1; `postcommit deliveries retry --provider crm --reason config` retries them";
        let doctor = || {
            let findings = shell.run(&["doctor", "-o", "json"]).json();
            let is_it = |one: &&Value| one["detail"].as_str().unwrap().starts_with("crm: ");
            let found = findings.as_array().unwrap().iter().find(is_it).unwrap().clone();
            (found["result"].as_str().unwrap().to_owned(), found["detail"].as_str().unwrap().to_owned())
        };
        let (result, detail) = doctor();
        assert!(result == "problem" && detail.contains(&format!("Then retry its {retry}")), "{detail}");
        let resumed = shell.run(&["providers", "resume", "crm"]).ends(0);
        assert!(resumed.stdout.contains("resumed") && resumed.stderr.contains(retry), "{}", resumed.stderr);
        let (result, detail) = doctor();
        assert!(result == "warning" && detail.contains(retry), "{detail}");
        shell.run(&["deliveries", "retry", "--provider", "crm", "--reason", "config", "--yes"]).ends(0);
        assert_eq!(shell.dispatch()["sent"], 1);
        assert_eq!(doctor().0, "ok");
    }

    fn the_log_names_the_lane_and_the_host_that_asked_to_wait(kind) {
        let shell = Shell::ready_on(kind).with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8");
        let server = HttpServer::start(|_| Reply::status(429).with_header("retry-after", "600"));
        for (isolate, says) in [("lane", "the provider asked to wait; "), ("host", "a host of the provider asked to wait; ")] {
            shell.run(&["providers", "create", isolate, "--driver", "webhook", "--set", &format!("isolate={isolate}")]).ends(0);
            shell.run(&["enqueue", "a", "--to", &format!("provider:{isolate}:{}", server.url("/hook"))]).ends(0);
            let log = shell.run(&["dispatch", "--once"]).ends(0).stderr;
            let line = log.lines().find(|line| line.contains(says)).unwrap_or_else(|| panic!("{log}"));
            assert!(line.contains(&format!("\"tenant\":\"default\",\"provider\":\"{isolate}\"")), "{line}");
            assert_eq!(line.contains(&format!("\"host\":\"{}\"", server.addr())), isolate == "host", "{line}");
        }
    }

    fn a_cancel_of_nothing_says_why(kind) {
        let shell = rejecting(kind);
        let (sent, parked) = (shell.enqueue("fine", &["--entity", "b-1"]), shell.enqueue("these", &["--entity", "b-1"]));
        shell.dispatch();
        let cancel = |arguments: &[&str]| {
            let ran = shell.run(arguments).ends(0);
            assert_eq!(ran.stdout, "0 cancelled\n");
            ran.stderr
        };
        let why = "only deliveries that are not sent yet can be cancelled";
        assert!(cancel(&["notifications", "cancel", &sent]).contains(&format!("the notification is sent; {why}\n")));
        let discard = format!("deliveries discard --notification-id {parked}");
        assert!(cancel(&["notifications", "cancel", &parked]).contains(&format!("is parked; {why}; `postcommit {discard}`")));
        let of_entity = cancel(&["deliveries", "cancel", "--entity", "b-1"]);
        assert!(of_entity.contains(&format!("the deliveries about entity \"b-1\" are parked, sent; {why}")), "{of_entity}");
        let unknown = cancel(&["deliveries", "cancel", "--entity", "b-2", "--event-type", "fine"]);
        let expected = "tenant \"default\" has no delivery of event type \"fine\" about entity \"b-2\"";
        assert!(unknown.contains(expected), "{unknown}");
        shell.run(&discard.split(' ').chain(["--yes"]).collect::<Vec<_>>()).ends(0);
    }

    fn a_recipient_is_found_in_the_form_of_enqueue(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["enqueue", "a", "--to", "user:alice"]).ends(0);
        shell.enqueue("b", &[]);
        for pass in 0..2 {
            for (recipient, event_type) in [("alice", "a"), ("user:alice", "a"), ("email:guest@example.com", "b"), ("guest@example.com", "b")] {
                for list in ["deliveries", "notifications"] {
                    let rows = shell.run(&[list, "list", "--recipient", recipient, "-o", "json"]).ends(0).json();
                    let found: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["event_type"].as_str().unwrap()).collect();
                    assert_eq!(found, [event_type], "{list} {recipient} after {pass} passes");
                }
            }
            shell.dispatch();
        }
    }

    fn a_resend_over_another_channel_copies_the_original_and_not_its_copy(kind) {
        let shell = Shell::ready_on(kind);
        let to = ["--to", "phone:+14155550100", "--to", "email:guest@example.com", "--channel", "sms", "--title", "Hello"];
        let id = shell.run(&[&["enqueue", "a", "--entity", "b-1"], &to[..]].concat()).ends(0).stdout.trim().to_owned();
        shell.dispatch();
        resend_over(&shell, "sms", &[]).ends(0);
        shell.dispatch();
        let copy = resend_over(&shell, "email", &[]).ends(0).stdout.trim().to_owned();
        shell.dispatch();
        let sent = shell.run(&["deliveries", "list", "--notification-id", &copy, "-o", "json"]).ends(0).json();
        assert_eq!((&sent[0]["target"], &sent[0]["copy_of"]), (&json!("g…@example.com"), &json!(id)), "{sent}");
        // An id in the place of the entity is answered with the entity.
        for wrong in [id.clone(), format!("{id}.1")] {
            let said = shell.run(&["deliveries", "resend", &wrong, "--channel", "email"]).ends(3).stderr;
            assert!(said.contains("Give the entity of the notification: `postcommit deliveries resend b-1 --channel email`"), "{said}");
        }
    }

    fn a_pass_for_one_notification_says_that_it_is_due_now(kind) {
        let shell = Shell::ready_on(kind);
        let id = shell.enqueue("a", &["--due-at", "2099-01-01T00:00:00Z"]);
        shell.run(&["tenants", "suspend", "default", "--reason", "unpaid"]).ends(0);
        let said = shell.run(&["dispatch", "--once", "--id", &id]).ends(0).stderr;
        let why = "nothing was sent: the notification is pending and waits for its tenant, which is suspended. It is due now";
        assert!(said.contains(why), "{said}");
        let again = shell.run(&["dispatch", "--once", "--id", &shell.enqueue("b", &[])]).ends(0).stderr;
        assert!(again.contains("which is suspended"), "{again}");
        shell.run(&["tenants", "resume", "default"]).ends(0);
        assert_eq!(shell.dispatch()["sent"], 2, "it was made due");
    }

    fn deliveries_are_retried_and_discarded_by_filter(kind) {
        let shell = rejecting(kind);
        park(&shell, "these", 3);
        park(&shell, "others", 2);
        let counted = shell.run(&["deliveries", "retry", "--event-type", "these", "--dry-run", "-o", "json"]).ends(0);
        assert_eq!(counted.json(), json!({"kind": "retry", "total": 3, "left_out": 0, "is_exact": true}));
        assert_eq!(shell.run(&["deliveries", "discard", "--state", "parked", "--dry-run"]).ends(0).stdout, "5 would be discarded\n");
        let ran = shell.run(&["deliveries", "retry", "--event-type", "these"]).ends(4);
        assert!(ran.stderr.contains("3 will be retried: nothing was done; add --yes to confirm") && parked(&shell) == 5, "{}", ran.stderr);
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

    fn c14_what_may_have_arrived_is_retried_with_consent_alone(kind) {
        let shell = unclear(kind);
        let ids: Vec<String> = park(&shell, "u", 2).iter().map(|id| format!("{id}.1")).collect();
        park(&shell, "p", 1);
        let ran = shell.run(&["deliveries", "retry", &ids[0], "-o", "json"]).ends(4);
        assert!(ran.stderr.contains("is parked (outcome_unknown): it may have arrived, and a retry sends it again; add --unclear to retry it"), "{}", ran.stderr);
        assert_eq!(ran.json(), json!([{"id": ids[0], "result": "unclear", "state": "parked"}]));
        shell.run(&["deliveries", "retry", &ids[0], "--unclear=false"]).ends(4);
        shell.run(&["deliveries", "retry", &ids[0], "--unclear", "--channel", "email"]).ends(2);
        assert_eq!(parked(&shell), 3);
        let by_filter = |more: &[&str]| shell.run(&[&["deliveries", "retry", "--state", "parked"], more].concat());
        assert_eq!(by_filter(&["--dry-run"]).ends(0).stdout, "1 would be retried; left out because they may have arrived: 2 (--unclear selects them)\n");
        let ran = by_filter(&["--yes"]).ends(7);
        assert!(ran.stdout.contains("1 of 1") && ran.stdout.contains("2: these deliveries may have arrived; --unclear selects them"), "{}", ran.stdout);
        let ran = by_filter(&["--yes"]).ends(4);
        assert!(ran.stderr.contains("deliveries that may have arrived: 2; a retry sends them again: nothing was done; add --unclear to retry them"), "{}", ran.stderr);
        assert_eq!(parked(&shell), 2);
        shell.run(&["deliveries", "retry", &ids[0], "--unclear"]).ends(0);
        assert!(by_filter(&["--unclear", "--yes"]).ends(0).stdout.contains("1 of 1"));
        assert_eq!(parked(&shell), 0);
    }

    fn an_action_takes_either_ids_or_a_filter_of_parked_deliveries(kind) {
        let shell = rejecting(kind);
        let id = format!("{}.1", park(&shell, "these", 1)[0]);
        for (arguments, expected) in [
            (vec!["deliveries", "retry"], "no deliveries are selected; give their ids, or a filter"),
            (vec!["deliveries", "retry", &id, "--channel", "email"], "both ids and a filter are given"),
            (vec!["deliveries", "discard", "--state", "sent", "--yes"], "only parked deliveries"),
            (vec!["deliveries", "discard", "--state", "retrying", "--yes"], "only parked deliveries"),
            (vec!["deliveries", "retry", "--state", "sent", "--yes"], "a retry needs either parked or retrying deliveries"),
            (vec!["deliveries", "retry", "--state", "parked,retrying", "--yes"], "is parked,retrying; a retry needs either"),
            (vec!["deliveries", "discard", "--state", "parked", "--yes", "--pace-per-s", "0"], "--pace-per-s"),
        ] {
            let ran = shell.run(&arguments).ends(2);
            assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        }
        shell.run(&["deliveries", "discard", "--tenant", "nobody", "--yes"]).ends(3);
        assert_eq!(parked(&shell), 1);
    }

    fn retrying_deliveries_are_brought_forward(kind) {
        let shell = Shell::ready_on(kind).with("POSTCOMMIT_CAPTURE_FAIL_ON", "transient=again,permanent=p");
        let waiting = format!("{}.1", shell.enqueue("again", &[]));
        park(&shell, "p", 1);
        let attempts = || {
            let shown = shell.run(&["deliveries", "show", &waiting, "-o", "json"]).ends(0).json();
            shown["attempt_log"].as_array().unwrap().len()
        };
        shell.dispatch();
        assert_eq!(attempts(), 1, "it waits for its second attempt");
        let filter = ["deliveries", "retry", "--state", "retrying", "--event-type", "again"];
        let ran = shell.run(&[&filter[..], &["--dry-run"]].concat()).ends(0);
        assert_eq!(ran.stdout.trim(), "1 would be brought forward");
        let ran = shell.run(&[&filter[..], &["--yes"]].concat()).ends(0);
        assert!(ran.stdout.contains("retry done") && ran.stdout.contains("state=retrying"), "{}", ran.stdout);
        shell.dispatch();
        assert_eq!((attempts(), parked(&shell)), (2, 1), "tried now, and what is parked stays so");
        let audit = shell.run(&["audit", "--action", "delivery.bring_forward", "-o", "json"]).ends(0).json();
        assert_eq!((audit.as_array().unwrap().len(), &audit[0]["subject"]), (1, &json!(waiting)));
    }

    fn c11_the_notifications_of_an_entity_are_resent(kind) {
        let shell = Shell::ready_on(kind);
        let first = shell.enqueue("booking.confirmed", &["--entity", "b-1", "--title", "Confirmed"]);
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
        assert!(resend(&["--event-type", "booking.reminder"]).ends(3).stderr.contains("no notification was enqueued for"), "and it says so");
        let unreachable = resend(&["--to", "phone:+14155550100"]).ends(2).stderr;
        assert!(unreachable.contains("--to: cannot be reached on channel \"email\""), "{unreachable}");
        let by_phone = resend_over(&shell, "sms", &["--to", "phone:+14155550100"]).ends(0).stdout.trim().to_owned();
        let of_entity = shell.run(&["deliveries", "list", "--entity", "b-1"]).ends(0).stdout;
        assert!(of_entity.contains("IDEMPOTENCY KEY") && of_entity.contains("manual:b-1:email::r-1") && of_entity.contains("cli:"), "{of_entity}");
        shell.dispatch();
        let told = shell.run(&["deliveries", "show", &format!("{by_phone}.1")]).ends(0).stdout;
        assert!(told.contains("copy of") && told.contains("asked by    cli:") && told.contains("+14…00"), "{told}");
        assert!(resend_over(&shell, "sms", &["--to", "pigeon"]).ends(2).stderr.contains("--to pigeon"));
        resend(&["--tenant", "nobody"]).ends(3);
        assert!(resend(&["--request-id", "a b"]).ends(2).stderr.contains("--request-id"));
        let waited = resend(&["--wait", "--timeout", "0"]).ends(1);
        assert!(waited.stdout.contains("event type  booking.confirmed") && waited.stderr.contains("not finished within 0 s"), "{}", waited.stderr);
    }

    fn jobs_are_listed_shown_and_ended(kind) {
        let shell = rejecting(kind);
        park(&shell, "these", 2);
        let job = shell.run(&["deliveries", "retry", "--state", "parked", "--yes", "--no-wait", "-o", "json"]).ends(0).json();
        assert_eq!((&job["state"], &job["done"]), (&json!("queued"), &json!(0)));
        let doctor = told(&shell.run(&["doctor", "-o", "json"]), "delivering").1;
        assert!(doctor.contains("1 job open"), "{doctor}");
        let id = job["id"].as_str().unwrap();
        assert_eq!(shell.run(&["jobs", "cancel", id, "-o", "json"]).ends(0).json()["state"], "cancelled");
        assert!(shell.run(&["jobs", "cancel", id]).ends(4).stderr.contains("the job is already cancelled"));
        assert!(shell.run(&["jobs", "show", id]).ends(0).stdout.contains("0 of 2"));
        for verb in ["show", "cancel"] {
            shell.run(&["jobs", verb, "0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e"]).ends(3);
        }
        shell.run(&["deliveries", "discard", "--tenant", "default", "--error-code", "capture_permanent", "--yes"]).ends(0);
        let listed = shell.run(&["jobs", "list"]).ends(0).stdout;
        let lines: Vec<&str> = listed.lines().skip(1).collect();
        assert!(lines.len() == 2 && lines[0].contains("default") && lines[0].contains("error_code=capture_permanent"), "{listed}");
        assert!(lines[1].contains("(all)") && lines[1].contains("cancelled") && lines[1].contains("unclear=false"), "{listed}");
        assert_eq!(shell.run(&["jobs", "list", "--before", id, "-o", "json"]).ends(0).json(), json!([]));
    }

    fn d2_lists_and_jobs_take_a_class_of_error(kind) {
        let shell = rejecting(kind);
        shell.enqueue("these", &[]);
        shell.dispatch();
        let of = |class: &str| shell.run(&["deliveries", "list", "--error-class", class, "-o", "json"]).ends(0).json();
        let unknown = of("unknown");
        let rows = unknown.as_array().unwrap();
        assert!(!rows.is_empty() && rows.iter().all(|row| row["error_class"] == "unknown" && row["state"] == "parked"), "{unknown}");
        assert_eq!(of("timeout"), json!([]));
        let shown = shell.run(&["deliveries", "show", rows[0]["id"].as_str().unwrap()]).ends(0).stdout;
        assert!(shown.contains("\n  error class unknown\n") && shown.contains(" [unknown]"), "{shown}");
        let refused = shell.run(&["deliveries", "list", "--error-class", "bad_luck"]).ends(2).stderr;
        assert!(refused.contains("auth_failed") && refused.contains("rate_limited"), "the classes are named: {refused}");
        shell.run(&["deliveries", "discard", "--error-class", "unknown", "--yes"]).ends(0);
        let kept = of("unknown");
        assert!(kept.as_array().unwrap().iter().all(|row| row["state"] == "discarded"), "{kept}");
        assert!(shell.run(&["jobs", "list"]).ends(0).stdout.contains("error_class=unknown"));
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
        assert!(created.contains("filter.event_type=these") && created.contains("kind=retry") && created.contains("  1  "), "{log}");
        assert!(log.lines().any(|line| line.contains("delivery.retry") && line.contains(&job)), "{log}");
    }

    fn b4_lists_by_recipient_and_the_full_address(kind) {
        let shell = Shell::ready_on(kind);
        let mail = shell.enqueue("a", &[]);
        let alice = shell.run(&["enqueue", "a", "--to", "user:alice", "--channel", "in-app"]).ends(0).stdout.trim().to_owned();
        shell.dispatch();
        let ids = |arguments: &[&str]| -> Vec<String> {
            let listed = shell.run(&[arguments, &["-o", "json"]].concat()).ends(0).json();
            listed.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(ids(&["notifications", "list", "--recipient", "alice"]), std::slice::from_ref(&alice));
        assert_eq!(ids(&["notifications", "list", "--recipient", "guest@example.com"]), std::slice::from_ref(&mail));
        assert_eq!(ids(&["deliveries", "list", "--recipient", "alice"]), [format!("{alice}.1")]);
        assert_eq!(ids(&["deliveries", "list", "--channel", "in-app"]), [format!("{alice}.1")]);
        assert!(ids(&["deliveries", "list", "--recipient", "nobody"]).is_empty());
        let one = format!("{mail}.1");
        for (arguments, is_full) in [
            (vec!["deliveries", "show", &one], false),
            (vec!["deliveries", "show", &one, "--full"], true),
            (vec!["deliveries", "list"], false),
            (vec!["deliveries", "list", "--full"], true),
        ] {
            let told = shell.run(&arguments).ends(0).stdout;
            assert_eq!((told.contains("guest@example.com"), told.contains("g…@example.com")), (is_full, !is_full), "{told}");
        }
        let refused = shell.run(&["enqueue", "a", "--to", "user:alice", "--channel", "emial"]).ends(2).stderr;
        assert!(refused.contains("channels[0]") && refused.contains("\"emial\"") && refused.contains("email, in_app, push, slack"), "{refused}");
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

/// Runs a command on a terminal and answers its question. Returns what it did, and what the terminal showed.
fn answered(shell: &Shell, arguments: &[&str], answer: &[u8]) -> (Ran, String) {
    let (mut master, end) = terminal();
    let mut command = shell.command(arguments);
    let child = command.stdin(end()).stderr(end()).stdout(Stdio::piped()).spawn().unwrap();
    // Only the command holds the terminal's other end now: the output ends with the command.
    drop((command, end));
    master.write_all(answer).unwrap();
    let mut said = Vec::new();
    let _ = master.read_to_end(&mut said);
    (Ran::from(child.wait_with_output().unwrap()), String::from_utf8(said).unwrap())
}

#[test]
fn on_a_terminal_a_retry_of_what_may_have_arrived_asks() {
    let shell = unclear(Kind::Sqlite);
    let id = format!("{}.1", park(&shell, "u", 2)[0]);
    let by_id = ["deliveries", "retry", &id];
    let (ran, said) = answered(&shell, &by_id, b"\n");
    assert!(ran.code == 4 && said.contains("may have arrived, and a retry sends it again. Continue? [y/N]"), "{said}");
    assert_eq!(parked(&shell), 2);
    let (ran, _) = answered(&shell, &by_id, b"y\n");
    assert!(ran.ends(0).stdout.contains("pending") && parked(&shell) == 1);
    let by_filter = ["deliveries", "retry", "--event-type", "u"];
    let (ran, said) = answered(&shell, &by_filter, b"\n");
    assert!(
        ran.code == 4
            && said.contains("deliveries that may have arrived: 1; a retry sends them again. Continue? [y/N]"),
        "{said}"
    );
    assert!(answered(&shell, &by_filter, b"y\n").0.ends(0).stdout.contains("1 of 1"));
    assert_eq!(parked(&shell), 0);
}

#[test]
fn on_a_terminal_a_command_asks_and_shows_progress() {
    let shell = rejecting(Kind::Sqlite);
    park(&shell, "these", 2);
    let answered = |answer: &[u8]| answered(&shell, &["deliveries", "retry", "--event-type", "these"], answer);
    let (ran, said) = answered(b"\n");
    assert!(ran.code == 4 && said.contains("2 will be retried. Continue? [y/N]") && parked(&shell) == 2, "{said}");
    let (ran, said) = answered(b"y\n");
    assert!(ran.ends(0).stdout.contains("2 of 2") && said.contains("░") && said.ends_with("\u{1b}[K"), "{said:?}");
    assert_eq!(parked(&shell), 0);
}
