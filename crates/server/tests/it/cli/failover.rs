//! Breakers and failover of providers on the command line, on both databases.

use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use super::{Ran, Shell};
use crate::api::on_both;

/// What doctor says about lanes.
fn lanes(ran: &Ran) -> Vec<(String, String)> {
    let text = |finding: &serde_json::Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let findings = ran.json();
    let lanes = findings.as_array().unwrap().iter().filter(|finding| finding["check"] == "lane");
    lanes.map(|finding| (text(finding, "result"), text(finding, "detail"))).collect()
}

on_both! {
    fn a_tripped_breaker_is_shown_everywhere_and_ends_with_a_resume(kind) {
        let shell = Shell::ready_on(kind).with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8");
        let service = HttpServer::start(|_| Reply::status(503));
        let url = format!("url={}", service.url("/in"));
        let create = ["providers", "create", "mail", "--driver", "webhook", "--channel", "email", "--set", &url];
        for (flag, value, says) in [
            ("--breaker-failures", "101", "breaker_failures: is 101; 0 to 100 are allowed, and 0 switches the breaker off"),
            ("--breaker-cool-down-s", "0", "breaker_cool_down_s: is 0; 1 to 300 are allowed"),
        ] {
            let ran = shell.run(&[&create[..], &[flag, value]].concat()).ends(2);
            assert!(ran.stderr.contains(says), "{}", ran.stderr);
        }
        shell.run(&[&create[..], &["--breaker-failures", "3", "--breaker-cool-down-s", "200", "--concurrency", "2"]].concat()).ends(0);
        for _ in 0..12 {
            shell.enqueue("a", &[]);
        }
        shell.dispatch();
        let shown = shell.run(&["providers", "show", "mail"]).ends(0).stdout;
        assert!(shown.contains("breaker      after 3 failures in a row, 200 s first"), "{shown}");
        assert!(shown.contains("because      3 sends in a row failed, the last one with http_503"), "{shown}");
        let [(result, detail)] = &lanes(&shell.run(&["doctor", "-o", "json"]))[..] else { panic!("one lane is held") };
        assert!(result == "ok" && detail.starts_with("mail: held until 2") && detail.contains("because 3 sends in a row failed"), "{detail}");
        let shut = shell.run(&["kpis", "-o", "json"]).ends(0).json()["shut"].clone();
        assert_eq!((&shut["lanes_held"], &shut["lanes_tripped"]), (&json!(1), &json!(1)));
        let waiting = shell.run(&["deliveries", "list", "--state", "pending"]).ends(0).stdout;
        assert!(waiting.contains("its provider, which is held until 2"), "{waiting}");
        let made = service.requests().len();
        assert!((3..=4).contains(&made), "{made}");
        shell.dispatch();
        assert_eq!(service.requests().len(), made, "nothing is sent meanwhile");

        assert!(shell.run(&["providers", "resume", "mail"]).ends(0).stdout.contains("resumed"));
        let shown = shell.run(&["providers", "show", "mail", "-o", "json"]).ends(0).json();
        assert_eq!((&shown["trips"], &shown["hold_reason"], &shown["held_until"]), (&json!(0), &json!(null), &json!(null)));
        shell.run(&["providers", "update", "mail", "--breaker-failures", "0"]).ends(0);
        assert!(shell.run(&["providers", "show", "mail"]).ends(0).stdout.contains("breaker      off"));
    }

    fn a_chain_is_set_and_its_mistakes_are_refused(kind) {
        let shell = Shell::ready_on(kind);
        let create = |name: &str, more: &[&str]| {
            shell.run(&[&["providers", "create", name, "--driver", "capture", "--channel", "sms"], more].concat())
        };
        let refused = |ran: Ran, says: &str| {
            let ran = ran.ends(2);
            assert!(ran.stderr.contains(says), "{}", ran.stderr);
        };
        refused(create("a", &["--failover", "b"]), "failover: provider \"b\" is not configured; create it first");
        create("b", &[]).ends(0);
        create("a", &["--failover", "b", "--failover-after-s", "90"]).ends(0);
        let update = |name: &str, more: &[&str]| shell.run(&[&["providers", "update", name], more].concat());
        refused(update("b", &["--failover", "b"]), "which is the provider itself");
        refused(update("b", &["--failover", "a"]), "would be a circle");
        refused(update("b", &["--channel", "email"]), "channel: is \"email\", but provider \"a\" of \"sms\" names this provider as its failover");
        refused(update("a", &["--failover-after-s", "86401"]), "failover_after_s: is 86401; 0 to 86400 are allowed");
        // The provider that `serve` creates serves every channel.
        update("b", &["--failover", "capture"]).ends(0);
        refused(update("capture", &["--failover", "a"]), "failover: provider \"a\" serves \"sms\"; a provider of \"*\" is allowed");
        let shown = shell.run(&["providers", "show", "a"]).ends(0).stdout;
        assert!(shown.contains("failover     b, when held for more than 90 s"), "{shown}");
        assert!(update("a", &["--failover", "b"]).ends(0).stdout.contains("already has these values"));
        let audit = shell.run(&["audit", "-o", "json"]).ends(0).json();
        let mut changes = audit.as_array().unwrap().iter().map(|entry| &entry["details"]["failover"]);
        assert!(changes.any(|change| *change == json!({"from": null, "to": "capture"})), "{audit}");

        // A next provider that is gone is a warning.
        shell.run(&["providers", "delete", "b", "--yes"]).ends(0);
        let doctor = shell.run(&["doctor", "-o", "json"]);
        let found = doctor.json().as_array().unwrap().iter().find(|finding| finding["check"] == "failover").cloned().unwrap();
        assert_eq!(found["result"], "warning");
        assert!(found["detail"].as_str().unwrap().starts_with("a: its failover \"b\" does not exist, so nothing takes over"), "{found}");
        update("a", &["--no-failover"]).ends(0);
        assert!(!shell.run(&["doctor"]).stdout.contains("failover"));
    }

    fn deliveries_go_on_with_the_next_provider(kind) {
        let shell = Shell::ready_on(kind).with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8");
        let (first, second) = (HttpServer::start(|_| Reply::status(401)), HttpServer::start(|_| Reply::ok()));
        let create = |name: &str, server: &HttpServer, more: &[&str]| {
            let url = format!("url={}", server.url("/in"));
            let all = ["providers", "create", name, "--driver", "webhook", "--channel", "email", "--set", &url];
            shell.run(&[&all[..], more].concat()).ends(0);
        };
        create("second", &second, &["--is-default", "false"]);
        create("first", &first, &["--is-default", "true", "--failover", "second"]);
        let id = shell.enqueue("a", &[]);
        shell.dispatch();
        let shown = shell.run(&["notifications", "show", &id, "-o", "json"]).ends(0).json();
        let delivery = &shown["deliveries"][0];
        assert_eq!((&delivery["state"], &delivery["provider"]), (&json!("sent"), &json!("second")), "{shown}");
        let tried: Vec<&str> = shown["attempt_log"].as_array().unwrap().iter().filter_map(|attempt| attempt["provider"].as_str()).collect();
        assert_eq!(tried, ["first", "second"], "{shown}");
        let later = shell.enqueue("a", &[]);
        shell.dispatch();
        assert_eq!((first.requests().len(), second.requests().len()), (1, 2), "the paused one is passed over: {later}");
    }

    /// The files come in the order of their names. A provider is applied after the one that it names.
    fn a_chain_in_files_is_applied_in_its_order(kind) {
        let shell = Shell::ready_on(kind);
        let write = |name: &str, next: &str| {
            let failover = if next.is_empty() { String::new() } else { format!(r#", "failover": "{next}", "failover_after_s": 7"#) };
            let text = format!(r#"{{"driver": "capture", "channel": "sms"{failover}}}"#);
            let file = shell.path().join(format!("chain/providers/{name}.json"));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("a", "b");
        write("b", "c");
        write("c", "");
        shell.run(&["apply", "-f", "chain", "--dry-run"]).ends(0);
        shell.run(&["apply", "-f", "chain"]).ends(0);
        assert_eq!(shell.run(&["apply", "-f", "chain", "-o", "json"]).ends(0).json(), json!([]));
        shell.run(&["export", "copy"]).ends(0);
        let copied = std::fs::read_to_string(shell.path().join("copy/providers/a.json")).unwrap();
        assert!(copied.contains("\"failover\": \"b\"") && copied.contains("\"failover_after_s\": 7"), "{copied}");
        write("c", "a");
        for more in [&["--dry-run"][..], &[]] {
            let ran = shell.run(&[&["apply", "-f", "chain"], more].concat());
            assert!(ran.stderr.contains("would be a circle"), "{}", ran.stderr);
        }
    }
}
