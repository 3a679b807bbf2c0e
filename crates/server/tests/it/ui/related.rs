//! What pages say about other pages: tiles and lists agree, a notification leads to what it belongs to, a job says what became
//! of its deliveries, and a provider says when its breaker tripped.

use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};

use super::desk::{Desk, session};
use crate::api::on_both;
use crate::installation::Kind;

fn titles(desk: &Desk) -> Vec<String> {
    let mut rows: Vec<String> = serde_json::from_value(desk.texts(".rows .what a")).unwrap();
    rows.sort();
    rows
}

fn note(title: &str, more: &Value) -> Value {
    let mut note = json!({
        "event_type": "good", "title": title, "recipients": [{"email": "ada@example.com"}], "channels": ["email"],
    });
    note.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    note
}

#[test]
fn the_tile_the_lanes_and_the_list_agree_about_what_waits() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_capture("default", "catcher", "bad");
    desk.app.enqueue(&desk.app.ops(), &note("Later", &json!({"due_at": "2099-01-01T00:00:00Z"})));
    desk.app.enqueue(&desk.app.ops(), &note("Now", &json!({})));
    desk.app.pass();
    let _ = desk.app.ops().post("/v1/providers/catcher/pause?tenant=default", &json!({"reason": "tired"})).expect(200);
    for n in 0..2 {
        desk.app.enqueue(&desk.app.ops(), &note(&format!("Waits {n}"), &json!({})));
    }
    desk.app.pass();
    desk.open_until("/", "1 scheduled");
    let tile = desk.texts(".tiles li:nth-child(3)");
    let tile = tile[0].as_str().unwrap().to_owned();
    assert!(tile.starts_with("3") && tile.contains("Waiting · 1 scheduled"), "{tile}");
    desk.picture("waiting");
    // The scheduled one is not expanded yet, so it is in no lane.
    assert!(desk.text(".lanes").contains("2 waiting"), "{}", desk.text(".lanes"));
    desk.click(".tiles li:nth-child(3) a");
    desk.until("location.search === '?state=pending'");
    assert_eq!(titles(&desk), ["Later", "Waits 0", "Waits 1"]);
    assert_eq!(desk.texts("#states [aria-current] span"), json!(["3"]));
    desk.open("/providers/catcher");
    desk.says("2 deliveries wait for it.");
    desk.open("/providers");
    let row = "return [...document.querySelectorAll('.rows tr')].find((e) => e.innerText.includes('catcher')).querySelector('.when').innerText";
    assert_eq!(desk.browser.run(row), json!("2"));
}

#[test]
fn providers_of_two_tenants_with_the_same_name_are_told_apart() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_tenant("north");
    for tenant in ["default", "north"] {
        desk.app.create_capture(tenant, "catcher", "bad");
    }
    let tripped = "UPDATE postcommit_provider SET held_until = 9000000000000000, trips = 1, hold_reason = 'five failures in a row'";
    drop(desk.app.installation.rows(tripped));
    desk.open_until("/", "Breaker tripped");
    let said: Vec<String> = serde_json::from_value(desk.texts("[aria-labelledby=h-attention] .says")).unwrap();
    assert!(
        said.iter().any(|says| says.starts_with("catcher (north): breaker tripped: five failures in a row")),
        "{said:?}"
    );
    assert!(said.iter().any(|says| says.starts_with("catcher (default): ")), "{said:?}");
    assert!(
        desk.text(".lanes").contains("north") && desk.text(".lanes").contains("default"),
        "{}",
        desk.text(".lanes")
    );
    desk.picture("attention");
    desk.click("[aria-labelledby=h-attention] a[href='/providers/catcher?tenant=north']");
    desk.until("location.pathname === '/providers/catcher' && location.search === '?tenant=north'");
    desk.says("Its breaker tripped: five failures in a row.");
    desk.open("/providers");
    assert!(
        desk.text(".rows").contains("north · ") && desk.text(".rows").contains("default · "),
        "{}",
        desk.text(".rows")
    );
}

