//! The rules of axe-core (WCAG 2.2 AA and its best practices) on every page, in both themes, wide and narrow.

use postcommit_testkit::Browser;
use serde_json::json;

use super::desk::Desk;
use crate::installation::Kind;

/// The rules, which `scripts/test` installs.
pub fn axe() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/axe/node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(path)
        .unwrap_or_else(|e| panic!("{path}: {e}; `npm ci` in tests/axe installs it, as scripts/test does"))
}

/// What is wrong with the page.
fn check(desk: &Desk, rules: &str, what: &str) -> Vec<String> {
    violations(&desk.browser, rules, what)
}

pub fn violations(browser: &Browser, rules: &str, what: &str) -> Vec<String> {
    let script = format!(
        "{rules}; const done = arguments[arguments.length - 1]; axe.run(document, {{ iframes: false }}).then((result) => done(
         result.violations.map((rule) => [rule.id, rule.help, ...rule.nodes.map((node) => node.html + ' ' + node.any.map((any) => any.message).join())])));"
    );
    let wrong = browser.run_async(&script);
    wrong.as_array().unwrap().iter().map(|rule| format!("{what}: {rule}")).collect()
}

fn plant_people_and_templates(desk: &Desk) {
    let edit = desk.app.client("default", &["edit"]);
    let patch =
        |path: &str, body: serde_json::Value| edit.send("PATCH", path, Some(body.to_string().as_bytes())).expect(200);
    let template = json!({"id": "confirmed", "event_type": "good", "channel": "email", "subject": "Welcome {{ nobody }}", "html": "<p>Hello</p>"});
    let _ = edit.post("/v1/templates", &template).expect(201);
    let _ = patch("/v1/templates/confirmed", json!({"subject": "Welcome", "note": "shorter"}));
    let blocks = json!([{"type": "header", "text": {"text": "Hot"}}, {"type": "actions", "elements": [{"type": "button", "text": {"text": "Open"}}]}]);
    let chat =
        json!({"id": "chat", "event_type": "good", "channel": "slack", "data": {"blocks": blocks}, "active": false});
    let _ = edit.post("/v1/templates", &chat).expect(201);
    let addresses = json!([{"kind": "email", "address": "ada@example.com"}, {"kind": "email", "address": "old@example.com", "disabled_reason": "bounced"}]);
    let _ = edit.post("/v1/users", &json!({"id": "42", "name": "Ada", "addresses": addresses})).expect(201);
    let _ = patch("/v1/users/42/preferences", json!({"preferences": [{"channel": "sms", "allowed": false}]}));
    let _ = edit.post("/v1/lists", &json!({"name": "staff", "description": "Night shift"})).expect(201);
    let _ = patch("/v1/lists/staff/members", json!({"add": [{"kind": "user", "member": "42"}]}));
    let _ = edit
        .post("/v1/suppressions", &json!({"channel": "email", "address": "x@example.com", "reason": "hard bounce"}))
        .expect(201);
}

/// A page that only a form leads to: its name, words that it shows, and how it is opened.
type FormPage = (&'static str, &'static str, fn(&Desk));

/// Opens the pages that only a form leads to, one after another: what is shown once, and forms that were refused. Each has a
/// name and words that it shows.
fn form_pages(desk: &Desk) -> impl Iterator<Item = (&'static str, &'static str)> {
    let steps: [FormPage; 9] = [
        ("a secret", "It is not shown again", |desk| {
            desk.open("/keys?tenant=default");
            desk.fill("#name", "Bookings");
            desk.click("#key-enqueue");
            desk.press("Create the key");
        }),
        ("a refused key", "at least one is needed", |desk| {
            desk.open("/keys?tenant=default");
            desk.fill("#name", "Bookings");
            desk.press("Create the key");
        }),
        ("a callback", "Treat the URL as a secret.", |desk| {
            desk.open("/providers/texts?tenant=default");
            desk.press("Show the URL");
        }),
        ("an editor with errors", "Nothing was saved.", |desk| {
            desk.open("/templates/confirmed?tenant=default");
            desk.fill("#f-html", "{{ guest");
            desk.press("Save and use immediately");
        }),
        ("a refused user", "Nothing was saved.", |desk| {
            desk.open("/users?new=yes&tenant=default");
            desk.fill("#f-id", "43");
            desk.fill("#f-email", "nobody");
            desk.press("Create the user");
        }),
        ("a refused provider", "must be a whole number", |desk| {
            desk.open("/providers/new/capture?tenant=default");
            desk.fill("#f-name", "other");
            desk.fill("[id='f-concurrency']", "many");
            desk.press("Add the provider");
        }),
        ("a refused event type", "Declare", |desk| {
            desk.open("/event-types?tenant=default");
            desk.press("Declare an event type");
            desk.fill("#name", "good");
            desk.press("Declare");
        }),
        ("a refused suppression", "Suppress an address", |desk| {
            desk.open("/suppressions?tenant=default");
            desk.press("Suppress an address");
            desk.fill("#f-address", "nobody");
            desk.fill("#f-channel", "email");
            desk.fill("#f-reason", "bounced");
            desk.press("Suppress the address");
        }),
        ("a refused resend", "The channel is missing; choose one.", |desk| {
            desk.open("/entities/1/resend?tenant=default");
            desk.press("Send…");
        }),
    ];
    steps.into_iter().map(|(what, words, open)| {
        open(desk);
        (what, words)
    })
}

