//! Templates: the list, the editor with its preview, versions, and test sends.

use serde_json::json;

use super::desk::{Desk, HOSTILE, session};
use crate::api::on_both;
use crate::installation::Kind;

const BOOKED: &str = "booking.confirmed";

fn template(desk: &Desk, id: &str, channel: &str, parts: &serde_json::Value) {
    let mut draft = json!({"id": id, "event_type": BOOKED, "channel": channel});
    draft.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    let _ = desk.app.client("default", &["edit"]).post("/v1/templates", &draft).expect(201);
}

fn booked(desk: &Desk, guest: &str) -> String {
    let note = json!({"event_type": BOOKED, "entity": "12345", "payload": {"guestName": guest}, "recipients": [{"email": "ada@example.com"}], "channels": ["email"]});
    desk.app.enqueue(&desk.app.client("default", &["enqueue"]), &note)
}

/// The text of the mail in the sandboxed frame, as its address answers it.
fn mail(desk: &Desk) -> (String, String) {
    let path = desk.browser.run("return document.querySelector('#preview iframe').getAttribute('src')");
    let script = format!(
        "const done = arguments[arguments.length - 1]; fetch({path}).then(async (a) => done([await a.text(), a.headers.get('content-security-policy')]));"
    );
    let answer = desk.browser.run_async(&script);
    (answer[0].as_str().unwrap().to_owned(), answer[1].as_str().unwrap().to_owned())
}

/// A template is written, previewed, refused, published, compared and rolled back.
fn c9_edit_preview_and_publish(desk: &Desk) {
    desk.app.create_capture("default", "catcher", "bad");
    desk.open("/templates");
    desk.says("There are no templates yet.");
    desk.press("New template");
    desk.says("Type an event type and a text, then press Preview.");
    desk.fill("#f-id", "confirmed");
    desk.fill("#f-event_type", BOOKED);
    desk.fill("#f-subject", "Welcome {{ guestName }}");
    desk.fill("#f-html", "<p style=\"color: red\">Hello\n{{ guestName");
    desk.press("Create the template");
    // Refused: the place of the mistake is named, and nothing that was typed is lost.
    desk.says("Nothing was saved. Correct the marked field.");
    assert!(desk.text("#e-html").starts_with("line 2, column "), "{}", desk.text("#e-html"));
    let value = |name: &str| desk.browser.run(&format!("return document.querySelector('#f-{name}').value"));
    assert_eq!(value("html"), "<p style=\"color: red\">Hello\n{{ guestName");
    assert_eq!((value("id"), value("subject")), (json!("confirmed"), json!("Welcome {{ guestName }}")));
    desk.fill("#f-html", "<p style=\"color: red\">Hello\n{{ guestName }}</p>");
    desk.fill("#f-payload", "{\"guestName\": \"Ada\"}");
    desk.press("Preview");
    desk.until("document.querySelector('#preview h3')?.innerText === 'Welcome Ada'");
    let (html, policy) = mail(desk);
    assert!(html.contains("<p style=\"color: red\">Hello\nAda</p>"), "{html}");
    assert!(policy.starts_with("sandbox;") && policy.contains("default-src 'none'"), "{policy}");
    assert_eq!(desk.texts("#preview .warning").as_array().unwrap().len(), 1, "the event type has no events yet");
    desk.press("Create the template");
    desk.says("The template is created.");
    assert_eq!(
        (desk.path().split('?').next(), desk.texts("h1 .pill")),
        (Some("/templates/confirmed"), json!(["Active"]))
    );
    // Changed while a notification waits: it asks, and says how many.
    booked(desk, "Bob");
    desk.open("/templates/confirmed");
    desk.until("document.querySelector('#preview h3')?.innerText === 'Welcome Bob'");
    desk.fill("#f-subject", "Your stay, {{ guestName }}");
    desk.fill("#f-note", "friendlier");
    desk.says("Notifications that are expanded after the save use the new version.");
    desk.press("Save and use immediately");
    desk.says("Save this template?");
    desk.says("1 notification of its event type waits and will use the change.");
    desk.picture("template-asks");
    desk.press("Save the template");
    desk.says("The template is saved as a new version.");
    desk.until("document.querySelector('#preview h3')?.innerText === 'Your stay, Bob'");
    desk.app.pass();
    let sent = crate::api::app::items(desk.app.ops().get("/v1/deliveries?state=sent"));
    assert_eq!((sent.len(), &sent[0]["template_version"]), (1, &json!(2)));
    // The difference, and back.
    desk.open("/templates/confirmed");
    desk.press("Versions (2)");
    desk.says("From version 1 to version 2");
    desk.says("friendlier");
    assert_eq!(desk.texts(".removed code"), json!(["Welcome {{ guestName }}"]));
    assert_eq!(desk.texts(".added code"), json!(["Your stay, {{ guestName }}"]));
    desk.picture("versions");
    desk.click(".lines li:nth-child(2) a");
    desk.says("Version 1 is the first");
    desk.says("Roll back to version 1…");
    // The list itself rolls back, too.
    desk.open("/templates/confirmed/versions");
    assert_eq!(desk.count(".versions li:first-child button"), 0, "the version in use has no button");
    desk.click("[aria-label='Roll back to version 1…']");
    desk.says("Roll back to version 1?");
    desk.press("Roll back");
    desk.says("The template is saved as a new version.");
    assert_eq!(value("subject"), "Welcome {{ guestName }}");
    desk.says("Versions (3)");
    // Out of use, then deleted. What is active has no button that deletes it.
    assert!(!desk.text("main").contains("Delete…"));
    desk.press("Deactivate…");
    desk.press("Deactivate the template");
    desk.says("The template is not active.");
    desk.press("Delete…");
    desk.press("Delete the template");
    desk.says("The template is deleted.");
    desk.says("There are no templates yet.");
    desk.is_unhurt();
}

