//! The page of one notification: what happened, the content as sent, and what can be done.

use serde_json::json;

use postcommit_testkit::{HttpServer, Reply};

use super::desk::{Desk, HOSTILE, session};
use crate::api::App;
use crate::installation::Kind;

/// Opens the notification from the list.
fn open(desk: &Desk, title: &str) {
    desk.open("/notifications");
    desk.press(title);
    desk.until("location.pathname.startsWith('/notifications/')");
    desk.says("what happened");
}

/// A parked one is understood and retried, one that waits is cancelled, one that was sent is sent again.
fn act_on_one(desk: &Desk) {
    desk.plant();
    open(desk, "Invoice 1");
    assert!(desk.text(".sentence").starts_with("catcher rejected it: "), "{}", desk.text(".sentence"));
    assert_eq!(desk.texts("h1 .pill"), json!(["Parked"]));
    let steps = desk.texts(".timeline > li > p:first-child");
    let steps: Vec<String> = serde_json::from_value(steps).unwrap();
    assert_eq!(steps.len(), 3, "{steps:?}");
    assert!(
        steps[0].contains("Committed with entity 1")
            && steps[1].contains("Attempt 1 by catcher")
            && steps[2].contains("Parked"),
        "{steps:?}"
    );
    desk.picture("notification");
    desk.press("Retry now…");
    desk.says("Retry 1 delivery?");
    desk.press("Retry 1 delivery");
    desk.says("1 delivery is pending again.");
    desk.says("It is not sent yet");
    assert!(desk.text(".timeline").contains("Retry, by cli:"), "{}", desk.text(".timeline"));
    desk.press("Cancel…");
    desk.says("Cancel 1 delivery of this notification?");
    assert_eq!(desk.texts(".rows .what a"), json!(["Invoice 1"]));
    desk.press("Cancel the notification");
    desk.says("1 delivery is cancelled.");
    desk.says("It was cancelled before it was sent.");
    assert_eq!(desk.count(".head form button"), 0, "nothing can be done with what is cancelled");
    open(desk, "Invoice 2");
    desk.press("Discard…");
    desk.press("Discard 1 delivery");
    desk.says("A person discarded it");
    // What may have arrived can be marked.
    let settings = json!({"fail_on": "unclear=unsure"});
    let draft = json!({"name": "texts", "driver": "capture", "channel": "sms", "guarantee": "at_most_once", "settings": settings});
    let _ = desk.app.ops().post("/v1/providers?tenant=default", &draft).expect(201);
    let note = json!({"event_type": "unsure", "title": "Text", "recipients": [{"phone": "+919876543210"}], "channels": ["sms"]});
    desk.app.enqueue(&desk.app.ops(), &note);
    desk.app.pass();
    open(desk, "Text");
    desk.press("Mark as delivered…");
    assert_eq!(desk.count(".rows tbody tr"), 1, "the question shows what it is about");
    desk.press("Mark as delivered");
    desk.says("It arrived over sms.");
    // What was sent is sent again as a copy that names the person. What was captured cannot be marked.
    open(desk, "Booking 1 confirmed");
    assert!(!desk.text("main").contains("Mark as delivered"));
    desk.press("Send again…");
    desk.says("Send a copy of this delivery?");
    assert_eq!(desk.texts(".rows .what a"), json!(["Booking 1 confirmed"]));
    desk.press("Send a copy");
    desk.says("A copy is enqueued.");
    desk.app.pass();
    desk.browser.reload();
    desk.says("Copy of");
    desk.says("asked by cli:");
    assert_eq!(desk.text(".message h3"), "Booking 1 confirmed");
    // Its address is suppressed, for a reason.
    desk.press("Suppress this address…");
    desk.says("Nothing is sent to a…@example.com over email any more");
    desk.fill("#choice", "complaint");
    desk.press("Suppress the address");
    desk.says("The address is suppressed.");
    let suppressed = &crate::api::app::items(desk.app.ops().get("/v1/suppressions"))[0];
    assert_eq!((&suppressed["address"], &suppressed["reason"]), (&json!("ada@example.com"), &json!("complaint")));
}

#[test]
fn b7_one_notification_is_understood_and_acted_on() {
    act_on_one(&Desk::new(Kind::Sqlite));
}

#[test]
fn b7_one_notification_is_understood_and_acted_on_without_script() {
    let desk = Desk::new(Kind::Postgres);
    desk.browser.disable_scripts();
    act_on_one(&desk);
}

