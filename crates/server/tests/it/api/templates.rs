//! C1, C9: templates, layouts and content settings over the API.

use postcommit_testkit::{HttpClient, HttpResponse};
use serde_json::{Value, json};

use super::app::{App, items, refused, text};

const BOOKED: &str = "booking.confirmed";

fn sms(id: &str, words: &str) -> Value {
    json!({"id": id, "event_type": BOOKED, "channel": "sms", "text": words})
}

fn patch(client: &HttpClient, path: &str, change: &Value) -> HttpResponse {
    client.send("PATCH", path, Some(change.to_string().as_bytes()))
}

fn ids(answer: HttpResponse) -> Vec<String> {
    items(answer).iter().map(|row| text(row, "id")).collect()
}

/// What is warned of, by placeholder.
fn warned(saved: &Value) -> Vec<String> {
    saved["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| Some(one["placeholder"].as_str()?.to_owned()))
        .collect()
}

on_both! {
    fn c9_a_template_is_written_changed_and_hidden_and_its_versions_stay(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let made = client.post("/v1/templates", &sms("guest", "Welcome {{ guestName }}")).expect(201).json();
        assert_eq!((&made["version"], &made["revision"], &made["active"], &made["once_per"]), (&json!(1), &json!(1), &json!(true), &json!("notification")));
        assert_eq!((&made["missing"], &made["date_format"], &made["time_zone"]), (&json!("empty"), &json!("%d-%b-%Y"), &json!("UTC")));
        refused(client.post("/v1/templates", &sms("guest", "again")), 409, Some("id"));
        let change = |change: Value| patch(&client, "/v1/templates/guest", &change);
        let changed = change(json!({"text": "Hello {{ guestName }}", "note": "shorter", "revision": 1})).expect(200).json();
        assert_eq!((&changed["version"], &changed["text"], &changed["changed"]), (&json!(2), &json!("Hello {{ guestName }}"), &json!(true)));
        let problem = refused(change(json!({"text": "late", "revision": 1})), 409, Some("revision"));
        assert!(text(&problem, "detail").contains("has revision 2 by now, not 1"), "{problem}");
        // A change to the current values is no change.
        let same = change(json!({"text": "Hello {{ guestName }}", "active": true})).expect(200).json();
        assert_eq!((&same["version"], &same["revision"], &same["changed"]), (&json!(2), &json!(2), &json!(false)));
        let versions = items(client.get("/v1/templates/guest/versions"));
        assert_eq!((versions.len(), &versions[0]["note"]), (2, &json!("shorter")));
        assert!(text(&versions[0], "created_by").starts_with("key:"), "{versions:?}");
        let page = client.get("/v1/templates/guest/versions?limit=1").expect(200).json();
        let next = client.get(&format!("/v1/templates/guest/versions?limit=1&cursor={}", text(&page, "next")));
        assert_eq!(items(next)[0]["version"], 1);
        let first = client.get("/v1/templates/guest/versions/1").expect(200).json();
        assert_eq!((&first["text"], &first["copies"]), (&json!("Welcome {{ guestName }}"), &json!({})));
        refused(client.get("/v1/templates/guest/versions/3"), 404, None);
        refused(client.get("/v1/templates/guest/versions/x"), 404, None);
        // Back to the parts of an earlier version, as a new one.
        let back = change(json!({"from_version": 1})).expect(200).json();
        assert_eq!((&back["version"], &back["text"]), (&json!(3), &json!("Welcome {{ guestName }}")));
        // Deactivated, then hidden.
        let problem = refused(client.send("DELETE", "/v1/templates/guest", None), 409, None);
        assert!(text(&problem, "detail").contains("deactivate it, then delete it"), "{problem}");
        assert_eq!(client.post("/v1/templates/guest/deactivate", &json!({})).expect(200).json()["active"], false);
        assert_eq!(client.post("/v1/templates/guest/deactivate", &json!({})).expect(200).json()["changed"], false);
        let _ = client.send("DELETE", "/v1/templates/guest", None).expect(204);
        refused(client.get("/v1/templates/guest"), 404, None);
        refused(client.get("/v1/templates/guest/versions"), 404, None);
        assert_eq!(ids(client.get("/v1/templates")), Vec::<String>::new());
        let again = client.post("/v1/templates", &sms("guest", "new")).expect(201).json();
        assert_eq!(again["version"], 4, "it is brought back with its versions");
        assert_eq!(client.get("/v1/templates/guest/versions/2").expect(200).json()["text"], "Hello {{ guestName }}");
        let log = items(app.ops().get("/v1/audit?subject=guest&limit=200"));
        let actions: Vec<_> = log.iter().rev().map(|entry| text(entry, "action")).collect();
        assert_eq!(actions, ["template.create", "template.update", "template.update", "template.deactivate", "template.delete", "template.create"]);
    }

    fn a_throttle_and_a_digest_are_set_checked_previewed_and_removed(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let mut new = sms("tasks", "{{ count }} for {{ owner }}:{% for item in items %} {{ item.task }}{% endfor %}");
        (new["throttle"], new["digest"]) = (json!({"max": 3, "per_s": 3600, "then": "digest"}), json!({"window_s": 900, "key": "owner"}));
        let made = client.post("/v1/templates", &new).expect(201).json();
        assert_eq!((&made["throttle"], &made["digest"]), (&new["throttle"], &new["digest"]));
        let preview = |payload: Value| client.post("/v1/templates/tasks/preview", &json!({"payload": payload})).expect(200).json();
        assert_eq!(preview(json!({"owner": "Ada", "task": "a"}))["text"], "2 for Ada: a a");
        let items = json!([{"owner": "Ada", "task": "a"}, {"owner": "Bob", "task": "b"}, {"task": "c"}]);
        assert_eq!(preview(json!({"items": items}))["text"], "3 for Ada: a b c");
        for (change, problem) in [
            (json!({"throttle": {"max": 0, "per_s": 1}}), "throttle.max: is 0; 1 to 10000 are allowed"),
            (json!({"throttle": {"max": 1, "per_s": 1, "then": "skip"}}), "throttle.then: is \"skip\", but the template has a digest"),
            (json!({"digest": null}), "throttle.then: is \"digest\", but the template has no digest"),
            (json!({"digest": {"window_s": 604801}}), "digest.window_s: is 604801; 1 to 604800 are allowed"),
        ] {
            let said = refused(patch(&client, "/v1/templates/tasks", &change), 422, problem.split(':').next());
            let (_, detail) = problem.split_once(": ").unwrap();
            assert!(text(&said, "detail").contains(detail), "{said}");
        }
        let kept = patch(&client, "/v1/templates/tasks", &json!({"note": "x"})).expect(200).json();
        assert_eq!((&kept["digest"], &kept["version"]), (&new["digest"], &json!(1)));
        let plain = patch(&client, "/v1/templates/tasks", &json!({"throttle": null, "digest": null})).expect(200).json();
        assert_eq!((&plain["throttle"], &plain["digest"], &plain["revision"]), (&Value::Null, &Value::Null, &json!(2)));
    }

    fn c9_a_wrong_field_is_named(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        for (change, field) in [
            (json!({"id": "a b"}), "id"),
            (json!({"event_type": ""}), "event_type"),
            (json!({"event_type": "x".repeat(256)}), "event_type"),
            (json!({"channel": "a b"}), "channel"),
            (json!({"audience": "a b"}), "audience"),
            (json!({"language": "english"}), "language"),
            (json!({"scope_type": "listing"}), "scope_id"),
            (json!({"scope_type": "listing", "scope_id": "x".repeat(256)}), "scope_id"),
            (json!({"once_per": "day"}), "once_per"),
            (json!({"text": null}), "text"),
            (json!({"text": "{{ a"}), "text"),
            (json!({"html": "<p>\n{% if a %}"}), "html"),
            (json!({"text": "x".repeat(70_000)}), "text"),
            (json!({"layout": "nowhere"}), "layout"),
            (json!({"text": "{% include \"nowhere\" %}"}), "text"),
            (json!({"missing": "ignore"}), "missing"),
            (json!({"time_zone": "Mars/Olympus"}), "time_zone"),
            (json!({"note": "x".repeat(1001)}), "note"),
            (json!({"revision": 1}), "revision"),
            (json!({"nonsense": 1}), "nonsense"),
        ] {
            let mut draft = sms("guest", "x");
            draft.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            println!("{change}");
            refused(client.post("/v1/templates", &draft), 422, Some(field));
        }
        let problem = refused(client.post("/v1/templates", &json!({"id": "guest", "event_type": BOOKED, "channel": "email", "html": "<p>\n  {% if a %}"})), 422, Some("html"));
        assert!(text(&problem, "detail").contains("line "), "{problem}");
        assert_eq!(ids(client.get("/v1/templates")), Vec::<String>::new());
    }

    fn c1_templates_are_listed_by_filter_and_one_is_active_per_place(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let make = |more: Value| {
            let mut draft = sms("", "x");
            draft.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            client.post("/v1/templates", &draft)
        };
        let _ = make(json!({"id": "a"})).expect(201);
        let problem = refused(make(json!({"id": "b"})), 409, None);
        assert!(text(&problem, "detail").contains("template \"a\" is active for the same"), "{problem}");
        let _ = make(json!({"id": "b", "active": false})).expect(201);
        refused(client.post("/v1/templates/b/activate", &json!({})), 409, None);
        let scoped = make(json!({"id": "c", "scope_type": "Listing", "scope_id": "10"})).expect(201).json();
        assert_eq!(scoped["scope_type"], "listing", "a scope has one spelling");
        let _ = make(json!({"id": "d", "channel": "email", "language": "pt-br"})).expect(201);
        let _ = make(json!({"id": "e", "channel": "in-app", "audience": "host"})).expect(201);
        for (query, expected) in [
            ("", vec!["a", "b", "c", "d", "e"]), ("?channel=sms", vec!["a", "b", "c"]), ("?channel=in_app", vec!["e"]), ("?active=false", vec!["b"]),
            ("?language=pt-BR", vec!["d"]), ("?audience=host", vec!["e"]), ("?scope_type=listing&scope_id=10", vec!["c"]), ("?scope_type=&channel=sms&active=true", vec!["a"]),
            ("?event_type=other", vec![]), ("?layout=mail", vec![]),
        ] {
            assert_eq!(ids(client.get(&format!("/v1/templates{query}"))), expected, "{query}");
        }
        let page = client.get("/v1/templates?limit=2").expect(200).json();
        assert_eq!(ids(client.get(&format!("/v1/templates?limit=2&cursor={}", text(&page, "next")))), ["c", "d"]);
        // Once the first steps back, the second takes the place.
        let _ = client.post("/v1/templates/a/deactivate", &json!({})).expect(200);
        assert_eq!(client.post("/v1/templates/b/activate", &json!({})).expect(200).json()["active"], true);
    }

    fn c9_saving_warns_of_unknown_placeholders_and_counts_what_waits(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit", "enqueue"]);
        let made = client.post("/v1/templates", &sms("guest", "{{ guestName }} {{ nonsense }}")).expect(201).json();
        assert!(warned(&made).is_empty() && text(&made["warnings"][0], "message").contains("has no events yet"), "{made}");
        for _ in 0..2 {
            let note = json!({"event_type": BOOKED, "payload": {"guest": {"Name": "Ada"}}, "due_at": "2099-01-01T00:00:00Z", "recipients": [{"phone": "+4312345678"}]});
            app.enqueue(&client, &note);
        }
        let saved = patch(&client, "/v1/templates/guest", &json!({"text": "Dear {{ guestName }}\n{{ nonsense }}"})).expect(200).json();
        assert_eq!((warned(&saved), &saved["waiting"], &saved["waiting_is_exact"]), (vec!["nonsense".to_owned()], &json!(2), &json!(true)));
        let warning = &saved["warnings"][0];
        assert_eq!((&warning["part"], &warning["line"], &warning["column"]), (&json!("text"), &json!(2), &json!(1)), "{warning}");
        // A declared event type counts instead.
        let _ = client.post("/v1/event-types", &json!({"name": BOOKED, "placeholders": ["nonsense"], "sample": {"room": {"no": 7}}})).expect(201);
        let saved = patch(&client, "/v1/templates/guest", &json!({"text": "{{ guestName }} {{ nonsense }} {{ roomNo }}"})).expect(200).json();
        assert_eq!(warned(&saved), ["guestName"]);
    }

    fn c9_a_preview_renders_any_version_with_sample_data_or_a_past_notification(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit", "enqueue"]);
        let _ = client.post("/v1/templates", &sms("guest", "Hello {{ guestName }}, see you on {{ checkinDate }}")).expect(201);
        let preview = |request: Value| client.post("/v1/templates/guest/preview", &request).expect(200).json();
        let seen = preview(json!({"payload": {"guest": {"name": "Ada"}, "guestPhone": "+4312345678", "checkinDate": "2026-03-15T12:00:00Z"}}));
        assert_eq!((&seen["text"], &seen["to"], &seen["data_from"]), (&json!("Hello Ada, see you on 15-Mar-2026"), &json!("+4312345678"), &json!("given")), "{seen}");
        assert_eq!((&seen["sms"]["segments"], &seen["version"], &seen["failure"]), (&json!(1), &json!(1), &Value::Null), "{seen}");
        let none = preview(json!({}));
        assert_eq!((&none["data_from"], none["warnings"].as_array().unwrap().len()), (&json!("none"), 2), "{none}");
        // The newest event, and a past one by its id.
        let note = |name: &str| json!({"event_type": BOOKED, "payload": {"guestName": name}, "due_at": "2099-01-01T00:00:00Z", "recipients": [{"phone": "+4312345678"}]});
        let (first, _) = (app.enqueue(&client, &note("Eve")), app.enqueue(&client, &note("Bob")));
        assert!(text(&preview(json!({})), "text").starts_with("Hello Bob"));
        assert!(text(&preview(json!({"notification_id": first})), "text").starts_with("Hello Eve"));
        refused(client.post("/v1/templates/guest/preview", &json!({"notification_id": first, "payload": {}})), 422, Some("payload"));
        // An earlier version, and one that refuses.
        let _ = patch(&client, "/v1/templates/guest", &json!({"text": "{{ nothing }}", "missing": "refuse"})).expect(200);
        let refusing = preview(json!({"payload": {}}));
        assert_eq!((&refusing["failure"]["code"], &refusing["text"]), (&json!("missing_data"), &Value::Null), "{refusing}");
        assert!(text(&refusing["failure"], "detail").contains("nothing"), "{refusing}");
        assert!(text(&preview(json!({"version": 1, "payload": {"guestName": "Ada"}})), "text").starts_with("Hello Ada"));
        refused(client.post("/v1/templates/guest/preview", &json!({"version": 9})), 404, None);
        refused(client.post("/v1/templates/guest/preview", &json!({"time_zone": "x".repeat(64)})), 422, Some("time_zone"));
        refused(client.post("/v1/templates/guest/preview", &json!({"language": "x".repeat(36)})), 422, Some("language"));
        // Other channels: subject, HTML in the shipped layout with its plain text, and data as JSON.
        let mail = json!({"id": "mail", "event_type": BOOKED, "channel": "email", "subject": "For {{ guestName }}", "html": "<p>Hi {{ guestName }}</p>", "layout": "mail"});
        let _ = client.post("/v1/templates", &mail).expect(201);
        let seen = client.post("/v1/templates/mail/preview", &json!({"payload": {"guestName": "<Ada>"}})).expect(200).json();
        assert_eq!(seen["subject"], "For <Ada>");
        assert!(text(&seen, "html").contains("<p>Hi &lt;Ada&gt;</p>") && text(&seen, "html").len() > 500, "{seen}");
        assert!(text(&seen, "text").contains("Hi <Ada>") && seen["sms"].is_null(), "{seen}");
        let chat = json!({"id": "chat", "event_type": BOOKED, "channel": "whatsapp", "data": {"name": "booked", "parameters": ["{{ guestName }}"]}});
        let _ = client.post("/v1/templates", &chat).expect(201);
        let seen = client.post("/v1/templates/chat/preview", &json!({"payload": {"guestName": "A\"da"}})).expect(200).json();
        assert_eq!(seen["data"], json!({"name": "booked", "parameters": ["A\"da"]}));
        assert_eq!(app.installation.count("SELECT count(*) FROM postcommit.delivery_ledger"), 0, "nothing was sent");
    }

    fn a_changed_layout_says_which_templates_it_concerns_before_it_does(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit", "enqueue"]);
        let make = |draft: Value| client.post("/v1/layouts", &draft);
        let _ = make(json!({"name": "foot", "kind": "partial", "source": "Yours, {{ brand.name }}"})).expect(201);
        refused(make(json!({"name": "foot", "kind": "partial", "source": "x"})), 409, Some("name"));
        refused(make(json!({"name": "a b", "kind": "partial", "source": "x"})), 422, Some("name"));
        refused(make(json!({"name": "a", "kind": "page", "source": "x"})), 422, Some("kind"));
        refused(make(json!({"name": "a", "kind": "partial", "source": "{% include \"nowhere\" %}"})), 422, Some("source"));
        refused(make(json!({"name": "a", "kind": "partial", "source": "x".repeat(70_000)})), 422, Some("source"));
        refused(make(json!({"name": "a", "kind": "layout", "source": "nothing is put in here"})), 422, Some("source"));
        let tried = make(json!({"name": "page", "kind": "layout", "source": "<b>{{ content }}</b>", "dry_run": true})).expect(201).json();
        assert_eq!((&tried["layout"], &tried["changed"]), (&Value::Null, &json!(true)));
        let _ = make(json!({"name": "page", "kind": "layout", "source": "<b>{{ content }}</b>{% include \"foot\" %}"})).expect(201);
        assert_eq!(items(client.get("/v1/layouts")).iter().map(|row| text(row, "name")).collect::<Vec<_>>(), ["foot", "page"]);
        let mail = json!({"id": "mail", "event_type": BOOKED, "channel": "email", "html": "<p>Hi</p>", "layout": "page"});
        let _ = client.post("/v1/templates", &mail).expect(201);
        let _ = client.post("/v1/templates", &sms("plain", "x")).expect(201);
        app.enqueue(&client, &json!({"event_type": BOOKED, "due_at": "2099-01-01T00:00:00Z", "recipients": [{"email": "guest@example.com"}]}));
        let version = || client.get("/v1/templates/mail").expect(200).json()["version"].clone();
        let change = |change: Value| patch(&client, "/v1/layouts/foot", &change);
        let tried = change(json!({"source": "Best, {{ brand.name }}", "dry_run": true})).expect(200).json();
        assert_eq!((&tried["templates"], &tried["waiting"], version()), (&json!(["mail"]), &json!(1), json!(1)));
        let done = change(json!({"source": "Best, {{ brand.name }}", "revision": 1})).expect(200).json();
        assert_eq!((&done["templates"], &done["layout"]["revision"], version()), (&json!(["mail"]), &json!(2), json!(2)));
        assert_eq!(change(json!({"source": "Best, {{ brand.name }}"})).expect(200).json()["changed"], false);
        refused(change(json!({"source": "late", "revision": 1})), 409, Some("revision"));
        let html = |version: i64| text(&client.post("/v1/templates/mail/preview", &json!({"version": version, "payload": {}})).expect(200).json(), "html");
        assert!(html(1).contains("Yours, ") && html(2).contains("Best, ") && html(2).contains("<b><p>Hi</p>"), "{}", html(2));
        // What is used is not deleted.
        let problem = refused(client.send("DELETE", "/v1/layouts/foot", None), 409, None);
        assert!(text(&problem, "detail").contains("template mail, layout page"), "{problem}");
        refused(client.send("DELETE", "/v1/layouts/page", None), 409, None);
        let _ = patch(&client, "/v1/templates/mail", &json!({"layout": null})).expect(200);
        let _ = client.send("DELETE", "/v1/layouts/page", None).expect(204);
        let _ = client.send("DELETE", "/v1/layouts/foot", None).expect(204);
        refused(client.get("/v1/layouts/foot"), 404, None);
        // A layout of a shipped one's name replaces it.
        let _ = patch(&client, "/v1/templates/mail", &json!({"layout": "mail"})).expect(200);
        let replaced = make(json!({"name": "mail", "kind": "layout", "source": "<u>{{ content }}</u>"})).expect(201).json();
        assert_eq!(replaced["templates"], json!(["mail"]));
        assert!(html(5).contains("<u><p>Hi</p></u>"), "{}", html(5));
    }

    fn content_settings_are_what_templates_have_in_common(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let change = |change: Value| patch(&client, "/v1/content", &change);
        assert_eq!(client.get("/v1/content").expect(200).json()["revision"], 0);
        for (wrong, field) in [
            (json!({"language": "english"}), "language"), (json!({"time_zone": "Mars/Olympus"}), "time_zone"), (json!({"missing": "ignore"}), "missing"),
            (json!({"brand": 7}), "brand"), (json!({"brand": {"a": "x".repeat(20_000)}}), "brand"), (json!({"date_format": ""}), "date_format"),
        ] {
            println!("{wrong}");
            refused(change(wrong), 422, Some(field));
        }
        let _ = client.post("/v1/templates", &sms("brand", "{{ brand.name }}")).expect(201);
        let _ = client.post("/v1/templates", &json!({"id": "own", "event_type": BOOKED, "channel": "email", "text": "x", "time_zone": "Asia/Kolkata"})).expect(201);
        let set = json!({"brand": {"name": "Inn"}, "time_zone": "Europe/Vienna", "language": "pt-br", "revision": 0});
        let mut tried = set.clone();
        tried["dry_run"] = json!(true);
        let tried = change(tried).expect(200).json();
        assert_eq!((&tried["templates"], &tried["settings"]["revision"]), (&json!(["brand"]), &json!(0)));
        let done = change(set).expect(200).json();
        assert_eq!((&done["templates"], &done["settings"]["language"], &done["settings"]["revision"]), (&json!(["brand"]), &json!("pt-BR"), &json!(1)));
        refused(change(json!({"missing": "keep", "revision": 0})), 409, Some("revision"));
        let seen = client.post("/v1/templates/brand/preview", &json!({"payload": {}})).expect(200).json();
        assert_eq!((&seen["text"], &seen["version"]), (&json!("Inn"), &json!(2)));
        let shown = |id: &str| client.get(&format!("/v1/templates/{id}")).expect(200).json();
        assert_eq!((&shown("brand")["time_zone"], &shown("own")["time_zone"]), (&json!("Europe/Vienna"), &json!("Asia/Kolkata")));
        // Null takes over what the settings say.
        let _ = patch(&client, "/v1/templates/own", &json!({"time_zone": null})).expect(200);
        assert_eq!(shown("own")["time_zone"], "Europe/Vienna");
        assert_eq!(items(app.ops().get("/v1/audit?action=content.update")).len(), 1);
    }
}

on_both! {
    fn a_preview_shows_the_form_of_an_unsubscribe_link_that_stops_nothing(kind) {
        for (public_url, shown) in [("https://notify.example.com/", "Stop: https://notify.example.com/u/preview"), ("", "Stop: ")] {
            let app = App::with(kind, "api", &[("API_PUBLIC_URL", public_url)]);
            let (editor, reader) = (app.client("default", &["edit"]), app.client("default", &["read"]));
            let made = editor.post("/v1/templates", &sms("guest", "Stop: {{ unsubscribe_url }}")).expect(201).json();
            assert_eq!(warned(&made), Vec::<String>::new(), "it is no placeholder that events must fill");
            let seen = reader.post("/v1/templates/guest/preview", &json!({"payload": {}})).expect(200).json();
            assert_eq!(text(&seen, "text"), shown);
            let warnings = seen["warnings"].as_array().unwrap();
            assert_eq!(warnings.iter().filter(|one| text(one, "message").contains("api.public_url is empty")).count(), usize::from(public_url.is_empty()));
            let _ = app.nobody().get("/u/preview").expect(404);
        }
    }

    fn a_time_zone_is_known_by_its_name_wherever_one_is_written(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit", "operate"]);
        let mars = |answer: HttpResponse| {
            let problem = refused(answer, 422, Some("time_zone"));
            assert_eq!(text(&problem, "detail"), "\"Mars/Olympus\" is not a time zone; write one such as Asia/Kolkata");
        };
        let _ = client.post("/v1/templates", &sms("guest", "Hello")).expect(201);
        mars(client.post("/v1/templates", &json!({"id": "other", "event_type": BOOKED, "channel": "sms", "text": "x", "time_zone": "Mars/Olympus"})));
        mars(client.post("/v1/templates/guest/preview", &json!({"payload": {}, "time_zone": "Mars/Olympus"})));
        mars(patch(&client, "/v1/content", &json!({"time_zone": "Mars/Olympus"})));
        mars(client.post("/v1/users", &json!({"id": "42", "time_zone": "Mars/Olympus"})));
        let _ = client.post("/v1/users", &json!({"id": "42", "time_zone": "America/Argentina/Buenos_Aires"})).expect(201);
    }
}
