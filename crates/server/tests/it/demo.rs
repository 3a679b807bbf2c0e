//! `postcommit demo`, as a newcomer meets it: the real command with its temporary folder in the test's own.

use std::process::Command;
use std::time::{Duration, Instant};

use postcommit_server::ui::{Page, demo_pages};
use postcommit_testkit::{Browser, Child, HttpClient};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::app::{items, text};
use crate::installation::wait_until;
use crate::ui::accessible::{axe, violations};

/// A demo that runs.
struct Demo {
    server: Child,
    folder: TempDir,
    url: String,
    token: String,
    key: String,
}

impl Demo {
    fn start(more: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), more)
    }

    fn start_in(folder: TempDir, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postcommit"));
        // A database of the environment is none of the demo's business.
        command.args(["demo", "--listen", "127.0.0.1:0"]).args(more).current_dir(folder.path());
        command.env("TMPDIR", folder.path()).env("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none");
        let server = Child::spawn(command);
        let word = |line: String| line.split_whitespace().nth(1).unwrap().to_owned();
        let (link, key) = (word(server.wait_for_line("  open ")), word(server.wait_for_line("  key ")));
        let (url, token) = link.split_once("/login?token=").unwrap();
        Self { url: url.to_owned(), token: token.to_owned(), key, server, folder }
    }

    fn client(&self) -> HttpClient {
        HttpClient::new(self.url.strip_prefix("http://").unwrap().parse().unwrap()).key(&self.key)
    }

    /// The deliveries that match, newest first.
    fn deliveries(&self, filter: &str) -> Vec<Value> {
        items(self.client().get(&format!("/v1/deliveries?limit=200&{filter}")))
    }

    fn wait_for(&self, filter: &str) -> Value {
        let mut found = None;
        wait_until(filter, || {
            found = self.deliveries(filter).into_iter().next();
            found.is_some()
        });
        found.unwrap()
    }

    fn post_form(&self, path: &str, form: &str, status: u16) -> String {
        self.client().send_as("application/x-www-form-urlencoded", "POST", path, form.as_bytes()).expect(status).text()
    }

    fn demo_folders(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.folder.path()).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The token of another sign-in link.
    fn new_link(&self) -> String {
        let link = self.run(&["keys", "login-link", "--tenant", "default", "--scope", "ops"]);
        link.trim().split_once("token=").unwrap_or_else(|| panic!("{link}")).1.to_owned()
    }

    /// The key of an administrator of a tenant.
    fn new_key(&self, tenant: &str) -> String {
        let made = self.run(&["keys", "create", "walk", "--tenant", tenant, "--scope", "admin", "-o", "json"]);
        let made: Value = serde_json::from_str(&made).unwrap_or_else(|e| panic!("{e}: {made}"));
        text(&made, "token")
    }

    /// Runs a command on the database of the demo.
    fn run(&self, words: &[&str]) -> String {
        let folder = self.folder.path().join(&self.demo_folders()[0]);
        let ran = Command::new(env!("CARGO_BIN_EXE_postcommit"))
            .args(words)
            .arg("--database-url")
            .arg(format!("sqlite:{}", folder.join("demo.db").display()))
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        String::from_utf8(ran.stdout).unwrap()
    }

    fn ends(self) -> TempDir {
        self.server.term();
        let status = self.server.wait();
        assert!(status.success(), "{status}: {:?}", self.server.output());
        self.folder
    }
}

fn is_empty(folder: &TempDir) -> bool {
    std::fs::read_dir(folder.path()).unwrap().next().is_none()
}

/// What a newcomer sees without touching anything, in less than a minute: every state of a delivery, and a retry that
/// ends well.
#[test]
fn every_state_and_a_recovery_are_seen_within_a_minute() {
    let (began, demo) = (Instant::now(), Demo::start(&[]));
    for filter in ["state=sent", "state=delivered&channel=in_app", "state=parked&channel=email", "state=skipped"] {
        demo.wait_for(filter);
    }
    demo.wait_for("state=sent&channel=slack");
    // A reminder that is scheduled, and a guest who is left alone in quiet hours.
    demo.wait_for("state=pending&channel=sms");
    demo.wait_for("state=cancelled");
    wait_until("a message waits for the end of quiet hours", || {
        demo.deliveries("state=pending&channel=email").iter().any(|row| row["waits_for"].to_string().contains("quiet"))
    });
    // The mail server of one guest puts the first attempt off.
    let farid = "state=sent&target=slow.farid@guest.example";
    let one = demo.wait_for(farid);
    assert!(one["attempts"].as_i64().unwrap() >= 2, "{one}");
    // WhatsApp reports that messages arrived.
    demo.wait_for("state=delivered&channel=whatsapp");
    // Notifications come from sites, and the bakery has its own.
    demo.wait_for("state=sent&site=market-street&tenant=bakery");
    assert!(began.elapsed() < Duration::from_secs(60), "took {:?}", began.elapsed());
    // What the greeting says to try works as it is printed.
    for (printed, said) in [("  curl ", "\"id\":"), ("deliveries list", "UPDATED"), ("enqueue desk.note", "  sent")] {
        let line = demo.server.wait_for_line(printed);
        let ran = Command::new("sh").args(["-c", line.trim()]).current_dir(demo.folder.path()).output().unwrap();
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(text.contains(said), "{line}: {text} {}", String::from_utf8_lossy(&ran.stderr));
    }
    assert!(is_empty(&demo.ends()), "everything is gone");
}