#[test]
fn c11_a_copy_is_of_this_notification_and_goes_to_this_recipient() {
    let app = App::at_rest(Kind::Sqlite);
    app.create_capture("default", "catcher", "bad");
    let note = |title: &str, to: &[&str]| {
        let to: Vec<_> = to.iter().map(|email| json!({"email": email})).collect();
        app.enqueue(
            &app.ops(),
            &json!({"event_type": "good", "entity": "7", "title": title, "recipients": to, "channels": ["email"]}),
        )
    };
    let older = note("Older", &["ada@example.com", "bob@example.com", "eve@example.com"]);
    app.pass();
    let newer = note("Newer", &["zoe@example.com"]);
    app.pass();
    let (client, csrf) = session(&app, "default", "operate");
    let post = |id: &str, fields: &str| {
        let form = format!("csrf_token={csrf}&id={older}.2&{fields}");
        client.send_as(
            "application/x-www-form-urlencoded",
            "POST",
            &format!("/notifications/{id}/resend"),
            form.as_bytes(),
        )
    };
    let question = post(&older, "").expect(200).text();
    for words in ["Older", "Only b…@example.com", "All 3 recipients over email", "Send a copy of this delivery?"] {
        assert!(question.contains(words), "{words}: {question}");
    }
    for (choice, reached) in [("to=one", 1), ("to=all", 3)] {
        let answer = post(&older, &format!("confirmed=yes&{choice}&request_id=r{reached}")).expect(303);
        let place = answer.header("location").unwrap();
        let copy = place.split('?').next().unwrap().rsplit('/').next().unwrap();
        app.pass();
        let story = app.story(copy);
        let targets: Vec<_> = story["deliveries"].as_array().unwrap().iter().map(|row| row["target"].clone()).collect();
        assert_eq!((&story["title"], targets.len()), (&json!("Older"), reached), "{story}");
        assert!(choice == "to=all" || targets == [json!("b…@example.com")], "{targets:?}");
        assert!(client.get(place).expect(200).text().contains("A copy is enqueued."));
    }
    // The delivery must be one of the notification in the address.
    let _ = post(&newer, "confirmed=yes").expect(409);
}

#[test]
fn the_page_of_a_list_counts_all_and_shows_what_is_parked_first() {
    let app = App::at_rest(Kind::Sqlite);
    app.create_capture("default", "catcher", "bad");
    let to: Vec<_> = (0..80).map(|n| json!({"email": format!("guest{n}@example.com")})).collect();
    let note = json!({"event_type": "good", "entity": "7", "title": "To all", "recipients": to, "channels": ["email"]});
    let id = app.enqueue(&app.ops(), &note);
    app.pass();
    let park = "UPDATE postcommit.delivery_ledger SET state = 'parked', reason = 'rejected' WHERE n IN (2, 79)";
    let _ = app.installation.rows(park);
    let (client, _) = session(&app, "default", "read");
    let page = client.get(&format!("/notifications/{id}")).expect(200).text();
    let said = "Of 80 deliveries, 2 are parked and need a person, 78 were sent.";
    assert!(page.contains(said) && page.contains(&format!("/notifications/{id}?n=79\"")), "{page}");
    assert!(page.contains("id=\"sentence\" data-live=\"off\""), "what has ended is not live: {page}");
    assert!(client.get(&format!("/notifications/{id}?n=80")).expect(200).text().contains(said));
    assert_eq!(client.get(&format!("/notifications/{id}?n=81")).status, 404, "another delivery would be a surprise");
    assert_eq!(client.get(&format!("/notifications/{id}?n=0")).status, 200, "a link from before the expansion");
}

#[test]
fn the_mail_is_shown_as_sent_and_can_do_nothing() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_capture("default", "catcher", "bad");
    let html = "<html><body><h1 style=\"color: rgb(1, 2, 3)\">Hello {{ guest }}</h1><script>document.title = 'hurt'</script>\
        <img src=\"http://127.0.0.1:1/x.png\"><form action=\"/sign-out\" method=\"post\"><button>Go</button></form></body></html>";
    let template = json!({"id": "told", "event_type": "told", "channel": "email", "subject": "See you, {{ guest }}", "text": "Hello {{ guest }}", "html": html});
    let _ = desk.app.ops().post("/v1/templates?tenant=default", &template).expect(201);
    let guest = "Asha <b>&\"'";
    let note = json!({"event_type": "told", "recipients": [{"email": "ada@example.com"}], "payload": {"guest": guest, "big": 7}});
    let id = desk.app.enqueue(&desk.app.ops(), &note);
    desk.app.pass();
    // A later version of the template changes nothing of what was sent.
    let change = json!({"subject": "Another text"}).to_string();
    let _ = desk.app.ops().send("PATCH", "/v1/templates/told?tenant=default", Some(change.as_bytes())).expect(200);
    desk.open(&format!("/notifications/{id}"));
    assert_eq!(desk.text("h1 > span"), format!("See you, {guest}"));
    assert_eq!(desk.text(".message h3"), format!("See you, {guest}"));
    assert_eq!(desk.browser.run("return document.querySelector('iframe').getAttribute('sandbox')"), "");
    assert_eq!(desk.texts(".lines .end"), json!(["told v1"]));
    desk.picture("mail");
    let (reader, _) = session(&desk.app, "default", "read");
    let mail = reader.get(&format!("/notifications/{id}/1/mail")).expect(200);
    let policy = mail.header("content-security-policy").unwrap();
    assert!(policy.starts_with("sandbox; default-src 'none';") && policy.contains("form-action 'none'"), "{policy}");
    assert!(mail.text().contains("Hello Asha &lt;b&gt;"), "{}", mail.text());
    // Opened outside of the frame, the mail still runs and loads nothing.
    desk.open(&format!("/notifications/{id}/1/mail"));
    assert_eq!(desk.browser.run("return [document.title, getComputedStyle(document.querySelector('h1')).color, document.images[0].naturalWidth]"), json!(["", "rgb(1, 2, 3)", 0]));
    for missing in [
        "/notifications/x",
        "/notifications/00000000-0000-7000-8000-000000000000",
        &format!("/notifications/{id}/9/mail"),
    ] {
        assert_eq!(reader.get(missing).status, 404, "{missing}");
    }
}

