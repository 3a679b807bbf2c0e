//! Parked deliveries by the class of their error, and the jobs that retry them.

use serde_json::json;

use super::desk::Desk;
use crate::installation::Kind;

#[test]
fn b7_parked_deliveries_are_grouped_and_a_group_is_retried_at_a_pace() {
    let desk = Desk::new(Kind::Sqlite);
    desk.open("/parked");
    desk.says("Nothing is parked.");
    desk.plant();
    desk.enqueue("bad", "Invoice 3");
    // No provider serves this channel.
    let other = json!({"event_type": "good", "title": "Lost", "recipients": [{"provider": "catcher", "address": "x"}], "channels": ["no_such"]});
    let _ = desk.app.ops().post("/v1/notifications", &other);
    desk.app.pass();
    desk.open_until("/parked", "Retry 3…");
    // The navigation counts by itself, and its count may be a little older.
    desk.until("document.querySelector('.side .count')?.innerText === '3'");
    desk.picture("parked");
    desk.press("Retry 3…");
    desk.says("Retry 3 deliveries?");
    desk.fill("#pace", "10");
    desk.press("Retry 3 deliveries");
    desk.until("location.pathname.startsWith('/jobs/')");
    desk.says("0 of 3 done");
    desk.says("10 a second");
    desk.says("without those that may have arrived");
    // This server does not run jobs, so it can be stopped before it began.
    desk.press("Stop…");
    desk.press("Stop the job");
    desk.says("Cancelled");
    desk.press("Jobs");
    desk.says("Retry 3 deliveries");
    desk.click(".lines a");
    desk.says("Cancelled");
    desk.is_unhurt();
}

#[test]
fn many_are_discarded_only_after_their_number_is_typed() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_capture("default", "catcher", "bad");
    let note = |n: u32| json!({"event_type": "bad", "title": format!("Number {n}"), "recipients": [{"email": "ada@example.com"}], "channels": ["email"]});
    let notes: Vec<_> = (0..101).map(note).collect();
    let _ = desk.app.ops().post("/v1/notifications/batch", &json!({"notifications": notes})).expect(200);
    desk.app.pass();
    desk.open_until("/notifications?state=parked", "Discard all that match…");
    desk.press("Discard all that match…");
    desk.says("Discard 101 deliveries?");
    desk.fill("#typed", "100");
    desk.press("Discard 101 deliveries");
    desk.says("The number is not the one above.");
    desk.fill("#typed", "101");
    desk.press("Discard 101 deliveries");
    desk.until("location.pathname.startsWith('/jobs/')");
    desk.says("0 of 101 done");
}