on_both! {
    fn c9_a_person_edits_previews_and_publishes_a_template(kind) {
        c9_edit_preview_and_publish(&Desk::new(kind));
    }
}

#[test]
fn c9_a_person_edits_previews_and_publishes_a_template_without_script() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    c9_edit_preview_and_publish(&desk);
}

#[test]
fn c9_the_preview_follows_the_typing_for_every_kind_of_channel() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_capture("default", "catcher", "bad");
    let id = booked(&desk, "Ada");
    template(&desk, "short", "sms", &json!({"text": "Hello {{ guestName }}"}));
    template(
        &desk,
        "chat",
        "slack",
        &json!({"data": {"blocks": [{"type": "header", "text": {"type": "plain_text", "text": "Hi {{ guestName }}"}},
        {"type": "actions", "elements": [{"type": "button", "text": {"type": "plain_text", "text": "Open"}}]}]}}),
    );
    template(&desk, "wa", "whatsapp", &json!({"data": {"templateName": "hello", "bodyValues": ["{{ guestName }}"]}}));
    desk.open("/templates/short");
    desk.says("1 segment, 9 characters in GSM-7");
    desk.browser.run("window.same = true");
    let typed = |text: &str| {
        desk.fill("#f-text", text);
        desk.browser.run("document.querySelector('#f-text').dispatchEvent(new Event('input', { bubbles: true }))");
    };
    typed("Καλημέρα {{ guestName }} {{ nobody }}");
    desk.says("characters in UCS-2");
    desk.until("document.querySelector('#preview .warning')?.innerText.includes('nobody')");
    assert!(desk.text("#preview .warning").contains("line 1, column "), "{}", desk.text("#preview .warning"));
    typed("{% if %}");
    desk.until("document.querySelector('#preview .warning')?.innerText.startsWith('text: line 1, column ')");
    typed("Bye {{ guestName }}");
    desk.until("document.querySelector('#preview .bubble')?.innerText === 'Bye Ada'");
    assert_eq!(desk.browser.run("return window.same"), true, "without a reload");
    assert_eq!(desk.texts("h1 .pill"), json!(["Active"]));
    desk.open("/templates/chat");
    desk.until("document.querySelector('#preview .bubble h3')?.innerText === 'Hi Ada'");
    assert_eq!(desk.texts("#preview .bubble .button"), json!(["Open"]));
    desk.picture("template-slack");
    desk.open("/templates/wa");
    desk.until("document.querySelector('#preview pre')?.innerText.includes('\"Ada\"')");
    // The data: a notification by its id, an id of nobody, and JSON that is none.
    desk.fill("#f-notification_id", &id);
    desk.fill("#f-payload", "{}");
    desk.press("Use its data");
    desk.says("with a past event");
    desk.fill("#f-notification_id", "x");
    desk.press("Use its data");
    desk.says("is not the id of a notification of this tenant");
    desk.fill("#f-payload", "{\n\"guestName\" 1}");
    desk.press("Preview");
    desk.until("document.querySelector('#preview .warning')?.innerText.startsWith('payload: line 2, column ')");
    desk.fill("#f-payload", "{\"guestName\": \"Eve\"}");
    desk.press("Preview");
    desk.until("document.querySelector('#preview pre')?.innerText.includes('\"Eve\"')");
}

