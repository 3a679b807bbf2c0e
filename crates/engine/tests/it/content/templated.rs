//! Events that templates render: which templates, which text, and the result without a template.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_engine::store::Want;
use serde_json::json;

use super::{booking, outcome};

on_both! {
    async fn c1_an_event_fans_out_to_every_active_template_of_its_type(world) {
        world.capture(json!({})).await;
        world.booking_templates("notification").await;
        world.write_template("other", "slack", json!({"event_type": "booking.cancelled", "text": "x"})).await;
        world.write_template("off", "teams", json!({"text": "x"})).await;
        world.execute("UPDATE postcommit.template SET active = (1 = 0) WHERE id = 'off'", vec![]).await;
        let id = world.book("12345", json!({})).await;
        world.pass().await;
        let sent = outcome("x", "sent", "");
        assert_eq!(world.outcomes(id).await, ["email", "sms", "whatsapp"].map(|on| (on.to_owned(), sent.1.clone(), sent.2.clone())));
        let captured = world.captured(id).await;
        let sms = &captured[&("sms".to_owned(), "+919876543210".to_owned())];
        assert_eq!(sms["body"], "Asha, your stay at Sea View from 15-Mar-2026 is Confirmed.");
        let mail = &captured[&("email".to_owned(), "guest@example.com".to_owned())];
        assert_eq!((&mail["title"], &mail["html"]), (&json!("Booking 12345"), &json!("<p>Welcome, Asha</p>")));
        let row = world.deliveries(id).await.remove(1);
        assert_eq!((row.template.as_deref(), row.template_version, row.send_key), (Some("sms-confirmed"), Some(1), None));
    }

    async fn c1_the_narrowest_scope_wins_and_other_channels_still_fan_out(world) {
        world.capture(json!({})).await;
        world.booking_templates("notification").await;
        let of_listing = |id: &str| json!({"scope_type": "listing", "scope_id": id, "text": format!("Listing {id}")});
        world.write_template("sms-of-10", "sms", of_listing("10")).await;
        world.write_template("sms-of-11", "sms", of_listing("11")).await;
        let id = world.book("12345", json!({})).await;
        let mut elsewhere = booking();
        elsewhere["listingId"] = json!(12);
        let other = world.book("12346", json!({"payload": elsewhere})).await;
        world.pass().await;
        let to = ("sms".to_owned(), "+919876543210".to_owned());
        assert_eq!((world.captured(id).await[&to]["body"].clone(), world.captured(id).await.len()), (json!("Listing 10"), 3));
        assert!(world.captured(other).await[&to]["body"].as_str().unwrap().starts_with("Asha"));
    }

    async fn c1_two_parties_of_one_event_get_a_message_each(world) {
        world.capture(json!({})).await;
        world.write_template("guest", "sms", json!({"audience": "guest", "to": "{{guestPhone}}", "text": "Dear guest"})).await;
        world.write_template("host", "sms", json!({"audience": "host", "to": "{{hostPhone}}", "text": "Dear host"})).await;
        let mut payload = booking();
        payload["hostPhone"] = json!("+14155550100");
        let id = world.book("12345", json!({"payload": payload})).await;
        payload["hostPhone"] = payload["guestPhone"].clone();
        let same = world.book("12346", json!({"payload": payload})).await;
        world.pass().await;
        let captured = world.captured(id).await;
        assert_eq!(captured[&("sms".to_owned(), "+14155550100".to_owned())]["body"], "Dear host");
        assert_eq!(captured[&("sms".to_owned(), "+919876543210".to_owned())]["body"], "Dear guest");
        assert_eq!(world.outcomes(same).await, [outcome("sms", "sent", ""), outcome("sms", "sent", "")]);
    }

    async fn c7_a_bad_or_missing_address_skips_its_channel_only(world) {
        world.capture(json!({})).await;
        world.booking_templates("notification").await;
        let with = |phone: serde_json::Value, mail: serde_json::Value| {
            let mut payload = booking();
            (payload["guestPhone"], payload["guestEmail"]) = (phone, mail);
            json!({"payload": payload})
        };
        let good = world.book("1", json!({})).await;
        let bad_phone = world.book("2", with(json!("98765"), json!("guest@example.com"))).await;
        let no_mail = world.book("3", with(json!("+919876543210"), json!(""))).await;
        let neither = world.book("4", with(json!(null), json!(null))).await;
        world.pass().await;
        assert!(world.captured(good).await.contains_key(&("sms".into(), "+919876543210".into())), "byte for byte");
        let bad = |on: &str| outcome(on, "skipped", "bad_address");
        assert_eq!(world.outcomes(bad_phone).await, [outcome("email", "sent", ""), bad("sms"), bad("whatsapp")]);
        let mut rows = world.outcomes(no_mail).await;
        rows.sort();
        assert_eq!(rows, [outcome("email", "skipped", "no_address"), outcome("sms", "sent", ""), outcome("whatsapp", "sent", "")]);
        let row = world.delivery(neither).await;
        assert_eq!((row.n, row.state.as_str(), row.error_code.as_deref()), (0, "parked", Some("no_recipient")));
        assert!(row.last_error.unwrap().contains("template \"sms-confirmed\" gives no address"));
    }

    async fn c4_template_not_found_parks_the_event_and_a_retry_after_mending_sends_it(world) {
        world.capture(json!({})).await;
        world.write_template("other", "sms", json!({"event_type": "booking.cancelled", "text": "x"})).await;
        let id = world.book("1", json!({})).await;
        let named = world.book("2", json!({"event_type": "booking.moved", "recipients": [{"email": "a@example.com"}]})).await;
        let good = world.enqueue("plain", json!({"title": "Hello"})).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await, [outcome("", "parked", "template_not_found")]);
        assert_eq!(world.outcomes(named).await, [outcome("email", "sent", "")], "of another event type, so a direct message");
        assert_eq!(world.outcomes(good).await, [outcome("email", "sent", "")], "others are not held up");
        world.write_template("sms", "sms", json!({"text": "Dear {{guestName}}"})).await;
        assert!(world.store.retry(world.key(id, 0)).await.unwrap());
        world.pass().await;
        assert_eq!(world.outcomes(id).await, [outcome("sms", "sent", "")]);
    }

    async fn c4_recipients_without_a_template_for_them_park_the_event(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "x"})).await;
        let only_mail = world.book("1", json!({"recipients": [{"email": "a@example.com"}]})).await;
        let both = world.book("2", json!({"recipients": [{"email": "a@example.com"}, {"phone": "+14155550100"}]})).await;
        let by_channel = world.book("3", json!({"channels": ["email"]})).await;
        world.pass().await;
        assert_eq!(world.outcomes(only_mail).await, [outcome("", "parked", "template_not_found")]);
        assert_eq!(world.outcomes(both).await, [outcome("sms", "sent", ""), outcome("email", "skipped", "template_not_found")]);
        assert_eq!(world.outcomes(by_channel).await, [outcome("", "parked", "template_not_found")]);
    }

    async fn c4_missing_data_is_named_and_a_mended_template_is_used_by_the_retry(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "Gate {{gateCode}}", "missing": "refuse"})).await;
        let id = world.book("1", json!({})).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await, [outcome("sms", "parked", "missing_data")]);
        assert!(world.delivery(id).await.last_error.unwrap().contains("gateCode"));
        assert!(world.attempts(id).await.is_empty(), "nothing was attempted");
        world.write_template("sms", "sms", json!({"text": "Welcome, {{guestName}}", "missing": "refuse"})).await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.template_version), ("sent", Some(2)));
    }

    async fn c5_a_missing_placeholder_is_a_warning_of_the_attempt_and_no_error(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "Gate {{gateCode}}."})).await;
        let id = world.book("1", json!({})).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.error_code, row.last_error), ("sent", None, None));
        assert!(world.attempts(id).await[0].detail.as_ref().unwrap().contains("gateCode"));
    }

    async fn a_failing_template_parks_its_delivery_and_no_other(world) {
        world.capture(json!({})).await;
        world.booking_templates("notification").await;
        let endless = format!("{}x{}", "{% for a in nights %}".repeat(4), "{% endfor %}".repeat(4));
        world.write_template("hostile", "slack", json!({"to": "https://hooks.example.com/x", "text": endless})).await;
        world.write_template("hostile-to", "teams", json!({"to": endless, "text": "x"})).await;
        world.write_template("broken", "voice", json!({"text": "{{ unclosed"})).await;
        let mut payload = booking();
        payload["nights"] = (0..2000).collect();
        let id = world.book("1", json!({"payload": payload})).await;
        let good = world.enqueue("plain", json!({"title": "Hello"})).await;
        world.pass().await;
        let mut rows = world.outcomes(id).await;
        rows.sort();
        assert_eq!(rows, [
            outcome("email", "sent", ""), outcome("slack", "parked", "template_limit"), outcome("sms", "sent", ""),
            outcome("teams", "skipped", "template_limit"), outcome("voice", "skipped", "template_failed"),
            outcome("whatsapp", "sent", ""),
        ]);
        assert_eq!(world.outcomes(good).await, [outcome("email", "sent", "")]);
    }

    async fn what_is_fixed_at_expansion_stays_fixed(world) {
        world.capture(json!({"fail_on": "transient*1=booking.confirmed"})).await;
        world.write_template("sms", "sms", json!({"text": "First"})).await;
        world.write_template("sms", "sms", json!({"text": "Second"})).await;
        let id = world.book("1", json!({})).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await[0].1, "retrying");
        world.write_template("sms", "sms", json!({"text": "Third"})).await;
        world.make_due().await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.template_version), ("sent", Some(2)));
        assert_eq!(world.captured(id).await.values().next().unwrap()["body"], "Second");
        let next = world.book("2", json!({})).await;
        world.execute("UPDATE postcommit.delivery_queue SET due_at = {now}", vec![]).await;
        world.pass().await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.captured(next).await.values().next().unwrap()["body"], "Third");
    }

    async fn c12_a_scheduled_event_is_rendered_by_the_template_of_its_day(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "Early"})).await;
        let id = world.book("1", json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        let gone = world.book("2", json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await, [outcome("", "pending", "")]);
        world.write_template("sms", "sms", json!({"text": "Late"})).await;
        world.cancel("2").await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.captured(id).await.values().next().unwrap()["body"], "Late");
        assert_eq!(world.outcomes(gone).await, [outcome("", "cancelled", "cancelled")]);
    }

    async fn a_program_still_gets_the_event_itself(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "x"})).await;
        let to = json!([{"webhook": "https://hooks.example.com/x"}, {"phone": "+14155550100"}]);
        let id = world.book("1", json!({"recipients": to})).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await, [outcome("webhook", "sent", ""), outcome("sms", "sent", "")]);
        assert_eq!(world.deliveries(id).await[0].template, None);
    }

    async fn a_direct_message_that_may_have_been_sent_is_not_sent_again_in_another_form(world) {
        world.capture(json!({})).await;
        let id = world.book("1", json!({"title": "Hello", "recipients": [{"phone": "+919876543210"}]})).await;
        world.claim_and_lose().await;
        world.write_template("sms", "sms", json!({"text": "By the template"})).await;
        world.write_template("mail", "email", json!({"text": "By the template"})).await;
        world.pass().await;
        world.make_due().await;
        world.pass().await;
        let log = world.attempts(id).await;
        assert_eq!((log.len(), log[0].code.as_deref()), (2, Some("lease_expired")), "the lost send counts");
        let row = world.delivery(id).await;
        assert_eq!((row.n, row.state.as_str(), row.template), (1, "sent", None));
        assert_eq!(world.captured(id).await.values().next().unwrap()["title"], "Hello");
    }

    async fn a_lost_event_that_a_program_may_have_got_is_counted(world) {
        world.capture(json!({})).await;
        let id = world.book("1", json!({"recipients": [{"webhook": "https://hooks.example.com/x"}]})).await;
        world.claim_and_lose().await;
        world.write_template("sms", "sms", json!({"text": "By the template"})).await;
        world.pass().await;
        world.make_due().await;
        world.pass().await;
        let log = world.attempts(id).await;
        assert_eq!((log.len(), log[0].code.as_deref()), (2, Some("lease_expired")), "the lost send counts");
    }

    async fn a_lost_event_with_words_of_its_own_goes_by_the_template_that_was_used_when_it_was_claimed(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "By the template"})).await;
        let used = async || {
            let rows = world.sql("SELECT active_since FROM postcommit.template", vec![]).await;
            world.store.now().await.unwrap() > rows[0].get(0).unwrap()
        };
        world.until("the clock of SQLite to tick", used).await;
        let id = world.book("1", json!({"title": "Hello", "body": "World", "recipients": [{"phone": "+919876543210"}]})).await;
        world.claim_and_lose().await;
        world.pass().await;
        let sent = world.captured(id).await;
        assert_eq!((sent.len(), world.attempts(id).await.len()), (1, 1), "nothing was sent before");
        assert_eq!(sent.values().next().unwrap()["body"], "By the template");
        assert_eq!(world.delivery(id).await.template.as_deref(), Some("sms"));
    }

    async fn a_lease_begins_no_later_than_its_claim_looks(world) {
        world.capture(json!({})).await;
        world.enqueue("plain", json!({})).await;
        let lease = Duration::from_secs(60);
        let claim = world.store.claim(&[Want { lane: -world.tenant, quota: 10 }], lease, None).await.unwrap();
        let until = world.sql("SELECT lease_until FROM postcommit.delivery_queue", vec![]).await[0].get::<Timestamp>(0).unwrap();
        assert!(claim.deliveries[0].leased_at.plus(lease) <= until, "{:?} {until:?}", claim.deliveries[0].leased_at);
    }

    async fn a_lost_event_without_words_of_its_own_is_never_sent_empty(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "By the template"})).await;
        let id = world.book("1", json!({"recipients": [{"phone": "+919876543210"}]})).await;
        world.claim_and_lose().await;
        world.pass().await;
        assert_eq!(world.captured(id).await.values().next().unwrap()["body"], "By the template");
    }

    async fn a_lost_event_is_expanded_again_with_its_templates(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "By the template"})).await;
        let long_ago = Timestamp::from_micros(1_000_000);
        world.execute("UPDATE postcommit.template SET active_since = $1", vec![long_ago.into()]).await;
        let id = world.book("1", json!({"recipients": [{"phone": "+919876543210"}]})).await;
        world.claim_and_lose().await;
        world.write_template("sms", "sms", json!({"text": "By its newest version"})).await;
        world.pass().await;
        assert_eq!(world.attempts(id).await.len(), 1);
        assert_eq!(world.captured(id).await.values().next().unwrap()["body"], "By its newest version");
    }
}
