//! A publication of all tables, as change data capture creates it: no table refuses updates and deletes because a
//! replica identity is missing. Also numbers that do not overflow.

use std::time::Duration;

use postcommit_channel::model::{Guarantee, Policy, ProviderDraft, Scopes};
use postcommit_engine::dispatch::{Dispatcher, run_duties_once, run_job_once};
use postcommit_engine::store::{Act, DeliveryFilter, JobDraft, KpiSettings, Login, Mark, SliceOutcome, Store};
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use crate::keys::draft;
use crate::world::World;

const PUBLISH: &str = "CREATE PUBLICATION all_of_it FOR ALL TABLES";
const HOUR: Duration = Duration::from_secs(3600);

async fn published() -> World {
    let world = World::postgres().await;
    world.execute(PUBLISH, vec![]).await;
    world
}

/// PostgreSQL checks the replica identity before it looks for rows, so the tables may be empty.
#[tokio::test]
async fn every_table_and_partition_takes_updates_and_deletes_under_a_publication() {
    let world = published().await;
    let tables = "SELECT c.oid::regclass::text, (SELECT quote_ident(a.attname) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum DESC LIMIT 1)
        FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY 1";
    let mut refused = Vec::new();
    let rows = world.sql(tables, vec![]).await;
    assert!(rows.len() > 100, "partitions are tables as well");
    for row in rows {
        let (table, column): (String, String) = (row.get(0).unwrap(), row.get(1).unwrap());
        let statements =
            [format!("UPDATE {table} SET {column} = {column} WHERE false"), format!("DELETE FROM {table} WHERE false")];
        for sql in statements {
            // The audit log refuses for another reason, after the replica identity was checked.
            let answer = world.store.db().execute_one(&sql, vec![]).await;
            refused
                .extend(answer.err().map(|problem| problem.to_string()).filter(|said| !said.contains("append-only")));
        }
    }
    assert_eq!(refused, Vec::<String>::new());
}

#[tokio::test]
async fn the_whole_schema_is_made_and_used_under_a_publication_that_stands_already() {
    let database = postcommit_testkit::database().await;
    let store = Store::open(&database.url).await.unwrap();
    store.db().execute_one(PUBLISH, vec![]).await.unwrap();
    store.db().migrate().await.unwrap();
    assert!(store.db().migrate().await.unwrap().applied.is_empty());
    assert_eq!(store.make_partitions_once().await.unwrap(), 0);
}

#[tokio::test]
async fn providers_deliveries_and_figures_work_under_a_publication() {
    let world = published().await;
    let lane = world.capture(json!({"fail_on": "permanent=bad"})).await;
    world
        .update(&ProviderDraft {
            concurrency: 3,
            ..world.draft("capture", "capture", json!({"fail_on": "permanent=bad,transient=wait"}))
        })
        .await;
    assert!(
        world.store.pause_lane(lane, None, "by hand").await.unwrap() && world.store.resume_lane(lane).await.unwrap()
    );
    world.store.hold_lane(lane, None, HOUR).await.unwrap();
    assert!(world.store.resume_lane(lane).await.unwrap());
    let (good, bad, waits) = (
        world.enqueue("good", json!({})).await,
        world.enqueue("bad", json!({})).await,
        world.enqueue("wait", json!({})).await,
    );
    let many = world
        .enqueue(
            "good",
            json!({"recipients": [{"email": "a@example.com"}, {"email": "b@example.com"}, {"user": "ada"}]}),
        )
        .await;
    world.pass().await;
    assert_eq!(
        (world.delivery(good).await.state.as_str(), world.delivery(bad).await.state.as_str()),
        ("sent", "parked")
    );
    assert!(world.deliveries(many).await.iter().all(|row| ["sent", "delivered"].contains(&row.state.as_str())));
    assert!(world.store.retry(world.key(bad, 1)).await.unwrap());
    world.pass().await;
    assert!(world.store.discard(world.key(bad, 1)).await.unwrap());
    assert!(world.store.cancel_delivery(world.key(waits, 1)).await.unwrap());
    run_duties_once(&world.store, &KpiSettings::default()).await.unwrap();
    assert!(world.store.fold_rollups_once(&KpiSettings::default()).await.is_ok());
    assert_eq!(world.count("rollup_fresh").await, 0);
    let made: i32 = world.sql("SELECT postcommit.make_partitions(30)", vec![]).await[0].get(0).unwrap();
    assert!(made > 0, "rows of the default partition are moved by it, too");
    assert_eq!(world.store.delete_provider(world.tenant, "capture").await.unwrap(), Some(0));
}

