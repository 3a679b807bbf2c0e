//! Bulk actions of operators: by a list of ids, and by filter as a background job; on both databases.

use std::time::Duration;

use postcommit_channel::model::{DeliveryKey, Guarantee};
use postcommit_engine::store::{Act, Acted, DeliveryFilter, Job, JobCount, JobDraft, MAX_IDS, SLICE, SliceOutcome};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

const OTHER: &str = "other";

/// Inserts parked deliveries with one statement, as if they had failed a minute ago. They are found by their event
/// type.
async fn park(world: &World, tenant: i32, event_type: &str, count: i64) {
    let (series, id, past, empty) = match world.is_postgres() {
        true => (
            format!("generate_series(1, {count}) AS s (g)"),
            "postcommit.new_id()",
            "now() - interval '1 minute'",
            "'{}'",
        ),
        false => (
            format!(
                "(WITH RECURSIVE s (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM s WHERE g < {count}) SELECT g FROM s) s"
            ),
            "printf('%08x-%04x-7%03x-8000-%012x', {now} / 1000 >> 16, {now} / 1000 & 65535, abs(random()) % 4096, abs(random()) % 281474976710656)",
            "{now} - 60000000",
            "'[]'",
        ),
    };
    let later = if world.is_postgres() { "now() + interval '1 year'" } else { "{now} + 31536000000000" };
    let note = format!(
        "INSERT INTO postcommit.notification (tenant, id, event_type, idempotency_key, payload, recipients, channels, priority, due_at, expires_at, created_at)
         SELECT {tenant}, {id}, '{event_type}', '{event_type}:' || g, '{{}}', '[]', {empty}, 5, {past}, {later}, {past} FROM {series}"
    );
    let parked = format!(
        "INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, state, reason, attempts, seq, finished_at)
         SELECT {tenant}, id, 1, 0, 'email', 'guest@example.com', 'parked', 'exhausted', 3, 3, {past} FROM postcommit.notification WHERE event_type = '{event_type}' AND tenant = {tenant}"
    );
    world.execute(&note, vec![]).await;
    world.execute(&parked, vec![]).await;
}

fn of_type(event_type: &str) -> DeliveryFilter {
    DeliveryFilter { event_type: Some(event_type.into()), ..DeliveryFilter::default() }
}

fn draft(act: Act, filter: DeliveryFilter) -> JobDraft {
    JobDraft { act, filter, unclear: false, pace_per_s: Some(10_000) }
}

async fn count(world: &World, state: &str) -> i64 {
    let sql = "SELECT count(*) FROM postcommit.delivery WHERE state = $1";
    world.sql(sql, vec![state.into()]).await[0].get(0).unwrap()
}

/// Ends the pause between two slices.
async fn hurry(world: &World) {
    world.execute("UPDATE postcommit.job SET next_at = $1", vec![postcommit::Timestamp::from_micros(0).into()]).await;
}

async fn slice(world: &World) -> SliceOutcome {
    hurry(world).await;
    postcommit_engine::dispatch::run_job_once(&world.store).await.unwrap()
}

/// Ends the pause of every job but this one.
async fn slice_of_other(world: &World, waits: Uuid) {
    let (sooner, later) =
        (postcommit::Timestamp::from_micros(0), world.store.now().await.unwrap().plus(Duration::from_secs(3600)));
    world.execute("UPDATE postcommit.job SET next_at = $1 WHERE id <> $2", vec![sooner.into(), waits.into()]).await;
    world.execute("UPDATE postcommit.job SET next_at = $1 WHERE id = $2", vec![later.into(), waits.into()]).await;
    postcommit_engine::dispatch::run_job_once(&world.store).await.unwrap();
}

fn moved(sliced: SliceOutcome) -> usize {
    match sliced {
        SliceOutcome::Moved { rows, .. } => rows,
        other => panic!("{other:?}"),
    }
}

async fn run_to_the_end(world: &World, id: Uuid) -> Job {
    while slice(world).await != SliceOutcome::Nothing {}
    world.store.job(None, id).await.unwrap().unwrap()
}

