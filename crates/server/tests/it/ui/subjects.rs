//! The subjects that templates render, in the lists of deliveries.

use serde_json::json;

use super::desk::{Desk, HOSTILE};
use crate::api::on_both;
use crate::installation::Kind;

fn template(desk: &Desk, id: &str, tenant: &str, parts: &serde_json::Value) {
    let mut draft = json!({"id": id, "event_type": id, "channel": "email", "text": "Hello"});
    draft.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    let _ = desk.app.ops().post(&format!("/v1/templates?tenant={tenant}"), &draft).expect(201);
}

fn enqueue(desk: &Desk, event_type: &str, tenant: &str, guest: &str) {
    let note = json!({
        "event_type": event_type, "entity": "12345", "tenant": tenant, "payload": {"guest": guest},
        "recipients": [{"email": "ada@example.com"}], "channels": ["email"],
    });
    desk.app.enqueue(&desk.app.ops(), &note);
}

fn rows(desk: &Desk) -> Vec<String> {
    let mut rows: Vec<String> = serde_json::from_value(desk.texts(".rows .what a")).unwrap();
    rows.sort();
    rows
}

on_both! {
    fn a_list_shows_the_subject_that_a_template_renders(kind) {
        let desk = Desk::new(kind);
        desk.app.create_tenant("north");
        for tenant in ["default", "north"] {
            desk.app.create_capture(tenant, "catcher", "parked");
            template(&desk, "welcome", tenant, &json!({"subject": format!("Welcome to {tenant}, {{{{ guest }}}}")}));
        }
        template(&desk, "parked", "default", &json!({"subject": "No room for {{ guest | upper }}"}));
        template(&desk, "plain", "default", &json!({"text": "No subject for {{ guest }}"}));
        template(&desk, "items", "default", &json!({"subject": "{{ count }} items", "digest": {"window_s": 1}}));
        enqueue(&desk, "welcome", "default", "Asha <b>&amp;");
        enqueue(&desk, "welcome", "north", "Bob");
        enqueue(&desk, "parked", "default", "Cleo");
        enqueue(&desk, "plain", "default", "Dev");
        // Before the expansion no version of a template is fixed, so the row names the event and the entity.
        desk.open("/notifications");
        assert_eq!(rows(&desk), ["parked · 12345", "plain · 12345", "welcome · 12345", "welcome · 12345"]);
        desk.app.pass();
        // A later version changes nothing of what was sent.
        let change = json!({"subject": "Changed"}).to_string();
        let _ = desk.app.ops().send("PATCH", "/v1/templates/welcome?tenant=default", Some(change.as_bytes())).expect(200);
        desk.open("/notifications");
        let all = ["No room for CLEO", "Welcome to default, Asha <b>&amp;", "Welcome to north, Bob", "plain · 12345"];
        assert_eq!(rows(&desk), all);
        desk.picture("subjects");
        desk.open("/notifications?tenant=north");
        assert_eq!(rows(&desk), ["Welcome to north, Bob"]);
        desk.open("/entities/12345?tenant=default");
        desk.says("Welcome to default, Asha <b>&amp;");
        desk.open("/captured?tenant=default");
        desk.says("Welcome to default, Asha <b>&amp;");
        desk.open_until("/parked", "No room for CLEO");
        desk.open("/notifications?state=parked");
        desk.click(".rows input");
        desk.press("Discard ticked…");
        desk.says("No room for CLEO");
        // A digest has the events that it collected.
        enqueue(&desk, "items", "default", "Eve");
        enqueue(&desk, "items", "default", "Finn");
        desk.app.pass();
        drop(desk.app.installation.rows("UPDATE postcommit.delivery_queue SET due_at = first_due_at WHERE due_at > first_due_at"));
        crate::installation::wait_until("the digest is sent", || {
            desk.app.pass();
            desk.open("/notifications?event_type=items&state=sent");
            desk.text("main").contains("2 items")
        });
    }
}

#[test]
fn a_hostile_subject_is_text_and_an_endless_one_does_not_stop_the_list() {
    let desk = Desk::with(Kind::Sqlite, &[], 390);
    desk.app.create_capture("default", "catcher", "bad");
    template(&desk, "welcome", "default", &json!({"subject": "{{ guest }}"}));
    let endless =
        "{% for a in many %}{% for b in many %}{% for c in many %}{{ a }}{% endfor %}{% endfor %}{% endfor %}";
    template(&desk, "endless", "default", &json!({"subject": endless}));
    enqueue(&desk, "welcome", "default", HOSTILE);
    let many: Vec<u32> = (0..300).collect();
    for _ in 0..3 {
        let note = json!({"event_type": "endless", "payload": {"many": many}, "recipients": [{"email": "ada@example.com"}], "channels": ["email"]});
        desk.app.enqueue(&desk.app.ops(), &note);
    }
    desk.app.pass();
    desk.open("/notifications");
    let shown: Vec<String> = rows(&desk);
    assert_eq!(shown.iter().filter(|row| *row == "endless").count(), 3, "{shown:?}");
    assert!(shown.iter().any(|row| row.contains("<script>window.hurt = 1</script>")), "{shown:?}");
    desk.is_unhurt();
}
