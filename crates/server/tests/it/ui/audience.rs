//! Users, lists and suppressions.

use serde_json::json;

use super::desk::{Desk, HOSTILE, session};
use crate::api::on_both;
use crate::installation::Kind;

/// A user is created, found, changed and deleted.
fn keep_a_user(desk: &Desk) {
    desk.open("/users");
    desk.says("There are no users yet.");
    desk.press("New user");
    desk.fill("#f-id", "guest/42");
    desk.fill("#f-name", "Ada");
    desk.fill("#f-email", "ada@example.com");
    desk.fill("#f-phone", "98765");
    desk.press("Create the user");
    desk.until("document.querySelector('#e-phone')");
    assert_eq!(desk.browser.run("return document.querySelector('#f-id').value"), "guest/42", "nothing typed is lost");
    desk.fill("#f-phone", "+919876543210");
    desk.press("Create the user");
    desk.says("The user is saved.");
    assert_eq!(desk.path().split('?').next(), Some("/users/guest%2F42"));
    // The profile.
    desk.fill("#f-language", "portuguese");
    desk.press("Save the profile");
    desk.says("is not a language tag");
    desk.fill("#f-language", "pt-BR");
    desk.fill("#f-quiet_hours_from", "22:00");
    desk.press("Save the profile");
    desk.until("document.querySelector('#e-quiet_hours_until')");
    desk.fill("#f-quiet_hours_until", "07:00");
    desk.press("Save the profile");
    desk.says("The user is saved.");
    // Addresses and preferences.
    desk.fill("#f-address", "second@example.com");
    desk.press("Add the address");
    desk.until("document.querySelectorAll('#addresses li').length === 3");
    desk.click("[aria-label='Disable ada@example.com']");
    desk.says("not used: disabled by a person");
    desk.click("[aria-label='Remove second@example.com…']");
    desk.press("Remove the address");
    desk.until("document.querySelectorAll('#addresses li').length === 2");
    desk.fill("#f-event_type", "newsletter");
    desk.press("Set the preference");
    desk.until("document.querySelector('#preferences')?.innerText.includes('Not wanted')");
    desk.picture("user");
    let stored = desk.app.ops().get("/v1/users/guest%2F42?tenant=default").expect(200).json();
    assert_eq!(
        (&stored["language"], &stored["quiet_hours"]),
        (&json!("pt-BR"), &json!({"from": "22:00", "until": "07:00"}))
    );
    assert_eq!(stored["addresses"][0]["disabled_reason"], "disabled by a person");
    // Found by a part of the name, and by an address.
    for words in ["AD", "+919876543210"] {
        desk.open("/users");
        desk.fill("#q", words);
        desk.press("Search");
        desk.until("location.search.startsWith('?q=')");
        assert_eq!(desk.texts(".what a"), json!(["guest/42"]), "{words}");
    }
    desk.fill("#q", "nobody");
    desk.press("Search");
    desk.says("Nobody found.");
    desk.open("/users/guest%2F42");
    desk.press("Delete…");
    desk.press("Delete the user");
    desk.says("The user is deleted.");
    desk.is_unhurt();
}

on_both! {
    fn a_person_keeps_a_user(kind) {
        keep_a_user(&Desk::new(kind));
    }
}

/// Lists hold users, addresses and lists, but not themselves. Suppressions are added, found and removed.
fn keep_lists_and_suppressions(desk: &Desk) {
    let _ = desk.app.client("default", &["edit"]).post("/v1/users", &json!({"id": "42", "name": "Ada"})).expect(201);
    for name in ["night shift", "everybody"] {
        desk.open("/lists");
        desk.press("New list");
        desk.fill("#f-name", name);
        desk.fill("#f-description", "People on call");
        desk.press("Create the list");
        desk.says("The list is saved.");
    }
    let add = |kind: &str, member: &str, channel: &str| {
        desk.fill("#f-kind", kind);
        desk.fill("#f-member", member);
        desk.fill("#f-channel", channel);
        desk.press("Add the member");
    };
    add("list", "night shift", "");
    desk.says("The members of the list are changed.");
    desk.click("#members a");
    desk.until("decodeURIComponent(location.pathname) === '/lists/night shift'");
    add("list", "everybody", "");
    desk.says("a list cannot contain itself");
    add("phone", "98", "whatsapp");
    desk.until("document.querySelector('#e-member')?.innerText.includes('+')");
    add("phone", "+919876543210", "whatsapp");
    desk.says("whatsapp");
    add("user", "42", "");
    desk.until("document.querySelectorAll('#members li').length === 2");
    desk.picture("list");
    desk.click("[aria-label='Remove +919876543210…']");
    desk.press("Remove the member");
    desk.until("document.querySelectorAll('#members li').length === 1");
    desk.open("/users/42");
    desk.press("night shift");
    desk.until("location.pathname.startsWith('/lists/')");
    // A list inside another one stays until it is taken out.
    desk.press("Delete…");
    desk.press("Delete the list");
    desk.says("is a member of list");
    desk.open("/lists/everybody");
    desk.press("Delete…");
    desk.press("Delete the list");
    desk.says("The list is deleted.");
    assert_eq!(desk.texts(".what a"), json!(["night shift"]));
    desk.open("/suppressions");
    desk.says("No address is suppressed.");
    desk.press("Suppress an address");
    desk.fill("#f-channel", "email");
    desk.fill("#f-address", "Bounce@example.com");
    desk.press("Suppress the address");
    desk.until("document.querySelector('#e-reason')");
    desk.fill("#f-reason", "asked by phone");
    desk.press("Suppress the address");
    desk.says("The address is suppressed.");
    desk.says("asked by phone");
    desk.picture("suppressions");
    desk.fill("#q", "other@example.com");
    desk.press("Search");
    desk.says("Nothing matches.");
    desk.fill("#q", "bounce@EXAMPLE.com");
    desk.press("Search");
    desk.says("bounce@example.com");
    desk.press("Remove…");
    desk.press("Remove the suppression");
    desk.says("The suppression is removed.");
    desk.says("No address is suppressed.");
    desk.is_unhurt();
}