#[test]
fn a_discarded_delivery_of_unknown_outcome_says_so() {
    let desk = Desk::new(Kind::Sqlite);
    let draft = json!({"name": "catcher", "driver": "capture", "channel": "*", "guarantee": "at_most_once", "settings": {"fail_on": "unclear=bad"}});
    let _ = desk.app.ops().post("/v1/providers?tenant=default", &draft).expect(201);
    let id = desk.enqueue("bad", "Invoice 1");
    desk.app.pass();
    desk.open(&format!("/notifications/{id}"));
    desk.press("Discard…");
    desk.press("Discard 1 delivery");
    desk.says("Its outcome is unknown: an earlier attempt may have arrived. It is not sent again.");
    assert!(!desk.text("main").contains("it is not sent."), "{}", desk.text("main"));
    desk.open("/notifications?state=discarded");
    desk.says("it may have arrived");
}

#[test]
fn a_notification_is_sent_over_another_channel_by_a_person_who_sees_all_tenants() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_tenant("north");
    desk.app.create_capture("north", "catcher", "bad");
    let to = json!({"tenant": "north", "entity": "room/7", "recipients": [{"email": "ada@example.com"}, {"phone": "+919876543210"}]});
    let older = desk.app.enqueue(&desk.app.ops(), &note("Older", &to));
    desk.app.pass();
    desk.app.enqueue(&desk.app.ops(), &note("Newer", &to));
    desk.app.pass();
    desk.open(&format!("/notifications/{older}"));
    desk.press("Send over another channel");
    desk.until("location.pathname === '/entities/-/resend' && location.search.includes('tenant=north')");
    desk.says("is sent once more");
    assert_eq!(desk.count("#f-event_type"), 0, "the notification is chosen already");
    desk.fill("#f-channel", "sms");
    desk.press("Send…");
    desk.says("This notification is sent over sms");
    desk.press("Send");
    desk.says("A copy is enqueued.");
    desk.app.pass();
    desk.browser.reload();
    assert_eq!(desk.text("h1 > span"), "Older", "the named one, not the newest");
    desk.says("Copy of");
    // The page of the entity leads there, too, although no tenant is chosen.
    desk.open("/entities/-?entity=room%2F7");
    desk.press("Send again");
    desk.until("location.pathname === '/entities/-/resend' && location.search.includes('tenant=north')");
    // Another entity's notification, a wrong id, and a person who may only read.
    let (client, csrf) = session(&desk.app, "north", "operate");
    let post = |of: &str| {
        let form = format!("csrf_token={csrf}&channel=sms&of={of}");
        client.send_as("application/x-www-form-urlencoded", "POST", "/entities/8/resend", form.as_bytes()).status
    };
    assert_eq!((post(&older), post("x")), (404, 404));
    let (reader, _) = session(&desk.app, "north", "read");
    let page = reader.get(&format!("/notifications/{older}")).expect(200).text();
    assert!(!page.contains("Send over another channel"), "{page}");
}

