//! Signing in and out, themes, tenants, and what a person may not do.

use std::io::Read;

use super::desk::{Desk, login_token, session};
use crate::api::{App, on_both};
use crate::installation::Kind;

on_both! {
    fn a_person_signs_in_by_the_link_and_out_again(kind) {
        let desk = Desk { app: App::at_rest(kind), browser: postcommit_testkit::Browser::start(960, 720) };
        // Not signed in, a page leads to the sign-in page, and the sign-in leads back to it.
        desk.open("/notifications?state=parked");
        desk.says("You are not signed in");
        desk.picture("sign-in");
        assert_eq!(desk.path(), "/login");
        let token = crate::api::sessions::link(&desk.app);
        desk.sign_in(&token);
        desk.says("Signed in as");
        assert_eq!(desk.path(), "/notifications?state=parked");
        desk.browser.reload();
        desk.says("Signed in as");
        desk.press("Sign out");
        desk.says("You are not signed in");
        desk.open("/notifications");
        desk.says("You are not signed in");
        // The link works once. Opened again, a page says so.
        desk.open(&format!("/login?token={token}"));
        desk.click("main button");
        desk.says("was used before or has expired");
    }
}

#[test]
fn what_a_person_may_not_do_is_not_drawn_and_is_refused() {
    let desk = Desk::new(Kind::Sqlite);
    desk.plant();
    let (reader, csrf) = session(&desk.app, "default", "read");
    let list = reader.get("/notifications?state=parked").expect(200).text();
    assert!(
        list.contains("Invoice 1")
            && !list.contains("Retry ticked")
            && !list.contains("Retry all")
            && !list.contains("checkbox"),
        "{list}"
    );
    let post =
        |body: &str| reader.send_as("application/x-www-form-urlencoded", "POST", "/deliveries/retry", body.as_bytes());
    let refused = post(&format!("csrf_token={csrf}&all=yes&filter=state%3Dparked")).expect(403);
    assert!(
        refused.text().contains("You may not do this") && refused.text().contains("the scope `operate`"),
        "{}",
        refused.text()
    );
    // Somebody who may only enqueue sees no page, but the frame with the refusal.
    desk.press("Sign out");
    desk.sign_in(&login_token(&desk.app, "default", "enqueue"));
    desk.says("this page needs the scope `read`");
    assert_eq!((desk.count(".side nav a"), desk.text("h1")), (0, "You may not do this".to_owned()));
    desk.press("Sign out");
    desk.says("You are not signed in");
}

#[test]
fn a_post_from_another_site_is_refused_and_no_site_may_frame_a_page() {
    let app = App::at_rest(Kind::Sqlite);
    let (operator, csrf) = session(&app, "default", "operate");
    let form = format!("csrf_token={csrf}&all=yes&filter=state%3Dparked&confirmed=yes");
    let post = |client: &postcommit_testkit::HttpClient, body: &str| {
        client.send_as("application/x-www-form-urlencoded", "POST", "/deliveries/retry", body.as_bytes())
    };
    for origin in ["https://evil.example", "null"] {
        let refused = post(&operator.clone().with("Origin", origin), &form).expect(403);
        assert!(refused.text().contains("from another site"), "{}", refused.text());
    }
    let refused = post(&operator, "all=yes&filter=state%3Dparked&confirmed=yes").expect(403);
    assert!(refused.text().contains("csrf_token"), "{}", refused.text());
    let page = operator.get("/notifications").expect(200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'self'")
            && policy.contains("frame-ancestors 'none'")
            && !policy.contains("unsafe"),
        "{policy}"
    );
    let html = page.text();
    assert!(
        !html.contains(" style=")
            && !html.contains("<style")
            && !html.contains(" onclick")
            && !html.contains("<script>"),
        "{html}"
    );
    // Style and script are kept by the browser for ever, under a name that changes with them.
    for start in ["href=\"/assets/", "src=\"/assets/"] {
        let path = html.split(start).nth(1).unwrap().split('"').next().unwrap();
        let file = app.nobody().get(&format!("/assets/{path}")).expect(200);
        assert!(file.header("cache-control").unwrap().contains("immutable"));
        let other = format!("/assets/0/{}", path.split('/').nth(1).unwrap());
        assert_eq!(app.nobody().get(&other).expect(200).header("cache-control"), Some("no-cache"));
    }
    assert_eq!(app.nobody().get("/assets/0/secret").status, 404);
}

