//! Accepting over HTTP: many requests share a commit, and each gets its own answer; on both databases.

use futures_util::future::join_all;
use postcommit_engine::db::Db;
use postcommit_engine::store::group_commit::GroupCommit;
use postcommit_engine::store::{Accepted, NotAccepted, NotificationRequest};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::world::World;

fn incoming(document: Value) -> NotificationRequest {
    NotificationRequest::read(&document.to_string(), "default").unwrap()
}

fn keyed(key: &str) -> NotificationRequest {
    incoming(json!({"event_type": "a", "idempotency_key": key, "recipients": [{"email": "guest@example.com"}]}))
}

/// A request that only the database refuses: the checks before it do not know the time.
fn beyond(key: &str) -> NotificationRequest {
    incoming(json!({"event_type": "a", "idempotency_key": key, "expires_at": "2020-01-01T00:00:00Z"}))
}

async fn payload_of(world: &World, accepted: Accepted) -> String {
    world.store.notification(None, accepted.id).await.unwrap().unwrap().payload.get().to_owned()
}

on_both! {
    async fn concurrent_requests_share_commits(world) {
        let gate = GroupCommit::new(world.store.clone());
        gate.accept(keyed("warm")).await.unwrap();
        let before = world.store.db().trips();
        let mut requests = JoinSet::new();
        for i in 0..64 {
            let gate = gate.clone();
            requests.spawn(async move { gate.accept(keyed(&format!("k{i}"))).await.unwrap() });
        }
        let answers = requests.join_all().await;
        let asked = world.store.db().trips().since(before);
        assert!(answers.iter().all(|answer| !answer.duplicate && !answer.conflict));
        assert!(asked.commits <= 24, "{asked:?}");
        assert_eq!((world.count("notification").await, world.count("delivery_queue").await), (65, 65));
    }

    async fn a_single_request_is_committed_immediately(world) {
        let gate = GroupCommit::new(world.store.clone());
        gate.accept(keyed("warm")).await.unwrap();
        let before = world.store.db().trips();
        let accepted = gate.accept(keyed("k")).await.unwrap();
        let asked = world.store.db().trips().since(before);
        assert_eq!((asked.commits, asked.trips - asked.prepared), (1, 1), "{asked:?}");
        assert!(world.store.notification(Some(world.tenant), accepted.id).await.unwrap().is_some());
    }

    async fn a_key_raced_fifty_times_is_one_notification_and_all_answers_are_equal(world) {
        let (one, two) = (GroupCommit::new(world.store.clone()), GroupCommit::new(world.another_store().await));
        let mut requests = JoinSet::new();
        for i in 0..50 {
            let gate = if i % 2 == 0 { one.clone() } else { two.clone() };
            requests.spawn(async move { gate.accept(keyed("the-same")).await.unwrap() });
        }
        let answers = requests.join_all().await;
        assert!(answers.iter().all(|answer| answer.id == answers[0].id && !answer.conflict), "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| !answer.duplicate).count(), 1, "one of them was the first");
        assert_eq!((world.count("notification").await, world.count("delivery_queue").await, world.count("key_conflict").await), (1, 1, 0));
    }

    async fn an_invalid_notification_in_a_batch_is_refused_alone(world) {
        let mut batch: Vec<NotificationRequest> = (0..20).map(|i| keyed(&format!("k{i}"))).collect();
        batch[3] = beyond("bad-3");
        batch[17] = beyond("bad-17");
        let answers = world.store.accept(batch).await;
        for (place, answer) in answers.iter().enumerate() {
            match (place, answer) {
                (3 | 17, Err(NotAccepted::Invalid { field, problem })) => {
                    assert_eq!((field.as_deref(), problem.as_str()), (Some("expires_at"), "must be later than due_at; a notification without due_at is due now"));
                }
                (3 | 17, other) => panic!("{other:?}"),
                (_, answer) => assert!(answer.as_ref().is_ok_and(|accepted| !accepted.duplicate), "{place}: {answer:?}"),
            }
        }
        for table in ["notification", "delivery_queue", "idempotency"] {
            assert_eq!(world.count(table).await, 18, "{table}");
        }
        let again = world.store.accept(vec![keyed("bad-3")]).await;
        assert!(again[0].as_ref().is_ok_and(|accepted| !accepted.duplicate), "the key of what was refused is free: {again:?}");
    }

    async fn the_same_key_with_other_content_is_reported_recorded_and_never_sent(world) {
        let first = world.store.accept(vec![keyed("k")]).await[0].clone().unwrap();
        let other = incoming(json!({"event_type": "a", "idempotency_key": "k", "payload": {"other": 1}}));
        let answers = world.store.accept(vec![keyed("k"), other.clone(), keyed("new"), keyed("new"), other]).await;
        let answers: Vec<Accepted> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers[0], Accepted { id: first.id, duplicate: true, conflict: false });
        assert_eq!(answers[1], Accepted { id: first.id, duplicate: true, conflict: true });
        assert_eq!((answers[2].duplicate, answers[3]), (false, Accepted { id: answers[2].id, duplicate: true, conflict: false }), "twice in one batch");
        assert!(answers[4].conflict);
        assert_eq!((world.count("notification").await, world.count("key_conflict").await), (2, 2));
        assert_eq!(world.store.conflicts(world.tenant, first.id).await.unwrap().len(), 2);
    }

    async fn digits_are_kept_and_a_key_is_one_in_its_tenant(world) {
        let text = r#"{"event_type": "a", "idempotency_key": "k", "payload": {"n": 12345678901234567890123, "p": 0.10}, "data": {"email": {"x": 1.50}}, "due_at": "2099-01-01T00:00:00Z"}"#;
        let scheduled = world.store.accept(vec![NotificationRequest::read(text, "default").unwrap()]).await[0].clone().unwrap();
        let unscheduled = text.replace(r#", "due_at": "2099-01-01T00:00:00Z""#, "");
        let elsewhere = world.store.accept(vec![NotificationRequest::read(&unscheduled, "elsewhere").unwrap()]).await[0].clone().unwrap();
        assert!(scheduled.id != elsewhere.id && !elsewhere.duplicate, "another tenant's key");
        for accepted in [scheduled, elsewhere] {
            let kept = payload_of(&world, accepted).await.replace(' ', "");
            assert_eq!(kept, r#"{"n":12345678901234567890123,"p":0.10}"#);
            let data = world.store.notification(None, accepted.id).await.unwrap().unwrap().data.unwrap();
            assert_eq!(data.get().replace(' ', ""), r#"{"email":{"x":1.50}}"#);
        }
        let stored = world.store.notification(None, scheduled.id).await.unwrap().unwrap();
        assert_eq!((stored.due_at.to_string().as_str(), stored.tenant_name.as_str()), ("2099-01-01T00:00:00Z", "default"));
        // The same content under the same key is recognised, regardless of its white space.
        let spaced = text.replace(": ", " :  ");
        let again = world.store.accept(vec![NotificationRequest::read(&spaced, "default").unwrap()]).await[0].clone().unwrap();
        assert_eq!(again, Accepted { id: scheduled.id, duplicate: true, conflict: false });
    }

    async fn a_key_twice_in_an_object_is_refused_before_any_database_sees_it(world) {
        let refused = NotificationRequest::read(r#"{"event_type": "a", "payload": {"x": 1, "x": 2}}"#, "default").unwrap_err();
        assert!(refused.to_string().starts_with("payload: has the key \"x\" twice"), "{refused}");
        assert_eq!(world.count("notification").await, 0);
    }

    async fn a_request_whose_client_went_away_is_committed_whole(world) {
        let gate = GroupCommit::new(world.store.clone());
        for i in 0..20 {
            let mut request = Box::pin(gate.accept(keyed(&format!("gone-{i}"))));
            // The request is submitted, and then its client stops waiting.
            tokio::select! {
                biased;
                _ = &mut request => {}
                () = std::future::ready(()) => {}
            }
        }
        world.until("all that was handed in is committed", async || world.count("notification").await == 20).await;
        assert_eq!((world.count("delivery_queue").await, world.count("idempotency").await), (20, 20), "never half");
    }

    async fn a_batch_larger_than_one_commit_is_accepted_in_several(world) {
        let batch: Vec<NotificationRequest> = (0..1100).map(|i| keyed(&format!("k{i}"))).collect();
        let gate = GroupCommit::new(world.store.clone());
        let answers = join_all(batch.into_iter().map(|request| gate.accept(request))).await;
        assert_eq!((answers.len(), answers.iter().filter(|answer| answer.is_ok()).count()), (1100, 1100));
        assert_eq!(world.count("notification").await, 1100);
    }

    async fn an_accepted_notification_is_delivered(world) {
        world.capture(json!({})).await;
        let accepted = world.store.accept(vec![keyed("k")]).await[0].clone().unwrap();
        world.pass().await;
        assert_eq!(world.delivery(accepted.id).await.state, "sent");
    }
}

/// On SQLite an open transaction that has written blocks every writer, which cannot be avoided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_locked_by_an_open_transaction_delays_no_other_request() {
    let world = World::postgres().await;
    let application = world.another_store().await;
    let Db::Postgres(application) = application.db() else { unreachable!() };
    let mut client = application.client().await.unwrap();
    let open = client.transaction().await.unwrap();
    open.batch_execute(
        "SELECT postcommit.enqueue('a', '{}', 'held', recipients => '[{\"email\": \"guest@example.com\"}]')",
    )
    .await
    .unwrap();

    let gate = GroupCommit::new(world.store.clone());
    let mut requests = JoinSet::new();
    for i in 0..12 {
        let gate = gate.clone();
        let key = if i % 3 == 0 { "held".to_owned() } else { format!("k{i}") };
        requests.spawn(async move { (key.clone(), gate.accept(keyed(&key)).await) });
    }
    for (key, answer) in requests.join_all().await {
        let is_held = matches!(answer, Err(NotAccepted::Held));
        assert!(is_held == (key == "held") && (is_held || answer.is_ok()), "{key}: {answer:?}");
    }
    assert_eq!(gate.accept(keyed("held")).await, Err(NotAccepted::Held));
    open.batch_execute("ROLLBACK").await.unwrap();
    let accepted = gate.accept(keyed("held")).await.unwrap();
    assert!(!accepted.duplicate);
    assert_eq!(gate.accept(keyed("held")).await.unwrap(), Accepted { duplicate: true, ..accepted });
}

/// An application writes to the same file. Its SQLite asks for the lock every 100 ms, for 5 seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_gets_its_turn_while_the_writer_of_a_sqlite_file_is_always_busy() {
    const WORK: &str = "WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 100000)
        INSERT INTO scratch SELECT max(i) FROM c";
    let world = World::sqlite().await;
    world.execute("CREATE TABLE scratch (i)", vec![]).await;
    let path = world.url.strip_prefix("sqlite:").unwrap().to_owned();
    let mut application = tokio::task::spawn_blocking(move || {
        let file = rusqlite::Connection::open(path).unwrap();
        file.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
        // Begins when the writer is busy.
        while file.query_row("SELECT count(*) FROM scratch", (), |row| row.get::<_, i64>(0)).unwrap() < 5 {
            std::thread::yield_now();
        }
        let sql = "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key) VALUES ('a', '{}', ?1)";
        (0..3).try_for_each(|i| file.execute(sql, [format!("application-{i}")]).map(drop))
    });
    let mut busy = JoinSet::new();
    let written = loop {
        while busy.len() < 4 {
            let store = world.store.clone();
            busy.spawn(async move { store.db().execute(vec![(WORK.to_owned(), vec![])]).await.unwrap() });
        }
        tokio::select! {
            written = &mut application => break written.unwrap(),
            done = busy.join_next() => drop(done.unwrap().unwrap()),
        }
    };
    written.unwrap();
}