#[test]
fn a_plain_address_finds_its_recipient_and_a_correlation_id_what_belongs_together() {
    let desk = Desk::new(Kind::Postgres);
    desk.browser.disable_scripts();
    desk.app.create_capture("default", "catcher", "bad");
    let trace = |id: &str| json!({"correlation_id": id});
    let first = desk.app.enqueue(&desk.app.ops(), &note("A mail", &trace("order-7 & more")));
    desk.app.enqueue(&desk.app.ops(), &note("Another mail", &trace("order-8")));
    let mut text = note("A text", &trace("order-7 & more"));
    text["recipients"] = json!([{"phone": "+919876543210"}]);
    text["channels"] = json!(["sms"]);
    desk.app.enqueue(&desk.app.ops(), &text);
    desk.app.pass();
    for (typed, found) in [
        ("ada@example.com", &["A mail", "Another mail"][..]),
        ("+91 98765-43210", &["A text"]),
        ("another ada@example.com", &["Another mail"]),
        ("correlation:order-8", &["Another mail"]),
    ] {
        desk.open("/notifications");
        desk.fill("#q", typed);
        desk.press("Search");
        desk.until("location.search.length > 1");
        assert_eq!(titles(&desk), found, "{typed}");
    }
    desk.open(&format!("/notifications/{first}"));
    desk.press("order-7 & more");
    desk.until("location.search === '?correlation_id=order-7+%26+more'");
    assert_eq!(titles(&desk), ["A mail", "A text"]);
    assert!(desk.text(".chips").starts_with("Correlation id\norder-7 & more"), "{}", desk.text(".chips"));
    let found = crate::api::app::items(desk.app.ops().get("/v1/deliveries?correlation_id=order-8"));
    assert_eq!(found.len(), 1);
    // Nothing is sent to the address any more, and the page says so.
    assert_eq!(desk.count("a[href*='/suppressions?address=']"), 0);
    let suppress = json!({"channel": "*", "address": "ada@example.com", "reason": "hard <b>bounce"});
    let _ = desk.app.ops().post("/v1/suppressions?tenant=default", &suppress).expect(201);
    desk.open(&format!("/notifications/{first}"));
    desk.says("Nothing is sent to this address on every channel: hard <b>bounce");
    desk.picture("suppressed");
    desk.press("Nothing is sent to this address");
    desk.until("location.pathname === '/suppressions'");
    assert_eq!(desk.count(".rows tbody tr"), 1);
}

on_both! {
    fn b7_a_job_says_what_became_of_its_retries(kind) {
        let desk = Desk::new(kind);
        desk.plant();
        desk.enqueue("worse", "Invoice 3");
        let set = |fail_on: &str| {
            let change = json!({"settings": {"fail_on": fail_on}}).to_string();
            let _ = desk.app.ops().send("PATCH", "/v1/providers/catcher?tenant=default", Some(change.as_bytes())).expect(200);
        };
        set("permanent=bad,permanent=worse");
        desk.app.pass();
        set("permanent=worse");
        let job = desk.app.ops().post("/v1/deliveries/retry?tenant=default", &json!({"filter": {"state": "parked"}})).expect(202).json();
        let page = format!("/jobs/{}", job["id"].as_str().unwrap());
        desk.open(&page);
        assert!(!desk.text(".facts").contains("Now"), "{}", desk.text(".facts"));
        // The pass runs the job, and the next one sends.
        desk.app.pass();
        desk.app.pass();
        desk.open(&page);
        desk.says("2 sent, 1 parked again");
        desk.picture("job");
        desk.open("/notifications?state=parked");
        desk.click(".rows input");
        desk.press("Discard ticked…");
        desk.press("Discard 1 delivery");
        desk.open(&page);
        desk.says("2 sent, 1 ended otherwise");
    }

    fn a_provider_says_when_its_breaker_tripped_and_recovered(kind) {
        let desk = Desk::new(kind);
        let service = HttpServer::start(|request| Reply::status(if request.n <= 3 { 503 } else { 200 }));
        // The provider for webhooks that every installation has.
        let change = json!({"breaker_failures": 3}).to_string();
        let _ = desk.app.ops().send("PATCH", "/v1/providers/hooks?tenant=default", Some(change.as_bytes())).expect(200);
        for n in 0..3 {
            let hook = json!({"event_type": "good", "title": format!("Hook {n}"), "recipients": [{"webhook": service.url("/hook")}]});
            desk.app.enqueue(&desk.app.ops(), &hook);
        }
        desk.app.pass();
        desk.open("/providers/hooks?tenant=default");
        desk.says("Tripped, ");
        desk.picture("breaker");
        // All holds end, as if their time had passed.
        for (table, column) in [("lane_host", "held_until"), ("provider", "held_until"), ("delivery_queue", "due_at")] {
            let past = if kind == Kind::Postgres { "now() - interval '1 s'" } else { "1000" };
            drop(desk.app.installation.rows(&format!("UPDATE postcommit.{table} SET {column} = {past} WHERE {column} IS NOT NULL")));
        }
        crate::installation::wait_until("the breaker recovers", || {
            desk.app.pass();
            !crate::api::app::items(desk.app.ops().get("/v1/audit?action=provider.recover")).is_empty()
        });
        desk.open("/providers/hooks?tenant=default");
        let steps: Vec<String> = serde_json::from_value(desk.texts("[aria-labelledby=h-breaker] li > p:first-child")).unwrap();
        assert!(steps.len() == 2 && steps[0].starts_with("Recovered, 2") && steps[1].starts_with("Tripped, 2"), "{steps:?}");
        // A person who may only read sees it. What people did is apart.
        let (reader, _) = session(&desk.app, "default", "read");
        assert!(reader.get("/providers/hooks").expect(200).text().contains("id=\"h-breaker\""));
        assert!(!desk.text("[aria-labelledby=h-acts]").contains("Trip"), "{}", desk.text("[aria-labelledby=h-acts]"));
        // The audit log is read without it.
        desk.open("/audit?tenant=default");
        desk.says("provider.trip");
        desk.press("Only what was asked for");
        desk.until("location.search === '?without=system&tenant=default'");
        let left = desk.text("main .lines");
        assert!(left.contains("provider.update") && !left.contains("provider.trip"), "{left}");
    }
}

