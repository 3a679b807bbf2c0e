//! What the script adds to the pages: live regions, ranges of ticks, and shortcuts.

use serde_json::json;

use super::desk::Desk;
use crate::installation::Kind;

#[test]
fn an_open_list_is_live_and_leaves_the_reader_alone() {
    let desk = Desk::new(Kind::Sqlite);
    desk.plant();
    desk.open("/notifications");
    desk.browser.run("window.same = true");
    desk.enqueue("good", "Booking 3 confirmed");
    desk.app.pass();
    desk.until("document.querySelectorAll('.rows tbody tr').length === 5");
    // A tick keeps the rows where they are, and the page says how many are new.
    desk.click(".rows input[name=id]");
    desk.says("1 ticked");
    desk.enqueue("good", "Booking 4 confirmed");
    desk.says("1 new, show");
    assert_eq!((desk.count(".rows tbody tr"), desk.count("input[name=id]:checked")), (5, 1));
    assert_eq!(desk.browser.run("return window.same"), true, "without a reload");
    desk.click("#live");
    desk.until("!window.same && document.querySelectorAll('.rows tbody tr').length === 6");
    // A reader who scrolled down, and one who points at a row, keeps it under the eye and the pointer.
    desk.browser.run("document.body.style.minHeight = '5000px'; scrollTo(0, 2000)");
    desk.enqueue("good", "Booking 5 confirmed");
    desk.says("1 new, show");
    assert_eq!(desk.count(".rows tbody tr"), 6);
    desk.browser.run("scrollTo(0, 0)");
    desk.until("document.querySelectorAll('.rows tbody tr').length === 7");
    desk.browser.run("setInterval(() => document.querySelector('.rows a').dispatchEvent(new PointerEvent('pointermove', { bubbles: true })), 100)");
    desk.enqueue("good", "Booking 6 confirmed");
    desk.says("1 new, show");
    assert_eq!(desk.count(".rows tbody tr"), 7);
    desk.click("#live");
    desk.until("document.querySelector('#live').innerText.trim() === 'Paused'");
    // What is heard is not only seen.
    desk.until("document.querySelector('[role=status].hidden').textContent === 'Paused'");
}

#[test]
fn counts_and_pages_are_live_with_the_list_and_a_session_ends_in_words() {
    let desk = Desk::new(Kind::Sqlite);
    desk.plant();
    desk.open("/notifications");
    desk.browser.run("window.same = true");
    assert_eq!((desk.count("#pager a"), desk.count("#states li:nth-child(5) span")), (0, 1));
    let note = |n: u32| json!({"event_type": "bad", "title": format!("Number {n}"), "recipients": [{"email": "ada@example.com"}], "channels": ["email"]});
    let notes: Vec<_> = (0..50).map(note).collect();
    let _ = desk.app.ops().post("/v1/notifications/batch", &json!({"notifications": notes})).expect(200);
    desk.app.pass();
    // The rows, their numbers by state and the link to the next page are of the same moment.
    desk.until("document.querySelector('#states li:nth-child(5) span').innerText === '52' && document.querySelector('#pager a')");
    assert_eq!((desk.count(".rows tbody tr"), desk.browser.run("return window.same")), (50, json!(true)));
    desk.press("Older");
    desk.until("location.search.includes('cursor')");
    assert_eq!((desk.count("[data-live]"), desk.count("#live"), desk.count(".rows tbody tr")), (0, 0, 4));
    // Parked: a page that was empty fills.
    desk.open("/notifications");
    desk.browser.run("fetch('/sign-out', { method: 'POST', body: new URLSearchParams({ csrf_token: document.querySelector('[name=csrf_token]').value }) })");
    desk.says("Signed out. Sign in again");
    assert_eq!(desk.count("#live"), 0);
    assert_eq!(desk.path(), "/notifications");
}

#[test]
fn an_empty_page_fills_and_a_job_that_ended_is_no_longer_asked_for() {
    let desk = Desk::new(Kind::Sqlite);
    desk.open("/parked");
    desk.says("Nothing is parked.");
    desk.browser.run("window.same = true");
    desk.plant();
    desk.says("Retry 2…");
    let job = desk.app.ops().post("/v1/deliveries/retry", &json!({"filter": {"state": "parked"}})).expect(202).json();
    let job = job["id"].as_str().unwrap().to_owned();
    assert_eq!(desk.browser.run("return window.same"), true, "without a reload");
    desk.open(&format!("/jobs/{job}"));
    desk.says("Stop…");
    desk.until("document.querySelector('#live')");
    desk.browser.run("window.same = true");
    let _ = desk.app.ops().post(&format!("/v1/jobs/{job}/cancel"), &json!({})).expect(200);
    desk.until("document.querySelector('h1').innerText.includes('Cancelled') && !document.querySelector('#live')");
    assert_eq!((desk.count("main form"), desk.browser.run("return window.same")), (0, json!(true)));
    // The result of an act is not told again by a reload, and the dialog of shortcuts can be opened and turned off.
    desk.open("/parked?done=retry.1.0.0");
    desk.says("1 delivery is pending again.");
    desk.until("location.search === ''");
    desk.press("Shortcuts");
    desk.until("document.querySelector('dialog[open][aria-labelledby]')");
    desk.click("#shortcuts");
    desk.click("dialog button");
    desk.browser.press("?");
    desk.until("!document.querySelector('dialog')");
}

#[test]
fn shift_ticks_a_range_and_keys_are_shortcuts() {
    let desk = Desk::new(Kind::Sqlite);
    desk.plant();
    desk.enqueue("bad", "Invoice 3");
    desk.app.pass();
    desk.open("/notifications?state=parked");
    desk.click(".rows tr:nth-child(1) input");
    desk.browser.run("document.querySelector('.rows tr:nth-child(3) input').dispatchEvent(new MouseEvent('click', { shiftKey: true, bubbles: true, cancelable: true }))");
    desk.says("3 ticked");
    desk.browser.run("document.activeElement.blur()");
    desk.browser.press("?");
    desk.says("Shortcuts");
    assert_eq!(desk.count("dialog[open] .facts div"), 9);
    desk.browser.press("\u{E00C}");
    desk.until("!document.querySelector('dialog')");
    desk.browser.press("/");
    desk.until("document.activeElement.id === 'q'");
    desk.browser.press("\u{E00C}");
    desk.browser.press("j");
    desk.until("document.activeElement.matches('.what a')");
    desk.browser.press("g");
    desk.browser.press("p");
    desk.until("location.pathname === '/parked'");
    // The exact time is on hover, in UTC and in the viewer's own zone.
    let title = desk.browser.run("return document.querySelector('time').title");
    assert!(title.as_str().unwrap().contains(" UTC, ") && title.as_str().unwrap().ends_with(" here"), "{title}");
    desk.open("/notifications");
    desk.click(".what a");
    desk.until("document.querySelector('.copy')");
    assert_eq!(desk.texts(".copy"), json!(["Copy", "Copy"]));
}
