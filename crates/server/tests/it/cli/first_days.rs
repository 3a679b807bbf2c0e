//! What a new user meets after the quick start: messages where a guess would mislead.

use postcommit_testkit::Child;
use serde_json::{Value, json};

use super::{Ran, Shell};
use crate::api::on_both;

/// What doctor reports about a provider.
fn of_provider(shell: &Shell, name: &str) -> (String, String) {
    let ran: Ran = shell.run(&["doctor", "-o", "json"]);
    let findings = ran.json();
    let is_it =
        |finding: &&Value| finding["check"] == "provider" && finding["detail"].as_str().unwrap().starts_with(name);
    let found = findings.as_array().unwrap().iter().find(is_it).unwrap_or_else(|| panic!("{findings}"));
    (found["result"].as_str().unwrap().to_owned(), found["detail"].as_str().unwrap().to_owned())
}

on_both! {
    fn capture_beside_real_providers_is_a_warning(kind) {
        let shell = Shell::ready_on(kind);
        let (result, detail) = of_provider(&shell, "capture");
        assert_eq!(result, "warning");
        assert!(detail.contains("sends nothing; no provider sends messages, which is fine for a trial"), "{detail}");
        shell.run(&["providers", "create", "hooks", "--driver", "webhook"]).ends(0);
        let (result, detail) = of_provider(&shell, "capture");
        assert!(result == "warning" && detail.ends_with("every channel without a default provider of its own; it only records messages and sends nothing"), "{detail}");
        assert_eq!(of_provider(&shell, "hooks").0, "ok");
        shell.run(&["providers", "update", "capture", "--is-default", "false"]).ends(0);
        assert_eq!(of_provider(&shell, "capture").0, "ok");
    }

    fn a_channel_in_use_without_a_provider_is_found(kind) {
        let shell = Shell::ready_on(kind);
        shell.enqueue("a", &[]);
        shell.dispatch();
        let channel = |code: i32| {
            let findings = shell.run(&["doctor", "-o", "json"]).ends(code).json();
            let found = findings.as_array().unwrap().iter().find(|finding| finding["check"] == "channel").cloned();
            found.map(|found| (found["result"].clone(), found["detail"].as_str().unwrap().to_owned()))
        };
        assert_eq!(channel(0), None);
        shell.run(&["providers", "delete", "capture", "--yes"]).ends(0);
        let (result, detail) = channel(0).unwrap();
        assert_eq!(result, "warning");
        assert!(detail.starts_with("email: this channel was used in the last 7 days and no provider serves it"), "{detail}");
        shell.enqueue("b", &[]);
        shell.dispatch();
        let (result, detail) = channel(1).unwrap();
        assert_eq!(result, "problem");
        assert!(detail.contains("`postcommit providers create NAME --driver DRIVER --channel email`"), "{detail}");
        shell.run(&["providers", "create", "mail", "--driver", "capture", "--channel", "email"]).ends(0);
        assert_eq!(channel(0), None);
    }

    fn b5_captured_messages_are_called_captured(kind) {
        let shell = Shell::ready_on(kind);
        let id = shell.enqueue("a", &["--entity", "b-1"]);
        shell.dispatch();
        let story = shell.run(&["notifications", "show", &id]).ends(0).stdout;
        assert!(story.contains("  .1 sent (captured, not sent)  email to "), "{story}");
        let shown = shell.run(&["deliveries", "show", &format!("{id}.1")]).ends(0).stdout;
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], format!("{id}.1  sent (captured, not sent)"));
        assert_eq!(lines[1..4], ["  event type  a", "  tenant      default", "  entity      b-1"]);
        assert!(lines.last().unwrap().starts_with("     1 ") && lines.last().unwrap().contains("  sent (captured, not sent)  "), "{shown}");
        assert!(shown.contains("\n  last try    ") && shown.contains("\n  sent        ") && !shown.contains("\n  delivered   "), "{shown}");
        assert!(shell.run(&["deliveries", "list"]).ends(0).stdout.contains("sent (captured, not sent)"));
        assert!(shell.run(&["notifications", "list"]).ends(0).stdout.contains("sent (captured)"));
        let tailed = shell.run(&["deliveries", "tail", "--since", "600", "--no-follow"]).ends(0).stdout;
        assert!(tailed.contains("captured, not sent"), "{tailed}");
        let told = shell.run(&["notifications", "show", &id, "-o", "json"]).ends(0).json();
        assert_eq!((&told["captured"], &told["deliveries"][0]["captured"], &told["attempt_log"][0]["captured"]), (&json!(true), &json!(true), &json!(true)));
        let kpis = shell.run(&["kpis", "-o", "json"]).ends(0).json();
        assert_eq!((&kpis["total"]["delivered"], &kpis["total"]["captured"]), (&json!(0), &json!(1)));
        let kpis = shell.run(&["kpis"]).ends(0).stdout;
        assert!(kpis.lines().next().unwrap().contains("DELIVERED  CAPTURED  FAILED"), "{kpis}");
        // What reaches an inbox is delivered, and neither captured.
        let id = shell.run(&["enqueue", "a", "--to", "user:alice", "--title", "Hello", "-o", "json"]).ends(0).json()["id"].as_str().unwrap().to_owned();
        shell.dispatch();
        let shown = shell.run(&["notifications", "show", &id]).ends(0).stdout;
        assert!(shown.contains("\n  delivered   ") && !shown.contains("captured"), "{shown}");
    }

    fn a_key_used_again_is_named(kind) {
        let shell = Shell::ready_on(kind);
        let id = shell.enqueue("a", &["--idempotency-key", "k"]);
        let keys = || {
            let findings = shell.run(&["doctor", "-o", "json"]).json();
            findings.as_array().unwrap().iter().find(|finding| finding["check"] == "keys").map(|finding| finding["detail"].as_str().unwrap().to_owned())
        };
        assert_eq!(keys(), None);
        shell.enqueue("b", &["--idempotency-key", "k"]);
        let once = keys().unwrap();
        assert!(once.contains("other content once;") && once.contains("event type was \"b\"") && once.contains(&format!("`postcommit notifications show {id}`")), "{once}");
        shell.enqueue("c", &["--idempotency-key", "k"]);
        let twice = keys().unwrap();
        assert!(twice.contains("other content 2 times;") && twice.contains("event type was \"c\""), "{twice}");
    }

    fn pending_deliveries_are_cancelled(kind) {
        let shell = Shell::ready_on(kind);
        let first = shell.enqueue("booking.reminder", &["--entity", "b-1"]);
        let second = shell.enqueue("booking.confirmed", &["--entity", "b-1"]);
        let third = shell.enqueue("booking.reminder", &["--entity", "b-2"]);
        assert_eq!(shell.run(&["deliveries", "cancel", "--entity", "b-1", "--event-type", "booking.reminder"]).ends(0).stdout, "1 cancelled\n");
        assert_eq!(shell.run(&["deliveries", "cancel", "--entity", "b-1", "-o", "json"]).ends(0).json(), json!({"cancelled": 1, "under_way": 0}));
        assert_eq!(shell.run(&["notifications", "cancel", &third]).ends(0).stdout, "1 cancelled\n");
        for id in [&first, &second, &third] {
            assert_eq!(shell.run(&["notifications", "show", id, "-o", "json"]).ends(0).json()["state"], "cancelled");
        }
        let by = shell.run(&["audit", "--action", "notification.cancel", "-o", "json"]).ends(0).json();
        assert!(by[0]["actor"].as_str().unwrap().starts_with("cli:") && by[0]["subject"] == third.as_str(), "{by}");
        shell.run(&["notifications", "cancel", "0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e"]).ends(3);
        shell.run(&["deliveries", "cancel"]).ends(2);
        shell.run(&["deliveries", "cancel", "--entity", "b-1", "--tenant", "nobody"]).ends(3);
    }

    fn a_provider_is_tried(kind) {
        let shell = Shell::ready_on(kind);
        let test = |to: &str| shell.run(&["providers", "test", "capture", "--address", to, "-o", "json"]);
        assert_eq!(test("desk@example.com").ends(0).json()["outcome"], "sent");
        assert!(shell.run(&["providers", "test", "capture", "--address", "desk@example.com"]).ends(0).stdout.starts_with("sent (captured, not sent)  "));
        let log = shell.run(&["audit", "--action", "provider.test", "-o", "json"]).ends(0).json();
        assert!(log[0]["details"]["outcome"] == "sent" && !log.to_string().contains("desk@"), "{log}");
        shell.run(&["providers", "test", "nobody", "--address", "a"]).ends(3);
        shell.run(&["providers", "create", "hooks", "--driver", "webhook"]).ends(0);
        let refused = shell.run(&["providers", "test", "hooks", "--address", "http://127.0.0.1:9/", "-o", "json"]).ends(1).json();
        assert!(refused["outcome"] != "sent" && refused["code"] == "blocked_address", "{refused}");
    }

    fn providers_of_one_tenant_are_listed(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["providers", "create", "hooks", "--driver", "webhook", "--tenant", "acme"]).ends(0);
        let listed = shell.run(&["providers", "list", "--tenant", "acme", "-o", "json"]).ends(0).json();
        assert!(listed.as_array().unwrap().len() == 1 && listed[0]["name"] == "hooks", "{listed}");
        shell.run(&["providers", "list", "--tenant", "nobody"]).ends(3);
    }

    fn a_tenant_created_by_a_misspelt_name_is_mentioned(kind) {
        let shell = Shell::ready_on(kind);
        let enqueue = || shell.run(&["enqueue", "a", "--to", "user:alice", "--tenant", "amce"]).ends(0).stderr;
        assert!(enqueue().contains("tenant \"amce\" did not exist and was created"));
        assert!(!enqueue().contains("did not exist"), "the second one finds it");
    }

    fn keys_are_accepted_as_people_paste_them(kind) {
        let shell = Shell::ready_on(kind);
        let made = shell.run(&["keys", "create", "k", "--scope", "operate,edit", "-o", "json"]).ends(0).json();
        let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
        let revoked = shell.run(&["keys", "revoke", token]).ends(0);
        assert_eq!(revoked.stdout, format!("key {id} revoked\n"));
        let secret = token.rsplit('_').next().unwrap();
        let unknown = shell.run(&["keys", "revoke", &format!("pc_0000000000000000_{secret}")]).ends(3);
        assert!(!revoked.stderr.contains(secret) && !unknown.stderr.contains(secret), "a secret is never repeated");
        assert!(shell.run(&["keys", "list"]).ends(0).stdout.contains("operate,edit"));
    }

    fn with_only_the_api_running_the_hint_names_the_missing_worker(kind) {
        let shell = Shell::ready_on(kind).with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0").with("POSTCOMMIT_LOG_FORMAT", "json");
        let api = Child::spawn(shell.command(&["serve", "--role", "api"]));
        api.wait_for_line("delivers   nothing");
        let ready: Value = serde_json::from_str(&api.wait_for_line("\"message\":\"ready\"")).unwrap();
        let fields = &ready["fields"];
        assert_eq!((&fields["role"], &fields["version"]), (&json!("api"), &json!(env!("CARGO_PKG_VERSION"))));
        assert!(fields["listen"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{ready}");
        assert!(["postgres", "sqlite"].contains(&fields["database"].as_str().unwrap()), "{ready}");
        let waited = shell.run(&["enqueue", "a", "--to", "email:guest@example.com", "--wait", "--timeout", "0"]).ends(1).stderr;
        assert!(waited.contains("waits for a process that delivers: start `postcommit serve` or `postcommit serve --role worker`"), "{waited}");
        api.term();
        api.wait();
    }
}

#[test]
fn an_invalid_id_is_reported_plainly() {
    let shell = Shell::ready();
    for arguments in [
        ["jobs", "show", "nope"],
        ["jobs", "cancel", "nope"],
        ["notifications", "show", "nope"],
        ["notifications", "cancel", "nope"],
    ] {
        let said = shell.run(&arguments).ends(2).stderr;
        assert!(said.contains("not an id; an id looks like 0199"), "{said}");
    }
}
