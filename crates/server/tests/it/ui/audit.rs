//! The audit log.

use serde_json::json;

use super::desk::{Desk, HOSTILE, session};
use crate::installation::Kind;

#[test]
fn the_audit_log_is_read_by_day_filtered_and_exported() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    desk.plant();
    let reason: String = HOSTILE.chars().take(200).collect();
    let _ = desk.app.ops().post("/v1/providers/catcher/pause?tenant=default", &json!({"reason": reason})).expect(200);
    desk.open("/notifications?state=parked");
    desk.click(".rows tr:nth-child(1) input");
    desk.press("Discard ticked…");
    desk.press("Discard 1 delivery");
    desk.open("/audit");
    let entries = desk.text("main .lines");
    assert!(entries.contains("delivery.discard") && entries.contains("provider.pause"), "{entries}");
    assert!(entries.contains("<script>window.hurt = 1</script>"), "{entries}");
    assert!(desk.count("main .card header h2[id^=d-20]") > 0, "the day is the heading");
    desk.is_unhurt();
    desk.picture("audit");
    // By the action, and from there to the delivery.
    desk.press("Filters");
    desk.fill("#f-action", "delivery.discard");
    desk.press("Apply filters");
    desk.until("location.search.includes('action=delivery.discard')");
    assert_eq!(desk.count(".lines li"), 1);
    desk.click(".lines a");
    desk.until("location.pathname.startsWith('/notifications/')");
    desk.says("Discard, by cli:");
    // A wrong time is told beside its field, and what was typed stays.
    desk.open("/audit?from=soon&actor=ada");
    assert!(desk.text("#e-from").contains("write a time in UTC"), "{}", desk.text("#e-from"));
    assert_eq!(
        desk.browser.run("return [document.querySelector('#f-from').value, document.querySelector('#f-actor').value]"),
        json!(["soon", "ada"])
    );
    // The file has no formula in it.
    let _ = desk.app.ops().post("/v1/users?tenant=default", &json!({"id": "=cmd|x"})).expect(201);
    let (admin, _) = session(&desk.app, "default", "admin");
    assert_eq!(admin.get("/audit?from=soon").status, 422);
    let csv = admin.get("/audit/export?action=user.create").expect(200);
    assert_eq!(csv.header("content-disposition"), Some("attachment; filename=\"audit.csv\""));
    let text = csv.text();
    assert!(text.lines().count() == 2 && text.contains(",user.create,'=cmd|x,1,"), "{text}");
}

#[test]
fn the_audit_log_leads_to_older_entries() {
    let desk = Desk::new(Kind::Sqlite);
    let users: Vec<String> = (0..120).map(|n| format!("user-{n}")).collect();
    for user in &users {
        let _ = desk.app.ops().post("/v1/users?tenant=default", &json!({"id": user})).expect(201);
    }
    desk.open("/audit?action=user.create");
    assert_eq!(desk.count(".lines li"), 100);
    desk.press("Older");
    desk.until("location.search.includes('before=')");
    assert_eq!(desk.count(".lines li"), 20);
    desk.press("Newest");
    desk.until("location.search === '?action=user.create'");
}
