//! Users, preferences, lists, suppressions and event types over the API, on both databases.

use postcommit_testkit::{HttpClient, HttpResponse, forged};
use serde_json::{Value, json};

use super::App;
use super::app::{items, refused, text};

fn patch(client: &HttpClient, path: &str, body: &Value) -> HttpResponse {
    client.send("PATCH", path, Some(body.to_string().as_bytes()))
}

fn put(client: &HttpClient, path: &str, body: &Value) -> HttpResponse {
    client.send("PUT", path, Some(body.to_string().as_bytes()))
}

/// All rows of a list, page by page.
fn pages(client: &HttpClient, path: &str, limit: usize) -> Vec<Value> {
    let (mut rows, mut cursor) = (vec![], String::new());
    loop {
        let page = client.get(&format!("{path}?limit={limit}{cursor}")).expect(200).json();
        rows.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

on_both! {
    fn b10_a_user_is_created_replaced_changed_and_deleted(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let user = json!({"id": "a/b", "name": "Ada", "language": "pt-BR", "time_zone": "Asia/Kolkata", "quiet_hours": {"from": "22:00", "until": "07:00"}, "data": {"room": 7},
            "addresses": [{"kind": "phone", "address": "+919876543210"}, {"kind": "email", "address": "ada@example.com", "disabled_reason": "bounced"}]});
        let made = client.post("/v1/users", &user).expect(201).json();
        for field in ["id", "name", "language", "time_zone", "quiet_hours", "data"] {
            assert_eq!(made[field], user[field], "{made}");
        }
        assert_eq!((&made["addresses"][0]["address"], &made["addresses"][1]["disabled_reason"], &made["revision"], &made["tenant"]), (&json!("+919876543210"), &json!("bounced"), &json!(1), &json!("default")));
        assert_eq!(client.get("/v1/users/a%2Fb").expect(200).json(), made);
        refused(client.post("/v1/users", &user), 409, Some("id"));
        let changed = patch(&client, "/v1/users/a%2Fb", &json!({"revision": 1, "name": null, "language": "en"})).expect(200).json();
        assert_eq!((&changed["name"], &changed["language"], &changed["time_zone"], &changed["revision"]), (&Value::Null, &json!("en"), &json!("Asia/Kolkata"), &json!(2)));
        let problem = refused(patch(&client, "/v1/users/a%2Fb", &json!({"revision": 1, "name": "B"})), 409, Some("revision"));
        assert!(text(&problem, "detail").contains("has revision 2 by now, not 1"), "{problem}");
        let replaced = put(&client, "/v1/users/a%2Fb", &json!({"revision": 2, "name": "Bob"})).expect(200).json();
        assert_eq!((&replaced["name"], &replaced["language"], &replaced["addresses"], &replaced["data"]), (&json!("Bob"), &Value::Null, &json!([]), &json!({})));
        let _ = put(&client, "/v1/users/new", &json!({"name": "New"})).expect(201);
        refused(put(&client, "/v1/users/newer", &json!({"revision": 1})), 404, None);
        let _ = client.send("DELETE", "/v1/users/a%2Fb", None).expect(204);
        refused(client.get("/v1/users/a%2Fb"), 404, None);
        refused(client.send("DELETE", "/v1/users/a%2Fb", None), 404, None);
    }

    fn c7_a_bad_address_is_refused_with_its_field(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let with = |address: Value| client.post("/v1/users", &json!({"id": "1", "addresses": [{"kind": "email", "address": "a@example.com"}, address]}));
        refused(with(json!({"kind": "phone", "address": "98765 43210"})), 422, Some("addresses[1].address"));
        refused(with(json!({"kind": "fax", "address": "+919876543210"})), 422, Some("addresses[1].kind"));
        refused(with(json!({"kind": "phone"})), 422, Some("addresses[1].address"));
        refused(with(json!({"kind": "phone", "address": "+919876543210", "nonsense": 1})), 422, Some("addresses[1].nonsense"));
        refused(client.post("/v1/users", &json!({"id": "1", "data": []})), 422, Some("data"));
        refused(client.post("/v1/users", &json!({"id": "..", "data": {}})), 422, Some("id"));
        refused(client.get("/v1/users/1"), 404, None);
    }

    fn b10_preferences_are_set_and_removed_one_by_one(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let path = "/v1/users/42/preferences";
        assert_eq!(client.get(path).expect(200).json(), json!({"items": []}));
        let set = patch(&client, path, &json!({"preferences": [{"channel": "sms", "allowed": false}, {"event_type": "order.paid", "channel": "email", "allowed": true}]})).expect(200).json();
        let rows = set["items"].as_array().unwrap();
        assert_eq!((&rows[0]["event_type"], &rows[0]["channel"], &rows[0]["allowed"]), (&json!("*"), &json!("sms"), &json!(false)));
        assert!(text(&rows[0], "updated_by").starts_with("key:"));
        let kept = patch(&client, path, &json!({"preferences": [{"channel": "sms", "allowed": null}]})).expect(200).json();
        assert_eq!(kept["items"].as_array().unwrap().len(), 1);
        let replaced = put(&client, path, &json!({"preferences": [{"allowed": false}]})).expect(200).json();
        let rows = replaced["items"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0]["event_type"], &rows[0]["channel"]), (1, &json!("*"), &json!("*")));
        refused(patch(&client, path, &json!({"preferences": [{"channel": "a b", "allowed": false}]})), 422, Some("preferences[0].channel"));
        refused(patch(&client, path, &json!({"preferences": [{"channel": "sms"}, {"channel": "sms", "allowed": true}]})), 422, Some("preferences[1].event_type"));
    }

    fn e4_lists_hold_users_addresses_and_lists(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        for name in ["staff", "night shift"] {
            let _ = client.post("/v1/lists", &json!({"name": name})).expect(201);
        }
        refused(client.post("/v1/lists", &json!({"name": "staff"})), 409, Some("name"));
        let add = json!({"add": [{"kind": "list", "member": "night shift"}, {"kind": "user", "member": "42"}, {"kind": "phone", "member": "+919876543210", "channel": "whatsapp"}]});
        let changed = patch(&client, "/v1/lists/staff/members", &add).expect(200).json();
        assert_eq!(changed, json!({"added": 3, "removed": 0, "members": 3}));
        assert_eq!(client.get("/v1/lists/staff").expect(200).json()["members"], 3);
        let members = pages(&client, "/v1/lists/staff/members", 1);
        assert_eq!(members.len(), 3);
        assert!(members.iter().any(|member| member["kind"] == "phone" && member["channel"] == "whatsapp"), "{members:?}");
        let cycle = json!({"add": [{"kind": "list", "member": "staff"}]});
        let problem = refused(patch(&client, "/v1/lists/night%20shift/members", &cycle), 422, Some("add[0].member"));
        assert!(text(&problem, "detail").contains("a list cannot contain itself"), "{problem}");
        refused(client.send("DELETE", "/v1/lists/night%20shift", None), 409, None);
        let gone = patch(&client, "/v1/lists/staff/members", &json!({"remove": [{"kind": "list", "member": "night shift"}]})).expect(200).json();
        assert_eq!(gone, json!({"added": 0, "removed": 1, "members": 2}));
        let _ = client.send("DELETE", "/v1/lists/night%20shift", None).expect(204);
        let described = patch(&client, "/v1/lists/staff", &json!({"revision": 1, "description": "Everybody"})).expect(200).json();
        assert_eq!((&described["description"], &described["revision"]), (&json!("Everybody"), &json!(2)));
        refused(patch(&client, "/v1/lists/staff", &json!({"revision": 1, "description": null})), 409, Some("revision"));
        refused(client.get("/v1/lists/nobody/members"), 404, None);
        refused(patch(&client, "/v1/lists/staff", &json!([null, null])), 422, None);
    }

    fn suppressions_are_made_listed_and_removed(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let made = client.post("/v1/suppressions", &json!({"channel": "email", "address": "Guest@example.com", "reason": "hard bounce"})).expect(201).json();
        assert_eq!((&made["address"], &made["active"], &made["until"]), (&json!("guest@example.com"), &json!(true), &Value::Null));
        let _ = client.post("/v1/suppressions", &json!({"channel": "email", "address": "guest@example.com", "reason": "asked us"})).expect(200);
        let _ = client.post("/v1/suppressions", &json!({"channel": "*", "address": "+919876543210", "reason": "asked us"})).expect(201);
        assert_eq!(pages(&client, "/v1/suppressions", 1).len(), 2);
        assert_eq!(items(client.get("/v1/suppressions?channel=sms")).len(), 1);
        assert_eq!(items(client.get("/v1/suppressions?address=GUEST@example.com")).len(), 1);
        refused(client.post("/v1/suppressions", &json!({"channel": "sms", "address": "98765", "reason": "x"})), 422, Some("address"));
        let remove = json!({"channel": "email", "address": "guest@Example.com"});
        assert_eq!(client.post("/v1/suppressions/remove", &remove).expect(200).json(), json!({"removed": 1}));
        assert_eq!(client.post("/v1/suppressions/remove", &remove).expect(200).json(), json!({"removed": 0}));
    }

    fn event_types_are_declared_and_changed(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let declared = json!({"name": "booking.confirmed", "sample": {"guestName": "Ada", "amount": 1.50}, "placeholders": ["guestName"], "mandatory": true});
        let made = client.post("/v1/event-types", &declared).expect(201).json();
        assert_eq!((&made["sample"], &made["placeholders"], &made["mandatory"]), (&declared["sample"], &declared["placeholders"], &json!(true)));
        refused(client.post("/v1/event-types", &declared), 409, Some("name"));
        let changed = patch(&client, "/v1/event-types/booking.confirmed", &json!({"revision": 1, "sample": null, "mandatory": false})).expect(200).json();
        assert_eq!((&changed["sample"], &changed["mandatory"], &changed["placeholders"]), (&Value::Null, &json!(false), &json!(["guestName"])));
        refused(patch(&client, "/v1/event-types/booking.confirmed", &json!({"revision": 1})), 409, Some("revision"));
        assert_eq!(items(client.get("/v1/event-types")).len(), 1);
        let _ = client.send("DELETE", "/v1/event-types/booking.confirmed", None).expect(204);
        refused(client.get("/v1/event-types/booking.confirmed"), 404, None);
    }

    fn pages_end_and_go_on_with_the_longest_names(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let names: Vec<String> = (0..3).map(|n| format!("{n}{}", "\"😀".repeat(127))).collect();
        for name in &names {
            let _ = client.post("/v1/users", &json!({"id": name})).expect(201);
            let _ = client.post("/v1/event-types", &json!({"name": name})).expect(201);
            let _ = client.post("/v1/lists", &json!({"name": name})).expect(201);
        }
        let urls: Vec<Value> = (0..3).map(|n| json!({"kind": "webhook", "member": format!("https://example.com/{n}{}", "\"".repeat(2027))})).collect();
        let _ = client.post("/v1/lists", &json!({"name": "long"})).expect(201);
        let _ = patch(&client, "/v1/lists/long/members", &json!({"add": urls})).expect(200);
        assert_eq!(pages(&client, "/v1/users", 1).len(), 3);
        assert_eq!(pages(&client, "/v1/event-types", 1).len(), 3);
        assert_eq!(pages(&client, "/v1/lists", 1).len(), 4);
        assert_eq!(pages(&client, "/v1/lists/long/members", 1).len(), 3);
    }
}