#[test]
fn c9_a_test_is_sent_as_the_preview_shows_it_and_readers_change_nothing() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_capture("default", "catcher", "bad");
    booked(&desk, "Ada");
    template(
        &desk,
        "confirmed",
        "email",
        &json!({"subject": "Welcome {{ guestName }}", "html": "<b>{{ guestName }}</b>"}),
    );
    desk.open("/templates/confirmed");
    desk.fill("#f-subject", "Draft for {{ guestName }}");
    desk.press("Send what the preview shows");
    desk.until("document.querySelector('#e-address')");
    desk.fill("#f-address", "me@example.com");
    desk.press("Send what the preview shows");
    desk.says("catcher recorded the test. Nothing left this server.");
    let value = desk.browser.run("return document.querySelector('#f-subject').value");
    assert_eq!(value, "Draft for {{ guestName }}", "the draft is kept");
    desk.picture("template");
    let log = crate::api::app::items(desk.app.ops().get("/v1/audit?action=provider.test"));
    assert_eq!((log.len(), &log[0]["subject"]), (1, &json!("catcher")));
    let (reader, csrf) = session(&desk.app, "default", "read");
    let page = reader.get("/templates/confirmed").expect(200).text();
    assert!(page.contains("Welcome Ada") && page.contains("readonly"), "{page}");
    for drawn in ["Save", "Deactivate", "Send what"] {
        assert!(!page.contains(drawn), "{drawn}");
    }
    assert!(!reader.get("/templates").expect(200).text().contains("New template"));
    assert_eq!(reader.get("/templates?new=yes").status, 403);
    let form = format!("csrf_token={csrf}&subject=mine");
    let _ = reader
        .send_as("application/x-www-form-urlencoded", "POST", "/templates/confirmed", form.as_bytes())
        .expect(403);
}

#[test]
fn a_hostile_template_does_not_break_its_pages() {
    let desk = Desk::with(Kind::Sqlite, &[], 390);
    let text = HOSTILE.replace("{{ 7 * 7 }} {% for %}", "{{ guestName }}");
    desk.app.create_capture("default", "catcher", "bad");
    let event_type = format!("x {HOSTILE}").chars().take(200).collect::<String>();
    let draft = json!({"id": "hostile", "event_type": event_type, "channel": "slack", "scope_type": "listing", "scope_id": text, "subject": text, "text": text,
        "data": {"blocks": [{"type": "header", "text": {"text": text}}, {"type": "section", "text": {"text": text}}, {"type": text}]}, "note": text});
    let _ = desk.app.client("default", &["edit"]).post("/v1/templates", &draft).expect(201);
    let note = json!({"event_type": event_type, "payload": {"guestName": HOSTILE}, "recipients": [{"email": "ada@example.com"}]});
    desk.app.enqueue(&desk.app.ops(), &note);
    for path in ["/templates", "/templates?q=script", "/templates/hostile", "/templates/hostile/versions"] {
        desk.open(path);
        desk.says("<script>");
        desk.is_unhurt();
    }
    desk.open("/templates/hostile");
    // A field gives back every character, also one that turns the text around.
    assert_eq!(desk.browser.run("return document.querySelector('#f-subject').value"), json!(text));
    assert!(desk.text("#preview h3").contains("<script>") && desk.text("#preview .bubble h3").contains("<img"));
    desk.fill("#f-text", &format!("</textarea>{text}"));
    desk.press("Preview");
    desk.until("document.querySelector('#preview .bubble')?.innerText.startsWith('</textarea>')");
    desk.is_unhurt();
    desk.press("Save and use immediately");
    desk.press("Save the template");
    desk.says("The template is saved as a new version.");
    assert_eq!(desk.browser.run("return document.querySelector('#f-text').value"), json!(format!("</textarea>{text}")));
    desk.open("/templates/hostile/versions");
    desk.says("</textarea>");
    desk.is_unhurt();
}
