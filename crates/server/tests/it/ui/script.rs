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
    desk.click("#live");
    desk.until("document.querySelector('#live').innerText.trim() === 'Paused'");
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