/// Break it, watch retries and parked deliveries, mend it, and retry what is parked.
#[test]
fn what_is_broken_parks_and_a_retry_recovers_it() {
    let demo = Demo::start(&[]);
    demo.post_form("/demo/chaos", "webhook_errors=100&mail_errors=100", 303);
    let parked = "state=parked&channel=webhook&reason=exhausted";
    let first = demo.wait_for(parked);
    let mail = json!({"event_type": "desk.note", "title": "Hello", "recipients": [{"email": "you@example.com"}]});
    let mail = text(&demo.client().post("/v1/notifications", &mail).expect(202).json(), "id");
    let state = || demo.client().get(&format!("/v1/notifications/{mail}/status")).expect(200).json()["state"].clone();
    // Soon the breaker holds the lane, and a mail may wait for it before its first attempt.
    demo.wait_for("state=retrying&channel=email");
    assert!(["pending", "sending", "retrying"].contains(&state().as_str().unwrap()), "{}", state());
    // A fake whose fields are left out stays as it is, and a value out of range changes nothing.
    let page = demo.client().get("/demo").expect(200).text();
    assert!(page.contains("name=\"sms_errors\" min=\"0\" max=\"100\" step=\"5\" value=\"5\""), "{page}");
    let refused = demo.post_form("/demo/chaos", "webhook_errors=0&mail_errors=101&sms_errors=%3Cb%3E", 422);
    assert!(refused.contains("is &quot;101&quot;; 0 to 100 % are allowed") || refused.contains("101"), "{refused}");
    assert!(refused.contains("value=\"101\"") && !refused.contains("<b>\""), "{refused}");
    assert!(
        demo.client()
            .get("/demo")
            .expect(200)
            .text()
            .contains("name=\"mail_errors\" min=\"0\" max=\"100\" step=\"5\" value=\"100\"")
    );
    demo.post_form("/demo/chaos", "webhook_errors=0&mail_errors=0", 303);
    let id = text(&first, "id");
    let _ = demo.client().post(&format!("/v1/deliveries/{id}/retry"), &json!({})).expect(200);
    let now = || demo.client().get(&format!("/v1/deliveries/{id}")).expect(200).json()["state"].clone();
    wait_until("the parked event arrives after a retry", || now() == "sent");
    wait_until("the mail recovers by itself", || state() == "sent");
    let page = demo.client().get("/demo").expect(200).text();
    assert!(page.contains("<ul class=\"received mail\">"), "the inbox shows what arrived: {page}");
    // An outage that a button begins, and another ends.
    demo.post_form("/demo/break", "", 303);
    assert!(demo.client().get("/demo").expect(200).text().contains("Everything fails."));
    demo.post_form("/demo/mend", "", 303);
    assert!(!demo.client().get("/demo").expect(200).text().contains("Everything fails."));
}

