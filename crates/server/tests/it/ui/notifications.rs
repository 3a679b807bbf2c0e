//! The list of deliveries (E12): filters, pages, and acts on what is ticked or matches.

use serde_json::json;

use super::desk::{Desk, HOSTILE, session};
use crate::api::{App, on_both};
use crate::installation::Kind;

/// What the rows are about, sorted: notifications of the same millisecond have no order.
fn rows(desk: &Desk) -> Vec<String> {
    let mut rows: Vec<String> = serde_json::from_value(desk.texts(".rows .what a")).unwrap();
    rows.sort();
    rows
}

/// The whole way of a person: filter, retry one, discard many, retry by filter.
fn e12_filter_retry_and_discard(desk: &Desk) {
    desk.plant();
    desk.open("/notifications");
    assert_eq!(rows(desk), ["Booking 1 confirmed", "Booking 2 confirmed", "Invoice 1", "Invoice 2"]);
    assert_eq!(desk.texts("tr:has(input) .state"), json!(["Parked", "Parked"]));
    assert_eq!(desk.count(".rows input[type=checkbox]"), 2, "only what is parked can be ticked");
    desk.picture("list");
    // By words and a qualifier, by the state, and all filters in the address.
    desk.fill("#q", "invoice entity:2");
    desk.press("Search");
    desk.until("location.search === '?title=invoice&entity=2'");
    assert_eq!(rows(desk), ["Invoice 2"]);
    desk.click(".chips a");
    desk.until("location.search === '?title=invoice'");
    assert_eq!(rows(desk), ["Invoice 1", "Invoice 2"]);
    desk.open("/notifications");
    desk.press("Filters");
    desk.fill("#f-event_type", "good");
    desk.fill("#f-since", "1h");
    desk.press("Apply filters");
    desk.until("location.search.includes('event_type=good&since=1h')");
    assert_eq!(rows(desk), ["Booking 1 confirmed", "Booking 2 confirmed"]);
    // Retry the ticked one: it asks first, then says what it did.
    desk.open("/notifications?state=parked");
    desk.click("input[aria-label='Choose Invoice 1']");
    desk.press("Retry ticked…");
    desk.says("Retry 1 delivery?");
    assert_eq!(rows(desk), ["Invoice 1"]);
    desk.picture("confirm");
    desk.press("Retry 1 delivery");
    desk.says("1 delivery is pending again.");
    assert_eq!(rows(desk), ["Invoice 2"]);
    desk.app.pass();
    // Everything that matches, as a job.
    desk.open_until("/notifications?state=parked", "Retry all 2 that match…");
    desk.press("Retry all 2 that match…");
    desk.says("Retry 2 deliveries?");
    desk.says("500 a second");
    desk.press("Back");
    desk.until("location.search === '?state=parked'");
    desk.click(".rows tr:nth-child(1) input");
    desk.click(".rows tr:nth-child(2) input");
    desk.press("Discard ticked…");
    desk.press("Discard 2 deliveries");
    desk.says("2 deliveries are discarded.");
    desk.says("Nothing matches");
    desk.is_unhurt();
}

/// Everything that matches a filter of two conditions is retried, and a job says how far it is.
fn retry_by_filter(desk: &Desk) {
    desk.plant();
    let mended = json!({"settings": {"fail_on": "permanent=nothing"}}).to_string();
    let _ = desk.app.ops().send("PATCH", "/v1/providers/catcher?tenant=default", Some(mended.as_bytes())).expect(200);
    desk.open_until("/notifications?title=invoice&state=parked", "Retry all that match…");
    desk.press("Retry all that match…");
    desk.says("Retry 2 deliveries?");
    desk.press("Retry 2 deliveries");
    desk.until("location.pathname.startsWith('/jobs/')");
    let job = desk.path();
    desk.app.pass();
    desk.open(&job);
    desk.says("2 of 2");
    desk.app.pass();
    desk.open("/notifications?title=invoice");
    assert_eq!(rows(desk), ["Invoice 1", "Invoice 2"]);
    assert_eq!(desk.texts(".rows .state"), json!(["Sent", "Sent"]));
}

