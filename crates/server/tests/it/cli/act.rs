//! Commands that enqueue, show and act.

use serde_json::json;

use super::Shell;

#[test]
fn a3_dispatch_by_hand_one_pass_or_one_notification() {
    let shell = Shell::ready();
    let (one, later) = (shell.enqueue("a", &[]), shell.enqueue("b", &["--due-at", "2099-01-01T00:00:00Z"]));
    assert_eq!(shell.dispatch()["sent"], 1);
    let status = |id: &str| shell.run(&["notifications", "show", id, "-o", "json"]).ends(0).json()["state"].clone();
    assert_eq!((status(&one), status(&later)), ("sent".into(), "pending".into()));
    let ran = shell.run(&["dispatch", "--once", "--id", &later, "-o", "json"]).ends(0);
    assert_eq!((ran.json()["sent"].clone(), status(&later)), (1.into(), "sent".into()));
    shell.run(&["dispatch", "--once", "--id", "0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e"]).ends(3);
}

#[test]
fn a8_the_environment_configures_which_captures_fail() {
    let shell = Shell::ready().with("POSTCOMMIT_CAPTURE_FAIL_ON", "permanent=booking.cancelled,key-9");
    let (bad, key) = (shell.enqueue("booking.cancelled", &[]), shell.enqueue("fine", &["--idempotency-key", "key-9"]));
    let done = shell.dispatch();
    assert_eq!((&done["parked"], &done["again"]), (&1.into(), &1.into()));
    let code = |id: &str| {
        shell.run(&["deliveries", "show", &format!("{id}.1"), "-o", "json"]).ends(0).json()["error_code"].clone()
    };
    assert_eq!((code(&bad), code(&key)), ("capture_permanent".into(), "capture_transient".into()));
}

