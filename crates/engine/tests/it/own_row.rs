//! A notification with one target is sent from its own row, on both databases: which notifications are, which are not,
//! and the rows that are written.

use std::time::Duration;

use postcommit_channel::model::Guarantee;
use postcommit_engine::dispatch::Dispatcher;
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use crate::world::{World, id_of};

/// Two recipients: a row for each.
fn to_two() -> serde_json::Value {
    json!({"recipients": [{"email": "a@example.com"}, {"email": "b@example.com"}]})
}

on_both! {
    async fn one_recipient_is_sent_without_a_row_of_its_own(world) {
        world.watch().await;
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({})).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.attempts, row.provider.as_deref()), ("sent", 1, Some("capture")));
        assert_eq!((row.id, row.channel.as_deref()), (format!("{id}.1"), Some("email")));
        let log = world.attempts(id).await.remove(0);
        let sent: serde_json::Value = serde_json::from_str(log.excerpt.as_ref().unwrap()).unwrap();
        assert_eq!((log.delivery_id, log.seq, &sent["key"]), (format!("{id}.1"), 1, &json!(format!("{id}_1"))));
        assert_eq!(world.watched().await, Vec::<String>::new(), "no row of the target's own was written");
        world.enqueue("a", to_two()).await;
        world.pass().await;
        assert_eq!(world.watched().await, ["row 1", "row 2"]);
        assert_eq!((world.count("delivery_ledger").await, world.count("delivery_queue").await), (3, 0));
    }

    async fn only_at_most_once_is_announced_and_needs_a_row_for_it(world) {
        let server = HttpServer::start(|_| Reply::ok().slow());
        for (requests, guarantee) in (1..).zip(Guarantee::ALL) {
            let mut draft = world.draft(guarantee.name(), "webhook", json!({}));
            draft.guarantee = guarantee;
            world.provider(draft).await;
            let running = world.run().await;
            let id = world.enqueue("a", json!({"recipients": [{"webhook": server.url("/")}]})).await;
            let request = server.wait_for(requests).await.pop().unwrap();
            assert_eq!(request.header("webhook-id"), Some(format!("{id}_1").as_str()));
            let row = world.sql("SELECT n, lane, intent IS NOT NULL, lease_token IS NOT NULL FROM postcommit.delivery_queue", vec![]).await.remove(0);
            let announced = guarantee == Guarantee::AtMostOnce;
            let seen = (row.get::<i32>(0).unwrap(), row.get::<i32>(1).unwrap() > 0, row.get::<bool>(2).unwrap(), row.get::<bool>(3).unwrap());
            assert_eq!(seen, (i32::from(announced), announced, announced, true), "{guarantee:?}");
            server.release();
            world.drained().await;
            assert_eq!((world.delivery(id).await.state.as_str(), world.delivery(id).await.n), ("sent", 1));
            running.finish().await;
        }
    }

    async fn a_target_that_cannot_be_sent_from_the_own_row_gets_a_row(world) {
        world.watch().await;
        let mut draft = world.draft("capture", "capture", json!({}));
        let lane = world.provider(draft.clone()).await;
        // A send may take longer than the lease of a notification that is not expanded.
        draft.timeout_ms = 60_000;
        world.update(&draft).await;
        let slow = world.enqueue("a", json!({})).await;
        world.pass().await;
        assert_eq!((world.watched().await, world.delivery(slow).await.state.as_str()), (vec!["row 1".to_owned()], "sent"));
        draft.timeout_ms = 5000;
        world.update(&draft).await;
        // First paused, then held.
        world.store.pause_lane(lane, None, "by hand").await.unwrap();
        let waits = [world.enqueue("a", json!({})).await];
        world.pass().await;
        world.store.resume_lane(lane).await.unwrap();
        world.store.hold_lane(lane, None, Duration::from_secs(3600)).await.unwrap();
        let waits = [waits[0], world.enqueue("a", json!({})).await];
        world.pass().await;
        assert_eq!(world.watched().await, ["row 1", "row 1", "row 1"]);
        for id in waits {
            let row = world.delivery(id).await;
            assert_eq!((row.n, row.state.as_str(), row.attempts, row.provider.as_deref()), (1, "pending", 0, Some("capture")));
        }
        world.store.resume_lane(lane).await.unwrap();
        world.pass().await;
        assert_eq!((world.count("attempt").await, world.count("delivery_queue").await), (3, 0));
        world.enqueue("a", json!({})).await;
        world.pass().await;
        assert_eq!((world.count("attempt").await, world.watched().await.len()), (4, 3), "and no row for a target that can be sent from the own row");
    }

    async fn a_failed_first_attempt_waits_in_its_lane(world) {
        world.watch().await;
        let lane = world.capture(json!({"fail_on": "transient*1=a"})).await;
        let id = world.enqueue("a", json!({})).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((id_of(&row).n, row.state.as_str(), row.attempts, row.error_code.as_deref()), (1, "retrying", 1, Some("capture_transient")));
        let placed = world.sql("SELECT n, lane FROM postcommit.delivery_queue", vec![]).await.remove(0);
        assert_eq!((placed.get::<i32>(0).unwrap(), placed.get::<i32>(1).unwrap()), (1, lane));
        world.make_due().await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.attempts, row.unclear), ("sent", 2, false));
        let log: Vec<_> = world.attempts(id).await.into_iter().map(|a| (a.delivery_id, a.seq, a.outcome)).collect();
        let one = |seq, outcome: &str| (format!("{id}.1"), seq, outcome.to_owned());
        assert_eq!(log, [one(1, "deferred"), one(2, "sent")]);
        assert_eq!(world.watched().await, Vec::<String>::new(), "the notification's row became the target's");
    }

    async fn a_rejected_delivery_is_parked_and_operators_act_on_it(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "permanent=a"}));
        world.provider(draft.clone()).await;
        let (mended, given_up) = (world.enqueue("a", json!({})).await, world.enqueue("a", json!({})).await);
        world.pass().await;
        for id in [mended, given_up] {
            let row = world.delivery(id).await;
            assert_eq!((row.n, row.state.as_str(), row.reason.as_deref(), row.attempts), (1, "parked", Some("rejected"), 1));
        }
        draft.settings = json!({});
        world.update(&draft).await;
        assert!(world.store.discard(world.key(given_up, 1)).await.unwrap());
        assert!(world.store.retry(world.key(mended, 1)).await.unwrap());
        assert!(!world.store.retry(world.key(given_up, 1)).await.unwrap());
        world.pass().await;
        assert_eq!((world.delivery(mended).await.state.as_str(), world.delivery(given_up).await.state.as_str()), ("sent", "discarded"));
        assert_eq!(world.attempts(mended).await.iter().map(|a| a.seq).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(world.attempts(given_up).await.len(), 1);
    }

    async fn a_cancel_during_a_send_takes_effect_at_the_next_attempt(world) {
        let server = HttpServer::start(|_| Reply::status(503).slow());
        world.provider(world.draft("hooks", "webhook", json!({}))).await;
        let running = world.run().await;
        let id = world.enqueue("a", json!({"entity": "e1", "recipients": [{"webhook": server.url("/")}]})).await;
        server.wait_for(1).await;
        world.cancel("e1").await;
        assert_eq!(world.delivery(id).await.state, "sending", "too late for this attempt");
        server.release();
        world.until("it waits", async || world.delivery(id).await.state == "retrying").await;
        world.make_due().await;
        world.drained().await;
        running.finish().await;
        let row = world.delivery(id).await;
        assert_eq!((row.n, row.state.as_str(), row.attempts, server.requests().len()), (1, "cancelled", 1, 1));
    }

    async fn a_provider_deleted_during_a_send_leaves_nothing_behind(world) {
        let server = HttpServer::start(|request| if request.n == 1 { Reply::status(503).slow() } else { Reply::ok() });
        world.provider(world.draft("hooks", "webhook", json!({}))).await;
        let running = world.run().await;
        let id = world.enqueue("a", json!({"recipients": [{"webhook": server.url("/")}]})).await;
        server.wait_for(1).await;
        assert_eq!(world.store.delete_provider(world.tenant, "hooks").await.unwrap(), Some(0), "nothing waits in its lane");
        server.release();
        world.until("it waits", async || world.delivery(id).await.state == "retrying").await;
        running.finish().await;
        // The row waits in a lane that no longer exists. A duty finds it, this one or the dispatcher's own.
        world.make_due().await;
        world.store.reroute_strays_once().await.unwrap();
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.n, row.state.as_str(), row.error_code.as_deref(), row.attempts), (1, "parked", Some("no_provider"), 1));
        world.provider(world.draft("hooks", "webhook", json!({}))).await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        assert_eq!((world.delivery(id).await.state.as_str(), world.attempts(id).await.len(), server.requests().len()), ("sent", 2, 2));
    }

    async fn a_change_of_a_provider_takes_effect_with_the_next_claim(world) {
        world.watch().await;
        // The dispatcher knows no provider yet, and reads them only when a claim reports a change.
        let mut dispatcher = Dispatcher::new(world.tools(world.another_store().await)).await.unwrap();
        let mut after = async |recipient: serde_json::Value| {
            let id = world.enqueue("a", json!({"recipients": [recipient]})).await;
            dispatcher.pass(None).await.unwrap();
            let row = world.delivery(id).await;
            (row.state, row.error_code, row.attempts)
        };
        let email = json!({"email": "guest@example.com"});
        let mut draft = world.draft("capture", "capture", json!({}));
        let lane = world.provider(draft.clone()).await;
        assert_eq!(after(email.clone()).await, ("sent".into(), None, 1), "created");
        draft.settings = json!({"fail_on": "permanent=a"});
        world.update(&draft).await;
        assert_eq!(after(email.clone()).await, ("parked".into(), Some("capture_permanent".into()), 1), "changed");
        world.store.pause_lane(lane, None, "by hand").await.unwrap();
        assert_eq!(after(email.clone()).await, ("pending".into(), None, 0), "paused");
        world.store.resume_lane(lane).await.unwrap();
        world.store.hold_lane(lane, None, Duration::from_secs(3600)).await.unwrap();
        assert_eq!(after(email.clone()).await, ("pending".into(), None, 0), "held");
        world.store.resume_lane(lane).await.unwrap();
        assert_eq!(world.watched().await, ["row 1", "row 1"], "only the two that had to wait");
        draft.guarantee = Guarantee::AtMostOnce;
        draft.settings = json!({});
        world.update(&draft).await;
        assert_eq!(after(email.clone()).await, ("sent".into(), None, 1), "at_most_once now");
        assert_eq!(world.watched().await, ["intent 1", "intent 1", "intent 1", "row 1", "row 1", "row 1"], "the two that waited, and this one");
        world.execute("UPDATE postcommit.provider SET enabled = $1", vec![false.into()]).await;
        let named = json!({"provider": "capture", "address": "hall"});
        assert_eq!(after(named).await, ("parked".into(), Some("provider_disabled".into()), 0), "disabled");
        assert_eq!(world.store.delete_provider(world.tenant, "capture").await.unwrap(), Some(0));
        assert_eq!(after(email).await, ("parked".into(), Some("no_provider".into()), 0), "deleted");
    }

    async fn a_slow_lane_delays_no_other(world) {
        world.watch().await;
        let server = HttpServer::start(|_| Reply::ok().slow());
        let mut slow = world.draft("slow", "webhook", json!({}));
        (slow.concurrency, slow.timeout_ms) = (1, 15_000);
        world.provider(slow).await;
        world.capture(json!({})).await;
        let running = world.run().await;
        for _ in 0..30 {
            world.enqueue("slow", json!({"recipients": [{"webhook": server.url("/")}]})).await;
        }
        for _ in 0..40 {
            world.enqueue("fast", json!({})).await;
        }
        world.until("the fast lane is done", async || world.count("delivery_ledger").await == 40).await;
        assert_eq!((server.requests().len(), world.count("delivery_queue").await), (1, 30), "one is under way, and none of the slow ones is done");
        // Notifications that waited in vain for a slot have rows of their own now, and do not delay those that are not
        // expanded.
        world.until("they wait in their lane", async || world.watched().await.len() == 29).await;
        world.until("they are sent, one by one", async || {
            server.release();
            world.count("delivery_queue").await == 0
        }).await;
        running.finish().await;
        let effects = server.effects_by("webhook-id");
        assert_eq!((effects.len(), effects.values().copied().max()), (30, Some(1)));
        assert_eq!((world.count("delivery_ledger").await, world.store.stale_settles().await.unwrap()), (70, 0));
    }
}