#[test]
fn b7_what_matches_a_filter_is_retried_and_sent() {
    retry_by_filter(&Desk::new(Kind::Sqlite));
}

#[test]
fn b7_what_matches_a_filter_is_retried_and_sent_without_script() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    retry_by_filter(&desk);
}

#[test]
fn e11_e12_every_filter_of_the_form_narrows_the_list() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_capture("default", "catcher", "bad");
    let to = |recipient: &serde_json::Value, more: &serde_json::Value| {
        let mut note = json!({"event_type": "good", "recipients": [recipient]});
        note.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        desk.app.enqueue(&desk.app.ops(), &note)
    };
    let edit = desk.app.client("default", &["edit"]);
    let _ = edit.post("/v1/lists", &json!({"name": "guests"})).expect(201);
    let member = json!({"add": [{"kind": "email", "member": "cleo@example.com"}]}).to_string();
    let _ = edit.send("PATCH", "/v1/lists/guests/members", Some(member.as_bytes())).expect(200);
    to(&json!({"email": "ada@example.com"}), &json!({"title": "Of a site", "source": {"site": "leh"}}));
    to(&json!({"phone": "+919876543210"}), &json!({"title": "A text", "channels": ["sms"]}));
    to(&json!({"list": "guests"}), &json!({"title": "To a list", "channels": ["email"]}));
    desk.app.pass();
    let old = to(&json!({"email": "bob@example.com"}), &json!({"title": "An old one"}));
    let long_ago = "UPDATE postcommit.delivery_queue SET first_due_at = 1000, due_at = 1000";
    drop(desk.app.installation.rows(&format!("{long_ago} WHERE notification_id = '{old}'")));
    let filters = [
        ("site", "leh", "Of a site"),
        ("channel", "sms", "A text"),
        ("list", "guests", "To a list"),
        ("recipient", "+919876543210", "A text"),
    ];
    for (field, value, expected) in filters {
        desk.open("/notifications");
        desk.press("Filters");
        desk.fill(&format!("#f-{field}"), value);
        desk.press("Apply filters");
        desk.until(&format!("location.search.includes('{field}=')"));
        assert_eq!(rows(&desk), [expected], "{field}");
        assert!(desk.count(".chips a") >= 1, "{field} is shown beside the list and can be taken away");
    }
    desk.open("/notifications");
    desk.click("main a[href*='stuck=true']");
    desk.until("location.search.includes('stuck=true')");
    assert_eq!(rows(&desk), ["An old one"]);
    let from = "return new Date(Date.now() + 3600e3).toISOString().slice(0, 19) + 'Z'";
    let later = desk.browser.run(from).as_str().unwrap().to_owned();
    for (query, count) in [(format!("from={later}"), 0), (format!("until={later}"), 4)] {
        desk.open(&format!("/notifications?{query}"));
        assert_eq!(rows(&desk).len(), count, "{query}");
    }
}

on_both! {
    fn e12_a_person_filters_retries_and_discards(kind) {
        e12_filter_retry_and_discard(&Desk::new(kind));
    }
}

#[test]
fn e12_a_person_filters_retries_and_discards_without_script() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    e12_filter_retry_and_discard(&desk);
}

#[test]
fn e12_pages_lead_to_older_deliveries_and_back() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_capture("default", "catcher", "bad");
    let notes: Vec<_> = (0..120)
        .map(|n| json!({"event_type": "good", "title": format!("Number {n}"), "recipients": [{"email": "ada@example.com"}], "channels": ["email"]}))
        .collect();
    let _ = desk.app.ops().post("/v1/notifications/batch", &json!({"notifications": notes})).expect(200);
    desk.open("/notifications?title=number");
    let (first, mut seen) = (desk.texts(".rows .what a"), rows(&desk));
    assert_eq!((desk.count(".rows tbody tr"), desk.texts(".pager a")), (50, json!(["Older"])));
    desk.press("Older");
    seen.extend(rows(&desk));
    desk.press("Older");
    assert_eq!((desk.count(".rows tbody tr"), desk.texts(".pager a")), (20, json!(["Newer"])));
    seen.extend(rows(&desk));
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 120, "each is on one page");
    desk.press("Newer");
    desk.press("Newer");
    assert_eq!((desk.texts(".rows .what a"), desk.path().as_str()), (first, "/notifications?title=number"));
}

