//! D1, D2, D5: providers over the API.

use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};

use super::app::{App, items, refused, text};

fn by(provider: &str, address: &str) -> Value {
    json!({"event_type": "a", "recipients": [{"email": "guest@example.com"}, {"provider": provider, "address": address}]})
}

/// Runs `act` for each item on a thread of its own, concurrently. Returns the results in order.
fn concurrently<T: Send, A: Send>(all: impl IntoIterator<Item = T>, act: impl Fn(T) -> A + Sync) -> Vec<A> {
    let act = &act;
    std::thread::scope(|scope| {
        let begun: Vec<_> = all.into_iter().map(|one| scope.spawn(move || act(one))).collect();
        begun.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// A number in the form that both databases return.
fn float(value: &Value) -> Value {
    value.as_f64().map_or_else(|| value.clone(), Value::from)
}

on_both! {
    fn d1_an_unknown_or_disabled_provider_is_refused_when_enqueueing(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue", "edit"]);
        app.create_capture("default", "desk", "nothing");
        let enqueue = |provider: &str| client.post("/v1/notifications", &by(provider, "x"));
        let problem = refused(enqueue("nobody"), 422, Some("recipients[1].provider"));
        assert!(text(&problem, "detail").contains("\"nobody\" is not configured"), "{problem}");
        let _ = enqueue("desk").expect(202);
        let enable = |enabled: bool| client.send("PATCH", "/v1/providers/desk", Some(json!({"enabled": enabled}).to_string().as_bytes())).expect(200).json();
        assert_eq!(enable(false)["enabled"], false);
        let problem = refused(enqueue("desk"), 422, Some("recipients[1].provider"));
        assert!(text(&problem, "detail").contains("\"desk\" is disabled"), "{problem}");
        assert_eq!(enable(true)["enabled"], true);
        let _ = enqueue("desk").expect(202);
        // A provider of another tenant is unknown.
        app.create_tenant("north");
        refused(app.client("north", &["enqueue"]).post("/v1/notifications", &by("desk", "x")), 422, Some("recipients[1].provider"));
    }

    fn d7_a_message_for_home_assistant_without_a_service_is_refused_when_enqueueing(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue", "edit"]);
        let house = json!({"name": "house", "driver": "home_assistant", "settings": {"base_url": "https://ha.example"}, "secrets": {"token": "tok_12345678"}});
        let _ = client.post("/v1/providers", &house).expect(201);
        let alarm = |data: Value| {
            let mut note = json!({"event_type": "alarm.raised", "payload": {}, "title": "Window open", "recipients": [{"provider": "house", "address": "all"}]});
            if !data.is_null() {
                note["data"] = data;
            }
            client.post("/v1/notifications", &note)
        };
        for data in [json!(null), json!({}), json!({"home_assistant": {}}), json!({"home_assistant": {"service": null}}), json!({"home_assistant": {"service": ""}})] {
            let problem = refused(alarm(data.clone()), 422, Some("data.home_assistant.service"));
            assert!(["is missing: notify.NAME", "is empty"].iter().any(|words| text(&problem, "detail").contains(words)), "{data}: {problem}");
        }
        refused(alarm(json!({"home_assistant": {"service": 5}})), 422, Some("data.home_assistant.service"));
        let _ = alarm(json!({"home_assistant": {"service": "notify.mobile_app_pixel"}})).expect(202);
        let _ = alarm(json!({"home_assistant": {"service": "persistent_notification"}})).expect(202);
        // The channel of the provider is checked like its name.
        let by_channel = json!({"event_type": "alarm.raised", "payload": {}, "title": "Window open", "recipients": [{"user": "u1"}], "channels": ["home_assistant"]});
        refused(client.post("/v1/notifications", &by_channel), 422, Some("data.home_assistant.service"));
        let of_batch = client.post("/v1/notifications/batch", &json!({"notifications": [by_channel]}));
        assert!(of_batch.text().contains("data.home_assistant.service"), "{}", of_batch.text());
        // An event gets its data from a template, so it is not checked here.
        let event = json!({"event_type": "alarm.raised", "payload": {}, "recipients": [{"provider": "house", "address": "all"}]});
        let _ = client.post("/v1/notifications", &event).expect(202);
        // With a service in the settings none needs to be named.
        let _ = client.send("PATCH", "/v1/providers/house", Some(br#"{"settings": {"service": "notify.family"}}"#)).expect(200);
        let _ = alarm(json!(null)).expect(202);
    }

    fn a_changed_destination_needs_the_secrets_again(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let pushes = json!({"name": "pushes", "driver": "ntfy", "secrets": {"token": "tk_12345678"}});
        let _ = client.post("/v1/providers", &pushes).expect(201);
        let mail = json!({"name": "mail", "driver": "smtp", "settings": {"host": "a.example", "from": "a@a.example", "username": "a"}, "secrets": {"password": "hush1234"}});
        let _ = client.post("/v1/providers", &mail).expect(201);
        let change = |name: &str, change: Value| client.send("PATCH", &format!("/v1/providers/{name}"), Some(change.to_string().as_bytes()));
        let elsewhere = json!({"base_url": "https://evil.example"});
        refused(change("pushes", json!({"settings": elsewhere})), 422, Some("settings.base_url"));
        refused(change("mail", json!({"settings": {"host": "evil.example"}})), 422, Some("settings.host"));
        let _ = change("mail", json!({"settings": {"reply_to": "b@a.example", "host": "a.example"}})).expect(200);
        let _ = change("pushes", json!({"settings": elsewhere, "secrets": {"token": "tk_87654321"}})).expect(200);
    }

    fn c6_a_template_for_msg91_without_its_dlt_ids_is_refused(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let texts = json!({"name": "texts", "driver": "msg91", "secrets": {"authkey": "key_12345678"}, "is_default": true});
        let _ = client.post("/v1/providers", &texts).expect(201);
        let template = |data: Value| client.post("/v1/templates", &json!({"id": "booked", "event_type": "booking.confirmed", "channel": "sms", "text": "Booked", "data": data}));
        let (id, dlt, entity) = ("5f1b1c1e1c1e1c1e1c1e1c1e", "1107160000000000001", "1101160000000000002");
        let problem = refused(template(json!({"template_id": id, "entity_id": entity})), 422, Some("data.dlt_template_id"));
        assert!(text(&problem, "detail").contains("is missing: the id of the template at the operators"), "{problem}");
        refused(template(json!({"template_id": id, "dlt_template_id": dlt})), 422, Some("data.entity_id"));
        refused(template(json!({"template_id": id, "dlt_template_id": 5, "entity_id": entity})), 422, Some("data.dlt_template_id"));
        refused(client.post("/v1/templates", &json!({"id": "booked", "event_type": "booking.confirmed", "channel": "sms", "text": "Booked"})), 422, Some("data.dlt_template_id"));
        let whole = json!({"template_id": id, "dlt_template_id": "{{ brand.dlt }}", "entity_id": entity, "variables": {"NAME": "{{ guestName }}"}});
        let saved = template(whole.clone()).expect(201).json();
        assert!(!saved["warnings"].to_string().contains("does not know the field"), "{saved}");
        // A misspelt field would not be sent.
        let mut misspelt = whole.clone();
        misspelt["varables"] = json!({"NAME": "x"});
        let change = json!({"data": misspelt}).to_string();
        let saved = client.send("PATCH", "/v1/templates/booked", Some(change.as_bytes())).expect(200).json();
        let said = "provider \"texts\" does not know the field \"varables\" and will not send it";
        assert!(saved["warnings"].as_array().unwrap().iter().any(|warning| warning["message"] == said), "{saved}");
        let mut without = whole;
        without.as_object_mut().unwrap().remove("entity_id");
        let change = json!({"data": without}).to_string();
        refused(client.send("PATCH", "/v1/templates/booked", Some(change.as_bytes())), 422, Some("data.entity_id"));
        // Other channels have other providers.
        let _ = client.post("/v1/templates", &json!({"id": "mailed", "event_type": "booking.confirmed", "channel": "email", "text": "Booked"})).expect(201);
    }

    fn c6_a_template_is_checked_against_every_provider_that_could_take_it(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let secrets = |name: &str| json!({name: "key_12345678"});
        let indian = json!({"name": "indian", "driver": "msg91", "secrets": secrets("authkey"), "is_default": false});
        let _ = client.post("/v1/providers", &indian).expect(201);
        let world = json!({"name": "world", "driver": "twilio", "secrets": secrets("auth_token"), "settings": {"account_sid": "AC1", "from": "+15550001111"}, "is_default": true});
        let _ = client.post("/v1/providers", &world).expect(201);
        let whole = json!({"template_id": "5f1b", "dlt_template_id": "1107", "entity_id": "1101", "varables": {}});
        let template = |id: &str, data: Value| client.post("/v1/templates", &json!({"id": id, "event_type": format!("booking.{id}"), "channel": "sms", "text": "Booked", "data": data}));
        let messages = |saved: Value| saved["warnings"].as_array().unwrap().iter().map(|warning| text(warning, "message")).collect::<Vec<_>>();

        // Only deliveries that name it go to the other provider.
        let told = messages(template("one", json!({})).expect(201).json());
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("deliveries that name provider \"indian\" will be parked, because data.dlt_template_id: is missing"), "{told:?}");

        let _ = client.send("PATCH", "/v1/providers/world", Some(br#"{"failover": "indian"}"#)).expect(200);
        let problem = refused(template("two", json!({})), 422, Some("data.dlt_template_id"));
        assert!(text(&problem, "detail").ends_with("provider \"indian\" needs it, which may take over by failover"), "{problem}");
        // A field that a provider of the chain knows is sent by that provider.
        let told = messages(template("two", whole).expect(201).json());
        assert_eq!(told, ["provider \"world\" does not know the field \"varables\" and will not send it"]);
        let _ = client.send("PATCH", "/v1/providers/indian", Some(br#"{"enabled": false}"#)).expect(200);
        assert_eq!(messages(template("three", json!({})).expect(201).json()), Vec::<String>::new(), "a disabled provider takes nothing");
    }

    fn d1_of_concurrent_creations_of_the_same_provider_one_succeeds(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let make = || client.post("/v1/providers", &json!({"name": "desk", "driver": "capture"})).status;
        let mut answers: Vec<u16> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        answers.sort_unstable();
        assert_eq!(answers, [[201].as_slice(), &[409; 7]].concat());
    }

    fn d1_of_concurrent_changes_of_one_provider_none_is_lost(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let fields = |round: u32| [
            json!({"concurrency": 100 + round}), json!({"timeout_ms": 2000 + round}), json!({"rate_per_s": 10 + round}), json!({"channel": format!("c{round}")}),
            json!({"guarantee": if round % 2 == 1 { "at_least_once" } else { "at_most_once" }}), json!({"policy": {"name": "fixed", "interval_s": 10 + round}}),
            json!({"settings": {"key_window_s": 1000 + round}}), json!({"settings": {"headers": {"x-round": round.to_string()}}}),
            json!({"enabled": round % 2 == 1}), json!({"secrets": {"secret": format!("whsec_{}", "QUJD".repeat(10 + round as usize))}}),
        ];
        for round in 0..5 {
            concurrently(fields(round), |change| client.send("PATCH", "/v1/providers/hooks", Some(change.to_string().as_bytes())).expect(200));
        }
        let seen = client.get("/v1/providers/hooks").expect(200).json();
        for change in fields(4) {
            for (field, value) in change.as_object().unwrap() {
                match field.as_str() {
                    "secrets" => assert_eq!(seen["secrets"], true),
                    "settings" | "policy" => value.as_object().unwrap().iter().for_each(|(name, value)| assert_eq!(float(&seen[field][name]), float(value), "{seen}")),
                    _ => assert_eq!(float(&seen[field]), float(value), "{field}: {seen}"),
                }
            }
        }
        let entries = items(app.ops().get("/v1/audit?action=provider.update&limit=200"));
        assert_eq!(seen["revision"].as_u64(), Some(1 + entries.len() as u64));
        assert_eq!(entries.len(), 50);
    }

    fn d1_concurrent_changes_on_the_command_line_keep_each_other(kind) {
        let app = App::at_rest(kind);
        let update = |given: [&'static str; 2]| app.installation.run(&["providers", "update", "hooks", given[0], given[1]]);
        concurrently([["--concurrency", "7"], ["--timeout-ms", "777"], ["--rate-per-s", "17"], ["--policy", "marketplace"]], update);
        let seen = app.ops().get("/v1/providers/hooks").expect(200).json();
        assert_eq!((&seen["concurrency"], &seen["timeout_ms"], &seen["rate_per_s"], &seen["policy"]["name"]), (&json!(7), &json!(777), &json!(17.0), &json!("marketplace")));
        assert_eq!(update(["--concurrency", "7"]), "provider hooks already has these values\n");
    }

    fn d1_a_change_may_require_a_revision(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let change = |change: &Value| client.send("PATCH", "/v1/providers/hooks", Some(change.to_string().as_bytes()));
        let answers: Vec<u16> = concurrently(10..20, |n| change(&json!({"revision": 1, "concurrency": n})).status);
        assert_eq!((answers.iter().filter(|status| **status == 200).count(), answers.iter().filter(|status| **status == 409).count()), (1, 9), "{answers:?}");
        let problem = refused(change(&json!({"revision": 1, "concurrency": 5})), 409, Some("revision"));
        assert!(text(&problem, "detail").contains("has revision 2, not 1"), "{problem}");
        assert_eq!(change(&json!({"revision": 2, "concurrency": 5})).expect(200).json()["revision"], 3);
    }

    fn d1_of_concurrent_new_defaults_the_last_one_remains(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let draft = |name: &str, is_default: Value| json!({"name": name, "driver": "capture", "channel": "sms", "is_default": is_default});
        let defaults = || {
            let all = items(client.get("/v1/providers"));
            all.iter().filter(|one| one["channel"] == "sms" && one["is_default"] == true).map(|one| text(one, "name")).collect::<Vec<_>>()
        };
        // A provider that does not ask to be the default becomes it only where there is none.
        concurrently(0..20, |n| client.post("/v1/providers", &draft(&format!("p{n}"), Value::Null)).expect(201));
        let first = defaults();
        assert_eq!(first.len(), 1);
        let told = items(app.ops().get("/v1/audit?action=provider.create&limit=200"));
        let told: Vec<_> = told.iter().filter(|entry| entry["details"]["channel"] == "sms" && entry["details"]["is_default"] == true).map(|entry| text(entry, "subject")).collect();
        assert_eq!(told, first);
        concurrently(0..50, |n| match n {
            0..20 => client.send("PATCH", &format!("/v1/providers/p{n}"), Some(br#"{"is_default": true}"#)).expect(200),
            _ => client.post("/v1/providers", &draft(&format!("p{n}"), json!(true))).expect(201),
        });
        assert_eq!(defaults().len(), 1);
        concurrently(0..20, |n| client.send("PATCH", "/v1/providers/p0", Some(json!({"is_default": n % 2 == 0}).to_string().as_bytes())).expect(200));
        assert!(defaults().len() <= 1);
    }

    fn d1_a_tenant_has_200_providers_at_most(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let make = |n: usize| client.post("/v1/providers", &json!({"name": format!("p{n}"), "driver": "capture"}));
        // One provider exists already.
        let refusals: Vec<_> = (0..21).flat_map(|some| concurrently(some * 10..some * 10 + 10, make)).filter(|answer| answer.status != 201).collect();
        assert_eq!(refusals.len(), 210 - 199);
        for refusal in refusals {
            assert!(text(&refused(refusal, 409, Some("name")), "detail").contains("200 providers, which is the limit"));
        }
        let _ = client.send("DELETE", "/v1/providers/p0", None).expect(204);
        let _ = make(1000).expect(201);
    }

    fn d1_the_log_says_what_changed_and_no_secret(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let change = |change: Value| client.send("PATCH", "/v1/providers/hooks", Some(change.to_string().as_bytes())).expect(200).json();
        let secret = format!("whsec_{}", "QUJD".repeat(8));
        let settings = json!({"url": "https://example.com/hush-hush", "headers": {"authorization": "hush-hush"}});
        let before = change(json!({"concurrency": 7, "rate_per_s": 2.5, "enabled": false, "settings": settings, "secrets": {"secret": secret}}));
        let newest = || app.ops().get("/v1/audit?action=provider.update").expect(200);
        assert!(!newest().text().contains("hush-hush") && !newest().text().contains("whsec_"), "{}", newest().text());
        let entry = items(newest()).remove(0);
        assert_eq!(entry["details"], json!({
            "concurrency": {"from": 32, "to": 7}, "rate_per_s": {"from": null, "to": 2.5}, "enabled": {"from": true, "to": false}, "settings": ["headers", "url"], "secrets": ["secret"],
        }));
        // A change to the current values is no change: no new revision, no entry.
        for same in [json!({}), json!({"concurrency": 7, "enabled": false}), json!({"settings": settings}), json!({"secrets": {"secret": secret}})] {
            assert_eq!(change(same.clone())["revision"], before["revision"], "{same}");
        }
        assert_eq!(items(newest()).len(), 1);
        change(json!({"settings": {"url": null}}));
        assert_eq!(items(newest())[0]["details"], json!({"settings": ["url"]}));
    }

    fn d5_a_driver_that_panics_or_hangs_is_an_outcome_of_the_trial(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit", "operate"]);
        for (name, mode, outcome, code) in [("bad", "panic", "rejected", "panic"), ("slow", "hang", "unclear", "timeout")] {
            let draft = json!({"name": name, "driver": "capture", "timeout_ms": 100, "settings": {"fail_on": format!("{mode}=postcommit.test")}});
            let _ = client.post("/v1/providers", &draft).expect(201);
            let tried = client.post(&format!("/v1/providers/{name}/test"), &json!({"address": "guest@example.com"})).expect(200).json();
            assert_eq!((&tried["outcome"], &tried["code"]), (&json!(outcome), &json!(code)), "{tried}");
            assert!(!text(&tried, "detail").is_empty());
        }
        // What the provider records is shown in the trial's answer, not in the log.
        let _ = client.post("/v1/providers", &json!({"name": "good", "driver": "capture"})).expect(201);
        let tried = client.post("/v1/providers/good/test", &json!({"address": "guest@example.com"})).expect(200).json();
        assert!(text(&tried, "excerpt").contains("guest@example.com"), "{tried}");
        let log = app.ops().get("/v1/audit?action=provider.test").expect(200);
        assert_eq!(items(log.clone()).iter().map(|entry| text(&entry["details"], "outcome")).collect::<Vec<_>>(), ["sent", "unclear", "rejected"]);
        assert!(items(log.clone()).iter().all(|entry| entry["details"]["address"] == "g…@example.com") && !log.text().contains("guest@"), "{}", log.text());
    }

    fn d1_providers_are_described_changed_and_removed_and_keep_their_secrets(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit", "operate"]);
        let secret = format!("whsec_{}", "QUJD".repeat(8));
        let draft = json!({"name": "partner", "driver": "webhook", "settings": {"url": "https://example.com/in"}, "secrets": {"secret": secret}});
        let made = client.post("/v1/providers", &draft).expect(201);
        assert!(!made.text().contains(&secret) && made.json()["secrets"] == true, "{}", made.text());
        assert_eq!(refused(client.post("/v1/providers", &draft), 409, Some("name"))["type"], "urn:postcommit:problem:state-conflict");
        for (change, field) in [
            (json!({"driver": "pigeon"}), "driver"),
            (json!({"name": "a b"}), "name"),
            (json!({"timeout_ms": 1}), "timeout_ms"),
            (json!({"settings": {"url": "http://169.254.169.254/"}}), "settings.url"),
            (json!({"guarantee": "maybe"}), "guarantee"),
            (json!({"concurrency": "many"}), "concurrency"),
            (json!({"settings": 7}), "settings"),
            (json!({"settings": {"url": "example.com/in"}}), "settings.url"),
            (json!({"settings": {"headers": {"Host": "other"}}}), "settings.headers.Host"),
            (json!({"settings": {"ulr": "https://example.com"}}), "settings.ulr"),
            (json!({"driver": "capture", "settings": {"slow_ms": "abc"}}), "settings.slow_ms"),
            (json!({"policy": "fast"}), "policy"),
            (json!({"policy": {"name": "fast"}}), "policy.name"),
            (json!({"revision": 1}), "revision"),
            (json!({"driver": "capture", "settings": {"slow_ms": 300_001}}), "settings.slow_ms"),
            (json!({"driver": "capture", "settings": {"key_window_s": 0}}), "settings.key_window_s"),
            (json!({"driver": "capture", "settings": {"journal": "/tmp/any"}}), "settings.journal"),
            (json!({"settings": {"headers": {"x": "y".repeat(70_000)}}}), "settings"),
        ] {
            let mut other = json!({"name": "other", "driver": "webhook"});
            other.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            let problem = refused(client.post("/v1/providers", &other), 422, Some(field));
            let detail = text(&problem, "detail");
            assert!(!["u64", "relative URL", " column "].iter().any(|words| detail.contains(words)), "a library's words: {detail}");
        }
        refused(client.send("PATCH", "/v1/providers/partner", Some(br#"{"settings": {"journal": "/tmp/any"}}"#)), 422, Some("settings.journal"));
        // A webhook without a secret gets a generated one, which is shown once.
        let made = client.post("/v1/providers", &json!({"name": "own", "driver": "webhook"})).expect(201).json();
        assert!(text(&made, "signing_secret").starts_with("whsec_"), "{made}");
        // A provider for browsers gets a pair of keys. The public one is a setting, and the private one is never shown.
        let browsers = json!({"name": "browsers", "driver": "web_push", "settings": {"subject": "mailto:desk@hotel.example"}});
        let made = client.post("/v1/providers", &browsers).expect(201).json();
        assert!(made["signing_secret"].is_null() && made["secrets"] == true, "{made}");
        let public = made["settings"]["public_key"].as_str().unwrap().to_owned();
        assert_eq!(client.get("/v1/providers/browsers").expect(200).json()["settings"]["public_key"], public);
        let half = json!({"name": "half", "driver": "web_push", "settings": {"subject": "mailto:desk@hotel.example", "public_key": public}});
        refused(client.post("/v1/providers", &half), 422, Some("secret"));
        let changed = client.send("PATCH", "/v1/providers/own", Some(br#"{"concurrency": 7}"#)).expect(200).json();
        assert_eq!((&changed["concurrency"], &changed["secrets"]), (&json!(7), &json!(true)));
        assert_eq!(client.post("/v1/providers/own/pause", &json!({"reason": "asleep"})).expect(200).json()["paused"], "asleep");
        let open = client.post("/v1/providers/own/resume", &json!({})).expect(200).json();
        assert_eq!(open["paused"], Value::Null);
        assert_eq!(client.post("/v1/providers/own/resume", &json!({})).expect(200).json(), open, "what is open stays as it is");
        assert_eq!(items(app.ops().get("/v1/audit?action=provider.resume")).len(), 1);
        let _ = client.send("DELETE", "/v1/providers/own", None).expect(204);
        refused(client.get("/v1/providers/own"), 404, None);
        let shown = client.get("/v1/providers").expect(200).text();
        assert!(shown.contains("partner") && !shown.contains(&secret) && !shown.contains("whsec_"), "{shown}");
    }

    fn d2_a_recipient_names_its_provider_and_code_and_message_are_kept_apart(kind) {
        let app = App::at_rest(kind);
        let receiver = HttpServer::start(|_| Reply::status(422).with_body("no such room"));
        let client = app.client("default", &["enqueue", "edit"]);
        let draft = json!({"name": "front-desk", "driver": "webhook", "is_default": false, "settings": {"url": receiver.url("/in")}});
        let _ = client.post("/v1/providers", &draft).expect(201);
        let id = app.enqueue(&client, &json!({"event_type": "a", "recipients": [{"provider": "front-desk", "address": "room-7"}]}));
        assert_eq!(app.pass()["parked"], 1);
        let delivery = items(client.get(&format!("/v1/deliveries?notification_id={id}"))).remove(0);
        assert_eq!((&delivery["provider"], &delivery["state"], &delivery["error_code"]), (&json!("front-desk"), &json!("parked"), &json!("http_422")));
        let message = text(&delivery, "last_error");
        assert!(!message.is_empty() && message != "http_422", "{delivery}");
        assert_eq!(receiver.requests()[0].path, "/in");
        assert_eq!(items(client.get("/v1/deliveries?provider=front-desk&error_code=http_422")).len(), 1);
        assert_eq!(items(client.get("/v1/deliveries?provider=hooks")).len(), 0);
        assert_eq!(delivery["error_class"], "invalid_content");
        assert_eq!(items(client.get("/v1/deliveries?error_class=invalid_content")).len(), 1);
        assert_eq!(items(client.get("/v1/deliveries?error_class=timeout")).len(), 0);
        refused(client.get("/v1/deliveries?error_class=bad_luck"), 422, Some("error_class"));
        // A job by filter takes the same condition.
        let operator = app.client("default", &["operate"]);
        let dry = |class: &str| operator.post("/v1/deliveries/discard", &json!({"filter": {"error_class": class}, "dry_run": true})).expect(200).json();
        assert_eq!((&dry("invalid_content")["total"], &dry("timeout")["total"]), (&json!(1), &json!(0)));
    }

    fn d5_a_provider_is_tried_out_and_the_trial_is_in_the_log(kind) {
        let app = App::at_rest(kind);
        let receiver = HttpServer::start(|request| Reply::status(if request.path == "/no" { 403 } else { 200 }));
        let client = app.client("default", &["operate"]);
        let test = |address: &str| client.post("/v1/providers/hooks/test", &json!({"address": address, "text": "is this on?"}));
        let tried = test(&receiver.url("/yes?token=hush-hush")).expect(200).json();
        assert_eq!((&tried["outcome"], &tried["code"]), (&json!("sent"), &Value::Null), "{tried}");
        assert!(tried["latency_ms"].is_u64() && receiver.requests()[0].text().contains("is this on?"), "{tried}");
        let tried = test(&receiver.url("/no")).expect(200).json();
        assert_eq!((&tried["outcome"], &tried["code"]), (&json!("rejected"), &json!("http_403")), "{tried}");
        // The URL of Slack is a secret. It is neither in the request that is shown, nor in the answer that echoes it.
        let slack = HttpServer::start(|request| Reply::ok().with_body(format!("ok {}", request.path)));
        let secret = slack.url("/services/T0/B0/hush0123456789");
        let draft = json!({"name": "chat", "driver": "slack", "secrets": {"url": secret}});
        let _ = app.client("default", &["admin"]).post("/v1/providers", &draft).expect(201);
        let tried = client.post("/v1/providers/chat/test", &json!({"address": "front-desk"})).expect(200);
        let shown = tried.json();
        assert!(slack.requests()[0].path.ends_with("/hush0123456789"), "{shown}");
        assert!(text(&shown, "request").contains("[redacted]") && text(&shown, "excerpt").contains("ok [redacted]"), "{shown}");
        assert!(!tried.text().contains("hush0123456789") && !tried.text().contains("/services/"), "{shown}");
        refused(client.post("/v1/providers/nobody/test", &json!({"address": "x"})), 404, None);
        refused(client.post("/v1/providers/hooks/test", &json!({"address": ""})), 422, Some("address"));
        refused(client.post("/v1/providers/hooks/test", &json!({"address": "x", "text": "x".repeat(1001)})), 422, Some("text"));
        let log = app.ops().get("/v1/audit?action=provider.test").expect(200);
        let entries = items(log.clone());
        assert_eq!(entries.iter().map(|entry| text(&entry["details"], "outcome")).collect::<Vec<_>>(), ["unclear", "rejected", "sent"]);
        let entries = &entries[1..];
        assert!(entries.iter().all(|entry| entry["subject"] == "hooks" && text(entry, "actor").starts_with("key:")), "{entries:?}");
        assert_eq!((&entries[0]["details"]["code"], &entries[0]["details"]["address"]), (&json!("http_403"), &json!(receiver.url("/…"))));
        assert!(!log.text().contains("hush-hush"), "{}", log.text());
        assert_eq!(app.installation.count("SELECT count(*) FROM postcommit.notification"), 0, "a trial is no notification");
    }
}