#[test]
fn the_audit_log_is_read_without_receipts() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    desk.plant();
    let insert = "INSERT INTO postcommit_audit (tenant, at, actor, action, subject, count) VALUES (1, 1000, 'provider:catcher', 'delivery.receipt', 'x.1', 1),
        (1, 1000, 'system', 'provider.pause', 'catcher', 1)";
    drop(desk.app.installation.rows(insert));
    desk.open("/audit");
    desk.says("delivery.receipt");
    desk.press("Without receipts");
    desk.until("location.search === '?without=receipts'");
    let left = desk.text("main");
    assert!(!left.contains("delivery.receipt") && left.contains("provider.pause"), "{left}");
    desk.press("Filters");
    desk.fill("#f-subject", "catcher");
    desk.press("Apply filters");
    desk.until("location.search.includes('without=receipts') && location.search.includes('subject=catcher')");
    desk.press("Only what was asked for");
    desk.until("location.search === '?subject=catcher&without=system'");
    assert_eq!(
        desk.texts(".lines li > span:nth-child(2)").as_array().unwrap().len(),
        1,
        "the pause of the system is left out"
    );
    desk.open("/audit?without=people");
    desk.says("is \"people\"; allowed are receipts and system");
    assert_eq!(crate::api::app::items(desk.app.ops().get("/v1/audit?without=system&action=delivery.receipt")).len(), 0);
    assert_eq!(desk.app.ops().get("/v1/audit?without=people").status, 422);
}

#[test]
fn absolute_times_are_shown_at_the_keyboards_focus() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    desk.plant();
    desk.open("/notifications");
    let shown = "return [...document.querySelectorAll('.rows time')].map((e) => getComputedStyle(e, '::after').content).filter((c) => c !== 'none')";
    assert_eq!(desk.browser.run(shown), json!([]));
    // The Tab key reaches the first row.
    crate::installation::wait_until("the first row has the focus", || {
        desk.browser.press("\u{E004}");
        desk.browser.run("return document.activeElement.matches('.rows .what a')") == true
    });
    let times = desk.browser.run(shown);
    assert!(times.as_array().unwrap().len() == 1 && times[0].as_str().unwrap().ends_with(" UTC\""), "{times}");
    desk.picture("focus");
    let _ = desk.app.ops().post("/v1/event-types?tenant=default", &json!({"name": "good"})).expect(201);
    desk.open("/event-types/good?tenant=default");
    assert_eq!(desk.count("main p time[tabindex='0']"), 2, "a time without a row takes the focus itself");
}

