//! Captured messages: what people would have received.

use serde_json::json;

use super::desk::Desk;
use crate::installation::Kind;

#[test]
fn captured_messages_are_shown_as_people_would_have_received_them_and_marked_as_not_sent() {
    let desk = Desk::new(Kind::Sqlite);
    desk.open("/captured");
    desk.says("Nothing was captured.");
    desk.plant();
    let template = json!({"id": "told", "event_type": "told", "channel": "email", "subject": "See you", "text": "Hello", "html": "<h1>Hello</h1>"});
    let _ = desk.app.ops().post("/v1/templates?tenant=default", &template).expect(201);
    let to = |address: &str| json!({"event_type": "told", "entity": "9", "recipients": [{"email": address}]});
    desk.app.enqueue(&desk.app.ops(), &to("bob@example.com"));
    desk.app.pass();
    desk.press("Captured");
    desk.says("Nothing on this page was sent.");
    // What was rejected is not among them.
    assert_eq!(desk.count(".captured .lines li"), 3);
    assert_eq!(desk.text(".message h3"), "See you");
    assert_eq!(desk.browser.run("return document.querySelector('iframe').getAttribute('sandbox')"), "");
    desk.picture("captured");
    desk.press("Booking 1 confirmed");
    desk.until("document.querySelector('.message .text')?.innerText === 'Body of Booking 1 confirmed'");
    desk.fill("#q", "bob@example.com");
    desk.press("Filter");
    desk.until("document.querySelectorAll('.captured .lines li').length === 1");
    desk.fill("#channel", "sms");
    desk.press("Filter");
    desk.says("No captured message matches.");
    desk.press("Show all");
    desk.until("document.querySelectorAll('.captured .lines li').length === 3");
}