#[test]
fn a5_the_same_key_prints_the_same_id() {
    let shell = Shell::ready();
    let first = shell.enqueue("a", &["--idempotency-key", "k", "--payload", r#"{"a": 1, "b": 2}"#]);
    assert_eq!(shell.enqueue("a", &["--idempotency-key", "k", "--payload", r#"{"b":2,"a":1}"#]), first);
    assert_eq!(shell.enqueue("other", &["--idempotency-key", "k"]), first);
    let shown = shell.run(&["notifications", "show", &first, "-o", "json"]).ends(0).json();
    assert_eq!(shown["conflicts"].as_array().unwrap().len(), 1);
    let ran = shell.run(&["enqueue", "other", "--to", "a@example.com", "--idempotency-key", "k", "--strict"]).ends(4);
    assert!(ran.stderr.contains("\"k\"") && ran.stderr.contains(&first), "{}", ran.stderr);
}

#[test]
fn enqueue_refuses_invalid_values_with_their_field() {
    let shell = Shell::ready();
    for (arguments, expected) in [
        (vec!["a", "--to", "email:nobody"], "recipients[0].email: is not a mail address"),
        (vec!["a", "--to", "pigeon"], "--to pigeon: is not a recipient; write email:"),
        (vec!["a", "--priority", "12"], "priority: is 12; 0 to 9 are allowed"),
        (vec!["a", "--payload", "{"], "--payload: is not JSON"),
        (vec!["a", "--payload", "@nowhere.json"], "--payload: nowhere.json"),
        (vec!["a", "--due-at", "tomorrow"], "is not a time; write RFC 3339"),
        (vec!["a", "--action-url", "javascript:x"], "action_url: must be an absolute URL"),
        (vec!["--json", r#"{"event_type": "a", "titel": 1}"#], "titel"),
    ] {
        let mut all = vec!["enqueue"];
        all.extend(arguments);
        let ran = shell.run(&all).ends(2);
        assert!(ran.stderr.contains(expected) && ran.stdout.is_empty(), "{}", ran.stderr);
    }
    assert_eq!(shell.run(&["notifications", "list", "-o", "json"]).json().as_array().unwrap().len(), 0);
}

#[test]
fn a_value_that_is_no_json_names_the_option_the_place_and_the_form() {
    let shell = Shell::ready();
    let template = ["templates", "create", "t", "--event-type", "a", "--channel", "sms", "--text", "x"];
    let provider = ["providers", "create", "p", "--driver", "capture"];
    let options: [(&[&str], &[&str]); 7] = [
        (&["enqueue", "a", "--to", "user:1"], &["--payload", "--data", "--source"]),
        (&["enqueue"], &["--json"]),
        (&["users", "create", "1"], &["--data"]),
        (&["event-types", "create", "a"], &["--sample"]),
        (&["content", "update"], &["--brand"]),
        (&template, &["--data", "--throttle", "--digest"]),
        (&provider, &["--policy"]),
    ];
    std::fs::write(shell.path().join("bad.json"), "{\n  x}\n").unwrap();
    for (command, option) in options.iter().flat_map(|(command, all)| all.iter().map(move |option| (command, option))) {
        let said = |given: &str| shell.run(&[command, &[*option, given][..]].concat()).ends(2).stderr;
        let stripped = said("{guestName: Ada}");
        let begin = format!(
            "postcommit: {option}: is not JSON: line 1, column 2: key must be a string; write JSON such as '{{"
        );
        assert!(stripped.starts_with(&begin), "{stripped}");
        assert!(stripped.contains(", @FILE to read a file, or - to read stdin. The text has no \""), "{stripped}");
        assert!(stripped.contains("in cmd.exe and Windows PowerShell write \"{\\\""), "{stripped}");
        let file = said("@bad.json");
        let begin =
            format!("postcommit: {option}: bad.json: is not JSON: line 2, column 3: key must be a string; write");
        assert!(file.starts_with(&begin) && !file.contains("cmd.exe"), "{file}");
    }
    let set = shell.run(&[&provider[..], &["--set", "fail_on=[a"]].concat()).ends(2).stderr;
    assert!(set.starts_with("postcommit: --set fail_on: is not JSON: line 1, column 2: "), "{set}");
    let half = shell.run(&[&template[..], &["--throttle", r#"{"max": 3}"#]].concat()).ends(2).stderr;
    assert!(
        half.starts_with("postcommit: --throttle: line 1, column 10: missing field `per_s`; write JSON such as"),
        "{half}"
    );
    assert_eq!(shell.run(&["users", "list", "-o", "json"]).ends(0).json(), serde_json::json!([]), "nothing was made");
}

#[test]
fn enqueue_reads_a_whole_notification_from_a_file() {
    let shell = Shell::ready();
    let document = r#"{"event_type": "a", "idempotency_key": "k", "recipients": [{"phone": "+14155550100"}], "channels": ["whatsapp"], "priority": 9}"#;
    std::fs::write(shell.path().join("n.json"), document).unwrap();
    let id = shell.run(&["enqueue", "--json", "@n.json"]).ends(0).stdout.trim().to_owned();
    shell.dispatch();
    let shown = shell.run(&["deliveries", "list", "--notification-id", &id, "-o", "json"]).ends(0).json();
    assert_eq!(
        (&shown[0]["channel"], &shown[0]["target"], &shown[0]["state"]),
        (&"whatsapp".into(), &"+14…00".into(), &"sent".into())
    );
}

#[test]
fn deliveries_are_retried_discarded_and_cancelled_one_or_many() {
    let shell = Shell::ready().with("POSTCOMMIT_CAPTURE_FAIL_ON", "permanent=p");
    let parked: Vec<String> = (0..2).map(|_| format!("{}.1", shell.enqueue("p", &[]))).collect();
    let sent = format!("{}.1", shell.enqueue("fine", &[]));
    shell.dispatch();
    let list =
        shell.run(&["deliveries", "list", "--state", "parked", "--reason", "rejected", "-o", "json"]).ends(0).json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    let ran = shell.run(&["deliveries", "retry", &parked[0], &sent, "-o", "jsonl"]).ends(7);
    assert!(
        ran.stdout.contains(r#""result":"done","state":"pending""#)
            && ran.stdout.contains(r#""result":"refused","state":"sent""#)
            && ran.stderr.contains("is sent: only parked deliveries can be retried"),
        "{}",
        ran.stdout
    );
    shell.run(&["deliveries", "discard", &parked[1]]).ends(0);
    shell.run(&["deliveries", "discard", &sent]).ends(4);
    shell.run(&["deliveries", "retry", &parked[1]]).ends(4);
    shell.run(&["deliveries", "cancel", &parked[0]]).ends(0);
    shell.run(&["deliveries", "show", "0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e.1"]).ends(3);
    shell.run(&["deliveries", "retry", "nonsense"]).ends(2);
    let states = |id: &str| shell.run(&["deliveries", "show", id, "-o", "json"]).ends(0).json()["state"].clone();
    assert_eq!([states(&parked[0]), states(&parked[1]), states(&sent)], ["cancelled", "discarded", "sent"]);
}

#[test]
fn tail_prints_every_attempt_with_its_delivery() {
    let shell = Shell::ready().with("POSTCOMMIT_CAPTURE_FAIL_ON", "transient=t");
    let (good, bad) = (shell.enqueue("a", &[]), shell.enqueue("t", &[]));
    shell.dispatch();
    let ran = shell.run(&["deliveries", "tail", "--since", "600", "--no-follow"]).ends(0);
    assert!(
        ran.stdout.contains(&format!("{good}.1"))
            && ran.stdout.contains(&format!("{bad}.1"))
            && ran.stdout.contains("capture_transient"),
        "{}",
        ran.stdout
    );
}

#[test]
fn tail_prints_all_attempts_also_when_they_are_more_than_one_query_reads() {
    let shell = Shell::ready();
    let sql = "WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < 2500)
        INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, recipients)
        SELECT 'a', '{}', 'k' || n, '[{\"email\": \"ada@example.com\"}]' FROM i";
    let file = shell.path().join("postcommit-data/postcommit.db");
    rusqlite::Connection::open(file).unwrap().execute_batch(&format!("BEGIN; {sql}; COMMIT")).unwrap();
    shell.dispatch();
    let tail = shell.run(&["deliveries", "tail", "--since", "600", "--no-follow", "-o", "jsonl"]).ends(0).stdout;
    let ids: std::collections::HashSet<&str> = tail.lines().collect();
    assert_eq!((tail.lines().count(), ids.len()), (2500, 2500));
}

#[test]
fn tail_prints_only_attempts_of_deliveries_that_match() {
    let shell = Shell::ready().with("POSTCOMMIT_CAPTURE_FAIL_ON", "transient=t,permanent=p");
    let (good, bad, gone) = (
        shell.enqueue("a", &["--entity", "b-1"]),
        shell.enqueue("t", &["--tenant", "default"]),
        shell.enqueue("p", &[]),
    );
    shell.dispatch();
    for (filter, expected) in [
        (vec![], vec![&good, &bad, &gone]),
        (vec!["--event-type", "t"], vec![&bad]),
        (vec!["--entity", "b-1", "--channel", "email"], vec![&good]),
        (vec!["--state", "sent,parked"], vec![&good, &gone]),
        (vec!["--notification-id", &gone], vec![&gone]),
        (vec!["--error-code", "capture_transient", "--provider", "capture"], vec![&bad]),
        (vec!["--provider", "other"], vec![]),
    ] {
        let tail = ["deliveries", "tail", "--since", "600", "--no-follow"];
        let printed = shell.run(&[&tail[..], &filter].concat()).ends(0).stdout;
        let found: Vec<_> = [&good, &bad, &gone].into_iter().filter(|id| printed.contains(id.as_str())).collect();
        assert_eq!(found, expected, "{filter:?}: {printed}");
    }
    shell.run(&["deliveries", "tail", "--no-follow", "--tenant", "nobody"]).ends(3);
}

#[test]
fn show_takes_the_id_of_a_notification_or_of_a_delivery() {
    let shell = Shell::ready();
    let note = shell.enqueue("a", &[]);
    shell.dispatch();
    let delivery = format!("{note}.1");
    for noun in ["notifications", "deliveries"] {
        let show = |id: &str| shell.run(&[noun, "show", id, "-o", "json"]);
        let (told, row) = (show(&note).ends(0).json(), show(&delivery).ends(0).json());
        assert_eq!((&told["id"], &told["deliveries"][0]["id"]), (&json!(note), &json!(delivery)));
        assert_eq!((&row["id"], &row["attempt_log"][0]["delivery_id"]), (&json!(delivery), &json!(delivery)));
        assert!(show(&format!("{note}.7")).ends(3).stderr.contains("there is no delivery"));
        assert!(show("0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e").ends(3).stderr.contains("there is no notification"));
        show("nonsense").ends(2);
    }
}

#[test]
fn lists_take_several_states() {
    let shell = Shell::ready().with("POSTCOMMIT_CAPTURE_FAIL_ON", "transient=t,permanent=p");
    for event_type in ["a", "t", "p"] {
        shell.enqueue(event_type, &[]);
    }
    shell.dispatch();
    for noun in ["notifications", "deliveries"] {
        let states = |more: &[&str]| -> Vec<String> {
            let listed = shell.run(&[&[noun, "list", "-o", "json"], more].concat()).ends(0).json();
            listed.as_array().unwrap().iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(states(&["--state", "sent,parked"]), ["parked", "sent"], "{noun}");
        assert_eq!(states(&["--state", "sent", "--state", "retrying"]), ["retrying", "sent"], "{noun}");
        assert!(shell.run(&[noun, "list", "--state", "sent,done"]).ends(2).stderr.contains("done"));
    }
}

#[test]
fn a_provider_is_created_shown_changed_and_deleted() {
    let shell = Shell::ready();
    let ran = shell
        .run(&[
            "providers",
            "create",
            "hooks",
            "--driver",
            "webhook",
            "--policy",
            "marketplace",
            "--guarantee",
            "at_most_once",
        ])
        .ends(0);
    let secret = ran.stderr.lines().find_map(|line| line.trim().strip_prefix("whsec_")).unwrap().to_owned();
    let shown = shell.run(&["providers", "show", "hooks", "-o", "json"]).ends(0);
    assert!(!shown.stdout.contains(&secret), "a secret is shown once");
    let json = shown.json();
    assert_eq!(
        (&json["guarantee"], &json["policy"]["name"], &json["is_default"], &json["secrets"]),
        (&"at_most_once".into(), &"marketplace".into(), &true.into(), &true.into())
    );
    let data = std::fs::read(shell.path().join("postcommit-data/postcommit.db")).unwrap();
    let wal = std::fs::read(shell.path().join("postcommit-data/postcommit.db-wal")).unwrap_or_default();
    assert!(
        ![data, wal].concat().windows(secret.len()).any(|w| w == secret.as_bytes()),
        "and is not readable in the file"
    );
    shell.run(&["providers", "update", "hooks", "--set", "on_auth_error=park", "--concurrency", "3"]).ends(0);
    let json = shell.run(&["providers", "show", "hooks", "-o", "json"]).ends(0).json();
    assert_eq!(
        (&json["settings"]["on_auth_error"], &json["concurrency"], &json["policy"]["name"]),
        (&"park".into(), &3.into(), &"marketplace".into())
    );
    shell.run(&["providers", "pause", "hooks"]).ends(0);
    assert!(shell.run(&["providers", "list"]).ends(0).stdout.contains("paused: by hand"));
    assert!(shell.run(&["providers", "resume", "hooks"]).ends(0).stdout.contains("hooks resumed"));
    let open = shell.run(&["providers", "show", "hooks", "-o", "json"]).ends(0).json();
    assert!(shell.run(&["providers", "resume", "hooks"]).ends(0).stdout.contains("hooks was neither paused nor held"));
    assert_eq!(
        shell.run(&["providers", "show", "hooks", "-o", "json"]).ends(0).json(),
        open,
        "what is open stays as it is"
    );
    assert!(
        shell
            .run(&["providers", "show", "hooks"])
            .ends(0)
            .stdout
            .starts_with("hooks  open\n  tenant       default\n  channel      webhook\n")
    );
    let asked = shell.run(&["providers", "delete", "hooks"]).ends(4).stderr;
    assert!(
        asked.contains(
            "the channel webhook is then served by capture, which only records messages and sends nothing: nothing was done; add --yes to confirm"
        ),
        "{asked}"
    );
    let gone = shell.run(&["providers", "delete", "hooks", "--yes"]).ends(0).stderr;
    assert!(
        gone.contains("the channel webhook is then served by capture, which only records messages and sends nothing"),
        "{gone}"
    );
    let last = shell.run(&["providers", "delete", "capture", "--yes"]).ends(0).stderr;
    assert!(last.contains("then have no provider: their deliveries are parked"), "{last}");
    shell.run(&["providers", "show", "hooks"]).ends(3);
}

#[test]
fn the_public_key_of_web_push_is_shown_at_any_time() {
    let shell = Shell::ready();
    let create =
        ["providers", "create", "browsers", "--driver", "web_push", "--set", "subject=mailto:desk@hotel.example"];
    let ran = shell.run(&create).ends(0);
    assert!(ran.stderr.contains("browsers subscribe with this public key"), "{}", ran.stderr);
    let public = ran.stderr.lines().map(str::trim).find(|line| line.len() == 87).unwrap().to_owned();
    assert!(shell.run(&["providers", "show", "browsers"]).ends(0).stdout.contains(&public));
    let json = shell.run(&["providers", "show", "browsers", "-o", "json"]).ends(0).json();
    assert_eq!((&json["settings"]["public_key"], &json["secrets"]), (&public.as_str().into(), &true.into()));
    let more =
        ["providers", "create", "more", "--driver", "web_push", "--set", "subject=https://hotel.example", "-o", "json"];
    let json = shell.run(&more).ends(0).json();
    assert!(json["public_key"].as_str().is_some_and(|key| key.len() == 87 && key != public), "{json}");
    assert!(json["secret"].is_null(), "{json}");
}

#[test]
fn b12_a_provider_s_rate_is_set_shown_and_taken_off() {
    let shell = Shell::ready();
    let rate = || {
        let json = shell.run(&["providers", "show", "calls", "-o", "json"]).ends(0).json();
        (json["rate_per_s"].clone(), json["burst"].clone())
    };
    shell
        .run(&["providers", "create", "calls", "--driver", "capture", "--channel", "sms", "--rate-per-s", "2.5"])
        .ends(0);
    assert_eq!(rate(), (json!(2.5), json!(2)), "what fits one second");
    shell.run(&["providers", "update", "calls", "--burst", "7"]).ends(0);
    assert_eq!(rate(), (json!(2.5), json!(7)));
    shell.run(&["providers", "update", "calls", "--rate-per-s", "0.5", "--concurrency", "3"]).ends(0);
    assert_eq!(rate(), (json!(0.5), json!(7)), "what is not given stays");
    assert!(shell.run(&["providers", "list"]).ends(0).stdout.contains("0.5/s, burst 7"));
    shell.run(&["providers", "update", "calls", "--no-rate"]).ends(0);
    assert_eq!(rate(), (json!(null), json!(null)));
    assert!(!shell.run(&["providers", "list"]).ends(0).stdout.contains("/s"));
}

#[test]
fn a_provider_that_cannot_work_is_refused_by_field() {
    let shell = Shell::ready();
    for (arguments, expected) in [
        (vec!["--driver", "pigeon"], "driver: \"pigeon\" is not known; allowed are brevo, capture, "),
        (vec!["--driver", "webhook", "--set", "ulr=https://x"], "settings.ulr: unknown field `ulr`"),
        (vec!["--driver", "webhook", "--set", "url=ftp://x"], "settings.url: must be a full http or https URL"),
        (vec!["--driver", "webhook", "--secret", "secret=hush"], "secret: must be whsec_"),
        (
            vec!["--driver", "webhook", "--set", r#"headers={"webhook-id": "x"}"#],
            "settings.headers.webhook-id: is set by postcommit",
        ),
        (vec!["--driver", "capture", "--policy", "never"], "policy"),
        (vec!["--driver", "capture", "--guarantee", "maybe"], "allowed are idempotent, at_most_once, at_least_once"),
        (vec!["--driver", "capture", "--concurrency", "0"], "concurrency: is 0; 1 to 1000 are allowed"),
        (vec!["--driver", "capture", "--rate-per-s", "0"], "rate_per_s: is 0; 0.001 to 10000 are allowed"),
        (vec!["--driver", "capture", "--rate-per-s", "NaN"], "rate_per_s: is NaN; 0.001 to 10000 are allowed"),
        (vec!["--driver", "capture", "--rate-per-s", "often"], "--rate-per-s"),
        (vec!["--driver", "capture", "--rate-per-s", "1", "--burst", "0"], "burst: is 0; 1 to 10000 are allowed"),
        (vec!["--driver", "capture", "--burst", "5"], "burst: is 5, but rate_per_s is not set"),
        (vec!["--driver", "capture", "--no-rate", "--burst", "5"], "--no-rate"),
        (vec!["--driver", "capture", "--timeout-ms", "1"], "timeout_ms: is 1; 100 to 300000 are allowed"),
    ] {
        let mut all = vec!["providers", "create", "p"];
        all.extend(arguments);
        let ran = shell.run(&all).ends(2);
        assert!(ran.stderr.contains(expected) && !ran.stderr.contains("hush"), "{}", ran.stderr);
    }
    shell.run(&["providers", "create", "capture", "--driver", "capture"]).ends(4);
    shell.run(&["providers", "create", "a b", "--driver", "capture"]).ends(2);
}

#[test]
fn data_goes_to_stdout_and_messages_to_stderr() {
    let shell = Shell::ready();
    shell.enqueue("a", &[]);
    for format in ["json", "jsonl"] {
        let ran = shell.run(&["notifications", "list", "-o", format]).ends(0);
        assert!(ran.stdout.lines().count() > 0 && ran.stderr.is_empty());
        assert!(serde_json::Deserializer::from_str(&ran.stdout).into_iter::<serde_json::Value>().all(|v| v.is_ok()));
    }
    assert!(shell.run(&["notifications", "list", "--limit", "1"]).ends(0).stderr.is_empty(), "there is no more");
    shell.enqueue("b", &[]);
    let ran = shell.run(&["notifications", "list", "--limit", "1"]).ends(0);
    assert!(
        ran.stdout.starts_with("ID ") && ran.stderr.starts_with("there are more rows: add --before "),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
    shell.run(&["notifications", "list", "--limit", "0"]).ends(2);
}

#[test]
fn a_process_without_the_secrets_key_does_not_serve_the_lane_and_makes_no_new_key() {
    let shell = Shell::ready();
    shell.run(&["providers", "create", "hooks", "--driver", "webhook"]).ends(0);
    let id = shell.run(&["enqueue", "a", "--to", "webhook:https://example.com/"]).ends(0).stdout.trim().to_owned();
    let file = shell.path().join("postcommit-data/secret.key");
    std::fs::remove_file(&file).unwrap();
    let done = shell.dispatch();
    assert_eq!((&done["sent"], &done["parked"]), (&0.into(), &0.into()));
    let ran = shell.run(&["doctor"]).ends(1);
    assert!(ran.stdout.contains(&format!("{}: No such file", file.display())), "{}", ran.stdout);
    assert!(!file.exists(), "a new key would open nothing");
    assert_eq!(shell.run(&["notifications", "show", &id, "-o", "json"]).ends(0).json()["state"], "pending");
    assert!(shell.run(&["providers", "show", "hooks", "-o", "json"]).json()["paused"].is_null());
}

#[test]
fn a_tenant_is_prepared_by_its_first_provider() {
    let shell = Shell::ready();
    shell.run(&["providers", "create", "capture", "--driver", "capture", "--tenant", "acme"]).ends(0);
    let id = shell.enqueue("a", &["--tenant", "acme"]);
    shell.dispatch();
    let shown = shell.run(&["notifications", "show", &id, "-o", "json"]).ends(0).json();
    assert_eq!(
        (&shown["state"], &shown["tenant"], &shown["recipients"][0]["email"]),
        (&"sent".into(), &"acme".into(), &"g…@example.com".into())
    );
    assert_eq!(shell.run(&["providers", "list", "-o", "json"]).json()[1]["tenant"], "acme");
}

#[test]
fn after_a_lost_secrets_key_new_secrets_repair_the_provider() {
    let shell = Shell::ready();
    shell.run(&["providers", "create", "hooks", "--driver", "webhook"]).ends(0);
    std::fs::remove_file(shell.path().join("postcommit-data/secret.key")).unwrap();
    assert!(shell.run(&["providers", "update", "hooks", "--concurrency", "2"]).ends(4).stderr.contains("secret.key"));
    let anew = ["providers", "update", "hooks", "--secret", "secret=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"];
    assert!(shell.run(&anew).ends(4).stderr.contains("--new-secrets-key"), "the key may only be somewhere else");
    shell.run(&[&anew[..], &["--new-secrets-key"]].concat()).ends(0);
    shell.run(&["doctor"]).ends(0);
}
