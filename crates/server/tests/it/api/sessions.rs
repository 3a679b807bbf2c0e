//! Signing in with a link: what the browser is given, and what another site can make it do.

use postcommit_testkit::{HttpClient, HttpResponse, forged};
use serde_json::{Value, json};

use super::app::{App, items, refused, text};
use crate::installation::Kind;

/// The token of the link that a server prints when it starts.
pub fn link(app: &App) -> String {
    let line = app.server.wait_for_line("/login?token=");
    line.split("token=").nth(1).unwrap().split(' ').next().unwrap().to_owned()
}

pub fn sign_in(client: &HttpClient, token: &str) -> HttpResponse {
    client.send_as("application/x-www-form-urlencoded", "POST", "/login", format!("token={token}").as_bytes())
}

/// The browser of a person who signed in, and the token that our pages send along.
fn signed_in(app: &App) -> (HttpClient, String) {
    session_of(app, &link(app))
}

fn session_of(app: &App, link: &str) -> (HttpClient, String) {
    let answer = sign_in(&app.nobody(), link).expect(303);
    let cookie = answer.header("set-cookie").unwrap().to_owned();
    for part in ["__Host-postcommit=", "; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict"] {
        assert!(cookie.contains(part), "{part}: {cookie}");
    }
    let browser = app.nobody().with("Cookie", cookie.split(';').next().unwrap());
    let csrf = text(&browser.get("/v1/session").expect(200).json(), "csrf_token");
    (browser, csrf)
}

