//! The component on a page of another origin that does not fit: the browser's console, the bell and the server's log say
//! what is wrong.

use postcommit_testkit::{Browser, HttpServer, Reply};
use serde_json::json;

use super::browser::INBOX;
use super::{Place, Server};

/// A page of an application that shows the component with these attributes. What it tells the console is kept in
/// `told`.
fn page(server: &Server, attributes: &str) -> String {
    format!(
        "<!doctype html><meta charset=utf-8><link rel=icon href='data:,'><script>window.told = []; const error = console.error;
         console.error = (...words) => {{ told.push(words.join(' ')); error(...words); }};</script>
         <script type=module src='http://{}/inbox.js'></script><postcommit-inbox {attributes}></postcommit-inbox>",
        server.address
    )
}

/// An application that serves the page with the attributes of its query, and a token for its users.
fn application(pages: Vec<(&'static str, String)>) -> HttpServer {
    HttpServer::start(move |request| {
        let path = request.path.split('?').next().unwrap_or_default().to_owned();
        match pages.iter().find(|(name, _)| path == format!("/{name}")) {
            Some((_, page)) => {
                Reply::ok().with_header("content-type", "text/html; charset=utf-8").with_body(page.as_bytes())
            }
            None if path == "/no-token" => Reply::json(200, json!({"tokens": []})),
            None => Reply::status(404),
        }
    })
}

fn tells(browser: &Browser, words: &str) {
    browser.until(&format!("told.some((line) => line.startsWith('postcommit-inbox: ') && line.includes(`{words}`))"));
}

fn bell_says(browser: &Browser, words: &str) {
    browser.until(&format!("{INBOX}.querySelector('.badge').textContent === '!'"));
    assert_eq!(browser.run(&format!("return {INBOX}.querySelector('.bell').title")), words);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_a_page_that_may_not_open_an_inbox_is_told_why() {
    let place = Place::sqlite().await;
    let server = place.serve("all", &["inbox.origins=*"]);
    let key = place.key("default", &["operate"]).await;
    let bobs = server.token(&key, "bob");
    let pages = [
        ("key", format!("user=alice token={key}")),
        ("nothing", "user=alice".to_owned()),
        ("nobody", format!("token={bobs}")),
        ("other", format!("user=alice token={bobs}")),
        ("empty-handed", "user=alice token-url=/no-token".to_owned()),
        ("lost", "user=alice token-url=/nowhere".to_owned()),
    ];
    let application =
        application(pages.map(|(name, attributes)| (name, page(&server, &attributes))).into_iter().collect());
    let browser = Browser::start(960, 720);
    let open = |name: &str| browser.open(&application.url(&format!("/{name}")));

    open("key");
    tells(&browser, "the token is a secret key (pc_…), and everybody who opens the page can read it; nothing was sent");
    bell_says(&browser, "Notifications are switched off: this page was given a secret key.");
    open("nothing");
    tells(&browser, "the attribute token or token-url is missing");
    tells(&browser, "answered 401: the token is missing");
    bell_says(&browser, "You are signed out of notifications.");
    server.child.wait_for_line("the token is missing; send a user token of this inbox");
    open("nobody");
    tells(&browser, "the attribute user is missing");
    open("other");
    tells(&browser, "answered 403: the token belongs to another user");
    bell_says(&browser, "You are signed out of notifications.");
    server.child.wait_for_line("the token belongs to another user");
    open("empty-handed");
    tells(&browser, "the token-url /no-token did not answer {\"token\"");
    open("lost");
    tells(&browser, "the token-url /nowhere answered 404");
    let log = server.child.output().join("\n");
    assert!(!log.contains(&key) && !log.contains(&bobs), "{log}");
}

/// Browsers do not tell a page that its origin is not allowed; the component finds out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_a_page_of_an_origin_that_is_not_allowed_is_told_so() {
    let place = Place::sqlite().await;
    let server = place.serve("all", &[]);
    let token = server.token(&place.key("default", &["operate"]).await, "alice");
    let application = application(vec![("page", page(&server, &format!("user=alice token={token}")))]);
    let browser = Browser::start(960, 720);
    browser.open(&application.url("/page"));
    let origin = application.url("");
    let expected = format!("http://{} does not allow pages of {origin} (CORS); add that origin", server.address);
    tells(&browser, &expected);
    let logged =
        server.child.wait_for_line("a page of another origin asked for an inbox, and its browser refuses the answer");
    assert!(logged.contains(&origin), "{logged}");
    // Once, however often the page comes back.
    browser.open(&application.url("/page"));
    tells(&browser, &expected);
    let lines = server.child.output().into_iter().filter(|line| line.contains("a page of another origin"));
    assert_eq!(lines.count(), 1);
    // The server is gone: that is another thing.
    server.child.kill9();
    tells(&browser, "cannot be reached");
}
