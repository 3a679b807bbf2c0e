//! The overview: numbers, lanes, and what needs a person.

use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};

use super::desk::{Desk, HOSTILE, session};
use crate::api::App;
use crate::installation::Kind;

#[test]
fn e10_the_overview_shows_numbers_lanes_and_what_needs_a_person() {
    let desk = Desk::new(Kind::Sqlite);
    desk.open("/");
    assert_eq!(desk.text("h1"), "Overview");
    assert_eq!(desk.count("#h-attention"), 0, "nothing needs attention");
    desk.plant();
    desk.open_until("/", "2 captured");
    let tiles: Vec<String> = serde_json::from_value(desk.texts(".tiles b")).unwrap();
    assert_eq!(tiles, ["0", "50.00 %", "0", "0", "2", "0"]);
    assert_eq!(desk.texts(".tiles .alarm b"), json!(["2"]));
    assert!(desk.text(".lanes").contains("catcher"), "{}", desk.text(".lanes"));
    // A bar is a link to what it counts, and the table has the same numbers.
    assert_eq!(desk.count(".plot a"), 1);
    desk.press("Show as table");
    desk.until("document.querySelector('.as-table tbody').checkVisibility()");
    assert_eq!(
        desk.browser
            .run("return [...document.querySelectorAll('[aria-labelledby=h-chart] td.num')].map((e) => e.textContent)"),
        json!(["0", "2", "2"])
    );
    // Every attempt is in the histogram of latencies, and its table has the same numbers.
    let said = desk.text("[aria-labelledby=h-latency] .soft");
    assert!(said.starts_with("Of the newest 4 attempts, half were answered within "), "{said}");
    let counts = "return [...document.querySelectorAll('[aria-labelledby=h-latency] td.num')].reduce((sum, e) => sum + +e.textContent, 0)";
    assert_eq!(desk.browser.run(counts), json!(4));
    desk.picture("overview");
    // A paused lane with hostile words as its reason, and deliveries that wait for it.
    let reason: String = HOSTILE.chars().take(200).collect();
    let _ = desk.app.ops().post("/v1/providers/catcher/pause?tenant=default", &json!({"reason": reason})).expect(200);
    desk.enqueue("good", "Booking 3 confirmed");
    desk.app.pass();
    desk.open_until("/?range=1h", "Lane paused");
    let says = desk.browser.run("return document.querySelector('.says').textContent");
    assert!(says.as_str().unwrap().contains("<script>window.hurt = 1</script>"), "{says}");
    desk.is_unhurt();
    desk.says("1 delivery waits for it.");
    desk.press("Open the provider");
    desk.until("location.pathname === '/providers/catcher'");
    // The numbers of a page may be some seconds old.
    desk.open_until("/providers/catcher", "1 delivery waits for it.");
    desk.open("/?range=9y");
    desk.says("allowed are 1h, 24h and 48h");
}

#[test]
fn lanes_that_need_a_person_come_first_and_numbers_open_what_they_count() {
    let app = App::at_rest(Kind::Sqlite);
    for n in 0..14 {
        let draft =
            json!({"name": format!("p{n:02}"), "driver": "capture", "channel": format!("own-{n}"), "settings": {}});
        let _ = app.ops().post("/v1/providers?tenant=default", &draft).expect(201);
    }
    let set = |name: &str, what: &str| {
        drop(app.installation.rows(&format!("UPDATE postcommit.provider SET {what} WHERE name = '{name}'")));
    };
    set("p00", "enabled = false");
    set("p12", "held_until = 9000000000000000, hold_reason = 'five failures in a row'");
    set("p13", "paused = 'tired'");
    set("p11", "trips = 2");
    set("p01", "rate_per_s = 10, burst = 20");
    let (client, _) = session(&app, "default", "read");
    let page = client.get("/?range=48h").expect(200).text();
    let lanes = page.split("id=\"h-lanes\"").nth(1).unwrap();
    let place = |name: &str| lanes.find(&format!(">{name}</a>"));
    assert!(place("p13").unwrap() < place("p12").unwrap() && place("p12").unwrap() < place("p01").unwrap(), "{lanes}");
    assert!(place("p12").unwrap() < place("p11").unwrap() && place("p11").unwrap() < place("p01").unwrap(), "{lanes}");
    assert!(lanes.contains(">probing</b>") && lanes.contains("rate: 20 of 20 free"), "{lanes}");
    assert!(place("p00").is_none() && lanes.contains("and 3 more"), "{lanes}");
    assert!(page.contains("Breaker tripped") && page.contains("breaker tripped: five failures in a row"), "{page}");
    assert!(page.contains("<a class=\"button\" href=\"/providers/p13\">Open the provider</a>"), "{page}");
    assert!(page.contains("/notifications?state=sent,delivered&amp;since=48h"), "{page}");
    let _ = client.get("/notifications?state=sent,delivered&since=48h").expect(200);
}

