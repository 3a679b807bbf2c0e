//! A person at a browser, signed in to a server that delivers only on request.

use postcommit_testkit::{Browser, HttpClient};
use serde_json::{Value, json};

use crate::api::App;
use crate::api::sessions::{link, sign_in};
use crate::installation::{Kind, wait_until};

/// Texts that must be shown as they are: markup, template syntax, and characters that turn the text around.
pub const HOSTILE: &str = "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'><svg onload=\"window.hurt = 3\"> \
    {{ 7 * 7 }} {% for %} javascript:alert(1) \u{202e}dlrow '; -- $$ %s \\ =cmd|x &lt;b&gt;";

pub struct Desk {
    pub app: App,
    pub browser: Browser,
}

impl Desk {
    /// Signs in as the operator of the server, who sees all tenants.
    pub fn new(kind: Kind) -> Self {
        Self::with(kind, &[], 1280)
    }

    pub fn with(kind: Kind, settings: &[(&str, &str)], width: u32) -> Self {
        let app = App::with(kind, "api", settings);
        let desk = Self { browser: Browser::start(width, 820), app };
        desk.sign_in(&link(&desk.app));
        desk
    }

    pub fn sign_in(&self, token: &str) {
        self.open(&format!("/login?token={token}"));
        self.click("main button");
        self.until("location.pathname !== '/login'");
    }

    pub fn open(&self, path: &str) {
        self.browser.open(&format!("http://{}{path}", self.app.address()));
    }

    /// Opens a page again and again until it shows a text. Counts that took long are kept for a while.
    pub fn open_until(&self, path: &str, words: &str) {
        wait_until(words, || {
            self.open(path);
            self.text("body").contains(words)
        });
    }

    pub fn until(&self, expression: &str) {
        self.browser.until(expression);
    }

    /// Waits until the page shows a text.
    pub fn says(&self, words: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(words)));
    }

    pub fn text(&self, selector: &str) -> String {
        let script = format!("return document.querySelector({})?.innerText ?? 'nothing'", json!(selector));
        self.browser.run(&script).as_str().unwrap().to_owned()
    }

    pub fn texts(&self, selector: &str) -> Value {
        self.browser
            .run(&format!("return [...document.querySelectorAll({})].map((e) => e.innerText.trim())", json!(selector)))
    }

    pub fn count(&self, selector: &str) -> u64 {
        let counted = self.browser.run(&format!("return document.querySelectorAll({}).length", json!(selector)));
        counted.as_u64().unwrap()
    }

    /// Clicks on an element and waits for the next page if there is one.
    pub fn click(&self, selector: &str) {
        self.browser.click(selector);
    }

    /// Waits for the button or link with this text, and clicks on it.
    pub fn press(&self, text: &str) {
        let all = "[...document.querySelectorAll('main button, main a, main summary, .side button, .side a')]";
        let one = format!("{all}.find((e) => e.innerText?.trim() === {})", json!(text));
        self.until(&format!("!document.querySelector('[data-pressed]') && {one}"));
        self.browser.run(&format!("{one}.setAttribute('data-pressed', '')"));
        self.click("[data-pressed]");
        // A button that opens no page stays, and may be pressed again.
        self.browser.run("document.querySelector('[data-pressed]')?.removeAttribute('data-pressed')");
    }

    pub fn fill(&self, selector: &str, value: &str) {
        self.browser.run(&format!("document.querySelector({}).value = {}", json!(selector), json!(value)));
    }

    pub fn path(&self) -> String {
        self.browser.run("return location.pathname + location.search").as_str().unwrap().to_owned()
    }

    /// Nothing of the hostile text ran or became markup, and nothing sticks out of the page.
    pub fn is_unhurt(&self) {
        assert_eq!(self.browser.run("return window.hurt ?? null"), Value::Null);
        assert_eq!(self.count("main img, main script, main svg[onload]"), 0);
        let fits = self.browser.run("return document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(fits, true, "something is wider than the page: {}", self.path());
    }

    /// Takes pictures for people to look at, if `TEST_PICTURES` names a folder.
    pub fn picture(&self, name: &str) {
        if let Some(folder) = std::env::var_os("TEST_PICTURES") {
            self.browser.picture(&std::path::Path::new(&folder).join(format!("ui-{name}.png")));
        }
    }

    /// A provider that rejects events of the type `bad`, and two notifications of each kind.
    pub fn plant(&self) {
        self.app.create_capture("default", "catcher", "bad");
        for (event_type, title) in [
            ("good", "Booking 1 confirmed"),
            ("bad", "Invoice 1"),
            ("good", "Booking 2 confirmed"),
            ("bad", "Invoice 2"),
        ] {
            self.enqueue(event_type, title);
        }
        self.app.pass();
    }

    pub fn enqueue(&self, event_type: &str, title: &str) -> String {
        let entity = title.split(' ').nth(1).unwrap_or(title);
        let note = json!({
            "event_type": event_type, "entity": entity, "title": title, "body": format!("Body of {title}"),
            "recipients": [{"email": "ada@example.com"}], "channels": ["email"],
        });
        self.app.enqueue(&self.app.ops(), &note)
    }
}

/// The browser of a person whose session has these scopes, as a program: its cookie and its CSRF token.
pub fn session(app: &App, tenant: &str, scopes: &str) -> (HttpClient, String) {
    let token = login_token(app, tenant, scopes);
    let answer = sign_in(&app.nobody(), &token).expect(303);
    let cookies: Vec<&str> = answer.headers("set-cookie");
    let cookie =
        cookies.iter().find(|cookie| cookie.starts_with("__Host-postcommit=")).unwrap().split(';').next().unwrap();
    let client = app.nobody().with("Cookie", cookie);
    let csrf = client.get("/v1/session").expect(200).json()["csrf_token"].as_str().unwrap().to_owned();
    (client, csrf)
}

/// The token of a new sign-in link for a person of a tenant.
pub fn login_token(app: &App, tenant: &str, scopes: &str) -> String {
    let made = app.installation.run(&["keys", "login-link", "--tenant", tenant, "--scope", scopes]);
    made.split("token=")
        .nth(1)
        .unwrap_or_else(|| panic!("no link: {made}"))
        .split_whitespace()
        .next()
        .unwrap()
        .to_owned()
}
