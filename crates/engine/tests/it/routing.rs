//! From recipients and channels to deliveries and lanes, and back to a lane after a retry; on both databases.

use postcommit_engine::store::{DeliveryFilter, UserDraft};
use serde_json::json;

on_both! {
    async fn b14_one_failing_channel_does_not_hold_back_the_others(world) {
        let mut bad = world.draft("bad", "capture", json!({"fail_on": "permanent=a"}));
        bad.channel = "sms".into();
        world.provider(bad).await;
        world.capture(json!({})).await;
        // Plain SQL is used, because the SDK would refuse the third address.
        let id = world.enqueue_by_sql("a", "[{\"phone\": \"+14155550100\"}, {\"email\": \"a@example.com\"}, {\"email\": \"nonsense\"}]").await;
        world.pass().await;
        let states: Vec<String> = world.deliveries(id).await.into_iter().map(|d| d.state).collect();
        assert_eq!(states, ["parked", "sent", "skipped"]);
    }

    async fn an_unknown_list_parks_the_notification_with_that_reason(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({"recipients": [{"email": "a@example.com"}, {"list": "ops"}]})).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.reason.as_deref(), row.error_code.as_deref(), row.n), ("parked", Some("config"), Some("unknown_list"), 0));
        let nobody = world.enqueue("a", json!({"recipients": []})).await;
        world.pass().await;
        assert_eq!(world.delivery(nobody).await.error_code.as_deref(), Some("no_recipient"));
    }

    async fn a_missing_provider_parks_that_delivery_and_a_retry_finds_a_new_one(world) {
        let id = world.enqueue("a", json!({"recipients": [{"email": "a@example.com"}, {"provider": "siren", "address": "hall"}]})).await;
        world.pass().await;
        let codes: Vec<_> = world.deliveries(id).await.into_iter().map(|d| (d.state, d.reason.unwrap(), d.error_code.unwrap())).collect();
        let parked = |code: &str| ("parked".to_owned(), "config".to_owned(), code.to_owned());
        assert_eq!(codes, [parked("no_provider"), parked("unknown_provider")]);
        world.capture(json!({})).await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        assert_eq!(world.deliveries(id).await[0].state, "sent");
    }

    async fn a_recipient_may_name_its_provider(world) {
        world.capture(json!({})).await;
        let mut siren = world.draft("siren", "capture", json!({}));
        (siren.channel, siren.is_default) = ("alarm".into(), false);
        world.provider(siren).await;
        let id = world.enqueue("a", json!({"recipients": [{"provider": "siren", "address": "hall"}]})).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.provider.as_deref(), row.channel.as_deref(), row.state.as_str()), (Some("siren"), Some("alarm"), "sent"));
    }

    async fn channels_narrow_and_widen_what_an_address_implies(world) {
        world.capture(json!({})).await;
        let to = json!([{"phone": "+14155550100"}, {"email": "a@example.com"}]);
        let channels = async |wanted: serde_json::Value| {
            let id = world.enqueue("a", json!({"recipients": to, "channels": wanted})).await;
            world.pass().await;
            world.deliveries(id).await.into_iter().map(|d| d.channel.unwrap_or_default()).collect::<Vec<_>>()
        };
        assert_eq!(channels(json!([])).await, ["sms", "email"]);
        assert_eq!(channels(json!(["email"])).await, ["email", "sms"], "who cannot be reached is skipped, not forgotten");
        assert_eq!(channels(json!(["whatsapp", "sms"])).await, ["whatsapp", "sms", "email"]);
        let nobody = world.enqueue("a", json!({"recipients": to, "channels": ["slack"]})).await;
        world.pass().await;
        assert_eq!(world.delivery(nobody).await.error_code.as_deref(), Some("no_recipient"));
    }

    async fn b1_in_app_is_also_written_with_a_hyphen(world) {
        let to = "'[{\"user\": \"alice\"}]'";
        let is_postgres = world.is_postgres();
        let insert = |to: &str, key: &str, channel: &str| match is_postgres {
            true => format!("SELECT postcommit.enqueue('a', '{{}}', '{key}', recipients => {to}, channels => '{{{channel}}}')"),
            false => format!(
                "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, recipients, channels) \
                 VALUES ('a', '{{}}', '{key}', {to}, '[\"{channel}\"]')"
            ),
        };
        let list = if is_postgres { "SELECT array_to_string(channels, ',') FROM postcommit.notification" } else { "SELECT channels ->> 0 FROM postcommit_notification" };
        world.execute(&insert(to, "k", "in-app"), vec![]).await;
        world.execute(&insert(to, "k", "in_app"), vec![]).await;
        if world.is_postgres() {
            let batch = "SELECT * FROM postcommit.enqueue_many('[{\"event_type\": \"a\", \"idempotency_key\": \"KEY\", \"recipients\": [{\"user\": \"alice\"}], \"channels\": [\"in-app\"]}]')";
            for key in ["k", "batch"] {
                world.sql(&batch.replace("KEY", key), vec![]).await;
            }
        }
        world.enqueue("a", json!({"idempotency_key": "sdk", "recipients": [{"user": "alice"}], "channels": ["in-app"], "data": {"in-app": {"shelf": 7}}})).await;
        assert_eq!(world.count("key_conflict").await, 0, "both names are the same content");
        let stored: Vec<String> = world.sql(list, vec![]).await.iter().map(|row| row.get(0).unwrap()).collect();
        assert!(stored.len() > 1 && stored.iter().all(|channel| channel == "in_app"), "{stored:?}");
        // An older version enqueued this notification, and kept the name.
        let old = if world.is_postgres() { "'{in-app}'" } else { "'[\"in-app\"]'" };
        world.execute(&format!("UPDATE postcommit.notification SET channels = {old} WHERE idempotency_key = 'k'"), vec![]).await;
        world.pass().await;
        let by = |channel: &str| DeliveryFilter { channel: Some(channel.to_owned()), limit: 50, ..DeliveryFilter::default() };
        let rows = world.store.delivery_rows(&by("in-app")).await.unwrap().rows;
        assert_eq!(rows.len(), stored.len());
        assert!(rows.iter().all(|row| row.state == "delivered" && row.channel.as_deref() == Some("in_app")), "{rows:?}");
        assert_eq!(world.store.delivery_rows(&by("in_app")).await.unwrap().rows, rows);
        let data = world.sql("SELECT count(*) FROM postcommit.inbox_message WHERE data IS NOT NULL", vec![]).await;
        assert_eq!(data[0].get::<i64>(0).unwrap(), 1, "data is found under either name");
    }

    async fn an_unknown_channel_parks_its_delivery_and_no_other(world) {
        world.capture(json!({})).await;
        let to = json!([{"email": "a@example.com"}, {"user": "alice"}]);
        let id = world.enqueue("a", json!({"recipients": to, "channels": ["email", "pager", "in-app"]})).await;
        world.pass().await;
        let seen: Vec<_> = world.deliveries(id).await.into_iter().map(|d| (d.channel.unwrap(), d.state, d.reason, d.error_code)).collect();
        let went = |channel: &str, state: &str, code: Option<&str>| (channel.to_owned(), state.to_owned(), None, code.map(str::to_owned));
        let parked = ("pager".to_owned(), "parked".to_owned(), Some("config".to_owned()), Some("unknown_channel".to_owned()));
        assert_eq!(seen, [
            went("email", "sent", None), parked.clone(), went("email", "skipped", Some("unknown_user")), parked, went("in_app", "delivered", None),
        ]);
        let said = world.deliveries(id).await[1].last_error.clone().unwrap();
        assert!(said.contains("\"pager\" does not exist") && said.contains("email, in_app, push, slack"), "{said}");
        let mut pager = world.draft("pager", "capture", json!({}));
        pager.channel = "pager".into();
        world.provider(pager).await;
        assert!(world.store.retry(world.key(id, 2)).await.unwrap());
        world.pass().await;
        assert_eq!(world.deliveries(id).await[1].state, "sent");
    }

    async fn c7_numbers_are_sent_unchanged_and_a_bad_or_missing_address_skips_its_channel_alone(world) {
        world.capture(json!({})).await;
        let to = "[{\"phone\": \"+919876543210\"}, {\"phone\": \"98765\"}, {\"email\": \"nonsense\"}, {\"email\": \"\"}, {\"email\": \"guest@example.com\"}]";
        let id = world.enqueue_by_sql("a", to).await;
        world.pass().await;
        let rows = world.deliveries(id).await;
        let states: Vec<_> = rows.iter().map(|d| (d.state.as_str(), d.error_code.as_deref())).collect();
        let bad = ("skipped", Some("bad_address"));
        assert_eq!(states, [("sent", None), bad, bad, bad, ("sent", None)]);
        for (row, said) in rows.iter().zip(["", "recipients[1].phone is not a phone number in E.164", "recipients[2].email is not a mail address", "recipients[3].email has 0 bytes", ""]) {
            assert!(row.last_error.as_deref().unwrap_or_default().starts_with(said), "{row:?}");
        }
        let excerpt = world.attempts(id).await.remove(0).excerpt.unwrap();
        assert!(excerpt.contains("+919876543210"), "as it was enqueued: {excerpt}");
        let kept = world.sql("SELECT target FROM postcommit.delivery_ledger WHERE n = 1", vec![]).await[0].get::<String>(0).unwrap();
        assert_eq!(kept, "+919876543210");

        world.store.create_user(world.tenant, "alice", &UserDraft::default()).await.unwrap();
        let missing = world.enqueue("a", json!({"recipients": [{"user": "alice"}, {"email": "guest@example.com"}], "channels": ["sms", "in_app", "email"]})).await;
        world.pass().await;
        let rows = world.deliveries(missing).await;
        let seen: Vec<_> = rows.iter().map(|d| (d.channel.as_deref().unwrap(), d.state.as_str(), d.error_code.as_deref())).collect();
        let none = Some("no_address");
        assert_eq!(seen, [("sms", "skipped", none), ("in_app", "delivered", None), ("email", "skipped", none), ("email", "sent", None)]);
        assert_eq!(rows[0].last_error.as_deref(), Some("recipients[0].user has no address for sms"));
    }

    async fn a_notification_that_was_damaged_by_hand_delays_nothing_else(world) {
        world.capture(json!({})).await;
        let mut broken = world.draft("broken", "capture", json!({}));
        (broken.channel, broken.is_default) = ("sms".into(), true);
        world.provider(broken).await;
        let nonsense = |what: &str| (format!("UPDATE postcommit.provider SET {what} WHERE name = 'broken'"), vec![]);
        world.store.db().execute(vec![nonsense("policy = '{\"name\": \"never\"}', settings = '[7]', driver = 'pigeon'")]).await.unwrap();
        let stuck = world.enqueue("a", json!({"recipients": [{"phone": "+14155550100"}]})).await;
        let odd = world.enqueue_by_sql("a", "[7, {\"email\": null}, \"x\"]").await;
        let fine = world.enqueue("a", json!({})).await;
        world.pass().await;
        assert_eq!(world.delivery(fine).await.state, "sent");
        assert_eq!(world.delivery(odd).await.error_code.as_deref(), Some("bad_recipient"));
        assert_eq!(world.delivery(stuck).await.state, "pending", "its lane is not open");
        let shown = world.store.provider(world.tenant, "broken").await.unwrap().unwrap();
        assert!(shown.paused.unwrap().contains("never"));
    }

    async fn a_retry_goes_to_the_provider_that_was_named(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({"recipients": [{"provider": "siren", "address": "hall"}]})).await;
        world.pass().await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        assert_eq!(world.delivery(id).await.error_code.as_deref(), Some("unknown_provider"), "the default is not who was asked for");
        let mut siren = world.draft("siren", "capture", json!({}));
        (siren.channel, siren.is_default) = ("alarm".into(), false);
        world.provider(siren).await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.provider.as_deref()), ("sent", Some("siren")));
    }

    async fn a_retry_goes_by_the_row_of_its_delivery(world) {
        let id = world.enqueue("a", json!({"recipients": [{"provider": "siren", "address": "hall"}, {"email": "a@example.com"}]})).await;
        world.pass().await;
        let rows = world.sql("SELECT provider FROM postcommit.delivery_ledger ORDER BY n", vec![]).await;
        let named: Vec<Option<String>> = rows.iter().map(|row| row.get(0).unwrap()).collect();
        assert_eq!(named, [Some("siren".into()), None], "only what the recipient named");
        // Nothing is expanded again: the notification still names the siren.
        world.execute("UPDATE postcommit.delivery_ledger SET provider = 'horn' WHERE n = 1", vec![]).await;
        let mut horn = world.draft("horn", "capture", json!({}));
        (horn.channel, horn.is_default) = ("alarm".into(), false);
        world.provider(horn).await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        let row = world.deliveries(id).await.remove(0);
        assert_eq!((row.state.as_str(), row.provider.as_deref()), ("sent", Some("horn")));
    }

    async fn deliveries_on_a_deleted_lane_are_routed_again(world) {
        let lane = world.capture(json!({})).await;
        world.store.pause_lane(lane, None, "so that it waits").await.unwrap();
        let id = world.enqueue("a", json!({})).await;
        world.pass().await;
        world.execute("DELETE FROM postcommit.provider", vec![]).await;
        world.capture(json!({})).await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "pending");
        assert_eq!(world.store.reroute_strays_once().await.unwrap(), 1);
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "sent");
    }

    async fn a_large_expansion_is_written_in_pieces(world) {
        world.capture(json!({})).await;
        let crowd: Vec<_> = (0..900).map(|i| json!({"email": format!("u{i}@example.com")})).collect();
        for i in 0..3 {
            world.enqueue("a", json!({"idempotency_key": format!("k{i}"), "recipients": crowd})).await;
        }
        world.pass().await;
        assert_eq!((world.count("delivery_ledger").await, world.count("delivery_queue").await), (2700, 0));
    }

    async fn a_retry_keeps_recipients_apart_that_share_an_address(world) {
        let to = json!([{"provider": "a", "address": "x@example.com"}, {"provider": "b", "address": "x@example.com"}, {"email": "x@example.com"}]);
        let id = world.enqueue("e", json!({"recipients": to})).await;
        world.pass().await;
        for (name, channel) in [("a", "one"), ("b", "two"), ("mail", "email")] {
            let mut draft = world.draft(name, "capture", json!({}));
            draft.channel = channel.into();
            world.provider(draft).await;
        }
        for n in 1..=3 {
            assert!(world.store.retry(world.key(id, n)).await.unwrap());
        }
        world.pass().await;
        let providers: Vec<_> = world.deliveries(id).await.into_iter().map(|d| d.provider.unwrap_or(d.state)).collect();
        assert_eq!(providers, ["a", "b", "mail"]);
    }
}
