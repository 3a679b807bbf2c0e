//! The checklist before messages go to real people, and what the overview says as long as none do.

use serde_json::json;

use super::desk::{Desk, HOSTILE, session};
use crate::installation::Kind;

/// The standings of the checklist, by title.
fn standing(desk: &Desk, title: &str) -> String {
    let script = format!(
        "return [...document.querySelectorAll('.lines li')].find((li) => li.querySelector('b').innerText === {})
         .querySelector('.pill').innerText",
        json!(title)
    );
    desk.browser.run(&script).as_str().unwrap().to_owned()
}

#[test]
fn the_checklist_follows_what_was_done() {
    let desk = Desk::new(Kind::Sqlite);
    // The provider of the tests sends to webhooks, and was never tested.
    desk.open("/go-live");
    assert_eq!(standing(&desk, "A provider sends messages"), "Done");
    assert_eq!(standing(&desk, "Each provider was tested"), "To do");
    assert_eq!(standing(&desk, "No channel is only recorded"), "Done");
    assert_eq!(standing(&desk, "The database survives a broken machine"), "Check yourself");
    assert_eq!(standing(&desk, "People reach this server by https"), "To do");
    assert_eq!(standing(&desk, "The application has a key of its own"), "To do");
    assert_eq!(standing(&desk, "A process delivers"), "To do");
    desk.picture("go-live");
    let _ = desk.app.create_key("default", &["enqueue"]);
    let name: String = HOSTILE.chars().filter(|c| c.is_ascii_alphanumeric()).take(20).collect();
    desk.app.create_capture("default", &name, "bad");
    desk.open("/go-live");
    assert_eq!(standing(&desk, "The application has a key of its own"), "Done");
    assert_eq!(standing(&desk, "No channel is only recorded"), "To do");
    desk.says(&format!("{name} records every channel"));
    desk.is_unhurt();
    // It is about the whole installation, so people of one tenant have no such page.
    let (person, _) = session(&desk.app, "default", "admin");
    let _ = person.get("/go-live").expect(403);
    assert!(!person.get("/").expect(200).text().contains("/go-live"));
}

#[test]
fn the_overview_says_as_long_as_nothing_is_really_sent() {
    let desk = Desk::new(Kind::Sqlite);
    let says = "Nothing is really sent";
    desk.open("/");
    assert!(!desk.text("main").contains(says));
    desk.app.create_capture("default", "recorder", "bad");
    desk.open("/");
    assert!(!desk.text("main").contains(says), "a webhook is really sent");
    let _ = desk.app.ops().send("DELETE", "/v1/providers/hooks?tenant=default", None).expect(204);
    desk.open("/");
    assert!(desk.text("main").contains(says), "{}", desk.text("main"));
    desk.enqueue("good", "Booking 1 confirmed");
    desk.app.pass();
    desk.open("/notifications");
    desk.says("captured, not sent");
    desk.picture("captured");
}
