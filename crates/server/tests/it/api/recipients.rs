//! B1, B4: channels by their names, lists by recipient, and who sees a full address.

use serde_json::{Value, json};

use super::app::{App, items, refused, text};

fn found(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(row, "id")).collect()
}

on_both! {
    fn b1_a_channel_has_to_exist_and_in_app_has_two_names(kind) {
        let app = App::at_rest(kind);
        app.create_capture("default", "capture", "bad");
        let client = app.client("default", &["enqueue", "read", "operate", "edit"]);
        let note = |channels: Value| json!({"event_type": "a", "recipients": [{"user": "alice"}], "channels": channels});
        let inbox = app.enqueue(&client, &note(json!(["in-app"])));
        app.pass();
        assert_eq!(app.story(&inbox)["channels"], json!(["in_app"]));
        assert_eq!(items(client.get("/v1/deliveries?channel=in-app")).len(), 1);
        assert_eq!(items(client.get("/v1/notifications?channel=in-app")).len(), 1);

        let problem = refused(client.post("/v1/notifications", &note(json!(["email", "emial"]))), 422, Some("channels[1]"));
        let said = text(&problem, "detail");
        assert!(said.contains("\"emial\"") && said.contains("email, in_app, push, slack, sms, teams, voice, web_push, webhook, whatsapp"), "{said}");
        let batch = client.post("/v1/notifications/batch", &json!({"notifications": [note(json!(["emial"])), note(json!(["in-app"]))]})).expect(200).json();
        assert_eq!((&batch["accepted"], &batch["refused"]), (&json!(1), &json!(1)), "{batch}");

        // A provider of the tenant makes its channel known, there alone.
        let pager = json!({"name": "pager", "driver": "capture", "channel": "emial"});
        let _ = client.post("/v1/providers", &pager).expect(201);
        app.enqueue(&client, &note(json!(["emial"])));
        app.create_tenant("south");
        let south = app.client("south", &["enqueue"]);
        let _ = refused(south.post("/v1/notifications", &note(json!(["emial"]))), 422, Some("channels[0]"));
        let in_app = json!({"name": "inbox", "driver": "in_app", "channel": "in-app"});
        assert_eq!(app.ops().post("/v1/providers?tenant=south", &in_app).expect(201).json()["channel"], "in_app");
    }

    fn b4_lists_are_asked_by_recipient_and_operators_see_full_addresses(kind) {
        let app = App::at_rest(kind);
        for tenant in ["north", "south"] {
            app.create_tenant(tenant);
            app.create_capture(tenant, "capture", "bad");
        }
        let (north, south) = (app.client("north", &["enqueue", "read"]), app.client("south", &["enqueue", "operate"]));
        let to = |recipient: Value| json!({"event_type": "a", "recipients": [recipient]});
        let mail = app.enqueue(&north, &to(json!({"email": "guest+1@example.com"})));
        let alice = app.enqueue(&north, &to(json!({"user": "alice"})));
        let other = app.enqueue(&south, &to(json!({"email": "guest+1@example.com"})));
        app.pass();

        for (client, recipient, id) in [(&north, "guest%2B1@example.com", &mail), (&north, "alice", &alice), (&south, "guest%2B1@example.com", &other)] {
            assert_eq!(found(&items(client.get(&format!("/v1/notifications?recipient={recipient}")))), std::slice::from_ref(id));
            assert_eq!(found(&items(client.get(&format!("/v1/deliveries?recipient={recipient}")))), [format!("{id}.1")]);
        }
        assert!(items(south.get("/v1/notifications?recipient=alice")).is_empty());
        assert_eq!(items(app.ops().get("/v1/deliveries?recipient=guest%2B1@example.com")).len(), 2, "over all tenants");
        let _ = refused(north.get(&format!("/v1/notifications?recipient={}", "x".repeat(2049))), 422, Some("recipient"));

        // Masked, unless an operator asks for more.
        let one = |client: &postcommit_testkit::HttpClient, id: &str, query: &str| client.get(&format!("/v1/deliveries/{id}.1{query}")).expect(200).json();
        for (shown, address) in [
            (one(&north, &mail, ""), Value::Null),
            (one(&north, &mail, "?full=true"), Value::Null),
            (one(&south, &other, ""), Value::Null),
            (one(&south, &other, "?full=true"), json!("guest+1@example.com")),
            (items(north.get("/v1/deliveries?full=true&recipient=guest%2B1@example.com")).remove(0), Value::Null),
            (items(south.get("/v1/deliveries?full=true")).remove(0), json!("guest+1@example.com")),
            (items(south.get("/v1/deliveries?full=false")).remove(0), Value::Null),
        ] {
            assert_eq!((&shown["target"], &shown["address"]), (&json!("g…@example.com"), &address), "{shown}");
        }
        let everything = json!({"filter": {"full": true}});
        let _ = refused(south.post("/v1/deliveries/discard", &everything), 422, Some("filter.full"));
    }
}
