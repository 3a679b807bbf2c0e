//! B12, C16: batches of many notifications, and long lists.

use std::collections::BTreeSet;

use postcommit_testkit::HttpClient;
use serde_json::{Value, json};

use crate::door::RawClient;

use super::app::{App, items, refused, text};

fn mail(event: &str) -> Value {
    json!({"event_type": event, "recipients": [{"email": "guest@example.com"}]})
}

/// Every row of a list, read page by page.
fn walked(client: &HttpClient, path: &str) -> Vec<Value> {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("{path}{cursor}")).expect(200).json();
        rows.extend(page["items"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(row, "id")).collect()
}

/// Two tenants, each with ten sent, ten parked and ten scheduled notifications.
fn two_tenants(app: &App) {
    for tenant in ["north", "south"] {
        app.create_tenant(tenant);
        app.create_capture(tenant, "capture", "bad");
        let mut late = mail("late");
        late["due_at"] = json!("2099-01-01T00:00:00Z");
        let thirty: Vec<Value> = [mail("good"), mail("bad"), late].into_iter().flat_map(|one| vec![one; 10]).collect();
        let done = app
            .client(tenant, &["enqueue"])
            .post("/v1/notifications/batch", &json!({"notifications": thirty}))
            .expect(200)
            .json();
        assert_eq!(done["accepted"], 30);
    }
    app.pass();
}

on_both! {
    fn b12_a_batch_of_a_thousand_accepts_or_refuses_each_one_separately(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue"]);
        let item = |n: usize| {
            let mut one = mail("booking.confirmed");
            one["idempotency_key"] = json!(format!("k-{n}"));
            match n % 10 {
                3 => one["title"] = json!("two\nlines"),
                5 => one["idempotency_key"] = json!(format!("k-{}", n - 1)),
                7 => one["recipients"] = json!([{"provider": "nobody", "address": "x"}]),
                8 => one = json!({"recipients": []}),
                _ => {}
            }
            one
        };
        let batch = json!({"notifications": (0..1000).map(item).collect::<Vec<_>>()});
        let done = client.post("/v1/notifications/batch", &batch).expect(200).json();
        assert_eq!((&done["accepted"], &done["duplicates"], &done["refused"]), (&json!(600), &json!(100), &json!(300)), "{done}");
        let results = done["results"].as_array().unwrap();
        for (n, result) in results.iter().enumerate() {
            let (status, field) = match n % 10 {
                3 => (422, Some("title")),
                5 => (200, None),
                7 => (422, Some("recipients[0].provider")),
                8 => (422, Some("event_type")),
                _ => (202, None),
            };
            assert_eq!((result["status"].as_u64(), result["problem"]["field"].as_str()), (Some(status), field), "{n}: {result}");
            if n % 10 == 5 {
                assert_eq!((&result["id"], &result["duplicate"]), (&results[n - 1]["id"], &json!(true)));
            }
        }
        assert_eq!(app.installation.count("SELECT count(*) FROM postcommit.notification"), 600);
        // The same batch again changes nothing.
        let again = client.post("/v1/notifications/batch", &batch).expect(200).json();
        assert_eq!((&again["accepted"], &again["duplicates"], &again["refused"]), (&json!(0), &json!(700), &json!(300)));
    }

    fn b12_a_batch_whose_client_closed_the_connection_early_is_not_begun(kind) {
        let app = App::with(kind, "api", &[("LOG_LEVEL", "debug")]);
        let token = app.create_key("default", &["enqueue"]).token;
        let one = json!({"event_type": "a", "recipients": [{"provider": "hooks", "address": "https://example.com/"}]});
        let batch = json!({"notifications": vec![one; 500]}).to_string();
        // The client has sent everything and closed the connection before the server can read a byte.
        app.server.signal("STOP");
        let mut raw = RawClient::at(app.address());
        raw.send(format!(
            "POST /v1/notifications/batch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{batch}",
            batch.len()
        ));
        drop(raw);
        app.server.signal("CONT");
        app.server.wait_for_line("/v1/notifications/batch");
        assert_eq!(app.installation.count("SELECT count(*) FROM postcommit.notification"), 0);
    }

    fn c16_operations_list_over_all_tenants_by_state_tenant_and_date(kind) {
        let app = App::at_rest(kind);
        let before = format!("{}", postcommit::Timestamp::from(std::time::SystemTime::now()));
        two_tenants(&app);
        let ops = app.ops();
        for noun in ["notifications", "deliveries"] {
            let list = |query: &str| walked(&ops, &format!("/v1/{noun}?limit=7{query}"));
            let all = list("");
            assert_eq!((all.len(), ids(&all).into_iter().collect::<BTreeSet<_>>().len()), (60, 60), "no row twice, none left out: {noun}");
            let whole = items(ops.get(&format!("/v1/{noun}?limit=200")));
            assert_eq!(ids(&whole), ids(&all), "{noun}: pages are the list, cut up");
            for state in ["sent", "parked", "pending"] {
                let rows = list(&format!("&state={state}"));
                assert!(rows.len() == 20 && rows.iter().all(|row| row["state"] == state), "{noun} {state}: {rows:?}");
                let rows = list(&format!("&state={state}&tenant=north"));
                assert!(rows.len() == 10 && rows.iter().all(|row| row["state"] == state && row["tenant"] == "north"), "{noun} {state}: {rows:?}");
            }
            let rows = list("&state=sent,parked");
            assert!(rows.len() == 40 && rows.iter().all(|row| row["state"] == "sent" || row["state"] == "parked"), "{noun}: {rows:?}");
            for wrong in ["sent,done", "sent,", "", "sent%20,parked"] {
                let problem = refused(ops.get(&format!("/v1/{noun}?state={wrong}")), 422, Some("state"));
                assert!(text(&problem, "detail").contains("is not a state; allowed are pending, "), "{problem}");
            }
            let middle = text(&all[30], "created_at");
            let (older, newer) = (list(&format!("&from={before}&until={middle}")), list(&format!("&from={middle}")));
            assert_eq!(older.len() + newer.len(), 60, "{noun}");
            assert!(older.iter().all(|row| text(row, "created_at") < middle) && newer.iter().all(|row| text(row, "created_at") >= middle));
            assert_eq!(list(&format!("&until={before}")).len(), 0);
        }
        // A key without `ops` sees its own tenant.
        let north = app.client("north", &["read"]);
        assert!(walked(&north, "/v1/notifications?limit=7").iter().all(|row| row["tenant"] == "north"));
        assert_eq!(walked(&north, "/v1/deliveries?limit=7").len(), 30);
        refused(north.get("/v1/notifications?tenant=south"), 403, Some("tenant"));
        assert_eq!(walked(&ops, "/v1/tenants?limit=2").iter().map(|row| text(row, "name")).collect::<Vec<_>>(), ["default", "north", "south"]);
    }

    fn c16_a_list_is_walked_without_gaps_while_rows_come(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue", "read"]);
        let first: BTreeSet<String> = (0..20).map(|_| app.enqueue(&client, &mail("a"))).collect();
        let (mut seen, mut path) = (Vec::new(), "/v1/notifications?limit=3".to_owned());
        loop {
            let page = client.get(&path).expect(200).json();
            seen.extend(ids(page["items"].as_array().unwrap()));
            // Newer rows appear before the first page.
            app.enqueue(&client, &mail("b"));
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/v1/notifications?limit=3&cursor={next}");
        }
        assert_eq!(seen.len(), 20);
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), first);
    }
}