on_both! {
    async fn b7_dead_letters_are_retried_and_discarded_one_or_many_with_a_result_for_each(world) {
        world.capture(json!({"fail_on": "permanent=p"})).await;
        let parked = world.enqueue("p", json!({"recipients": [{"email": "a@example.com"}, {"email": "b@example.com"}, {"email": "c@example.com"}]})).await;
        let sent = world.enqueue("ok", json!({})).await;
        world.pass().await;
        let keys = [world.key(parked, 1), world.key(sent, 1), world.key(parked, 3), world.key(parked, 9), world.key(parked, 1)];
        let found = world.store.act_on_many(Act::Retry, &keys, false).await.unwrap();
        assert_eq!(found[0], Acted::Done);
        assert_eq!(found[1], Acted::Refused { state: "sent".into(), reason: None });
        assert_eq!((&found[2], &found[3], &found[4]), (&Acted::Done, &Acted::NotFound, &Acted::Done));
        assert_eq!((count(&world, "pending").await, count(&world, "parked").await), (2, 1));
        world.pass().await;
        let found = world.store.act_on_many(Act::Discard, &[world.key(parked, 2), world.key(parked, 3), world.key(sent, 1)], false).await.unwrap();
        assert_eq!(found, [Acted::Done, Acted::Done, Acted::Refused { state: "sent".into(), reason: None }]);
        assert_eq!((count(&world, "discarded").await, count(&world, "parked").await), (2, 1));
        let again = world.store.act_on_many(Act::Retry, &[world.key(parked, 2)], false).await.unwrap();
        assert!(matches!(&again[..], [Acted::Refused { state, .. }] if state == "discarded"), "{again:?}");
        let other = DeliveryKey { tenant: world.tenant + 1, ..world.key(parked, 1) };
        assert_eq!(world.store.act_on_many(Act::Retry, &[other], false).await.unwrap(), [Acted::NotFound]);
        let too_many = vec![world.key(parked, 1); MAX_IDS + 1];
        assert!(world.store.act_on_many(Act::Retry, &too_many, false).await.unwrap_err().to_string().contains("at most 1000"));
    }

    async fn an_operator_marks_a_delivery_as_delivered(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "unclear=u,permanent=p,transient=t"}));
        draft.guarantee = Guarantee::AtMostOnce;
        world.provider(draft).await;
        let mut ids = Vec::new();
        for event_type in ["u", "ok", "p", "t"] {
            ids.push(world.enqueue(event_type, json!({})).await);
        }
        world.pass().await;
        assert_eq!(world.delivery(ids[0]).await.reason.as_deref(), Some("outcome_unknown"));
        let mut answers = Vec::new();
        for id in &ids {
            answers.push(world.store.mark_delivered(world.key(*id, 1)).await.unwrap());
        }
        let refused = |state: &str, reason: Option<&str>| Acted::Refused { state: state.into(), reason: reason.map(str::to_owned) };
        assert_eq!(answers, [Acted::Done, Acted::Done, refused("parked", Some("rejected")), refused("retrying", None)]);
        let row = world.delivery(ids[0]).await;
        assert_eq!((row.state.as_str(), row.reason, row.unclear, row.sent_at.is_some()), ("delivered", None, false, true));
        assert_eq!(world.store.mark_delivered(world.key(ids[1], 1)).await.unwrap(), refused("delivered", None));
        assert_eq!(world.store.mark_delivered(world.key(ids[1], 7)).await.unwrap(), Acted::NotFound);
    }

    async fn c14_a_delivery_that_may_have_arrived_is_retried_only_with_consent(world) {
        let mut provider = world.draft("capture", "capture", json!({"fail_on": "unclear=u,permanent=p"}));
        provider.guarantee = Guarantee::AtMostOnce;
        world.provider(provider).await;
        let (unknown, rejected) = (world.enqueue("u", json!({})).await, world.enqueue("p", json!({})).await);
        world.pass().await;
        let row = world.delivery(unknown).await;
        assert_eq!((row.reason.as_deref(), row.unclear), (Some("outcome_unknown"), true));
        // The mark of unclear deliveries decides, regardless of the reason.
        let keys = [world.key(unknown, 1), world.key(rejected, 1)];
        let refused = [Acted::Unclear { reason: Some("outcome_unknown".into()) }, Acted::Done];
        assert_eq!(world.store.act_on_many(Act::Retry, &keys, false).await.unwrap(), refused);
        assert!(!world.store.retry(keys[0]).await.unwrap());
        world.execute("UPDATE postcommit.delivery_ledger SET reason = 'exhausted'", vec![]).await;
        assert_eq!(world.store.act_on_many(Act::Retry, &keys[..1], false).await.unwrap(), [Acted::Unclear { reason: Some("exhausted".into()) }]);
        assert_eq!(count(&world, "parked").await, 1, "it was not touched");
        assert_eq!(world.store.act_on_many(Act::Retry, &keys[..1], true).await.unwrap(), [Acted::Done]);
        world.pass().await;
        assert_eq!(world.store.act_on_many(Act::Discard, &keys, false).await.unwrap(), [Acted::Done, Acted::Done], "only a retry sends");
    }

    async fn c14_a_job_leaves_out_deliveries_that_may_have_arrived_and_counts_them(world) {
        park(&world, world.tenant, "meant", 5).await;
        let unsure = "UPDATE postcommit.delivery_ledger SET unclear = (1 = 1) \
            WHERE notification_id IN (SELECT id FROM postcommit.notification ORDER BY id LIMIT 2)";
        world.execute(unsure, vec![]).await;
        let asked = draft(Act::Retry, of_type("meant"));
        assert_eq!(world.store.count_for_job(None, &asked).await.unwrap(), JobCount { total: 3, left_out: 2, is_exact: true });
        let job = world.store.create_job(Some(world.tenant), &asked).await.unwrap();
        assert_eq!((job.total, job.left_out, job.filter.unclear), (3, 2, Some(false)));
        let job = run_to_the_end(&world, job.id).await;
        assert_eq!((job.done, job.skipped, job.left_out, count(&world, "parked").await), (3, 0, 2, 2));
        let discard = draft(Act::Discard, of_type("meant"));
        assert_eq!(world.store.count_for_job(None, &discard).await.unwrap(), JobCount { total: 2, left_out: 0, is_exact: true });
        let consented = JobDraft { unclear: true, ..draft(Act::Retry, of_type("meant")) };
        let job = world.store.create_job(Some(world.tenant), &consented).await.unwrap();
        assert_eq!((job.total, job.left_out, job.filter.unclear), (2, 0, None));
        assert_eq!((run_to_the_end(&world, job.id).await.done, count(&world, "parked").await), (2, 0));
    }

    async fn b12_a_job_retries_exactly_what_its_filter_matches_in_slices(world) {
        let other = world.store.tenant_or_new(OTHER).await.unwrap();
        park(&world, world.tenant, "meant", SLICE * 2 + 7).await;
        park(&world, world.tenant, "not-meant", 5).await;
        park(&world, other, "meant", 3).await;
        let asked = world.store.create_job(Some(world.tenant), &draft(Act::Retry, of_type("meant"))).await.unwrap();
        assert_eq!((asked.total, asked.is_exact, asked.state.as_str(), asked.done), (SLICE * 2 + 7, true, "queued", 0));
        assert_eq!(moved(slice(&world).await), 500);
        let half = world.store.job(Some(world.tenant), asked.id).await.unwrap().unwrap();
        assert_eq!((half.state.as_str(), half.done, half.finished_at), ("running", SLICE, None));
        let done = run_to_the_end(&world, asked.id).await;
        assert_eq!((done.state.as_str(), done.done, done.skipped, done.finished_at.is_some()), ("done", SLICE * 2 + 7, 0, true));
        assert_eq!((world.count("delivery_queue").await, count(&world, "parked").await), (SLICE * 2 + 7, 8), "others stay");
        let became = world.store.job_outcome(&done).await.unwrap();
        assert_eq!((became.total(), became.only()), (SLICE * 2 + 7, Some("pending")), "their states now");
        assert_eq!(world.store.job_outcome(&Job { id: Uuid::now_v7(), ..done.clone() }).await.unwrap().total(), 0);
        let (theirs, ours) = (world.store.job(Some(other), asked.id).await.unwrap(), world.store.jobs(Some(world.tenant), None, 10).await.unwrap());
        assert!(theirs.is_none() && ours == [done] && world.store.jobs(Some(other), None, 10).await.unwrap().is_empty());
        let sql = "SELECT count(*) FROM postcommit.delivery_queue WHERE attempts = 0 AND seq = 3 AND n = 1";
        assert_eq!(world.sql(sql, vec![]).await[0].get::<i64>(0).unwrap(), SLICE * 2 + 7, "counters begin anew, the log goes on");
    }

    async fn b12_discard_and_cancel_by_filter_over_all_tenants(world) {
        let other = world.store.tenant_or_new(OTHER).await.unwrap();
        park(&world, world.tenant, "meant", 4).await;
        park(&world, other, "meant", 3).await;
        let asked = world.store.create_job(None, &draft(Act::Discard, of_type("meant"))).await.unwrap();
        assert_eq!((asked.tenant, asked.total), (None, 7));
        assert!(world.store.job(Some(other), asked.id).await.unwrap().is_none(), "a tenant does not see it");
        assert_eq!(run_to_the_end(&world, asked.id).await.done, 7);
        assert_eq!(count(&world, "discarded").await, 7);
        let waiting = [world.enqueue("w", json!({"due_at": "2099-01-01T00:00:00Z"})).await, world.enqueue("w", json!({"tenant": OTHER})).await];
        let asked = world.store.create_job(None, &draft(Act::Cancel, of_type("w"))).await.unwrap();
        let later = world.enqueue("w", json!({})).await;
        assert_eq!((run_to_the_end(&world, asked.id).await.done, asked.total), (2, 2));
        assert_eq!((count(&world, "cancelled").await, world.delivery(later).await.state.as_str()), (2, "pending"), "{waiting:?}");
    }

    async fn retrying_deliveries_are_brought_forward_by_filter(world) {
        world.capture(json!({"fail_on": "transient=again"})).await;
        let waiting = [world.enqueue("again", json!({})).await, world.enqueue("again", json!({})).await];
        let leased = world.enqueue("again", json!({})).await;
        let scheduled = world.enqueue("again", json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        park(&world, world.tenant, "parked", 2).await;
        world.pass().await;
        let token = Uuid::new_v4();
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = $1, lease_until = $2 WHERE notification_id = $3",
            vec![token.into(), world.store.now().await.unwrap().plus(Duration::from_secs(600)).into(), leased.into()]).await;
        let retrying = DeliveryFilter { states: vec!["retrying".into()], ..of_type("again") };
        let asked = draft(Act::Retry, retrying.clone());
        let counted = world.store.count_for_job(Some(world.tenant), &asked).await.unwrap();
        assert_eq!(counted, JobCount { total: 2, left_out: 0, is_exact: true });
        let job = world.store.create_job(Some(world.tenant), &asked).await.unwrap();
        assert_eq!((job.kind, &job.filter.states, job.total), (Act::Retry, &retrying.states, 2));
        let done = run_to_the_end(&world, job.id).await;
        assert_eq!((done.done, done.skipped, done.state.as_str()), (2, 0, "done"));
        let now = world.store.now().await.unwrap();
        for id in waiting {
            let row = world.delivery(id).await;
            assert_eq!((row.state.as_str(), row.attempts, row.next_attempt_at.unwrap() <= now), ("retrying", 1, true), "due, and its attempts count");
        }
        for id in [leased, scheduled] {
            let sql = "SELECT due_at FROM postcommit.delivery_queue WHERE notification_id = $1";
            assert!(world.sql(sql, vec![id.into()]).await[0].get::<postcommit::Timestamp>(0).unwrap() > now);
        }
        assert_eq!(count(&world, "parked").await, 2, "parked ones stay");
        let audit = world.sql("SELECT count(*) FROM postcommit.audit WHERE action = 'delivery.bring_forward'", vec![]).await;
        assert_eq!(audit[0].get::<i64>(0).unwrap(), 2);
        world.pass().await;
        for id in waiting {
            assert_eq!((world.delivery(id).await.attempts, world.attempts(id).await.len()), (2, 2));
        }
    }

    async fn b12_a_job_as_of_a_count_concerns_what_was_counted(world) {
        world.capture(json!({"fail_on": "permanent=p"})).await;
        park(&world, world.tenant, "p", 2).await;
        let shown = world.store.now().await.unwrap();
        let asked = draft(Act::Retry, of_type("p"));
        let counted = world.store.count_for_job_as_of(Some(world.tenant), &asked, shown).await.unwrap();
        let later = world.enqueue("p", json!({})).await;
        world.pass().await;
        assert_eq!((world.delivery(later).await.state.as_str(), counted.total), ("parked", 2));
        assert_eq!(world.store.count_for_job_as_of(Some(world.tenant), &asked, shown).await.unwrap(), counted);
        let job = world.store.create_job_as_of(Some(world.tenant), &asked, shown).await.unwrap();
        assert_eq!((job.total, job.asked_at), (2, shown));
        let again = world.store.create_job_as_of(Some(world.tenant), &asked, shown).await.unwrap();
        assert_eq!((again.id, world.count("job").await), (job.id, 1), "one question makes one job");
        assert_eq!(run_to_the_end(&world, job.id).await.done, 2);
        assert_eq!(world.delivery(later).await.state, "parked", "it was not counted, so it is not touched");
        let future = world.store.now().await.unwrap().plus(Duration::from_secs(3600));
        let job = world.store.create_job_as_of(Some(world.tenant), &draft(Act::Discard, of_type("p")), future).await.unwrap();
        assert!(job.asked_at < future && job.total == 1, "a time in the future is now");
    }

    async fn b12_a_job_ignores_deliveries_that_are_parked_or_enqueued_later(world) {
        world.capture(json!({"fail_on": "permanent=p"})).await;
        let before = world.enqueue("p", json!({})).await;
        // This delivery was enqueued before the job and parked after it: its id is older than the job.
        let between = world.enqueue("p", json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        world.pass().await;
        let asked = world.store.create_job(Some(world.tenant), &draft(Act::Retry, of_type("p"))).await.unwrap();
        let after = world.enqueue("p", json!({})).await;
        world.make_due().await;
        // A pass runs the job first, and then sends the deliveries that the job retried.
        world.pass().await;
        let done = run_to_the_end(&world, asked.id).await;
        assert_eq!((asked.total, done.done, done.skipped), (1, 1, 0));
        for (id, attempts) in [(before, 2), (between, 1), (after, 1)] {
            assert_eq!((world.attempts(id).await.len(), world.delivery(id).await.state.as_str()), (attempts, "parked"));
        }
    }

    async fn b12_a_delivery_that_fails_again_while_the_job_runs_is_not_retried_twice(world) {
        world.capture(json!({"fail_on": "permanent=p"})).await;
        world.enqueue("p", json!({})).await;
        world.pass().await;
        let mut asked = draft(Act::Retry, of_type("p"));
        asked.pace_per_s = Some(1);
        let asked = world.store.create_job(Some(world.tenant), &asked).await.unwrap();
        assert_eq!(moved(slice(&world).await), 1);
        world.pass().await;
        let done = run_to_the_end(&world, asked.id).await;
        assert_eq!((done.done, count(&world, "parked").await), (1, 1));
    }

    async fn b12_a_slice_that_fails_half_way_moves_neither_rows_nor_the_job_position(world) {
        park(&world, world.tenant, "meant", SLICE + 50).await;
        let asked = world.store.create_job(Some(world.tenant), &draft(Act::Retry, of_type("meant"))).await.unwrap();
        assert_eq!(moved(slice(&world).await), 500);
        // The last statement in the transaction of the second slice fails.
        let trap = match world.is_postgres() {
            true => "ALTER TABLE postcommit.job ADD CONSTRAINT trap CHECK (done <= 500)",
            false => "CREATE TRIGGER trap BEFORE UPDATE ON postcommit_job WHEN NEW.done > 500 BEGIN \
                SELECT RAISE(ABORT, 'trap'); END",
        };
        world.execute(trap, vec![]).await;
        hurry(&world).await;
        assert!(world.store.run_job_slice().await.unwrap_err().to_string().contains("trap"));
        assert_eq!((world.count("delivery_queue").await, count(&world, "parked").await), (500, 50));
        let stood = world.store.job(None, asked.id).await.unwrap().unwrap();
        assert!(stood.last_error.unwrap().contains("trap") && stood.state == "running" && stood.done == 500);
        world.execute(if world.is_postgres() { "ALTER TABLE postcommit.job DROP CONSTRAINT trap" } else { "DROP TRIGGER trap" }, vec![]).await;
        let done = run_to_the_end(&world, asked.id).await;
        assert_eq!((done.state.as_str(), done.done, done.skipped, world.count("delivery_queue").await), ("done", 550, 0, 550));
    }

    async fn b12_another_process_continues_a_job_after_a_crash(world) {
        park(&world, world.tenant, "meant", SLICE + 50).await;
        let asked = world.store.create_job(Some(world.tenant), &draft(Act::Discard, of_type("meant"))).await.unwrap();
        assert_eq!(moved(slice(&world).await), 500);
        // The worker that took the job next has died, and its lease still runs.
        let hold = "UPDATE postcommit.job SET lease_token = $1, lease_until = $2";
        let later = world.store.now().await.unwrap().plus(Duration::from_secs(60));
        world.execute(hold, vec![Uuid::new_v4().into(), later.into()]).await;
        assert_eq!(slice(&world).await, SliceOutcome::Nothing);
        assert!(world.store.next_slice_in().await.unwrap().unwrap() > Duration::ZERO);
        world.execute(hold, vec![Uuid::new_v4().into(), postcommit::Timestamp::from_micros(1).into()]).await;
        let another = world.another_store().await;
        hurry(&world).await;
        assert_eq!(another.run_job_slice().await.unwrap(), SliceOutcome::Moved { job: asked.id, rows: 50, is_last: true });
        let done = another.job(None, asked.id).await.unwrap().unwrap();
        assert_eq!((done.done, done.skipped, count(&world, "discarded").await), (550, 0, 550));
    }

    async fn b12_a_job_is_cancelled_half_way_and_what_is_done_stays_done(world) {
        let other = world.store.tenant_or_new(OTHER).await.unwrap();
        park(&world, world.tenant, "meant", SLICE + 50).await;
        let asked = world.store.create_job(Some(world.tenant), &draft(Act::Retry, of_type("meant"))).await.unwrap();
        slice(&world).await;
        assert!(!world.store.cancel_job(Some(other), asked.id).await.unwrap(), "not theirs");
        assert!(world.store.cancel_job(Some(world.tenant), asked.id).await.unwrap());
        assert!(!world.store.cancel_job(Some(world.tenant), asked.id).await.unwrap(), "it has ended");
        assert_eq!(slice(&world).await, SliceOutcome::Nothing);
        let ended = world.store.job(None, asked.id).await.unwrap().unwrap();
        assert_eq!((ended.state.as_str(), ended.done, ended.finished_at.is_some()), ("cancelled", 500, true));
        assert_eq!((world.count("delivery_queue").await, count(&world, "parked").await), (500, 50));
    }

    async fn b12_the_pace_is_kept(world) {
        park(&world, world.tenant, "meant", 25).await;
        let mut asked = draft(Act::Retry, of_type("meant"));
        asked.pace_per_s = Some(10);
        let asked = world.store.create_job(Some(world.tenant), &asked).await.unwrap();
        assert_eq!(moved(postcommit_engine::dispatch::run_job_once(&world.store).await.unwrap()), 10);
        // Slices of ten at a pace of ten per second: one second between two slices.
        let wait = world.sql("SELECT next_at, asked_at FROM postcommit.job", vec![]).await;
        let (next, began): (postcommit::Timestamp, postcommit::Timestamp) = (wait[0].get(0).unwrap(), wait[0].get(1).unwrap());
        assert!(next.since(began) >= Duration::from_secs(1), "not before a second after the slice");
        assert_eq!(run_to_the_end(&world, asked.id).await.done, 25);
        for pace in [0, 10_001] {
            let refused = world.store.create_job(Some(world.tenant), &JobDraft { pace_per_s: Some(pace), ..draft(Act::Retry, of_type("meant")) }).await;
            assert!(refused.unwrap_err().to_string().contains("1 to 10000"));
        }
    }

    async fn b12_two_concurrent_runners_move_each_row_once(world) {
        park(&world, world.tenant, "meant", SLICE * 4).await;
        let asked = world.store.create_job(Some(world.tenant), &draft(Act::Retry, of_type("meant"))).await.unwrap();
        let mut runners = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let store = world.another_store().await;
            runners.spawn(async move {
                let mut rows = 0;
                while store.job(None, asked.id).await.unwrap().unwrap().state != "done" {
                    if let SliceOutcome::Moved { rows: moved, .. } = store.run_job_slice().await.unwrap() {
                        rows += moved;
                    }
                }
                rows
            });
        }
        let rows: usize = runners.join_all().await.into_iter().sum();
        let done = world.store.job(None, asked.id).await.unwrap().unwrap();
        assert_eq!((rows, done.done, done.skipped), (2000, 2000, 0));
        assert_eq!(world.count("delivery_queue").await, 2000);
    }

    async fn b12_a_job_whose_filter_matches_nothing_is_done_immediately(world) {
        park(&world, world.tenant, "meant", 3).await;
        let asked = world.store.create_job(Some(world.tenant), &draft(Act::Retry, of_type("none"))).await.unwrap();
        assert_eq!((asked.total, asked.is_exact), (0, true));
        let done = run_to_the_end(&world, asked.id).await;
        assert_eq!((done.state.as_str(), done.done, count(&world, "parked").await), ("done", 0, 3));
    }

    async fn rows_that_were_moved_in_the_meantime_are_counted_separately(world) {
        park(&world, world.tenant, "meant", 12).await;
        let mut asked = draft(Act::Retry, DeliveryFilter { recipient: Some("guest@example.com".into()), ..of_type("meant") });
        asked.pace_per_s = Some(10);
        let asked = world.store.create_job(Some(world.tenant), &asked).await.unwrap();
        assert_eq!(asked.filter.recipient.as_deref(), Some("g…@example.com"), "shown masked");
        slice(&world).await;
        let rest = world.store.delivery_rows(&DeliveryFilter { states: vec!["parked".into()], limit: 10, ..DeliveryFilter::default() }).await.unwrap().rows;
        world.store.discard(world.key(rest[0].notification_id, 1)).await.unwrap();
        let done = run_to_the_end(&world, asked.id).await;
        assert_eq!((done.total, done.done, done.skipped, done.state.as_str()), (12, 11, 1, "done"));
    }

    async fn two_jobs_with_the_same_filter_each_account_for_all_matches(world) {
        park(&world, world.tenant, "meant", 8).await;
        let ask = async |act, pace_per_s| world.store.create_job(Some(world.tenant), &JobDraft { pace_per_s, ..draft(act, of_type("meant")) }).await.unwrap().id;
        let (slow, fast) = (ask(Act::Retry, Some(3)).await, ask(Act::Discard, None).await);
        // The first slice of the slow job, then all of the other job.
        assert_eq!(postcommit_engine::dispatch::run_job_once(&world.store).await.unwrap(), SliceOutcome::Moved { job: slow, rows: 3, is_last: false });
        while world.store.job(None, fast).await.unwrap().unwrap().state != "done" {
            slice_of_other(&world, slow).await;
        }
        run_to_the_end(&world, slow).await;
        for (job, did) in [(slow, 3), (fast, 5)] {
            let job = world.store.job(None, job).await.unwrap().unwrap();
            assert_eq!((job.state.as_str(), job.total, job.done, job.skipped), ("done", 8, did, 8 - did));
        }
    }

    async fn a_job_names_its_tenant_and_may_skip_unclear_deliveries(world) {
        park(&world, world.tenant, "meant", 5).await;
        let unsure = "UPDATE postcommit.delivery_ledger SET unclear = (1 = 1) \
            WHERE notification_id IN (SELECT id FROM postcommit.notification ORDER BY id LIMIT 2)";
        world.execute(unsure, vec![]).await;
        let sure = |unclear| DeliveryFilter { unclear: Some(unclear), limit: 10, ..of_type("meant") };
        for (unclear, expected) in [(true, 2), (false, 3)] {
            let rows = world.store.delivery_rows(&sure(unclear)).await.unwrap().rows;
            assert!(rows.len() == expected && rows.iter().all(|row| row.unclear == unclear), "{rows:?}");
        }
        let asked = draft(Act::Retry, sure(false));
        let counted = JobCount { total: 3, left_out: 0, is_exact: true };
        assert_eq!(world.store.count_for_job(None, &asked).await.unwrap(), counted, "nothing is left out that the filter excludes");
        let of_all = world.store.create_job(None, &asked).await.unwrap();
        let of_one = world.store.create_job(Some(world.tenant), &draft(Act::Discard, of_type("none"))).await.unwrap();
        assert_eq!((of_all.tenant_name, of_one.tenant_name.as_deref()), (None, Some("default")));
        assert_eq!((run_to_the_end(&world, of_all.id).await.done, count(&world, "parked").await), (3, 2));
    }

    async fn a_running_dispatcher_runs_the_jobs(world) {
        world.capture(json!({})).await;
        park(&world, world.tenant, "meant", 30).await;
        let asked = world.store.create_job(Some(world.tenant), &draft(Act::Retry, of_type("meant"))).await.unwrap();
        let running = world.run().await;
        world.until("the job is done", async || world.store.job(None, asked.id).await.unwrap().unwrap().state == "done").await;
        running.finish().await;
        assert_eq!(world.store.job(None, asked.id).await.unwrap().unwrap().done, 30);
    }
}

