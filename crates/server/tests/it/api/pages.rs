//! Signing in with a real browser, which sends other headers than the HTTP client of the tests.

use postcommit_testkit::Browser;

use super::app::App;
use super::sessions::link;

on_both! {
    fn a_person_signs_in_by_the_link_and_out_again(kind) {
        let app = App::at_rest(kind);
        let (browser, home) = (Browser::start(960, 720), format!("http://{}", app.address()));
        let says = |words: &str| browser.until(&format!("document.body.innerText.includes('{words}')"));
        browser.open(&home);
        says("You are not signed in");
        let link = format!("{home}/login?token={}", link(&app));
        browser.open(&link);
        if let Some(folder) = std::env::var_os("TEST_PICTURES") {
            browser.picture(&std::path::Path::new(&folder).join("sign-in.png"));
        }
        browser.run("document.querySelector('button').click()");
        says("Signed in as");
        assert_eq!(browser.run("return location.pathname"), "/");
        says("ops");
        if let Some(folder) = std::env::var_os("TEST_PICTURES") {
            browser.picture(&std::path::Path::new(&folder).join("signed-in.png"));
        }
        browser.reload();
        says("Signed in as");
        browser.run("document.querySelector('button').click()");
        says("You are not signed in");
        // The link works once. Opened again, a page says so.
        browser.open(&link);
        browser.run("document.querySelector('button').click()");
        says("was used before or has expired");
    }
}