#[test]
fn a_person_keeps_lists_and_suppressions_without_script() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    keep_lists_and_suppressions(&desk);
}

#[test]
fn hostile_users_lists_and_suppressions_do_not_break_their_pages() {
    let desk = Desk::with(Kind::Sqlite, &[], 390);
    let (edit, short) = (desk.app.client("default", &["edit"]), HOSTILE.chars().take(160).collect::<String>());
    let id = short.replace("</script>", "<script>");
    let user = json!({"id": id, "name": short, "data": {"x": HOSTILE}, "addresses": [{"kind": "email", "address": "ada@example.com", "disabled_reason": short}]});
    let made = edit.post("/v1/users", &user);
    assert_eq!(made.status, 201, "{}", made.text());
    let code = |byte: u8| {
        if byte.is_ascii_alphanumeric() || byte == b'.' { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    let path = |text: &str| text.bytes().map(code).collect::<String>();
    let preference = json!({"preferences": [{"event_type": short, "channel": "email", "allowed": false}]}).to_string();
    let _ =
        edit.send("PATCH", &format!("/v1/users/{}/preferences", path(&id)), Some(preference.as_bytes())).expect(200);
    let _ = edit.post("/v1/lists", &json!({"name": id, "description": short})).expect(201);
    let members = json!({"add": [{"kind": "user", "member": id}]}).to_string();
    let _ = edit.send("PATCH", &format!("/v1/lists/{}/members", path(&id)), Some(members.as_bytes())).expect(200);
    let _ = edit.post("/v1/suppressions", &json!({"channel": "x", "address": short, "reason": short})).expect(201);
    let (one, list) = (format!("/users/{}", path(&id)), format!("/lists/{}", path(&id)));
    for page in ["/users", "/users?q=script", &one, "/lists", &list, "/suppressions"] {
        desk.open(page);
        desk.says("<script>");
        desk.is_unhurt();
    }
    desk.open("/users");
    desk.click(".what a");
    desk.until("document.querySelector('#addresses')");
    desk.open(&list);
    desk.click("#members a");
    desk.until("document.querySelector('#addresses')");
    desk.press("Remove…");
    desk.press("Remove the address");
    desk.says("No address.");
    desk.is_unhurt();
}

#[test]
fn who_sees_all_tenants_chooses_one_before_creating_and_opens_the_objects_of_each() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_tenant("north");
    let _ = desk.app.client("north", &["edit"]).post("/v1/users", &json!({"id": "n1"})).expect(201);
    desk.open("/users?new=yes");
    desk.says("Choose the tenant of the new user in the navigation first.");
    desk.fill("#f-id", "x");
    desk.press("Create the user");
    desk.says("you see all tenants");
    desk.open("/users");
    desk.press("n1");
    desk.until("location.search === '?tenant=north'");
    desk.says("Profile");
    desk.press("Users");
    desk.press("New user");
    desk.fill("#f-id", "n2");
    desk.press("Create the user");
    desk.says("The user is saved.");
    let _ = desk.app.ops().get("/v1/users/n2?tenant=north").expect(200);
    // A person of one tenant is not asked, and does not learn of others.
    let (person, _) = session(&desk.app, "default", "edit");
    let page = person.get("/users?new=yes").expect(200).text();
    assert!(!page.contains("all tenants") && !page.contains("north"), "{page}");
}
