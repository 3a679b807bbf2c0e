//! Actions of operators while the dispatcher works: retry, cancel, repair, change; on both databases.

use std::time::Duration;

use postcommit_channel::model::{Guarantee, Policy};
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

fn policy(value: serde_json::Value) -> Policy {
    Policy::from_json(&value).unwrap()
}

on_both! {
    async fn c14_replay_sends_what_failed_and_nothing_else(world) {
        let id = world.enqueue("a", json!({"recipients": [{"email": "a@example.com"}, {"phone": "+14155550100"}]})).await;
        let mut sms = world.draft("sms", "capture", json!({"fail_on": "permanent=a"}));
        sms.channel = "sms".into();
        world.provider(sms.clone()).await;
        world.capture(json!({})).await;
        world.pass().await;
        sms.settings = json!({});
        world.update(&sms).await;
        for row in world.deliveries(id).await {
            let retried = world.store.retry(world.key(id, row.n)).await.unwrap();
            assert_eq!(retried, row.state == "parked");
        }
        world.pass().await;
        assert!(world.deliveries(id).await.iter().all(|d| d.state == "sent"));
        assert_eq!(world.attempts(id).await.len(), 3);
    }

    async fn pending_deliveries_of_an_entity_are_cancelled_even_while_leased(world) {
        world.capture(json!({"fail_on": "transient=a"})).await;
        let (waiting, later) = (world.enqueue("a", json!({"entity": "b1"})).await, world.enqueue("r", json!({"entity": "b1", "due_at": "2099-01-01T00:00:00Z"})).await);
        world.pass().await;
        // A crashed worker holds the row: cancel cannot change it, and records the request.
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = $1, lease_until = {now} \
            WHERE notification_id = $2", vec![uuid::Uuid::new_v4().into(), waiting.into()]).await;
        let cancelled = match world.is_postgres() {
            true => world.sql("SELECT postcommit.cancel('default', 'b1')", vec![]).await[0].get::<i64>(0).unwrap(),
            false => {
                let reached = world.sql("SELECT count(*) FROM postcommit_cancellable WHERE tenant = 'default' AND entity = 'b1'", vec![]).await[0].get(0).unwrap();
                world.execute("INSERT INTO postcommit_cancel (tenant, entity) VALUES ('default', 'b1')", vec![]).await;
                reached
            }
        };
        assert_eq!(cancelled, 1);
        assert_eq!(world.delivery(later).await.state, "cancelled");
        // The takeover first records the lost attempt. The next claim finds the recorded cancel.
        world.make_due().await;
        world.pass().await;
        world.pass().await;
        assert_eq!(world.delivery(waiting).await.state, "cancelled");
    }

    async fn concurrent_retry_cancel_and_dispatch_lose_nothing(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "permanent=p,transient=t"}));
        draft.policy = policy(json!({"name": "fixed", "interval_s": 0.001, "max_attempts": 100}));
        world.provider(draft).await;
        let mut ids = Vec::new();
        for i in 0..20 {
            ids.push(world.enqueue(if i % 2 == 0 { "p" } else { "t" }, json!({"idempotency_key": format!("k{i}")})).await);
        }
        let running = world.run().await;
        let mut operators = Vec::new();
        for operator in 0..4 {
            let (store, keys) = (world.another_store().await, ids.iter().map(|id| world.key(*id, 1)).collect::<Vec<_>>());
            operators.push(tokio::spawn(async move {
                for _ in 0..15 {
                    for key in &keys {
                        if operator % 2 == 0 { store.retry(*key).await.unwrap() } else { store.cancel_delivery(*key).await.unwrap() };
                    }
                }
            }));
        }
        for operator in operators {
            operator.await.unwrap();
        }
        running.finish().await;
        let everywhere = "SELECT count(*) \
            FROM (SELECT notification_id, n \
            FROM postcommit.delivery_queue \
            UNION ALL SELECT notification_id, n FROM postcommit.delivery_ledger) d";
        assert_eq!(world.sql(everywhere, vec![]).await[0].get::<i64>(0).unwrap(), 20, "each is in one place, and in one only");
    }

    async fn a_stricter_guarantee_applies_to_attempts_that_are_already_unclear(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "unclear*1=u"}));
        let lane = world.provider(draft.clone()).await;
        let (unclear, lost) = (world.enqueue("u", json!({})).await, world.enqueue("l", json!({"due_at": "2099-01-01T00:00:00Z"})).await);
        world.pass().await;
        // The other delivery was being sent when its worker died. Under this guarantee nothing was announced.
        world.store.pause_lane(lane, None, "so that the expansion alone runs").await.unwrap();
        world.make_due().await;
        world.pass().await;
        world.store.resume_lane(lane).await.unwrap();
        let taken = world.store.claim(&[postcommit_engine::store::Want { lane, quota: 10 }], Duration::from_secs(60), None).await.unwrap().deliveries;
        assert_eq!(taken.len(), 2);
        let back: Vec<_> = taken.iter().filter(|d| d.key.notification == unclear).map(|d| postcommit_engine::store::Lease { key: d.key, token: d.token }).collect();
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = NULL, lease_until = NULL \
            WHERE notification_id = $1", vec![back[0].key.notification.into()]).await;
        world.expire_leases().await;
        draft.guarantee = Guarantee::AtMostOnce;
        world.update(&draft).await;
        world.pass().await;
        for id in [unclear, lost] {
            let row = world.delivery(id).await;
            assert_eq!((row.state.as_str(), row.reason.as_deref()), ("parked", Some("outcome_unknown")), "{row:?}");
        }
    }

    async fn a_retry_of_one_delivery_does_not_undo_the_cancel_of_another(world) {
        world.capture(json!({"fail_on": "transient*1=a"})).await;
        let id = world.enqueue("a", json!({"entity": "e1", "recipients": [{"email": "a@example.com"}, {"provider": "siren", "address": "hall"}]})).await;
        world.pass().await;
        // Being sent when the cancel comes.
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = $1, lease_until = {now}", vec![uuid::Uuid::new_v4().into()]).await;
        match world.is_postgres() {
            true => drop(world.sql("SELECT postcommit.cancel('default', 'e1')", vec![]).await),
            false => drop(world.execute("INSERT INTO postcommit_cancel (tenant, entity) VALUES ('default', 'e1')", vec![]).await),
        }
        assert!(world.store.retry(world.key(id, 2)).await.unwrap());
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = NULL, lease_until = NULL", vec![]).await;
        world.make_due().await;
        world.pass().await;
        let states: Vec<String> = world.deliveries(id).await.into_iter().map(|d| d.state).collect();
        assert_eq!(states, ["cancelled", "parked"], "the first was taken back, the second was tried again");
    }

    async fn an_answer_to_old_settings_does_not_pause_the_corrected_lane(world) {
        let lane = world.capture(json!({})).await;
        let old = world.store.provider(world.tenant, "capture").await.unwrap().unwrap().revision;
        assert!(world.store.pause_lane(lane, Some(old), "http_401").await.unwrap() && world.store.resume_lane(lane).await.unwrap());
        assert!(!world.store.pause_lane(lane, Some(old), "http_401").await.unwrap(), "another one of the same moment");
        let now = world.store.provider(world.tenant, "capture").await.unwrap().unwrap();
        assert!(now.paused.is_none() && world.store.pause_lane(lane, Some(now.revision), "http_401").await.unwrap());
    }

    async fn a_restored_secrets_key_opens_the_lane_without_a_restart(world) {
        let server = HttpServer::start(|_| Reply::ok());
        let mut draft = world.draft("hooks", "webhook", json!({}));
        let secrets = [("secret".to_owned(), postcommit_channel::secret::Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))].into();
        draft.secrets = Some(world.keys.or_new().unwrap().seal(&secrets, world.tenant, "hooks"));
        world.provider(draft).await;
        let postcommit_channel::secret::KeySource::File(file) = world.keys.clone() else { panic!("a file") };
        let away = file.with_extension("away");
        std::fs::rename(&file, &away).unwrap();
        let running = world.run().await;
        let id = world.enqueue("a", json!({"recipients": [{"webhook": server.url("/")}]})).await;
        let waits = "SELECT count(*) FROM postcommit.delivery_queue WHERE n = 1 AND lease_token IS NULL";
        world.until("it is expanded, and waits", async || world.sql(waits, vec![]).await[0].get::<i64>(0).unwrap() == 1).await;
        std::fs::rename(&away, &file).unwrap();
        world.drained().await;
        assert_eq!((world.delivery(id).await.state.as_str(), server.requests().len()), ("sent", 1));
        running.finish().await;
    }
}