#[tokio::test]
async fn inboxes_jobs_sessions_and_keys_work_under_a_publication() {
    let world = published().await;
    let message = world.deliver("ada", "hello").await;
    assert!(world.mark("ada", message, Mark::Read).await && world.mark("ada", message, Mark::Archive).await);
    assert_eq!(world.store.mark_all_read(world.tenant, "ada", 10).await.unwrap(), 0);
    let key = world.store.create_key(world.tenant, &draft("a", &["admin"])).await.unwrap();
    world.store.note_keys_used(std::slice::from_ref(&key.id)).await.unwrap();
    let login = Login {
        tenant: world.tenant,
        key_id: Some(key.id.clone()),
        actor: "login:ada".into(),
        scopes: Scopes::from_names(&["operate"]).unwrap(),
    };
    let link = world.store.create_login_link(&login, HOUR).await.unwrap();
    let session = world.store.redeem_login_link(link.reveal(), HOUR).await.unwrap().unwrap();
    world.store.renew_session(session.token.reveal(), HOUR).await.unwrap();
    assert!(
        world.store.end_session(session.token.reveal()).await.unwrap()
            && world.store.revoke_key(world.tenant, &key.id).await.unwrap()
    );
    world.store.purge_sessions_once().await.unwrap();
    world.capture(json!({"fail_on": "permanent=bad"})).await;
    world.enqueue("bad", json!({})).await;
    world.pass().await;
    let filter = DeliveryFilter { event_type: Some("bad".into()), ..DeliveryFilter::default() };
    let job = world
        .store
        .create_job(
            Some(world.tenant),
            &JobDraft { act: Act::Discard, filter, unclear: false, pace_per_s: Some(10_000) },
        )
        .await
        .unwrap();
    world
        .until("the job is through", async || {
            !matches!(run_job_once(&world.store).await.unwrap(), SliceOutcome::Moved { .. })
        })
        .await;
    assert_eq!(world.store.job(None, job.id).await.unwrap().unwrap().done, 1);
}

/// A user's report: a publication, and a receiver that answers 401 to one notification.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_401_under_a_publication_is_one_request_and_pauses_the_lane() {
    let world = published().await;
    let draft = ProviderDraft {
        guarantee: Guarantee::AtMostOnce,
        ..world.draft("hooks", "webhook", json!({"isolate": "lane"}))
    };
    world.provider(draft).await;
    let server = HttpServer::start(|_| Reply::status(401));
    let running = world.run().await;
    let id = world.enqueue("t", json!({"recipients": [{"webhook": server.url("/hook")}]})).await;
    world.until("it is parked", async || world.delivery(id).await.state == "parked").await;
    running.finish().await;
    assert_eq!(server.requests().len(), 1);
    assert!(world.store.provider(world.tenant, "hooks").await.unwrap().unwrap().paused.is_some());
}

on_both! {
    async fn attempts_in_all_are_capped_and_their_numbers_do_not_overflow(world) {
        let policy = Policy::from_json(&json!({"name": "fixed", "interval_s": 1, "max_attempts": 100})).unwrap();
        world.provider(ProviderDraft { policy, ..world.draft("capture", "capture", json!({"fail_on": "transient=a"})) }).await;
        let id = world.enqueue("a", json!({})).await;
        world.pass().await;
        for (made, state) in [(998, "retrying"), (999, "retrying"), (1000, "parked"), (100_000, "parked")] {
            world.execute("UPDATE postcommit.delivery_queue SET seq = $1", vec![made.into()]).await;
            world.make_due().await;
            let attempts = world.count("attempt").await;
            Dispatcher::new(world.tools(world.store.clone())).await.unwrap().pass(None).await.unwrap();
            let row = world.delivery(id).await;
            assert_eq!((row.state.as_str(), world.count("attempt").await - attempts), (state, i64::from(state == "retrying")), "{made}");
            if state == "parked" {
                assert_eq!((row.reason.as_deref(), row.error_code.as_deref()), (Some("exhausted"), Some("attempts_in_all")));
                assert!(row.last_error.unwrap().contains("Resend the notification"));
                // A retry begins a new round of attempts, but the total stays capped: the delivery is parked again, and
                // nothing is sent.
                assert!(world.store.retry(world.key(id, 1)).await.unwrap());
            }
        }
        world.execute("UPDATE postcommit.delivery_queue SET seq = 40000, attempts = 40000, losses = 40000", vec![]).await;
        assert_eq!(world.delivery(id).await.attempts, 40_000, "smallint would have refused it");
    }
}
