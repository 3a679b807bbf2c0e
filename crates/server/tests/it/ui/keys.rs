//! Keys, sign-in links and sessions: what is shown once, and who is refused.

use postcommit_testkit::{HttpClient, HttpResponse};
use serde_json::json;

use super::desk::{Desk, HOSTILE, login_token, session};
use crate::installation::Kind;

fn post(client: &HttpClient, path: &str, form: &str) -> HttpResponse {
    client.send_as("application/x-www-form-urlencoded", "POST", path, form.as_bytes())
}

#[test]
fn a_key_is_shown_once_used_and_revoked_without_script() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    desk.open("/keys");
    // Without a scope the form comes back with what was typed.
    desk.fill("#name", "The <b>booking</b> service");
    desk.press("Create the key");
    desk.says("at least one is needed");
    assert_eq!(desk.browser.run("return document.querySelector('#name').value"), json!("The <b>booking</b> service"));
    desk.click("#key-enqueue");
    desk.fill("#lasts", "90");
    desk.press("Create the key");
    desk.says("It is not shown again");
    desk.picture("secret");
    let key = desk.text("#secret");
    assert!(key.starts_with("pc_") && !desk.path().contains("pc_"), "{}", desk.path());
    let program = desk.app.nobody().with("Authorization", &format!("Bearer {key}"));
    assert_eq!(program.get("/v1/session").expect(200).json()["scopes"], json!(["enqueue"]));
    desk.press("Back to keys");
    desk.says("The <b>booking</b> service");
    let page = desk.text("main");
    assert!(!page.contains(&key) && page.contains("expires in 89 days"), "{page}");
    desk.picture("keys");
    desk.click("[aria-label='Revoke The <b>booking</b> service']");
    desk.says("This cannot be undone.");
    desk.press("Revoke the key");
    desk.says("The key is revoked, and its sessions have ended.");
    assert_eq!(program.get("/v1/session").status, 401);
    desk.is_unhurt();
}

#[test]
fn a_person_gets_a_link_signs_in_is_refused_and_is_signed_out() {
    let desk = Desk::new(Kind::Sqlite);
    desk.open("/keys");
    desk.fill("#person", "Ada");
    desk.click("#link-read");
    desk.press("Create the link");
    desk.says("It works once, within 15 minutes");
    let link = desk.text("#secret");
    let token = link.split("token=").nth(1).unwrap().to_owned();
    desk.press("Sign out");
    desk.sign_in(&token);
    desk.says("login:Ada");
    // A person who may only read sees neither the page nor the way to it.
    assert!(!desk.text(".side nav").contains("Keys"), "{}", desk.text(".side nav"));
    desk.open("/keys");
    desk.says("this page needs the scope `admin`");
    desk.press("Sign out");
    desk.sign_in(&login_token(&desk.app, "default", "ops"));
    let (ada, _) = session(&desk.app, "default", "read");
    desk.open("/keys");
    // The test's own links are made by the command line, whose actor signs in here as well.
    let people = desk.texts("[aria-labelledby=h-people] button");
    assert!(people.as_array().unwrap().len() >= 2, "{people}");
    let actor = ada.get("/v1/session").expect(200).json()["actor"].as_str().unwrap().to_owned();
    desk.browser.run(&format!("document.querySelector({}).click()", json!(format!("[aria-label='Sign out {actor}']"))));
    desk.says("All sessions of this person end");
    desk.press("Sign out this person");
    // It was the operator's own name, so this session is over, too.
    desk.says("You are not signed in");
    assert_eq!(ada.get("/notifications").status, 303);
}

#[test]
fn nobody_gives_more_than_they_have() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_tenant("north");
    let (admin, csrf) = session(&desk.app, "default", "admin");
    let page = admin.get("/keys").expect(200).text();
    assert!(page.contains("value=\"admin\"") && !page.contains("value=\"ops\"") && !page.contains("north"), "{page}");
    for (path, name) in [("/keys", "name"), ("/keys/sign-in-links", "person")] {
        let refused = post(&admin, path, &format!("csrf_token={csrf}&{name}=x&scopes=ops")).expect(422).text();
        assert!(refused.contains("scopes that"), "{refused}");
    }
    let keys = admin.get("/v1/keys").expect(200).text();
    assert!(!keys.contains("\"name\":\"x\""), "{keys}");
    // A person who sees all tenants must choose one before something is created.
    desk.open("/keys");
    desk.says("Choose a tenant to create a key");
    assert_eq!(desk.count("#name"), 0);
    desk.open("/keys?tenant=north");
    desk.fill("#name", HOSTILE);
    desk.click("#key-read");
    desk.press("Create the key");
    desk.says("It is not shown again");
    desk.press("Back to keys");
    desk.until("location.search === '?tenant=north'");
    desk.says("<script>window.hurt = 1</script>");
    desk.is_unhurt();
}