#[tokio::test]
async fn b12_a_slice_whose_connection_dies_is_done_once_by_the_next() {
    let world = World::postgres().await;
    park(&world, world.tenant, "meant", 40).await;
    let asked = world.store.create_job(Some(world.tenant), &draft(Act::Retry, of_type("meant"))).await.unwrap();
    let (mut client, connection) = tokio_postgres::connect(&world.url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // A lock on one of the rows blocks the slice in the middle of its transaction.
    let lock = client.transaction().await.unwrap();
    lock.batch_execute(
        "SELECT 1 \
        FROM postcommit.delivery_ledger \
        ORDER BY notification_id \
        LIMIT 1 OFFSET 20 FOR UPDATE",
    )
    .await
    .unwrap();
    let dying = tokio::spawn({
        let store = world.another_store().await;
        async move { store.run_job_slice().await }
    });
    let kill = "SELECT count(pg_terminate_backend(pid)) \
            FROM pg_stat_activity \
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
    world.until("it waits, and is killed", async || world.sql(kill, vec![]).await[0].get::<i64>(0).unwrap() > 0).await;
    assert!(dying.await.unwrap().is_err());
    lock.rollback().await.unwrap();
    assert_eq!((world.count("delivery_queue").await, count(&world, "parked").await), (0, 40), "nothing of it remains");
    assert_eq!(slice(&world).await, SliceOutcome::Nothing, "its lease stands");
    world
        .execute("UPDATE postcommit.job SET lease_until = $1", vec![postcommit::Timestamp::from_micros(1).into()])
        .await;
    let done = run_to_the_end(&world, asked.id).await;
    assert_eq!(
        (done.state.as_str(), done.done, done.skipped, world.count("delivery_queue").await),
        ("done", 40, 0, 40)
    );
}
