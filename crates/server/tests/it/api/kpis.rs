//! KPIs by what they can be grouped by, over HTTP and on the command line. On both databases.

use serde_json::{Value, json};

use super::app::{App, refused};

fn group<'a>(kpis: &'a Value, label: &str) -> &'a Value {
    let found = kpis["groups"].as_array().unwrap().iter().find(|one| one["label"] == label);
    found.unwrap_or_else(|| panic!("no {label:?} in {kpis}"))
}

/// A label, and the captured, parked and live deliveries of its group.
type Group = (&'static str, [i64; 3]);

/// Captured, parked and live deliveries of a group.
fn counts(group: &Value) -> [i64; 3] {
    [&group["captured"], &group["parked"]["total"], &group["queue"]["total"]].map(|count| count.as_i64().unwrap())
}

on_both! {
    fn e10_kpis_by_site_channel_provider_event_type_and_error(kind) {
        let app = App::at_rest(kind);
        app.create_capture("default", "capture", "no");
        let client = app.client("default", &["enqueue", "read"]);
        let (email, phone) = (json!([{"email": "a@example.com"}]), json!([{"phone": "+4915112345678"}]));
        for (event_type, site, to) in [("yes", "goa", &email), ("yes", "berlin", &phone), ("no", "goa", &email)] {
            app.enqueue(&client, &json!({"event_type": event_type, "source": {"site": site}, "recipients": to}));
        }
        app.pass();
        let later = json!({"event_type": "yes", "recipients": email, "due_at": "2099-01-01T00:00:00Z",
            "expires_at": "2100-01-01T00:00:00Z"});
        app.enqueue(&client, &later);
        let expected: [(&str, &[Group]); 5] = [
            ("site", &[("goa", [1, 1, 0]), ("berlin", [1, 0, 0]), ("", [0, 0, 1])]),
            ("channel", &[("email", [1, 1, 0]), ("sms", [1, 0, 0]), ("", [0, 0, 1])]),
            ("provider", &[("capture", [2, 1, 0]), ("", [0, 0, 1])]),
            ("event_type", &[("yes", [2, 0, 1]), ("no", [0, 1, 0])]),
            ("error", &[("unknown", [0, 1, 0]), ("", [2, 0, 1])]),
        ];
        for (by, groups) in expected {
            let kpis = client.get(&format!("/v1/kpis?by={by}")).expect(200).json();
            assert_eq!((kpis["by"].as_str(), counts(&kpis["total"])), (Some(by), [2, 1, 1]));
            for (label, count) in groups {
                let one = group(&kpis, label);
                assert_eq!(counts(one), *count, "{by} {label}");
                assert!(one["stuck"] == 0 && one["oldest_pending_s"] == 0 && one["failed"].is_number(), "{one}");
            }
            let by_hand: Value = serde_json::from_str(&app.installation.run(&["kpis", "--by", by, "--tenant", "default", "-o", "json"])).unwrap();
            assert_eq!(by_hand["groups"], kpis["groups"]);
            let shown = app.installation.run(&["kpis", "--by", by]);
            assert!(shown.starts_with(&by.to_uppercase()) && shown.contains("first due more than 600 s ago"), "{shown}");
        }
        let errors = client.get("/v1/kpis?by=error").expect(200).json();
        let codes = json!([{"code": "capture_permanent", "queue": 0, "parked": 1}]);
        assert_eq!((&group(&errors, "unknown")["codes"], &group(&errors, "unknown")["failed"]), (&codes, &json!(1)));
        assert!(app.installation.run(&["kpis", "--by", "error"]).contains("1 capture_permanent"));
        let plain = client.get("/v1/kpis").expect(200).json();
        assert!(plain["by"].is_null() && plain["groups"].is_null(), "{plain}");
        refused(client.get("/v1/kpis?by=colour"), 422, Some("by"));
    }

    fn kpis_over_all_tenants_tell_the_tenants_apart(kind) {
        let app = App::at_rest(kind);
        app.create_tenant("hotel");
        for tenant in ["default", "hotel"] {
            app.create_capture(tenant, "mail", "no");
            let client = app.client(tenant, &["enqueue"]);
            let to = json!([{"email": "a@example.com"}]);
            app.enqueue(&client, &json!({"event_type": "yes", "recipients": to}));
            if tenant == "hotel" {
                app.enqueue(&client, &json!({"event_type": "no", "recipients": to}));
            }
        }
        app.pass();
        let kpis = app.ops().get("/v1/kpis?by=tenant").expect(200).json();
        assert_eq!(counts(group(&kpis, "default")), [1, 0, 0], "{kpis}");
        assert_eq!(counts(group(&kpis, "hotel")), [1, 1, 0], "{kpis}");
        let kpis = app.ops().get("/v1/kpis?by=provider").expect(200).json();
        let of = |tenant: &str| {
            let mail = |one: &&Value| one["label"] == "mail" && one["tenant"] == tenant;
            counts(kpis["groups"].as_array().unwrap().iter().find(mail).unwrap_or_else(|| panic!("{kpis}")))
        };
        assert_eq!((of("default"), of("hotel")), ([1, 0, 0], [1, 1, 0]));
        // One tenant sees itself, and a label of its own needs no tenant.
        let hotel = app.client("hotel", &["read"]);
        let own = hotel.get("/v1/kpis?by=tenant").expect(200).json();
        assert_eq!((own["groups"].as_array().unwrap().len(), counts(group(&own, "hotel"))), (1, [1, 1, 0]));
        let own = hotel.get("/v1/kpis?by=provider").expect(200).json();
        assert!(group(&own, "mail")["tenant"].is_null(), "{own}");
        // On the command line a column names the tenant, where there are several.
        let shown = app.installation.run(&["kpis", "--by", "provider"]);
        let titles: Vec<&str> = shown.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(titles[..3], ["PROVIDER", "TENANT", "PENDING"], "{shown}");
        let shown = app.installation.run(&["kpis", "--by", "provider", "--tenant", "hotel"]);
        assert!(!shown.contains("TENANT"), "{shown}");
        let shown = app.installation.run(&["kpis", "--by", "tenant"]);
        assert!(shown.starts_with("TENANT") && shown.contains("\nhotel "), "{shown}");
    }
}
