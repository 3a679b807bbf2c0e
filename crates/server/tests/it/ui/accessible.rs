//! The rules of axe-core (WCAG 2.2 AA and its best practices) on every page, in both themes, wide and narrow.

use serde_json::json;

use super::desk::Desk;
use crate::installation::Kind;

/// The rules, which `scripts/test` installs.
fn axe() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/axe/node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(path)
        .unwrap_or_else(|e| panic!("{path}: {e}; `npm ci` in tests/axe installs it, as scripts/test does"))
}

/// What is wrong with the page.
fn check(desk: &Desk, rules: &str, what: &str) -> Vec<String> {
    let script = format!(
        "{rules}; const done = arguments[arguments.length - 1]; axe.run(document, {{ iframes: false }}).then((result) => done(
         result.violations.map((rule) => [rule.id, rule.help, ...rule.nodes.map((node) => node.html + ' ' + node.any.map((any) => any.message).join())])));"
    );
    let wrong = desk.browser.run_async(&script);
    wrong.as_array().unwrap().iter().map(|rule| format!("{what}: {rule}")).collect()
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
        for theme in ["light", "dark"] {
            desk.browser.prefer(theme);
            for path in [
                "/",
                "/notifications",
                "/notifications?state=parked&channel=email",
                &one,
                "/parked",
                "/jobs",
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
                "/login",
            ] {
                desk.open(path);
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