#[test]
fn axe_finds_no_violation_on_any_page_in_both_themes() {
    let rules = axe();
    for width in [1280, 390] {
        let desk = Desk::with(Kind::Sqlite, &[("UI_ENVIRONMENT", "staging")], width);
        desk.open("/parked");
        let mut wrong = check(&desk, &rules, "an empty page");
        desk.plant();
        desk.enqueue("good", "Booking 3 confirmed");
        let _ =
            desk.app.ops().post("/v1/providers/catcher/pause?tenant=default", &json!({"reason": "tired"})).expect(200);
        let job =
            desk.app.ops().post("/v1/deliveries/retry", &json!({"filter": {"state": "parked"}})).expect(202).json();
        let parked =
            crate::api::app::items(desk.app.ops().get("/v1/deliveries?state=parked"))[0]["notification_id"].clone();
        let (one, job) =
            (format!("/notifications/{}", parked.as_str().unwrap()), format!("/jobs/{}", job["id"].as_str().unwrap()));
        plant_people_and_templates(&desk);
        let _ = desk.app.ops().post("/v1/event-types?tenant=default", &json!({"name": "good"})).expect(201);
        for theme in ["light", "dark"] {
            desk.browser.prefer(theme);
            for path in [
                "/",
                "/notifications",
                "/notifications?state=parked&channel=email",
                &one,
                "/parked",
                "/jobs",
                "/go-live",
                &job,
                "/providers",
                "/providers/catcher",
                "/providers/catcher/edit",
                "/providers/catcher/test",
                "/providers/new",
                "/providers/new/smtp",
                "/entities",
                "/entities/1",
                "/entities/1/resend",
                "/captured",
                "/notifications/x",
                "/?range=x",
                "/glossary",
                "/audit?from=soon",
                "/audit",
                "/event-types",
                "/event-types/good",
                "/system",
                "/keys",
                "/login",
                "/templates",
                "/templates?new=yes",
                "/templates/confirmed",
                "/templates/chat",
                "/templates/confirmed/versions",
                "/users",
                "/users?new=yes",
                "/users/42",
                "/lists",
                "/lists?new=yes",
                "/lists/staff",
                "/suppressions",
            ] {
                desk.open(path);
                desk.picture(&format!("{}-{width}-{theme}", path.trim_matches('/').replace(['/', '?', '='], "-")));
                wrong.extend(check(&desk, &rules, &format!("{path} at {width}, {theme}")));
            }
            desk.open("/notifications?state=parked");
            desk.press("Retry all 2 that match…");
            desk.says("Retry 2 deliveries?");
            wrong.extend(check(&desk, &rules, &format!("a question at {width}, {theme}")));
        }
        assert_eq!(wrong, Vec::<String>::new());
    }
}

#[test]
fn axe_finds_no_violation_on_what_a_form_leads_to_in_both_themes() {
    let rules = axe();
    for width in [1280, 390] {
        let desk = Desk::with(Kind::Sqlite, &[], width);
        desk.plant();
        plant_people_and_templates(&desk);
        let _ = desk.app.ops().post("/v1/event-types?tenant=default", &json!({"name": "good"})).expect(201);
        let takes_callbacks = json!({
            "name": "texts", "driver": "vonage", "settings": {"from": "Hotel"},
            "secrets": {"api_key": "abc123", "api_secret": "hush_0123456789"},
        });
        let _ = desk.app.ops().post("/v1/providers?tenant=default", &takes_callbacks).expect(201);
        let mut wrong = vec![];
        for theme in ["light", "dark"] {
            desk.browser.prefer(theme);
            for (what, words) in form_pages(&desk) {
                desk.says(words);
                desk.picture(&format!("{}-{width}-{theme}", what.replace(' ', "-")));
                wrong.extend(check(&desk, &rules, &format!("{what} at {width}, {theme}")));
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }
}
