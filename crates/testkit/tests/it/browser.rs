//! The browser runs pages, accepts keys, and waits for conditions.

use postcommit_testkit::Browser;

#[test]
fn a_page_is_run_and_takes_keys() {
    let browser = Browser::start(400, 300);
    browser.open("data:text/html,<button onclick=\"setTimeout(() => document.title = 'pressed', 0)\">x</button>");
    browser.run("document.querySelector('button').focus()");
    browser.press("\u{E007}");
    browser.until("document.title === 'pressed'");
    assert_eq!(browser.run("return document.querySelector('button').textContent"), "x");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.png");
    browser.picture(&path);
    assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
}