/// What a browser with an empty cache loads for its first page.
#[test]
fn the_first_load_of_a_page_has_at_most_25_kilobytes() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_capture("default", "catcher", "bad");
    for n in 0..60 {
        desk.enqueue(if n % 4 == 0 { "bad" } else { "good" }, &format!("Booking {n} of guest {} confirmed", n * 7919));
    }
    desk.app.pass();
    let (reader, _) = session(&desk.app, "default", "admin");
    let compressed = reader.clone().with("Accept-Encoding", "gzip");
    let load = |path: &str| {
        let answer = compressed.get(path).expect(200);
        assert_eq!(answer.header("content-encoding"), Some("gzip"), "{path}");
        let mut plain = String::new();
        flate2::read::GzDecoder::new(&answer.body[..]).read_to_string(&mut plain).unwrap();
        (answer.body.len(), plain)
    };
    for path in ["/", "/notifications", "/providers"] {
        let (page, html) = load(path);
        let files: Vec<_> = html.split('"').filter(|part| part.starts_with("/assets/")).collect();
        assert!(files.len() >= 2 && html.trim_end().ends_with("</html>"), "{files:?}");
        let of_files: Vec<usize> = files.iter().map(|file| load(file).0).collect();
        let all = page + of_files.iter().sum::<usize>();
        assert!(all <= 25_000, "{path}: {page} bytes and {of_files:?} of {files:?}");
    }
    // A client that does not ask for gzip gets plain text.
    let plain = reader.get("/notifications").expect(200);
    assert!(plain.header("content-encoding").is_none() && plain.text().starts_with("<!doctype html>"));
    assert_eq!(plain.header("vary"), Some("accept-encoding"));
}

#[test]
fn a_theme_and_a_tenant_are_chosen_without_script() {
    let desk = Desk::with(Kind::Sqlite, &[("UI_ENVIRONMENT", "staging")], 1280);
    desk.app.create_tenant("north");
    desk.plant();
    desk.browser.disable_scripts();
    desk.open("/notifications");
    assert_eq!(desk.text(".env"), "staging");
    assert_eq!(desk.browser.run("return document.title"), "[staging] Notifications · Postcommit");
    let ground = || desk.browser.run("return getComputedStyle(document.body).backgroundColor");
    desk.browser.prefer("light");
    let light = ground();
    desk.browser.prefer("dark");
    let dark = ground();
    assert_ne!(light, dark, "the system's theme is followed");
    desk.press("Light");
    desk.until("document.documentElement.dataset.theme === 'light'");
    assert_eq!((ground(), desk.path().as_str()), (light, "/notifications"));
    desk.press("Dark");
    desk.until("document.documentElement.dataset.theme === 'dark'");
    desk.browser.prefer("light");
    assert_eq!(ground(), dark);
    // All tenants, then one: every link keeps it.
    desk.browser.run("document.querySelector('#tenant').value = 'north'");
    desk.press("Show");
    desk.until("location.search === '?tenant=north'");
    desk.says("There are no notifications yet");
    desk.click(".pills li:nth-child(5) a");
    desk.until("location.search === '?state=parked&tenant=north'");
    desk.says("Nothing matches");
    desk.browser.run("document.querySelector('#tenant').value = ''");
    desk.press("Show");
    desk.until("location.search === ''");
    desk.says("Invoice 1");
    // A person of one tenant does not learn that there are others.
    let (person, _) = session(&desk.app, "default", "admin");
    let page = person.get("/notifications").expect(200).text();
    assert!(!page.contains("north") && !page.contains("All tenants") && page.contains("default"), "{page}");
}

#[test]
fn a_phone_has_the_navigation_behind_a_button_without_script() {
    let desk = Desk::with(Kind::Sqlite, &[], 390);
    desk.browser.disable_scripts();
    desk.open("/notifications");
    let shown = || desk.browser.run("return document.querySelector('.side').checkVisibility()");
    assert_eq!(shown(), false);
    desk.click(".menu-button");
    desk.until("document.querySelector('.side').checkVisibility()");
    desk.press("Notifications");
    desk.until("!document.querySelector('.side').checkVisibility()");
    desk.is_unhurt();
}
