//! Declared event types.

use serde_json::json;

use super::desk::{Desk, HOSTILE, session};
use crate::api::on_both;
use crate::installation::Kind;

on_both! {
    fn an_event_type_is_declared_changed_and_deleted(kind) {
        let desk = Desk::new(kind);
        desk.browser.disable_scripts();
        desk.open("/event-types");
        desk.says("No event type is declared yet.");
        desk.press("Declare an event type");
        desk.fill("#name", "booking/confirmed");
        desk.fill("#placeholders", "guest\nguest");
        desk.fill("#sample", "{\"guest\": ");
        desk.press("Declare");
        // What was typed comes back, with what is wrong beside its field.
        assert!(desk.text("#e-sample").contains("is not a JSON object"), "{}", desk.text("#e-sample"));
        let typed = "return [document.querySelector('#name').value, document.querySelector('#placeholders').value]";
        assert_eq!(desk.browser.run(typed), json!(["booking/confirmed", "guest\nguest"]));
        desk.fill("#sample", "{\"guest\": \"Ada\"}");
        desk.press("Declare");
        assert!(desk.text("#e-placeholders").starts_with("Entry 2:"), "{}", desk.text("#e-placeholders"));
        desk.fill("#placeholders", "guest\nroom");
        desk.click("#mandatory");
        desk.fill("#quiet_hours", "ignore");
        desk.press("Declare");
        desk.says("The event type is declared.");
        let path = "/v1/event-types/booking%2Fconfirmed?tenant=default";
        let stored = desk.app.ops().get(path).expect(200).json();
        assert_eq!(
            (&stored["placeholders"], &stored["sample"], &stored["mandatory"], &stored["quiet_hours"]),
            (&json!(["guest", "room"]), &json!({"guest": "Ada"}), &json!(true), &json!("ignore"))
        );
        desk.picture("event-type");
        desk.fill("#description", HOSTILE);
        desk.press("Save");
        desk.says("The event type is saved.");
        let stored = desk.app.ops().get(path).expect(200).json();
        assert_eq!(stored["description"], json!(HOSTILE.trim()), "no character is lost");
        desk.is_unhurt();
        desk.press("Event types");
        desk.says("2 placeholders");
        desk.is_unhurt();
        desk.picture("event-types");
        desk.click(".lines a");
        desk.press("Delete…");
        desk.press("Delete the declaration");
        desk.says("The declaration is deleted.");
        assert_eq!(desk.app.ops().get(path).status, 404);
    }
}

#[test]
fn an_event_type_that_another_person_changed_is_not_overwritten() {
    let desk = Desk::new(Kind::Sqlite);
    let _ = desk.app.ops().post("/v1/event-types?tenant=default", &json!({"name": "good"})).expect(201);
    desk.open("/event-types/good");
    let change = json!({"mandatory": true}).to_string();
    let _ = desk.app.ops().send("PATCH", "/v1/event-types/good?tenant=default", Some(change.as_bytes())).expect(200);
    desk.fill("#description", "mine");
    desk.press("Save");
    desk.says("revision");
    assert_eq!(desk.browser.run("return document.querySelector('#description').value"), json!("mine"));
    let (reader, _) = session(&desk.app, "default", "read");
    let page = reader.get("/event-types/good").expect(200).text();
    assert!(
        page.contains("<fieldset class=\"form\" disabled>") && !page.contains("Delete…") && !page.contains(">Save<"),
        "{page}"
    );
}
