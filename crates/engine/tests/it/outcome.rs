//! The stored facts of an outcome: the class of an error, the provider's id, whether the message was only captured, and
//! the times.

use postcommit::Timestamp;
use postcommit_channel::driver::FailOn;
use postcommit_channel::model::{ErrorClass, Guarantee};
use postcommit_engine::metrics::Scrape;
use postcommit_engine::store::{DeliveryFilter, KpiGrouping, KpiSettings, NotificationFilter};
use postcommit_testkit::{HttpServer, Reply, Request};
use serde_json::json;
use uuid::Uuid;

use crate::store::claim;
use crate::world::World;

async fn hooks(world: &World) {
    let mut draft = world.draft("hooks", "webhook", json!({"on_auth_error": "park"}));
    (draft.guarantee, draft.timeout_ms) = (Guarantee::Idempotent, 300);
    world.provider(draft).await;
}

/// Enqueues a notification to a receiver that gives this reply, and makes one attempt.
async fn after_one(world: &World, reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Uuid {
    let server = HttpServer::start(reply);
    let id = world.enqueue("test.event", json!({"recipients": [{"webhook": server.url("/hook")}]})).await;
    world.pass().await;
    id
}

/// How many deliveries the filter by class finds.
async fn found(world: &World, class: ErrorClass) -> usize {
    let filter = DeliveryFilter { error_class: Some(class.name().into()), limit: 100, ..DeliveryFilter::default() };
    world.store.delivery_rows(&filter).await.unwrap().rows.len()
}

/// SQLite's views show milliseconds.
fn milliseconds(at: Timestamp) -> i64 {
    at.as_micros() / 1000
}

/// Whether sent_at, delivered_at and last_attempt_at are set: the same in views, lists and the status of the notification.
async fn times(world: &World, id: Uuid) -> [bool; 3] {
    let row = world.deliveries(id).await.remove(0);
    let set = [row.sent_at.is_some(), row.delivered_at.is_some(), row.last_attempt_at.is_some()];
    for view in ["delivery WHERE notification_id = $1", "notification_status WHERE id = $1"] {
        let sql = format!(
            "SELECT sent_at IS NOT NULL, delivered_at IS NOT NULL, last_attempt_at IS NOT NULL FROM postcommit.{view}"
        );
        let seen = world.sql(&sql, vec![id.into()]).await;
        assert_eq!([0, 1, 2].map(|place| seen[0].get::<bool>(place).unwrap()), set, "{view}");
    }
    let status = world.store.status(None, id).await.unwrap().unwrap();
    assert_eq!([status.sent_at, status.delivered_at, status.last_attempt_at].map(|at| at.is_some()), set);
    let filter = NotificationFilter { limit: 100, ..NotificationFilter::default() };
    let listed = world.store.notification_rows(&filter).await.unwrap().rows;
    let listed = listed.iter().find(|row| row.id == id).unwrap();
    assert_eq!([listed.sent_at, listed.delivered_at, listed.last_attempt_at].map(|at| at.is_some()), set);
    set
}

on_both! {
    async fn d2_each_failure_has_one_class_over_all_providers(world) {
        hooks(&world).await;
        let answers = [
            (401, "auth_failed"), (402, "account"), (403, "forbidden"), (404, "invalid_address"), (408, "timeout"), (410, "invalid_address"),
            (301, "invalid_address"), (400, "invalid_content"), (422, "invalid_content"), (429, "rate_limited"), (500, "server_error"),
            (503, "server_error"), (418, "unknown"), (666, "unknown"),
        ];
        for (status, class) in answers {
            let id = after_one(&world, move |_| Reply::status(status)).await;
            let (row, attempts) = (world.delivery(id).await, world.attempts(id).await);
            assert_eq!((row.error_code, row.error_class.as_deref()), (Some(format!("http_{status}")), Some(class)));
            assert_eq!(attempts[0].error_class.as_deref(), Some(class), "{status}: in the log of attempts as well");
        }
        let id = after_one(&world, |_| Reply::Reset).await;
        assert_eq!(world.delivery(id).await.error_class.as_deref(), Some("network"));
        let id = after_one(&world, |_| Reply::Hang).await;
        assert_eq!(world.delivery(id).await.error_class.as_deref(), Some("timeout"));
        let id = after_one(&world, |_| Reply::ok()).await;
        assert_eq!((world.delivery(id).await.error_class, &world.attempts(id).await[0].error_class), (None, &None));

        assert_eq!((found(&world, ErrorClass::InvalidAddress).await, found(&world, ErrorClass::Timeout).await), (3, 2));
        assert_eq!((found(&world, ErrorClass::Forbidden).await, found(&world, ErrorClass::Config).await), (1, 0));
        let of_all = world.sql("SELECT count(*) FROM postcommit.delivery WHERE error_class = 'server_error'", vec![]).await;
        assert_eq!(of_all[0].get::<i64>(0).unwrap(), 2, "live or finished, in the view");
        let text = Scrape::new(world.metrics.clone(), world.store.clone(), KpiSettings::default()).text().await;
        for sample in ["outcome=\"rejected\",error_class=\"auth_failed\"} 1\n", "outcome=\"unclear\",error_class=\"timeout\"} 2\n", "outcome=\"sent\"} 1\n"] {
            assert!(text.contains(sample), "{sample} is not in {text}");
        }
    }

    async fn d2_pending_sending_sent_failed_and_dead_are_told_apart(world) {
        hooks(&world).await;
        let id = world.enqueue("test.event", json!({"recipients": [{"webhook": "https://example.com/"}]})).await;
        let state = async |id| world.delivery(id).await.state;
        assert_eq!(state(id).await, "pending");
        assert_eq!(claim(&world.store, -world.tenant, 1).await.len(), 1);
        assert_eq!(state(id).await, "sending");
        for (status, expected) in [(200, "sent"), (503, "retrying"), (410, "parked")] {
            let id = after_one(&world, move |_| Reply::status(status)).await;
            assert_eq!(state(id).await, expected);
        }
    }

    async fn d2_a_delivery_that_is_not_sent_has_a_class_too(world) {
        world.capture(json!({})).await;
        let class = async |recipients: serde_json::Value| {
            let id = world.enqueue("test.event", json!({"recipients": recipients})).await;
            world.pass().await;
            let row = world.deliveries(id).await.remove(0);
            (row.state, row.error_class.unwrap_or_default())
        };
        let parked = |class: &str| ("parked".to_owned(), class.to_owned());
        assert_eq!(class(json!([])).await, parked("invalid_address"));
        assert_eq!(class(json!([{"provider": "nobody", "address": "x"}])).await, parked("config"));
        assert_eq!(class(json!([{"user": "alice"}])).await, ("delivered".to_owned(), String::new()));
        let id = world.enqueue("test.event", json!({"recipients": [{"user": "alice"}], "channels": ["sms"]})).await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.error_class.as_deref(), Some("invalid_address"), "skipped when it was expanded");
        // An end that is not a failure has no class.
        let late = world.enqueue("test.event", json!({"due_at": "2099-01-01T00:00:00Z", "expires_at": "2099-02-01T00:00:00Z"})).await;
        world.store.cancel_notification(None, late).await.unwrap();
        let row = world.delivery(late).await;
        assert_eq!((row.error_code.as_deref(), row.error_class), (Some("cancelled"), None));
    }

    async fn the_class_lives_and_goes_with_the_code(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("transient*1=again,permanent=never").unwrap();
        world.capture(json!({})).await;
        let (again, never) = (world.enqueue("again", json!({})).await, world.enqueue("never", json!({})).await);
        world.pass().await;
        assert_eq!(world.delivery(again).await.error_class.as_deref(), Some("unknown"));
        world.make_due().await;
        world.pass().await;
        let row = world.delivery(again).await;
        assert_eq!((row.state.as_str(), row.error_code, row.error_class), ("sent", None, None), "a success has no error");
        let classes: Vec<_> = world.attempts(again).await.into_iter().map(|attempt| attempt.error_class).collect();
        assert_eq!(classes, [Some("unknown".to_owned()), None]);
        world.store.discard(world.key(never, 1)).await.unwrap();
        let row = world.delivery(never).await;
        assert_eq!((row.state.as_str(), row.error_class.as_deref()), ("discarded", Some("unknown")), "why it was discarded");
    }

    async fn b6_every_driver_keeps_the_provider_s_own_id(world) {
        hooks(&world).await;
        world.capture(json!({})).await;
        let reference = async |id| {
            let (row, attempts) = (world.delivery(id).await, world.attempts(id).await);
            assert!(row.provider_ref.is_none() || row.provider_ref == attempts[0].provider_ref);
            attempts[0].provider_ref.clone()
        };
        let id = after_one(&world, |_| Reply::ok().with_header("webhook-message-id", "msg_1").with_header("x-request-id", "req-1")).await;
        assert_eq!(reference(id).await.as_deref(), Some("msg_1"));
        let id = after_one(&world, |_| Reply::status(503).with_header("x-request-id", "req-2")).await;
        assert_eq!(reference(id).await.as_deref(), Some("req-2"), "the receiver finds a failed request by it");
        let id = after_one(&world, |_| Reply::ok().with_body(r#"{"id": 4711, "ok": true}"#)).await;
        assert_eq!(reference(id).await.as_deref(), Some("4711"));
        assert_eq!(world.delivery(id).await.provider_ref.as_deref(), Some("4711"));
        let id = after_one(&world, |_| Reply::ok().with_body("thanks")).await;
        assert_eq!(reference(id).await, None);
        // A receiver may repeat a secret address. That is not stored as an id.
        let server = HttpServer::start(|request| Reply::ok().with_header("x-request-id", &request.path));
        let id = world.enqueue("test.event", json!({"recipients": [{"webhook": server.url("/hook/hush-hush?token=hush-hush")}]})).await;
        world.pass().await;
        assert_eq!(reference(id).await, None);
        let id = world.enqueue("test.event", json!({"recipients": [{"user": "alice"}]})).await;
        world.pass().await;
        assert_eq!(reference(id).await, Some(format!("{id}.1")), "the id of the message in the inbox");
        let id = world.enqueue("test.event", json!({"recipients": [{"email": "a@example.com"}]})).await;
        world.pass().await;
        assert_eq!(reference(id).await, Some(format!("capture-{id}_1")));
    }

    async fn b5_sent_delivered_and_the_last_attempt_have_their_own_times(world) {
        hooks(&world).await;
        let server = HttpServer::start(|request| Reply::status(if request.n == 1 { 503 } else { 200 }));
        let id = world.enqueue("test.event", json!({"recipients": [{"webhook": server.url("/hook")}]})).await;
        assert_eq!(times(&world, id).await, [false, false, false], "enqueued");
        world.pass().await;
        assert_eq!(times(&world, id).await, [false, false, true], "tried in vain");
        let first = world.delivery(id).await;
        assert_eq!(first.last_attempt_at.map(milliseconds), Some(milliseconds(world.attempts(id).await[0].at)));
        world.make_due().await;
        world.pass().await;
        assert_eq!(times(&world, id).await, [true, false, true], "the provider took it, and nobody knows that it arrived");
        let sent = world.delivery(id).await;
        assert_eq!(sent.last_attempt_at.map(milliseconds), Some(milliseconds(world.attempts(id).await[1].at)));
        assert!(sent.last_attempt_at > first.last_attempt_at && sent.sent_at >= sent.last_attempt_at);
        world.store.mark_delivered(world.key(id, 1)).await.unwrap();
        assert_eq!(times(&world, id).await, [true, true, true], "a person says so");
        let delivered = world.delivery(id).await;
        assert_eq!((delivered.sent_at, delivered.last_attempt_at), (sent.sent_at, sent.last_attempt_at), "both stay");
        assert!(delivered.delivered_at >= delivered.sent_at);
        // An inbox is itself the destination. A second delivery that is only sent keeps the notification from being
        // delivered.
        let id = world.enqueue("test.event", json!({"recipients": [{"user": "alice"}]})).await;
        let both = world.enqueue("test.event", json!({"recipients": [{"user": "alice"}, {"webhook": server.url("/hook")}]})).await;
        world.pass().await;
        assert_eq!(times(&world, id).await, [true, true, true]);
        let row = world.store.status(None, both).await.unwrap().unwrap();
        assert_eq!((row.state.as_str(), row.sent_at.is_some(), row.delivered_at), ("sent", true, None));
    }

    async fn b5_a_captured_delivery_is_marked_and_counted_apart(world) {
        let (captured, sent) = {
            world.capture(json!({})).await;
            hooks(&world).await;
            let captured = world.enqueue("test.event", json!({"source": {"site": "goa"}, "recipients": [{"email": "a@example.com"}]})).await;
            (captured, after_one(&world, |_| Reply::ok()).await)
        };
        for (id, is_captured) in [(captured, true), (sent, false)] {
            let (row, attempt) = (world.delivery(id).await, world.attempts(id).await.remove(0));
            assert_eq!((row.state.as_str(), row.captured, attempt.captured), ("sent", is_captured, is_captured));
            let (status, story) = (world.store.status(None, id).await.unwrap().unwrap(), world.store.notification_details(None, id).await.unwrap().unwrap());
            assert_eq!((status.captured, story.captured), (is_captured, is_captured));
        }
        for view in ["delivery", "notification_status"] {
            let marked = world.sql(&format!("SELECT count(*) FROM postcommit.{view} WHERE captured"), vec![]).await;
            assert_eq!(marked[0].get::<i64>(0).unwrap(), 1, "{view}");
        }
        let hour = std::time::Duration::from_secs(3600);
        let settings = KpiSettings::default();
        for _ in 0..2 {
            let kpis = world.store.kpis(Some(world.tenant), Some(KpiGrouping::Site), hour, hour).await.unwrap();
            assert_eq!((kpis.total.delivered, kpis.total.captured), (1, 1));
            let site = |name: &str| kpis.groups.iter().find(|one| one.label == name).map(|one| (one.kpi.delivered, one.kpi.captured));
            assert_eq!((site("goa"), site("")), (Some((0, 1)), Some((1, 0))));
            world.store.fold_rollups_once(&settings).await.unwrap();
        }
        // The row does not depend on its provider.
        world.execute("DELETE FROM postcommit.provider WHERE name = 'capture'", vec![]).await;
        assert!(world.delivery(captured).await.captured);
    }
}