#[test]
fn e12_errors_are_grouped_beside_the_list_and_each_filters_it() {
    let desk = Desk::new(Kind::Sqlite);
    desk.plant();
    desk.open_until("/notifications", "Errors");
    let groups = desk.texts("[aria-label=Errors] a");
    assert_eq!((groups.as_array().unwrap().len(), desk.text("[aria-label=Errors] .count").as_str()), (1, "2"));
    desk.picture("errors");
    desk.click("[aria-label=Errors] a");
    desk.until("location.search.includes('error_code=')");
    assert_eq!(rows(&desk), ["Invoice 1", "Invoice 2"], "as many as the link promises");
    assert_eq!(desk.text("[aria-current=true] .count"), "2");
    desk.says("retrying, parked");
    // Narrowed otherwise, the list shows fewer than are counted, so nothing is promised.
    desk.open("/notifications?entity=1");
    assert_eq!(desk.count("[aria-label=Errors]"), 0);
}

#[test]
fn e12_a_filter_is_kept_as_a_view_without_script() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    desk.plant();
    desk.open("/notifications");
    assert_eq!(desk.count("#view"), 0, "the whole list needs no view");
    desk.open("/notifications?state=parked&entity=2");
    desk.fill("#view", HOSTILE.get(..40).unwrap());
    desk.press("Save view");
    desk.says("The view is saved in this browser.");
    desk.open("/notifications");
    assert_eq!(desk.texts("[aria-label='Saved views'] a"), json!([HOSTILE.get(..40).unwrap().trim()]));
    desk.click("[aria-label='Saved views'] a");
    desk.until("location.search === '?state=parked&entity=2'");
    assert_eq!(rows(&desk), ["Invoice 2"]);
    desk.picture("views");
    desk.is_unhurt();
    desk.press("Delete this view");
    desk.says("The view is deleted.");
    assert_eq!(desk.count("[aria-label='Saved views']"), 0);
    // A name that is too long comes back with the limit.
    let (reader, csrf) = session(&desk.app, "default", "read");
    let long = format!("csrf_token={csrf}&filter=state%3Dparked&name={}", "x".repeat(61));
    let refused = reader.send_as("application/x-www-form-urlencoded", "POST", "/notifications/views", long.as_bytes());
    let said = refused.expect(422).text();
    assert!(said.contains("1 to 60 are allowed") && said.contains(&format!("value=\"{}\"", "x".repeat(61))), "{said}");
}

#[test]
fn b7_what_may_have_arrived_is_left_out_unless_it_is_ticked() {
    let desk = Desk::new(Kind::Sqlite);
    let draft = json!({"name": "catcher", "driver": "capture", "channel": "*", "guarantee": "at_most_once", "settings": {"fail_on": "unclear=bad,permanent=worse"}});
    let _ = desk.app.ops().post("/v1/providers?tenant=default", &draft).expect(201);
    let id = desk.enqueue("bad", "Invoice 1");
    desk.enqueue("worse", "Invoice 2");
    desk.app.pass();
    let retry = |rows: u32| {
        desk.open("/notifications?state=parked");
        desk.says("it may have arrived");
        for row in 1..=rows {
            desk.click(&format!(".rows tr:nth-child({row}) input"));
        }
        desk.press("Retry ticked…");
        desk.says("A person may get the message twice.");
    };
    retry(2);
    assert_eq!(desk.count("#unclear[required]"), 0);
    desk.press("Retry 2 deliveries");
    desk.says("1 delivery is pending again. 1 other delivery may have arrived");
    assert_eq!(desk.app.status(&id)["state"], "parked");
    // If all of them may have arrived, nothing would happen without the box.
    retry(1);
    assert_eq!(desk.count("#unclear[required]"), 1);
    desk.click("#unclear");
    desk.press("Retry 1 delivery");
    desk.says("1 delivery is pending again.");
    assert_eq!(desk.app.status(&id)["state"], "pending");
}

