//! One entity: everything about it in one place, sent again, and cancelled.

use serde_json::json;

use super::desk::{Desk, HOSTILE, session};
use crate::installation::Kind;

/// A booking with a mail that was sent by a template, one that was rejected, and a reminder that is not due yet.
fn plant(desk: &Desk, entity: &str) {
    desk.app.create_capture("default", "catcher", "bad");
    for (id, channel, subject) in [("told", "email", Some("Booked")), ("texted", "sms", None)] {
        let template = json!({"id": id, "event_type": "booked", "channel": channel, "subject": subject, "text": format!("{id}: {{{{ guest }}}}")});
        let _ = desk.app.ops().post("/v1/templates?tenant=default", &template).expect(201);
    }
    let _ = desk.app.ops().post("/v1/templates/texted/deactivate?tenant=default", &json!({})).expect(200);
    let to = json!([{"email": "ada@example.com"}]);
    let payload = json!({"guest": "Asha", "guestPhone": "+919876543210"});
    for (event_type, due) in [("booked", None), ("bad", None), ("reminder", Some("2099-01-01T00:00:00Z"))] {
        let note = json!({
            "event_type": event_type, "entity": entity, "recipients": to, "payload": payload, "due_at": due,
            "title": (event_type != "booked").then(|| format!("The {event_type}")), "idempotency_key": format!("key-{event_type}"),
        });
        desk.app.enqueue(&desk.app.ops(), &note);
    }
    desk.app.pass();
    let _ = desk.app.ops().post("/v1/templates/texted/activate?tenant=default", &json!({})).expect(200);
}

#[test]
fn c10_everything_about_an_entity_is_in_one_place_and_what_is_scheduled_is_cancelled_without_script() {
    let desk = Desk::new(Kind::Postgres);
    plant(&desk, "room/7 & more");
    desk.browser.disable_scripts();
    desk.open("/entities");
    desk.says("room/7 & more");
    desk.fill("#q", "room/7 & more");
    desk.press("Open");
    desk.says("Everything about it");
    assert_eq!(desk.path(), "/entities/-?entity=room%2F7+%26+more");
    let all = desk.text("section[aria-labelledby=h-all]");
    for said in [
        "told v1",
        "a…@example.com",
        "key-booked",
        "key-bad",
        "Parked",
        "Sent",
        "captured",
        "catcher",
        "simulated permanent failure",
    ] {
        assert!(all.contains(said), "{said} is not in {all}");
    }
    assert!(desk.text("section[aria-labelledby=h-live]").contains("The reminder"));
    desk.picture("entity");
    desk.press("Cancel what is not sent…");
    desk.press("Cancel the deliveries");
    desk.says("1 delivery is cancelled.");
    desk.says("Nothing is scheduled.");
    desk.open("/entities/nobody");
    desk.says("Nothing was sent or scheduled about this entity.");
}

#[test]
fn c11_a_person_sends_again_over_another_channel_and_the_copy_is_told_from_the_rest() {
    let desk = Desk::new(Kind::Sqlite);
    plant(&desk, "7");
    desk.open("/entities/7");
    desk.press("Send again");
    desk.says("also one that was never used for it");
    desk.picture("resend");
    desk.press("Send…");
    desk.says("The channel is missing; choose one.");
    // The original has a mail address only.
    desk.fill("#f-channel", "sms");
    desk.fill("#f-template", "texted");
    desk.fill("#f-recipient", "12");
    desk.fill("[name=kind]", "phone");
    desk.press("Send…");
    desk.says("The recipient");
    assert_eq!(desk.browser.run("return document.querySelector('#f-recipient').value"), "12");
    desk.fill("#f-recipient", "+919876543210");
    desk.press("Send…");
    desk.says("Send again over sms?");
    desk.press("Send");
    desk.says("A copy is enqueued.");
    desk.app.pass();
    desk.open("/entities/7");
    let all = desk.text("section[aria-labelledby=h-all]");
    assert!(
        all.contains("Manual") && all.contains("asked by cli:") && all.contains("texted v1") && all.contains("sms"),
        "{all}"
    );
    assert_eq!(desk.count(".manual"), 1, "the others were automatic");
    // The same over a channel that was used, with the text that was sent.
    desk.press("Send again");
    desk.fill("#f-channel", "email");
    desk.press("Send…");
    desk.press("Send");
    desk.says("A copy is enqueued.");
    desk.app.pass();
    desk.open("/entities/7");
    assert_eq!(desk.count(".manual"), 2);
    let (reader, csrf) = session(&desk.app, "default", "read");
    assert!(!reader.get("/entities/7").expect(200).text().contains("Send again"));
    let form = format!("csrf_token={csrf}&channel=email&confirmed=yes");
    let refused = reader.send_as("application/x-www-form-urlencoded", "POST", "/entities/7/resend", form.as_bytes());
    assert_eq!(refused.status, 403);
}

#[test]
fn hostile_text_is_text_on_the_page_of_an_entity_and_among_captured_messages() {
    let desk = Desk::with(Kind::Sqlite, &[], 390);
    desk.app.create_capture("default", "catcher", "bad");
    let note = |event_type: &str, channel: &str, to: serde_json::Value| {
        json!({
            "event_type": event_type, "entity": HOSTILE, "title": HOSTILE, "body": HOSTILE, "recipients": [to], "channels": [channel],
            "data": {"slack": {"text": HOSTILE}}, "idempotency_key": format!("{event_type}:<b>{channel}"),
        })
    };
    desk.app.enqueue(&desk.app.ops(), &note("good", "sms", json!({"phone": "+919876543210"})));
    desk.app.enqueue(&desk.app.ops(), &note("bad", "sms", json!({"phone": "+919876543210"})));
    desk.app.enqueue(&desk.app.ops(), &note("good", "slack", json!({"slack": "https://hooks.example/1"})));
    desk.app.pass();
    desk.open("/entities");
    desk.is_unhurt();
    desk.click(".lines a");
    desk.until("location.pathname.startsWith('/entities/')");
    let shown = HOSTILE.replace('\u{202e}', "\u{fffd}");
    assert_eq!(desk.browser.run("return document.querySelector('h1').textContent"), json!(format!("Entity {shown}")));
    desk.is_unhurt();
    desk.picture("entity-390");
    desk.press("Send again");
    desk.says("names you");
    desk.is_unhurt();
    desk.open("/captured");
    desk.says("Nothing on this page was sent.");
    assert_eq!(desk.count(".captured .lines li"), 2);
    desk.is_unhurt();
    desk.picture("captured-390");
    desk.press("Data for slack");
    desk.is_unhurt();
    desk.fill("#channel", "sms");
    desk.press("Filter");
    desk.until("document.querySelectorAll('.captured .lines li').length === 1");
    desk.says("segment");
    assert_eq!(desk.browser.run("return document.querySelector('.message .text').textContent"), json!(shown));
    desk.is_unhurt();
}