impl World {
    /// Records every row that is written for a target, and every announcement.
    pub async fn watch(&self) {
        self.execute("CREATE TABLE postcommit.watched (what text)", vec![]).await;
        let statements: &[&str] = match self.is_postgres() {
            true => &[
                "CREATE FUNCTION postcommit.watch() RETURNS trigger \
                    LANGUAGE plpgsql AS 'BEGIN INSERT INTO postcommit.watched \
                    VALUES (TG_ARGV[0] || NEW.n); RETURN NULL; END'",
                "CREATE TRIGGER watch_rows AFTER INSERT ON postcommit.delivery_queue \
                    FOR EACH ROW WHEN (NEW.n > 0) \
                    EXECUTE FUNCTION postcommit.watch('row ')",
                // The row of a notification with one target becomes the target's before an attempt, instead of a new one.
                "CREATE TRIGGER watch_updates AFTER UPDATE ON postcommit.delivery_queue \
                    FOR EACH ROW WHEN (OLD.n = 0 AND NEW.n > 0 AND NEW.seq = 0) \
                    EXECUTE FUNCTION postcommit.watch('row ')",
                "CREATE TRIGGER watch_intents AFTER UPDATE ON postcommit.delivery_queue \
                    FOR EACH ROW WHEN (NEW.intent IS NOT NULL) \
                    EXECUTE FUNCTION postcommit.watch('intent ')",
            ],
            false => &[
                "CREATE TRIGGER watch_rows AFTER INSERT ON postcommit_delivery_queue \
                    WHEN NEW.n > 0 BEGIN INSERT INTO postcommit_watched \
                    VALUES ('row ' || NEW.n); END",
                "CREATE TRIGGER watch_intents AFTER UPDATE ON postcommit_delivery_queue \
                    WHEN NEW.intent IS NOT NULL BEGIN INSERT INTO postcommit_watched \
                    VALUES ('intent ' || NEW.n); END",
            ],
        };
        for sql in statements {
            self.execute(sql, vec![]).await;
        }
    }

    /// The recorded rows and announcements.
    pub async fn watched(&self) -> Vec<String> {
        self.sql("SELECT what FROM postcommit.watched ORDER BY what", vec![])
            .await
            .iter()
            .map(|row| row.get(0).unwrap())
            .collect()
    }

    /// Cancels as an application, by entity.
    pub async fn cancel(&self, entity: &str) {
        match self.is_postgres() {
            true => drop(self.sql("SELECT postcommit.cancel('default', $1)", vec![entity.into()]).await),
            false => drop(
                self.execute(
                    "INSERT INTO postcommit_cancel (tenant, entity) VALUES ('default', $1)",
                    vec![entity.into()],
                )
                .await,
            ),
        }
    }
}
