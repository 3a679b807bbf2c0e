//! Providers: the catalogue, the form that is drawn from a recipe, the test, and the acts.

use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use super::desk::{Desk, HOSTILE, session};
use crate::api::app::items;
use crate::installation::Kind;

/// A service that takes the first message and refuses all others with a hostile text.
fn service() -> HttpServer {
    HttpServer::start(|request| match request.n {
        1 => Reply::json(200, json!({"ok": true, "result": {"message_id": 4711}})),
        _ => Reply::json(403, json!({"ok": false, "description": HOSTILE})),
    })
}

fn secret_in(desk: &Desk) -> bool {
    desk.browser.run("return document.documentElement.outerHTML").as_str().unwrap().contains("123456:HUSH")
}

#[test]
fn d5_a_provider_is_added_from_a_recipe_and_tested() {
    let (desk, service) = (Desk::new(Kind::Sqlite), service());
    desk.open("/providers");
    desk.press("Add a provider");
    desk.says("Telegram bot");
    desk.picture("catalogue");
    desk.fill("#q", "telegram");
    desk.press("Search");
    desk.until("document.querySelectorAll('.entries li').length === 1");
    desk.says("a repeated request sends the message again");
    desk.press("Telegram bot");
    desk.says("Base URL");
    // A refused form comes back with what was typed, but without the secret.
    desk.fill("[id='f-name']", "bot");
    desk.fill("[id='f-settings.base_url']", "ftp://nowhere");
    desk.fill("[id='f-secret.token']", "123456:HUSH");
    desk.fill("[id='f-concurrency']", "many");
    desk.press("Add the provider");
    desk.says("Concurrent sends is \"many\"; it must be a whole number.");
    assert_eq!(desk.browser.run("return document.querySelector('.limits').open"), true);
    desk.fill("[id='f-concurrency']", "3");
    desk.fill("[id='f-secret.token']", "123456:HUSH");
    desk.press("Add the provider");
    desk.says("Base URL must be a full http or https URL");
    let value = |id: &str| desk.browser.run(&format!("return document.getElementById('{id}').value"));
    assert_eq!(
        (value("f-name"), value("f-concurrency"), value("f-secret.token")),
        (json!("bot"), json!("3"), json!(""))
    );
    assert!(!secret_in(&desk));
    desk.picture("provider-form");
    desk.fill("[id='f-settings.base_url']", &service.url(""));
    desk.press("Add the provider");
    desk.says("Token is missing: the token of the bot");
    desk.fill("[id='f-secret.token']", "123456:HUSH");
    desk.press("Add the provider");
    desk.says("The provider is created.");
    assert_eq!(desk.path().split('?').next(), Some("/providers/bot"));
    assert!(desk.text("main").contains("Token (secret)") && !secret_in(&desk), "{}", desk.text("main"));
    // The test sends, and shows what went out and what came back.
    desk.press("Test");
    desk.press("Send the test");
    desk.says("The address has 0 bytes; 1 to 2048 are allowed.");
    desk.fill("#f-address", "42");
    desk.press("Send the test");
    desk.says("It was sent");
    desk.says("4711");
    assert!(desk.text("#result pre").contains("/sendMessage") && !secret_in(&desk), "{}", desk.text("#result"));
    assert_eq!(service.requests()[0].json()["chat_id"], "42");
    desk.picture("provider-test");
    desk.press("Send the test");
    desk.says("It was not sent");
    desk.is_unhurt();
    let tests = items(desk.app.ops().get("/v1/audit?tenant=default&action=provider.test"));
    assert_eq!(tests.len(), 2);
    // A new destination needs the secret again.
    desk.press("Back to the provider");
    desk.press("Edit");
    desk.fill("[id='f-settings.base_url']", "http://127.0.0.1:1");
    desk.press("Save");
    desk.says("Base URL decides where the secrets are sent");
    desk.fill("[id='f-settings.base_url']", &service.url(""));
    desk.fill("[id='f-rate_per_s']", "7");
    desk.press("Save");
    desk.says("The provider is changed.");
    desk.says("7 a second, burst 1");
}