#[test]
fn e10_the_overview_shows_what_each_site_sent() {
    let desk = Desk::new(Kind::Sqlite);
    let service = HttpServer::start(|_| Reply::ok());
    desk.open("/");
    assert_eq!(desk.count("#h-sites"), 0, "no notification names a site");
    for (site, many) in [("leh", 2), (HOSTILE.get(..40).unwrap(), 1)] {
        for n in 0..many {
            let note = json!({
                "event_type": "good", "title": format!("Pump {n}"), "source": {"site": site},
                "recipients": [{"webhook": service.url("/hook")}],
            });
            desk.app.enqueue(&desk.app.ops(), &note);
        }
    }
    desk.app.pass();
    desk.open_until("/", "Sites");
    let rows: Vec<String> = serde_json::from_value(desk.texts(".sites li")).unwrap();
    assert!(rows.len() == 2 && rows[0].contains("leh"), "{rows:?}");
    assert_eq!(desk.count(".sites svg[role=img]"), 2);
    desk.is_unhurt();
    desk.press("leh");
    desk.until("location.search === '?site=leh'");
    assert_eq!(desk.count(".rows tbody tr"), 2);
}

#[test]
fn every_page_fits_a_phone_and_loads_nothing_from_outside() {
    for width in [1280, 390] {
        let desk = Desk::with(Kind::Sqlite, &[("UI_ENVIRONMENT", "staging")], width);
        desk.plant();
        let id = desk.enqueue("good", &format!("Booking {} {}", "9".repeat(60), "long ".repeat(30)));
        let edit = desk.app.client("default", &["edit"]);
        let long = "w".repeat(60);
        let template = json!({"id": long, "event_type": long, "channel": "email", "subject": long, "text": long});
        let _ = edit.post("/v1/templates", &template).expect(201);
        let addresses = json!([{"kind": "email", "address": format!("{long}@example.com")}]);
        let _ = edit.post("/v1/users", &json!({"id": long, "name": long, "addresses": addresses})).expect(201);
        let _ = edit.post("/v1/lists", &json!({"name": long})).expect(201);
        let _ = edit.post("/v1/event-types", &json!({"name": long})).expect(201);
        let job =
            desk.app.ops().post("/v1/deliveries/retry", &json!({"filter": {"state": "parked"}})).expect(202).json();
        let job = job["id"].as_str().unwrap();
        for path in [
            "/",
            "/notifications",
            &format!("/notifications/{id}"),
            "/parked",
            "/jobs",
            "/?range=1h",
            "/providers",
            "/providers/catcher",
            "/providers/new",
            "/providers/new/smtp",
            "/entities/1",
            "/entities",
            "/captured",
            &format!("/jobs/{job}"),
            "/templates",
            "/templates/new",
            &format!("/templates/{long}?tenant=default"),
            &format!("/templates/{long}/versions?tenant=default"),
            "/event-types",
            &format!("/event-types/{long}?tenant=default"),
            "/users",
            &format!("/users/{long}?tenant=default"),
            "/lists",
            &format!("/lists/{long}?tenant=default"),
            "/suppressions",
            "/audit",
            "/system",
            "/keys",
            "/go-live",
            "/glossary",
        ] {
            desk.open(path);
            desk.is_unhurt();
            let loaded =
                desk.browser.run("return performance.getEntriesByType('resource').map((e) => new URL(e.name).host)");
            let own = Value::String(desk.app.address().to_string());
            assert!(loaded.as_array().unwrap().iter().all(|host| *host == own), "{loaded}");
            desk.picture(&format!("{}-{width}", path.replace(['/', '?', '='], "_").replace(&long, "long")));
        }
    }
}