/// Another session of the same installation.
fn another_session(app: &App) -> (HttpClient, String) {
    let made = app.installation.run(&["keys", "login-link"]);
    let token = made.split("token=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    session_of(app, &token)
}

/// Pages answer with the HTML form of a problem: what was wrong and what to do.
fn refused_by_page(answer: HttpResponse, status: u16, detail: &str) {
    let answer = answer.expect(status);
    assert!(answer.header("content-type").unwrap().starts_with("text/html"));
    let page = answer.text();
    assert!(page.contains("<h1>") && page.contains(detail) && page.matches("<p>").count() == 2, "{page}");
}

on_both! {
    fn a_change_by_a_session_needs_its_csrf_token_in_the_header_or_the_form(kind) {
        let app = App::at_rest(kind);
        let (browser, csrf) = signed_in(&app);
        let (_, others) = another_session(&app);
        let form = |client: &HttpClient, body: &str| client.send_as("application/x-www-form-urlencoded", "POST", "/v1/dispatch", body.as_bytes());
        let header = |token: &str| browser.clone().with("X-CSRF-Token", token);
        for refusal in [
            form(&browser, ""),
            form(&browser, "other=1"),
            form(&browser, "csrf_token="),
            form(&browser, "csrf_token=nonsense"),
            form(&browser, &format!("csrf_token={others}")),
            browser.send_as("application/json", "POST", "/v1/dispatch", format!("csrf_token={csrf}").as_bytes()),
            form(&header("nonsense"), ""),
            form(&header(&others), ""),
            form(&header("nonsense"), &format!("csrf_token={csrf}")),
        ] {
            refused(refusal, 403, None);
        }
        let _ = form(&browser, &format!("csrf_token={csrf}")).expect(200);
        let _ = form(&browser, &format!("other=1&csrf_token={csrf}")).expect(200);
        let _ = form(&header(&csrf), "").expect(200);
        // A page has the token under a pad that differs from page to page. Without the pad it is the same token.
        let masked = || {
            let page = browser.get("/glossary").expect(200).text();
            page.split("name=\"csrf_token\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
        };
        let (first, second) = (masked(), masked());
        assert!(first != second && first != csrf, "{first} {second}");
        for token in [&first, &second] {
            let _ = form(&browser, &format!("csrf_token={token}")).expect(200);
        }
        refused(form(&browser, &format!("csrf_token={}", forged(&first))), 403, None);
        // Another site's page cannot use a token even if it had one.
        refused(form(&browser.clone().with("Origin", "https://evil.example"), &format!("csrf_token={csrf}")), 403, None);
        // Reading needs no token, and a key needs none at all.
        let _ = browser.get("/v1/session").expect(200);
        let _ = form(&app.ops(), "").expect(200);
    }

    fn a_link_signs_in_once_and_the_session_ends_on_sign_out(kind) {
        let app = App::at_rest(kind);
        let token = link(&app);
        // Opening the link does not use it up, because mail scanners open links.
        for _ in 0..2 {
            let page = app.nobody().get(&format!("/login?token={token}")).expect(200);
            assert!(page.text().contains(&format!("value=\"{token}\"")) && page.header("content-type").unwrap().starts_with("text/html"));
        }
        let page = app.nobody().get("/login?token=%22%3E%3Cscript%3Ealert(1)%3C/script%3E").expect(200).text();
        assert!(!page.contains("<script>") && !page.contains("alert(1)"), "{page}");
        // A page may tell the browser not to send the origin of a form. Ours must not.
        assert_eq!(app.nobody().get("/login").expect(200).header("referrer-policy"), Some("same-origin"));
        for foreign in ["https://evil.example", "null"] {
            refused_by_page(sign_in(&app.nobody().with("Origin", foreign), &token), 403, "sent by another site");
        }
        let (browser, csrf) = signed_in(&app);
        refused_by_page(sign_in(&app.nobody(), &token), 401, "the sign-in link was used before or has expired");
        refused_by_page(app.nobody().get("/login?tokn=x"), 422, "unknown parameter `tokn`");
        refused_by_page(app.nobody().send("DELETE", "/login", None), 405, "does not support this method");
        let session = browser.get("/v1/session").expect(200).json();
        assert_eq!((&session["tenant"], &session["scopes"]), (&json!("default"), &json!(["ops"])), "{session}");
        assert!(text(&session, "actor").starts_with("cli:"), "{session}");
        let ours = browser.clone().with("X-CSRF-Token", &csrf);
        let gone = ours.send("DELETE", "/v1/session", None).expect(204);
        assert!(gone.header("set-cookie").unwrap().contains("Max-Age=0"));
        refused(browser.get("/v1/session"), 401, None);
        refused(ours.post("/v1/tenants", &json!({"name": "x"})), 401, None);
        let actions: Vec<String> = items(app.ops().get("/v1/audit")).iter().map(|entry| text(entry, "action")).collect();
        assert!(["session.begin", "session.end", "login_link.create"].iter().all(|action| actions.iter().any(|said| said == action)), "{actions:?}");
    }

    fn a_session_may_read_while_the_database_accepts_no_writes(kind) {
        let app = App::at_rest(kind);
        let (browser, _) = signed_in(&app);
        // Old enough for a renewal with the next request. Then the database becomes read-only.
        let _ = app.installation.rows(match kind {
            Kind::Postgres => "UPDATE postcommit.session SET last_seen_at = last_seen_at - interval '1 hour'",
            Kind::Sqlite => "UPDATE postcommit.session SET last_seen_at = last_seen_at - 3600000000",
        });
        let bar = match kind {
            Kind::Postgres => vec![
                "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$",
                "CREATE TRIGGER full_disk BEFORE UPDATE ON postcommit.session \
                    FOR EACH ROW \
                    EXECUTE FUNCTION full_disk()",
            ],
            Kind::Sqlite => vec!["CREATE TRIGGER full_disk BEFORE UPDATE ON postcommit.session BEGIN \
                SELECT RAISE(ABORT, 'database or disk is full'); END"],
        };
        bar.into_iter().for_each(|sql| drop(app.installation.rows(sql)));
        let _ = browser.get("/v1/notifications").expect(200);
        app.server.wait_for_line("could not renew a session");
    }

    fn an_open_page_does_not_keep_a_session_and_an_ended_one_is_no_guess(kind) {
        let app = App::at_rest(kind);
        let (browser, _) = signed_in(&app);
        let hours = |field: &str, hours: u32| match kind {
            Kind::Postgres => format!("UPDATE postcommit.session SET {field} = {field} - interval '{hours} hours'"),
            Kind::Sqlite => format!("UPDATE postcommit.session SET {field} = {field} - {hours} * 3600000000"),
        };
        let _ = app.installation.rows(&hours("last_seen_at", 1));
        let seen = || app.installation.rows("SELECT CAST(last_seen_at AS TEXT) FROM postcommit.session");
        let before = seen();
        let _ = browser.clone().with("Postcommit-Poll", "1").get("/").expect(200);
        assert_eq!(seen(), before);
        let _ = browser.get("/").expect(200);
        assert_ne!(seen(), before, "a person renews it");
        let _ = app.installation.rows(&hours("expires_at", 13));
        // However many pages are open, each of them is led to the sign-in.
        for _ in 0..40 {
            assert_eq!(browser.get("/notifications").expect(303).header("location"), Some("/login"));
        }
    }

    fn a_session_with_a_chosen_tenant_can_sign_out(kind) {
        let app = App::at_rest(kind);
        app.create_tenant("north");
        let (browser, csrf) = signed_in(&app);
        let _ = browser.clone().with("X-CSRF-Token", &csrf).send("DELETE", "/v1/session?tenant=north", None).expect(204);
        refused(browser.get("/v1/session"), 401, None);
        let ended = &items(app.ops().get("/v1/audit?action=session.end"))[0];
        assert_eq!((&ended["tenant"], &ended["actor"]), (&json!("default"), &ended["subject"]), "{ended}");
        assert!(text(ended, "actor").starts_with("cli:"), "{ended}");
    }

    fn another_site_cannot_change_anything_with_a_cookie(kind) {
        let app = App::at_rest(kind);
        let (browser, csrf) = signed_in(&app);
        let change = |client: &HttpClient, name: &str| client.post("/v1/tenants", &json!({"name": name}));
        refused(change(&browser, "a"), 403, None);
        refused(change(&browser.clone().with("X-CSRF-Token", "nonsense"), "a"), 403, None);
        let ours = browser.with("X-CSRF-Token", &csrf);
        for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
            refused(change(&ours.clone().with("Origin", origin), "a"), 403, None);
        }
        let own = format!("http://{}", app.address());
        let _ = change(&ours.clone().with("Origin", &own), "a").expect(201);
        let _ = change(&ours, "b").expect(201);
        // An unknown cookie is not signed in. A key needs no CSRF token.
        refused(change(&app.nobody().with("Cookie", "__Host-postcommit=nonsense").with("X-CSRF-Token", &csrf), "c"), 401, None);
        let _ = change(&app.ops(), "c").expect(201);
        let names: Vec<Value> = items(app.ops().get("/v1/tenants")).iter().map(|tenant| tenant["name"].clone()).collect();
        assert_eq!(names, ["a", "b", "c", "default"]);
        // With a key, the answer has no CSRF token.
        assert!(app.ops().get("/v1/session").expect(200).json().get("csrf_token").is_none());
    }
}