#[test]
fn nothing_that_is_needed_is_cut_off() {
    for width in [1280, 390] {
        let desk = Desk::with(Kind::Sqlite, &[], width);
        desk.app.create_capture("default", "catcher", "bad");
        let long = format!("booking.{}.confirmed", "department".repeat(6));
        let edit = desk.app.client("default", &["edit"]);
        let _ = edit.post("/v1/event-types", &json!({"name": long, "description": long})).expect(201);
        let addresses = json!([{"kind": "email", "address": format!("{}@example.com", "ada.of.the.front.desk".repeat(2))}, {"kind": "phone", "address": "+919876543210"}]);
        let _ = edit
            .post("/v1/users", &json!({"id": "42", "name": "Ada", "language": "pt-BR", "addresses": addresses}))
            .expect(201);
        desk.app.enqueue(&desk.app.ops(), &json!({"event_type": long, "entity": "7", "due_at": "2099-01-01T00:00:00Z", "recipients": [{"email": "ada@example.com"}], "channels": ["email"]}));
        for (path, words) in [
            ("/event-types", ".what a"),
            ("/users", ".rows .to"),
            ("/notifications", ".rows .what a"),
            ("/notifications", ".rows .why"),
            ("/entities/7", ".rows .when"),
        ] {
            desk.open(path);
            desk.picture(&format!("whole-{}-{width}", path.trim_matches('/').replace('/', "-")));
            let cut = format!(
                "return [...document.querySelectorAll('{words}')].filter((e) => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1).map((e) => e.innerText)"
            );
            assert!(desk.count(words) > 0, "{path} {words}");
            let cut: Vec<String> = serde_json::from_value(desk.browser.run(&cut)).unwrap();
            assert!(cut.iter().all(|text| text.is_empty()), "{path} {words} at {width}: {cut:?}");
            desk.is_unhurt();
        }
        desk.open("/glossary");
        desk.picture(&format!("whole-glossary-{width}"));
        // The table scrolls in its own region, and no cell is narrower than its words.
        let narrow = "return [...document.querySelectorAll('.names td, .names th')].filter((e) => e.scrollWidth > e.clientWidth).length";
        assert_eq!(desk.browser.run(narrow), json!(0));
        desk.is_unhurt();
    }
}

#[test]
fn a_reader_sees_which_fields_are_locked_and_a_phone_jumps_to_the_preview() {
    let desk = Desk::with(Kind::Sqlite, &[], 390);
    desk.browser.disable_scripts();
    let template =
        json!({"id": "confirmed", "event_type": "good", "channel": "email", "subject": "Welcome", "text": "Hello"});
    let _ = desk.app.ops().post("/v1/templates?tenant=default", &template).expect(201);
    let border = "return getComputedStyle(document.querySelector('#f-subject')).borderTopStyle";
    desk.open("/templates/confirmed");
    assert_eq!(desk.browser.run(border), "solid");
    let top = "return Math.round(document.querySelector('#h-preview').getBoundingClientRect().top)";
    assert!(desk.browser.run(top).as_i64().unwrap() > 820, "the preview is below the fold");
    desk.press("See the preview");
    assert!((0..400).contains(&desk.browser.run(top).as_i64().unwrap()));
    desk.picture("jump");
    desk.press("Back to the texts");
    desk.press("Preview");
    desk.until("location.hash === '#h-preview'");
    assert!((0..400).contains(&desk.browser.run(top).as_i64().unwrap()));
    desk.press("Deactivate…");
    desk.press("Deactivate the template");
    desk.says("The template is inactive. What is saved is used when it is activated.");
    desk.click(".menu-button");
    desk.press("Sign out");
    desk.sign_in(&super::desk::login_token(&desk.app, "default", "read"));
    desk.open("/templates/confirmed");
    assert_eq!(desk.browser.run(border), "dashed");
    desk.picture("locked");
}