#[test]
fn e12_the_filter_is_exported_with_masked_addresses_and_no_formula() {
    let desk = Desk::new(Kind::Sqlite);
    desk.plant();
    let note = json!({"event_type": "bad", "title": "=cmd|x", "entity": "+1", "recipients": [{"email": "ada@example.com"}], "channels": ["email"]});
    desk.app.enqueue(&desk.app.ops(), &note);
    desk.app.pass();
    desk.open("/notifications?state=parked&event_type=bad");
    let links = desk.browser.run("return [...document.querySelectorAll('.exports a')].map((link) => link.href)");
    let links: Vec<String> = serde_json::from_value(links).unwrap();
    let path = |link: &str| link.split_once(&desk.app.address().to_string()).unwrap().1.to_owned();
    let (reader, _) = session(&desk.app, "default", "read");
    let csv = reader.get(&path(&links[0])).expect(200);
    assert_eq!(csv.header("content-disposition"), Some("attachment; filename=\"deliveries.csv\""));
    let (csv, jsonl) = (csv.text(), reader.get(&path(&links[1])).expect(200).text());
    assert_eq!((csv.lines().count(), jsonl.lines().count()), (4, 3), "{csv}");
    assert!(
        csv.contains(",'=cmd|x,'+1,") && !csv.contains("ada@example.com") && !jsonl.contains("ada@example.com"),
        "{csv}{jsonl}"
    );
    let refused = reader.get("/notifications/export?format=xml").expect(422).text();
    assert!(refused.contains("allowed are csv and jsonl"), "{refused}");
}

#[test]
fn e12_the_form_keeps_what_it_cannot_show_and_counts_only_what_it_knows() {
    let app = App::at_rest(Kind::Sqlite);
    app.create_capture("default", "catcher", "bad");
    let note = json!({"event_type": "bad", "recipients": [{"email": "ada@example.com"}], "channels": ["email"]});
    let id = app.enqueue(&app.ops(), &note);
    app.pass();
    let (client, _) = session(&app, "default", "read");
    let page = |query: &str| client.get(&format!("/notifications?{query}")).expect(200).text();
    let kept = page(&format!("notification_id={id}&from=2026-03-15T08:12:03%2B05:30"));
    assert!(kept.contains(&format!("name=\"notification_id\" value=\"{id}\"")), "{kept}");
    assert!(kept.contains("value=\"2026-03-15T02:42:03\""), "{kept}");
    let count = |page: &str| {
        page.split("id=\"states\"").nth(1).unwrap().split("</ul>").next().unwrap().matches("<span>").count()
    };
    assert!(count(&page("state=parked")) > 3 && count(&page("")) > 3);
    assert_eq!(
        (count(&page("channel=sms")), count(&page("state=parked&since=1h"))),
        (0, 0),
        "the counts know no channel"
    );
    assert_eq!(client.get("/notifications?entity=%00").status, 422);
}

#[test]
fn hostile_text_is_text_in_the_list() {
    let desk = Desk::with(Kind::Sqlite, &[], 390);
    desk.app.create_capture("default", "catcher", "bad");
    let note = json!({
        "event_type": "bad", "entity": HOSTILE, "title": HOSTILE, "body": HOSTILE, "payload": {"text": HOSTILE}, "source": {"site": HOSTILE},
        "recipients": [{"user": "<b>user</b>"}], "channels": ["in_app"],
    });
    desk.app.enqueue(&desk.app.ops(), &note);
    desk.app.pass();
    desk.open("/notifications");
    let shown = HOSTILE.replace('\u{202e}', "\u{fffd}");
    assert_eq!(desk.browser.run("return document.querySelector('.what a').textContent"), json!(shown));
    desk.is_unhurt();
    let search: String = form_urlencoded::byte_serialize(HOSTILE.as_bytes()).collect();
    for query in
        [format!("entity={search}"), format!("title={search}"), format!("q={search}"), format!("provider={search}")]
    {
        desk.open(&format!("/notifications?{query}"));
        desk.says("Postcommit");
        desk.is_unhurt();
    }
}
