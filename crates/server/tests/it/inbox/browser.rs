//! The inbox component in a real browser. A notification that is enqueued by SQL appears without a reload, and marks
//! survive a reload.

use postcommit_testkit::Browser;
use serde_json::json;

use super::{Place, Server};

/// The component's shadow tree.
pub const INBOX: &str = "document.querySelector('postcommit-inbox').shadowRoot";
const TAB: &str = "\u{E004}";
const ENTER: &str = "\u{E007}";
const ESCAPE: &str = "\u{E00C}";

/// Opens the demonstration page and fills it in.
fn show(browser: &Browser, user: &str, token: &str) {
    browser.until("!document.getElementById('signed-out').hidden");
    browser.run(&format!(
        "const form = document.getElementById('form'); form.elements.user.value = '{user}'; form.elements.token.value = '{token}'; form.querySelector('button').click()"
    ));
    browser.until(&format!("{INBOX}.querySelector('.bell')"));
}

fn unread_is(browser: &Browser, count: u32) {
    let shown = if count == 0 {
        format!("{INBOX}.querySelector('.badge').hidden")
    } else {
        format!("{INBOX}.querySelector('.badge').textContent === '{count}'")
    };
    browser.until(&shown);
}

fn titles(browser: &Browser) -> serde_json::Value {
    browser.run(&format!("return [...{INBOX}.querySelectorAll('li .title')].map((title) => title.textContent)"))
}