/// History that was made up counts in the KPIs as if it had happened, and `doctor` finds no problem.
#[test]
fn made_up_history_has_the_rows_it_says() {
    let demo = Demo::start(&["--seed", "20000"]);
    let wrote = demo.server.wait_for_line("wrote 20000 deliveries over 28 days");
    assert!(wrote.contains(" a second"), "{wrote}");
    let file = demo.folder.path().join(&demo.demo_folders()[0]).join("demo.db");
    let connection = rusqlite::Connection::open(&file).unwrap();
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let made = "(SELECT * FROM postcommit_notification WHERE idempotency_key LIKE 'history:%')";
    assert_eq!(count(&format!("SELECT count(*) FROM {made}")), 20_000);
    let of_history = format!("JOIN {made} h ON h.tenant = l.tenant AND h.id = l.notification_id");
    assert_eq!(count(&format!("SELECT count(*) FROM postcommit_delivery_ledger l {of_history}")), 20_000);
    let attempts = count(&format!("SELECT count(*) FROM postcommit_attempt l {of_history}"));
    let tries = count(&format!("SELECT sum(l.attempts) FROM postcommit_delivery_ledger l {of_history}"));
    assert_eq!(attempts, tries);
    // The counts by hour have every row of the ledger, those that the demo has sent since as well.
    let hours = "SELECT sum(count) FROM (SELECT count FROM postcommit_rollup_hour UNION ALL SELECT count FROM postcommit_rollup_fresh)
        WHERE true";
    assert!(count(hours) >= 20_000, "{}", count(hours));
    let days = count("SELECT count(DISTINCT slot / 86400000000) FROM postcommit_rollup_hour");
    assert!((28..=29).contains(&days), "{days}");
    let checked = Command::new(env!("CARGO_BIN_EXE_postcommit"))
        .args([
            "doctor",
            "--database-url",
            &format!("sqlite:{}", file.display()),
            "--setting",
            "egress.allow=127.0.0.1/32",
        ])
        .current_dir(demo.folder.path())
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn a_killed_demo_is_cleaned_up_by_the_next_one() {
    let first = Demo::start(&[]);
    first.server.kill9();
    let left = first.demo_folders();
    assert_eq!(left.len(), 1, "{left:?}");
    // A folder of the same name that no demo made, and one that is in use.
    std::fs::create_dir(first.folder.path().join("postcommit-demo-of-a-person")).unwrap();
    let second = Demo::start_in(first.folder, &[]);
    let now = second.demo_folders();
    assert!(now.len() == 2 && !now.contains(&left[0]), "{left:?}, then {now:?}");
    let folder = second.ends();
    let stays: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(stays, ["postcommit-demo-of-a-person"]);
}

/// The one-time link signs a browser in and leads to the tour; no page but the demo's has it.
#[test]
fn the_page_of_the_demo_leads_through_the_tour() {
    let demo = Demo::start(&[]);
    let rules = axe();
    for (width, theme) in [(1280, "light"), (390, "dark")] {
        let browser = Browser::start(width, 900);
        browser.prefer(theme);
        let token = match width {
            1280 => demo.token.clone(),
            _ => demo.new_link(),
        };
        browser.open(&format!("{}/login?token={token}", demo.url));
        browser.click("main button");
        browser.until("location.pathname === '/demo'");
        // Without a click the page fills by itself.
        browser.until("document.querySelectorAll('.received li').length > 8");
        let fits = browser.run("return document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(fits, true, "something is wider than the page");
        picture(&browser, &format!("demo-{width}-{theme}"));
        assert_eq!(violations(&browser, &rules, "/demo"), Vec::<String>::new());
        // The slider says its number while it moves, and the form sets it.
        browser.run("const s = document.getElementById('slack_errors'); s.value = 45; s.dispatchEvent(new Event('input', { bubbles: true }))");
        assert_eq!(browser.run("return document.querySelector('output[for=slack_errors]').value"), "45");
        // A mark tells the old page from the new one, because both have the slider at 45.
        browser.run("window.isOld = true");
        browser.click("form[action$='/demo/chaos'] button");
        browser.until("!window.isOld && document.getElementById('slack_errors')?.value === '45'");
        browser.run("document.getElementById('slack_errors').value = 0");
        browser.click("form[action$='/demo/break'] button");
        browser.until("document.body.innerText.includes('Everything fails.')");
        picture(&browser, &format!("demo-broken-{width}-{theme}"));
        for shown in ["light", "dark"] {
            browser.prefer(shown);
            assert_eq!(violations(&browser, &rules, &format!("/demo, broken, {shown}")), Vec::<String>::new());
        }
        // A value that the page does not offer comes back beside its slider.
        browser.run(
            "document.getElementById('mail_errors').max = 1000; document.getElementById('mail_errors').value = 900",
        );
        browser.click("form[action$='/demo/chaos'] button");
        browser.until("document.getElementById('mail_errors-refused')");
        for shown in ["dark", "light"] {
            browser.prefer(shown);
            assert_eq!(violations(&browser, &rules, &format!("/demo, refused, {shown}")), Vec::<String>::new());
        }
        browser.click("form[action$='/demo/mend'] button");
        browser.until("!document.body.innerText.includes('Everything fails.')");
    }
    let other = crate::api::App::at_rest(crate::installation::Kind::Sqlite);
    let _ = other.ops().get("/demo").expect(404);
    assert!(!other.ops().get("/").expect(200).text().contains("href=\"/demo\""));
}

/// The fakes belong to all tenants, so a person of one tenant sees and changes nothing of them.
#[test]
fn c15_the_pages_of_the_demo_are_for_people_who_see_all_tenants() {
    let demo = Demo::start(&[]);
    demo.wait_for("state=sent&tenant=bakery");
    let visit = |client: &HttpClient, page: &Page| match page.method {
        "GET" => client.get(page.path),
        _ => client.send_as("application/x-www-form-urlencoded", "POST", page.path, b""),
    };
    let nobody = HttpClient::new(demo.url.strip_prefix("http://").unwrap().parse().unwrap());
    let of_one = nobody.clone().key(&demo.new_key("bakery"));
    assert_eq!(demo_pages().len(), 4);
    for page in demo_pages() {
        let answer = visit(&of_one, &page);
        let said = answer.text();
        assert_eq!(answer.status, 403, "{}: {said}", page.path);
        assert!(!said.contains("guest.example") && !said.contains("href=\"/demo\""), "{}: {said}", page.path);
        let answer = visit(&nobody, &page);
        assert_eq!((answer.status, answer.header("location").map(|to| to.starts_with("/login"))), (303, Some(true)));
        let served = if page.method == "GET" { 200 } else { 303 };
        assert_eq!(visit(&demo.client(), &page).status, served, "{}", page.path);
    }
}

/// The three steps of the README, with a browser alone: one is delivered, everything breaks, and what was parked arrives
/// after a retry. It takes the pictures of the README (`scripts/pictures`).
#[test]
fn the_steps_of_the_readme_lead_from_a_delivery_to_a_recovery() {
    let demo = Demo::start(&["--seed", "20000"]);
    let browser = Browser::start(1280, 820);
    browser.prefer("light");
    browser.open(&format!("{}/login?token={}", demo.url, demo.token));
    browser.click("main button");
    browser.until("location.pathname === '/demo'");
    browser.click(".side a[href^='/notifications']");
    browser.until("[...document.querySelectorAll('.rows .state')].some((e) => ['Sent', 'Delivered'].includes(e.innerText.trim()))");
    // The guest whose mail server puts the first attempt off.
    let mut retried = String::new();
    wait_until("a booking of the guest is sent by the second attempt", || {
        let sent = demo.deliveries("state=sent&target=slow.farid@guest.example&event_type=booking.confirmed");
        let second = sent.into_iter().find(|row| row["attempts"].as_i64() >= Some(2));
        retried = second.map_or_else(String::new, |row| format!("{}?n={}", text(&row, "notification_id"), row["n"]));
        !retried.is_empty()
    });
    browser.open(&format!("{}/notifications/{retried}", demo.url));
    browser.until("document.querySelectorAll('.timeline li').length >= 3");
    picture(&browser, "readme-notification");
    browser.open(&format!("{}/", demo.url));
    browser
        .until("document.querySelectorAll('.plot a').length > 20 && document.querySelectorAll('.sites li').length > 1");
    picture(&browser, "readme-overview");
    browser.open(&format!("{}/demo", demo.url));
    browser.click("form[action$='/demo/break'] button");
    browser.until("document.body.innerText.includes('Everything fails.')");
    browser.click(".side a[href^='/parked']");
    let group = "[...document.querySelectorAll('.group')].find((e) => e.innerText.includes('http_5'))";
    browser.until(group);
    browser.open(&format!("{}/demo", demo.url));
    browser.click("form[action$='/demo/mend'] button");
    browser.until("!document.body.innerText.includes('Everything fails.')");
    browser.open(&format!("{}/parked", demo.url));
    browser.until(group);
    browser.run(&format!("{group}.querySelector('button.main').setAttribute('data-here', '')"));
    browser.click("[data-here]");
    browser.until("document.querySelector('h1').innerText.startsWith('Retry ') && !document.querySelector('#groups')");
    // An act on all tenants needs its number typed.
    browser.run("document.querySelector('#typed').value = document.querySelector('[name=shown]').value");
    browser.click("main form button.main");
    browser
        .until("location.pathname.startsWith('/jobs/') && document.querySelector('#progress').dataset.live === 'off'");
    let done = browser.run("return document.querySelector('#progress .sentence').innerText");
    assert!(!done.as_str().unwrap().starts_with("0 of"), "{done}");
    wait_until("what the webhook refused has arrived", || {
        demo.deliveries("state=parked,pending,retrying,sending&channel=webhook&error_code=http_500").is_empty()
    });
}

fn picture(browser: &Browser, name: &str) {
    if let Some(folder) = std::env::var_os("TEST_PICTURES") {
        browser.picture(&std::path::Path::new(&folder).join(format!("ui-{name}.png")));
    }
}