#[test]
fn hostile_text_is_text_on_the_page() {
    let desk = Desk::with(Kind::Sqlite, &[], 390);
    desk.app.create_capture("default", "catcher", "bad");
    let note = json!({
        "event_type": "bad", "entity": HOSTILE, "title": HOSTILE, "body": HOSTILE, "payload": {"text": HOSTILE}, "correlation_id": "<b>trace</b>",
        "source": {"site": HOSTILE, "script": HOSTILE, "rule": HOSTILE}, "recipients": [{"phone": "+919876543210"}], "channels": ["sms"],
    });
    let id = desk.app.enqueue(&desk.app.ops(), &note);
    desk.app.pass();
    desk.open(&format!("/notifications/{id}"));
    let shown = HOSTILE.replace('\u{202e}', "\u{fffd}");
    for selector in ["h1 > span", ".message h3", ".message .text", ".facts a"] {
        let text = desk.browser.run(&format!("return document.querySelector('{selector}').textContent"));
        assert_eq!(text, json!(shown), "{selector}");
    }
    desk.says("segment");
    desk.is_unhurt();
    // The links to related deliveries carry the text safely.
    desk.click(".facts a");
    desk.until("location.pathname.startsWith('/entities/')");
    assert_eq!(desk.count(".rows tbody tr"), 1);
    desk.is_unhurt();
}

/// A service that refuses everything with a hostile text: its answer is text on every page that shows failures.
#[test]
fn d8_recent_failures_and_states_are_seen_and_a_hostile_answer_is_text() {
    let desk = Desk::new(Kind::Sqlite);
    let service = HttpServer::start(|_| Reply::status(400).with_body(HOSTILE));
    let note = json!({"event_type": "door.opened", "title": "Door", "recipients": [{"webhook": service.url("/hook")}]});
    let id = desk.app.enqueue(&desk.app.ops(), &note);
    desk.app.pass();
    // The state and the failure are in the list, as a group of errors, and among what needs a person.
    desk.open_until("/notifications", "Errors");
    assert_eq!(desk.texts(".rows .state"), json!(["Parked"]));
    let error = desk.text("[aria-label=Errors]");
    assert!(error.contains("http_400"), "{error}");
    desk.is_unhurt();
    for (path, shown) in [
        ("/parked", "http_400"),
        ("/providers", "http_400"),
        ("/providers/hooks", "http_400"),
        (&*format!("/notifications/{id}"), "the receiver answered 400"),
    ] {
        desk.open(path);
        desk.says(shown);
        desk.is_unhurt();
    }
    let text = desk.browser.run("return document.querySelector('.timeline').textContent");
    assert!(text.as_str().unwrap().contains("<script>window.hurt = 1</script>"), "{text}");
    desk.press("Answer");
    desk.until("document.querySelector('.timeline pre').checkVisibility()");
    desk.picture("hostile-answer");
}

#[test]
fn a_chat_message_is_drawn_as_it_was_sent() {
    let desk = Desk::new(Kind::Sqlite);
    desk.app.create_capture("default", "catcher", "bad");
    let blocks = json!([
        {"type": "header", "text": {"type": "plain_text", "text": "Pump 7"}},
        {"type": "section", "text": {"type": "mrkdwn", "text": HOSTILE}},
        {"type": "actions", "elements": [{"type": "button", "text": {"type": "plain_text", "text": "Open"}}]},
    ]);
    let note = json!({
        "event_type": "hot", "title": "Hot", "channels": ["slack"], "recipients": [{"slack": "https://hooks.example.com/x"}],
        "data": {"slack": {"blocks": blocks}},
    });
    let id = desk.app.enqueue(&desk.app.ops(), &note);
    desk.app.pass();
    for path in [format!("/notifications/{id}"), "/captured".into()] {
        desk.open(&path);
        assert_eq!(desk.text(".bubble h3"), "Pump 7", "{path}");
        assert_eq!(desk.text(".bubble .button"), "Open");
        assert!(desk.text(".bubble .text").contains("<script>window.hurt = 1</script>"));
        desk.is_unhurt();
    }
    desk.picture("slack");
}