#[test]
fn a_provider_is_paused_resumed_disabled_and_deleted_without_script() {
    let desk = Desk::new(Kind::Postgres);
    desk.plant();
    desk.browser.disable_scripts();
    desk.open("/providers");
    desk.says("capture_permanent");
    desk.picture("providers");
    desk.press("catcher");
    desk.says("It is open.");
    desk.press("Pause…");
    desk.fill("#text", &"x".repeat(256));
    desk.press("Pause the provider");
    desk.says("has 256 characters; 1 to 255 are allowed");
    desk.fill("#text", HOSTILE.get(..100).unwrap());
    desk.press("Pause the provider");
    desk.says("The provider is paused.");
    assert!(desk.text(".sentence").contains("Paused: <script>"), "{}", desk.text(".sentence"));
    desk.is_unhurt();
    assert!(desk.text(".timeline").contains("Pause"), "{}", desk.text(".timeline"));
    desk.picture("provider");
    desk.press("Resume…");
    desk.press("Resume");
    desk.says("The provider is open.");
    desk.press("Disable…");
    desk.press("Disable the provider");
    desk.says("takes no new deliveries");
    desk.press("Enable…");
    desk.press("Enable the provider");
    desk.says("The provider takes new deliveries.");
    desk.press("Delete…");
    desk.press("Delete the provider");
    desk.says("The provider is deleted.");
    assert!(!desk.text("main").contains("catcher"));
}

#[test]
fn a_generated_secret_is_shown_once_and_a_callback_url_on_request() {
    let desk = Desk::with(Kind::Sqlite, &[], 390);
    desk.app.create_tenant("north");
    // Who sees several tenants chooses one before something is made.
    desk.open("/providers/new/webhook");
    desk.says("Choose the tenant first");
    assert_eq!(desk.count("#f-name"), 0);
    desk.open("/providers/new/webhook?tenant=north");
    desk.fill("[id='f-name']", "partner");
    desk.fill("[id='f-settings.headers']", "[1]");
    desk.press("Add the provider");
    desk.says("Headers must be a JSON object");
    desk.fill("[id='f-settings.headers']", "{\"x-a\": \"<img src=x onerror='window.hurt = 2'>\"}");
    desk.press("Add the provider");
    desk.says("whsec_");
    desk.picture("provider-made");
    desk.press("Open the provider");
    desk.says("Secret (secret)");
    assert!(!desk.browser.run("return document.documentElement.outerHTML").as_str().unwrap().contains("whsec_"));
    desk.is_unhurt();
    assert_eq!(desk.path(), "/providers/partner?tenant=north");
    let takes_callbacks = json!({
        "name": "texts", "driver": "vonage", "settings": {"from": "Hotel"},
        "secrets": {"api_key": "abc123", "api_secret": "hush_0123456789"},
    });
    let _ = desk.app.ops().post("/v1/providers?tenant=north", &takes_callbacks).expect(201);
    desk.open("/providers/texts?tenant=north");
    desk.press("Show the URL");
    desk.says("/v1/callbacks/");
    let url = desk.text("main code");
    desk.press("Make a new URL…");
    desk.press("Make a new URL");
    desk.until("location.pathname.endsWith('/callback') && document.querySelector('main code')");
    assert_ne!(desk.text("main code"), url);
    // Who may only read sees neither acts nor the URL, and the form is refused.
    let (reader, _) = session(&desk.app, "north", "read");
    let page = reader.get("/providers/texts").expect(200).text();
    assert!(!page.contains("Pause…") && !page.contains("Show the URL") && !page.contains("hush_"), "{page}");
    assert_eq!(reader.get("/providers/new").status, 403);
}