/// The page is served by one server; another one may deliver.
async fn check_live_updates(place: Place, page_on: &Server) {
    let token = page_on.token(&place.key("default", &["operate"]).await, "alice");
    let browser = Browser::start(960, 720);
    browser.open(&format!("http://{}/inbox/demo", page_on.address));
    show(&browser, "alice", "pcu_wrong");
    browser.until(&format!(
        "{INBOX}.querySelector('.badge').textContent === '!' && !{INBOX}.querySelector('.badge').hidden"
    ));
    assert_eq!(
        browser.run(&format!("return {INBOX}.querySelector('.bell').getAttribute('aria-label')")),
        "You are signed out of notifications."
    );
    show(&browser, "alice", &token);
    browser.run("window.same = true");

    place.enqueue("alice", "See you soon", "https://example.com/bookings/7").await;
    unread_is(&browser, 1);
    let nasty = "<img src=x onerror=\"window.hurt = true\"><b>bold</b>";
    place.enqueue("alice", nasty, "mailto:desk@example.com").await;
    unread_is(&browser, 2);
    assert_eq!(browser.run("return window.same"), true, "without a reload");

    // By keyboard only: focus the bell, open it, and the newest message is first. All content is text.
    browser.run(&format!("{INBOX}.querySelector('.bell').focus()"));
    browser.press(ENTER);
    browser.until(&format!("!{INBOX}.querySelector('.panel').hidden"));
    browser.until(&format!("{INBOX}.querySelectorAll('li.unread').length === 2"));
    assert_eq!(titles(&browser), json!([nasty, "See you soon"]));
    assert_eq!(
        browser.run(&format!("return [{INBOX}.querySelectorAll('img, b').length, window.hurt ?? null]")),
        json!([0, null]),
        "a message is never markup"
    );
    let links = format!("return [...{INBOX}.querySelectorAll('a')].map((link) => link.href)");
    assert_eq!(browser.run(&links), json!(["mailto:desk@example.com", "https://example.com/bookings/7"]));
    browser.until(&format!("{INBOX}.querySelector('.panel').getAnimations().length === 0"));
    if let Some(folder) = std::env::var_os("TEST_PICTURES") {
        browser.picture(&std::path::Path::new(&folder).join(format!("inbox-{}.png", place.store.db().kind())));
    }
    for _ in 0..4 {
        browser.press(TAB);
    }
    assert_eq!(
        browser.run(&format!("return {INBOX}.activeElement.className")),
        "tool read",
        "all as read, close, the first link, its first button"
    );
    browser.press(ENTER);
    unread_is(&browser, 1);
    browser.press(ESCAPE);
    browser.until(&format!("{INBOX}.querySelector('.panel').hidden && {INBOX}.activeElement.className === 'bell'"));
    assert_eq!(
        browser.run(&format!("return {INBOX}.querySelector('.bell').getAttribute('aria-label')")),
        "Notifications, 1 unread"
    );

    // The marks are stored on the server, not in the page.
    browser.reload();
    show(&browser, "alice", &token);
    unread_is(&browser, 1);
    assert_eq!(browser.run(&format!("return {INBOX}.querySelector('li.unread .title').textContent")), "See you soon");
    browser.run(&format!("{INBOX}.querySelector('.read-all').click()"));
    unread_is(&browser, 0);
    browser.run(&format!("{INBOX}.querySelector('li .archive').click()"));
    browser.until(&format!("{INBOX}.querySelectorAll('li').length === 1"));
    browser.reload();
    show(&browser, "alice", &token);
    browser.until(&format!("{INBOX}.querySelectorAll('li').length === 1"));
    assert_eq!(titles(&browser), json!(["See you soon"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_the_component_updates_live_on_sqlite() {
    let place = Place::sqlite().await;
    let server = place.serve("all", &[]);
    check_live_updates(place, &server).await;
}

/// One process delivers, another serves the page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_the_component_updates_live_on_postgres_while_another_process_delivers() {
    let place = Place::postgres().await;
    let page_on = place.serve("api", &[]);
    let worker = place.serve("worker", &[]);
    check_live_updates(place, &page_on).await;
    drop(worker);
}

/// The component uses the page's language, even when that is set later. The bell has the colour of the text around it,
/// and the panel that of the page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_component_takes_words_and_colours_from_the_page() {
    let place = Place::sqlite().await;
    let server = place.serve("all", &[]);
    let token = server.token(&place.key("default", &["operate"]).await, "alice");
    place.enqueue("alice", &"A long story. ".repeat(40), "https://example.com/").await;
    let browser = Browser::start(390, 720);
    browser.open(&format!("http://{}/inbox/demo", server.address));
    assert_eq!(
        browser.run("return document.documentElement.scrollWidth <= innerWidth"),
        true,
        "nothing sticks out of a small page"
    );
    show(&browser, "alice", &token);
    unread_is(&browser, 1);
    let text = |part: &str| browser.run(&format!("return {INBOX}.querySelector('{part}').textContent"));
    let label = || browser.run(&format!("return {INBOX}.querySelector('.bell').getAttribute('aria-label')"));
    browser
        .run("customElements.get('postcommit-inbox').words = { inbox: 'Mitteilungen', bell: ({ unread }) => `Mitteilungen: ${unread}` }");
    assert_eq!(
        (text("h2"), label(), text(".read-all")),
        (json!("Mitteilungen"), json!("Mitteilungen: 1"), json!("Mark all as read"))
    );
    browser.run("const inbox = document.querySelector('postcommit-inbox'); inbox.setAttribute('text-bell', '{unread} neu'); inbox.setAttribute('text-read', 'Gelesen')");
    assert_eq!((label(), text("li .read")), (json!("1 neu"), json!("Gelesen")), "an element's own words come first");

    let colours = format!(
        "{INBOX}.querySelector('.bell').click(); const panel = {INBOX}.querySelector('.panel'); if (panel.hidden) {INBOX}.querySelector('.bell').click();
         const of = (part) => getComputedStyle({INBOX}.querySelector(part)).color; return [of('.bell'), of('.title'), panel.classList.contains('dark')]"
    );
    browser.run("document.body.style.cssText = 'background: #000; color: #eee'");
    assert_eq!(
        browser.run(&colours),
        json!(["rgb(238, 238, 238)", "rgb(232, 235, 240)", true]),
        "in a page that is dark, whatever the system is"
    );
    browser.run("document.body.style.cssText = 'background: #fff; color: #222'; document.querySelector('header').style.color = 'white'");
    assert_eq!(
        browser.run(&colours),
        json!(["rgb(255, 255, 255)", "rgb(26, 29, 35)", false]),
        "a dark bar in a light page"
    );
    browser.run("document.querySelector('postcommit-inbox').setAttribute('theme', 'dark')");
    assert_eq!(browser.run(&colours), json!(["rgb(255, 255, 255)", "rgb(232, 235, 240)", true]), "as it was told");
    let height = format!(
        "const title = {INBOX}.querySelector('li .title'); return title.getBoundingClientRect().height / parseFloat(getComputedStyle(title).lineHeight)"
    );
    assert!(browser.run(&height).as_f64().is_some_and(|lines| lines < 3.5), "a long title leaves room for others");
}

fn take_picture(browser: &Browser, name: &str) {
    if let Some(folder) = std::env::var_os("TEST_PICTURES") {
        browser.picture(&std::path::Path::new(&folder).join(format!("{name}.png")));
    }
}

/// Signed in by a link, the demonstration page makes its token and sends messages by itself, on a wide and on a narrow
/// window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_the_demonstration_shows_messages_to_whoever_is_signed_in() {
    let place = Place::sqlite().await;
    let server = place.serve("all", &[]);
    place.enqueue("alice", "Before the page was open", "https://example.com/").await;
    for (sent, width) in [1280, 390].into_iter().enumerate() {
        let browser = Browser::start(width, 800);
        let home = format!("http://{}", server.address);
        browser.open(&format!("{home}/inbox/demo"));
        browser.until("!document.getElementById('signed-out').hidden");
        take_picture(&browser, &format!("demo-signed-out-{width}"));
        browser.open(&format!("{home}/login?token={}", place.login_token()));
        browser.run("document.querySelector('button').click()");
        browser.until("document.querySelector('a[href=\"/inbox/demo\"]')");
        browser.run("document.querySelector('a[href=\"/inbox/demo\"]').click()");
        browser.until("!document.getElementById('signed-in').hidden");
        browser.until(&format!("{INBOX}.querySelectorAll('li').length === {}", 1 + sent));
        browser.run("document.getElementById('send').click()");
        browser.until(&format!("{INBOX}.querySelectorAll('li').length === {}", 2 + sent));
        assert_eq!(titles(&browser)[0], "Hello, alice");
        assert_eq!(
            browser.run("return [innerWidth, document.documentElement.scrollWidth <= innerWidth]"),
            json!([width, true])
        );
        browser.until("document.getElementById('said').textContent.startsWith('Sent.')");
        take_picture(&browser, &format!("demo-{width}"));
        browser.run(&format!("{INBOX}.querySelector('.bell').click()"));
        browser.until(&format!("{INBOX}.querySelector('.panel').getAnimations().length === 0"));
        take_picture(&browser, &format!("demo-open-{width}"));
    }
    let icon = server.client().get("/favicon.ico").expect(200);
    assert_eq!(icon.header("content-type"), Some("image/svg+xml"));
}