/// The path of a link's page.
fn link(client: &HttpClient, body: &Value) -> String {
    let made = client.post("/v1/unsubscribe-links", body).expect(200).json();
    let url = text(&made, "url");
    assert_eq!(
        (text(&made, "list_unsubscribe"), text(&made, "list_unsubscribe_post")),
        (format!("<{url}>"), "List-Unsubscribe=One-Click".to_owned())
    );
    format!("/u/{}", url.rsplit_once("/u/").unwrap().1)
}

on_both! {
    fn b10_one_click_unsubscribes_without_signing_in(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["admin"]);
        let of_user = link(&client, &json!({"user": "42", "channel": "email", "event_type": "order.paid"}));
        assert_eq!(of_user, link(&client, &json!({"user": "42", "channel": "email", "event_type": "order.paid"})), "a message that is rendered again has the same link");
        let page = app.nobody().get(&of_user).expect(200).text();
        assert!(page.contains("Do you want to stop messages of type <b>order.paid</b> by <b>email</b>") && page.matches("<button").count() == 1, "{page}");
        assert_eq!(client.get("/v1/users/42/preferences").expect(200).json()["items"], json!([]), "a scanner that opens the link changes nothing");
        let form = app.nobody().with("Content-Type", "application/x-www-form-urlencoded");
        for _ in 0..2 {
            let done = form.send("POST", &of_user, Some(b"List-Unsubscribe=One-Click")).expect(200).text();
            assert!(done.contains("Done."), "{done}");
        }
        let preferences = client.get("/v1/users/42/preferences").expect(200).json();
        let one = &preferences["items"][0];
        assert_eq!((&one["event_type"], &one["channel"], &one["allowed"], &one["updated_by"]), (&json!("order.paid"), &json!("email"), &json!(false), &json!("unsubscribe link")));
        let of_address = link(&client, &json!({"address": "guest@example.com", "channel": "email"}));
        let _ = form.send("POST", &of_address, None).expect(200);
        let suppressed = items(client.get("/v1/suppressions"));
        assert_eq!((&suppressed[0]["address"], &suppressed[0]["reason"], &suppressed[0]["created_by"]), (&json!("guest@example.com"), &json!("unsubscribed"), &json!("unsubscribe link")));
        let forged = forged(&of_user);
        for bad in [forged.as_str(), "/u/nonsense"] {
            assert!(app.nobody().get(bad).expect(404).text().contains("the link is not valid"));
            let _ = form.send("POST", bad, None).expect(404);
        }
    }

    fn an_unsubscribe_link_names_what_it_stops(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["operate"]);
        let made = |body: Value| client.post("/v1/unsubscribe-links", &body);
        refused(made(json!({"channel": "email"})), 422, Some("user"));
        refused(made(json!({"channel": "email", "user": "42", "address": "a@example.com"})), 422, Some("address"));
        refused(made(json!({"channel": "email", "user": ".."})), 422, Some("user"));
        refused(made(json!({"channel": "email", "address": "nonsense"})), 422, Some("address"));
        refused(made(json!({"channel": "email", "address": "a@example.com", "event_type": "a"})), 422, Some("event_type"));
        refused(made(json!({"channel": "a b", "user": "42"})), 422, Some("channel"));
    }
    fn c4_a_story_names_the_user_the_warning_and_an_unknown_user(kind) {
        let app = App::at_rest(kind);
        app.create_capture("default", "capture", "nothing");
        let client = app.client("default", &["edit", "enqueue", "read", "operate"]);
        let _ = client.post("/v1/users", &json!({"id": "42", "addresses": [{"kind": "email", "address": "ada@example.com"}]})).expect(201);
        let _ = client.post("/v1/templates", &json!({"id": "mail", "event_type": "booking.confirmed", "channel": "email", "text": "Hi {{ guestName }}"})).expect(201);
        let to = |event_type: &str, user: &str| json!({"event_type": event_type, "title": "Hi", "recipients": [{"user": user}], "channels": ["email"]});
        let (known, unknown) = (app.enqueue(&client, &to("booking.confirmed", "42")), app.enqueue(&client, &to("note", "stranger")));
        app.pass();
        let warning = "text, line 1, column 4: the payload has no value for guestName: nothing is printed";
        let row = client.get(&format!("/v1/deliveries/{known}.1")).expect(200).json();
        assert_eq!((&row["user_id"], &row["warning"], &row["last_error"]), (&json!("42"), &json!(warning), &Value::Null));
        assert_eq!(row["attempt_log"][0]["detail"], json!(format!("warning: {warning}")));
        assert_eq!(app.story(&known)["deliveries"][0]["warning"], json!(warning));
        let why = "user \"stranger\" does not exist; create the user, then retry";
        let status = app.status(&unknown);
        assert_eq!((&status["state"], &status["last_error"]), (&json!("parked"), &json!(format!("unknown_user: {why}"))));
        assert_eq!(items(client.get("/v1/deliveries?error_code=unknown_user"))[0]["last_error"], json!(why));
        let _ = client.post("/v1/users", &json!({"id": "stranger", "addresses": [{"kind": "email", "address": "new@example.com"}]})).expect(201);
        let _ = client.post(&format!("/v1/deliveries/{unknown}.0/retry"), &json!({})).expect(200);
        app.pass();
        assert_eq!(app.status(&unknown)["state"], "sent");
    }
}
