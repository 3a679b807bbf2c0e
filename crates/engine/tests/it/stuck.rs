//! The age of live deliveries counts from their first due time, regardless of attempts since. KPIs, lists and metrics
//! agree.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::FailOn;
use postcommit_channel::model::{DeliveryKey, Finish};
use postcommit_engine::db::MIGRATIONS;
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::metrics::Scrape;
use postcommit_engine::store::{
    Claim, DeliveryFilter, KpiGrouping, KpiSettings, Lease, NotificationFilter, Settlement, Want,
};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

const STUCK: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);
const BY_SITE: Option<KpiGrouping> = Some(KpiGrouping::Site);

/// Returns the number of stuck deliveries and the age of the oldest. KPIs, lists and metrics must agree.
async fn told(world: &World) -> (i64, i64) {
    let kpis = world.store.kpis(None, BY_SITE, STUCK, HOUR).await.unwrap();
    let (stuck, oldest) = (kpis.total.stuck, kpis.total.oldest_pending_s);
    assert_eq!(kpis.groups.iter().map(|one| one.kpi.stuck).sum::<i64>(), stuck);
    assert_eq!(kpis.groups.iter().map(|one| one.kpi.oldest_pending_s).max().unwrap_or(0), oldest);
    let plain = world.store.kpis(Some(world.tenant), None, STUCK, HOUR).await.unwrap();
    assert_eq!(plain.total.stuck, stuck);
    let listed = DeliveryFilter { stuck: Some(STUCK), limit: 100, ..DeliveryFilter::default() };
    let listed = world.store.delivery_rows(&listed).await.unwrap().rows;
    assert_eq!(i64::try_from(listed.len()).unwrap(), stuck, "{listed:?}");
    assert!(listed.iter().all(|one| ["pending", "retrying"].contains(&one.state.as_str())), "{listed:?}");
    let notes = NotificationFilter { stuck: Some(STUCK), limit: 100, ..NotificationFilter::default() };
    let notes = world.store.notification_rows(&notes).await.unwrap().rows;
    assert_eq!(notes.is_empty(), stuck == 0, "{notes:?}");
    let metrics = Scrape::new(world.metrics.clone(), world.store.clone(), KpiSettings::default()).text().await;
    assert!(metrics.contains(&format!("\npostcommit_stuck {stuck}\n")), "{metrics}");
    assert!(metrics.contains("\npostcommit_oldest_pending_seconds "), "{metrics}");
    (stuck, oldest)
}

/// Makes all live deliveries this much older.
async fn pass_time(world: &World, seconds: i64) {
    let earlier = |column: &str| match world.is_postgres() {
        true => format!("{column} = {column} - interval '{seconds} seconds'"),
        false => format!("{column} = {column} - {seconds}000000"),
    };
    for (table, columns) in [("delivery_queue", ["due_at", "first_due_at"]), ("notification", ["due_at", "created_at"])]
    {
        let set = columns.map(earlier).join(", ");
        world.execute(&format!("UPDATE postcommit.{table} SET {set}"), vec![]).await;
    }
}

/// A pass by a process that knows nothing of the queue: low-water marks do not expect that rows are made older.
async fn pass(world: &World) {
    let store = world.another_store().await;
    Dispatcher::new(world.tools(store)).await.unwrap().pass(None).await.unwrap();
}

async fn claim(world: &World, lane: i32) -> Claim {
    let wants = [Want { lane, quota: 5 }];
    world.another_store().await.claim(&wants, Duration::from_secs(60), None).await.unwrap()
}

async fn in_seconds(world: &World, seconds: i64) -> Timestamp {
    Timestamp::from_micros(world.store.now().await.unwrap().as_micros() + seconds * 1_000_000)
}

on_both! {
    async fn e11_a_delivery_that_keeps_retrying_is_stuck_after_the_threshold(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("transient=again").unwrap();
        world.capture(json!({})).await;
        let again = world.enqueue("again", json!({"source": {"site": "goa"}})).await;
        pass(&world).await;
        assert_eq!(told(&world).await.0, 0, "it is ten minutes too young");
        // Every attempt moves the time of the next one. The age still counts from the first due time.
        for minutes in [6, 12, 18] {
            pass_time(&world, 360).await;
            world.make_due().await;
            pass(&world).await;
            let row = world.delivery(again).await;
            assert_eq!(row.state, "retrying", "{row:?}");
            assert!(row.next_attempt_at.unwrap() > world.store.now().await.unwrap(), "{row:?}");
            let (stuck, oldest) = told(&world).await;
            assert_eq!(stuck, i64::from(minutes > 10), "after {minutes} minutes");
            assert!((60 * minutes..60 * minutes + 300).contains(&oldest), "{oldest} s after {minutes} minutes");
        }
        let kpis = world.store.kpis(None, BY_SITE, STUCK, HOUR).await.unwrap();
        let goa = &kpis.groups[0];
        assert_eq!((goa.label.as_str(), goa.kpi.stuck, goa.kpi.queue.retrying), ("goa", 1, 1));
        let later = world.store.kpis(None, None, Duration::from_secs(1200), HOUR).await.unwrap();
        assert_eq!(later.total.stuck, 0, "the threshold is a setting");
        assert_eq!(KpiSettings::default().stuck_after(), STUCK);
    }

    async fn e11_every_target_is_as_old_as_its_notification(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("transient=again").unwrap();
        world.capture(json!({})).await;
        world.enqueue("again", json!({"recipients": [{"email": "a@example.com"}, {"phone": "+4915112345678"}]})).await;
        pass_time(&world, 700).await;
        assert_eq!(told(&world).await.0, 1);
        pass(&world).await;
        let (stuck, oldest) = told(&world).await;
        assert!(stuck == 2 && oldest >= 700, "{stuck} {oldest}");
    }

    async fn e11_a_scheduled_delivery_ages_from_its_time_and_a_late_one_from_its_enqueue(world) {
        world.capture(json!({})).await;
        let due = in_seconds(&world, 3600).await;
        let scheduled = world.enqueue("a", json!({"due_at": due})).await;
        assert_eq!(told(&world).await, (0, 0));
        pass_time(&world, 3600 + 300).await;
        let (stuck, oldest) = told(&world).await;
        assert!(stuck == 0 && (300..600).contains(&oldest), "{stuck} {oldest}");
        pass_time(&world, 301).await;
        assert_eq!(told(&world).await.0, 1);
        // A due time before the enqueue does not make the delivery older.
        pass(&world).await;
        assert_eq!(world.delivery(scheduled).await.state, "sent");
        world.enqueue("a", json!({"due_at": "2020-01-01T00:00:00Z", "expires_at": "2999-01-01T00:00:00Z"})).await;
        let (stuck, oldest) = told(&world).await;
        assert!(stuck == 0 && oldest < 300, "{stuck} {oldest}");
    }

    /// A scheduled delivery that is brought forward is due from then on.
    async fn e11_a_delivery_brought_forward_ages_from_then_on(world) {
        world.capture(json!({})).await;
        let due = in_seconds(&world, 7200).await;
        let scheduled = world.enqueue("a", json!({"due_at": due})).await;
        world.store.bring_forward(world.tenant, scheduled).await.unwrap();
        pass_time(&world, 660).await;
        let (stuck, oldest) = told(&world).await;
        assert!(stuck == 1 && (660..960).contains(&oldest), "{stuck} {oldest}");
    }

    async fn e11_a_paused_lane_and_a_closed_host_make_deliveries_stuck(world) {
        let lane = world.capture(json!({})).await;
        world.store.pause_lane(lane, None, "for the test").await.unwrap();
        world.enqueue("a", json!({"recipients": [{"email": "a@example.com"}, {"email": "b@example.com"}]})).await;
        pass(&world).await;
        world.store.resume_lane(lane).await.unwrap();
        // The delivery is put off without an attempt, as for a held host.
        let held = claim(&world, lane).await.deliveries;
        assert_eq!(held.len(), 2);
        let at = in_seconds(&world, 3600).await;
        let put_off = Settlement::unbegun(Lease::of(&held[0]), Finish::Again { at, counted: false });
        let returned = Settlement::unbegun(Lease::of(&held[1]), Finish::Returned);
        world.store.settle(vec![put_off, returned]).await.unwrap();
        world.store.pause_lane(lane, None, "for the test").await.unwrap();
        assert_eq!(told(&world).await.0, 0);
        pass_time(&world, 660).await;
        assert_eq!(told(&world).await.0, 2);
        let queue = world.store.kpis(None, None, STUCK, HOUR).await.unwrap().total.queue;
        assert_eq!((queue.pending, queue.scheduled), (2, 0), "neither was scheduled by anybody");
    }

    async fn e11_a_delivery_that_is_being_sent_or_parked_is_not_stuck(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("permanent=no").unwrap();
        world.capture(json!({})).await;
        let parked = world.enqueue("no", json!({})).await;
        pass(&world).await;
        world.enqueue("a", json!({})).await;
        pass_time(&world, 700).await;
        assert_eq!(told(&world).await.0, 1);
        assert_eq!(claim(&world, -world.tenant).await.deliveries.len(), 1);
        let (stuck, oldest) = told(&world).await;
        assert_eq!(stuck, 0);
        assert!(oldest >= 700, "what is being sent is not finished: {oldest}");
        assert_eq!(world.delivery(parked).await.state, "parked");
    }

    async fn e11_an_operators_retry_begins_anew(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("permanent=no").unwrap();
        world.capture(json!({})).await;
        let parked = world.enqueue("no", json!({})).await;
        pass(&world).await;
        pass_time(&world, 7200).await;
        let key = |notification: Uuid| DeliveryKey { tenant: world.tenant, notification, n: 1 };
        assert!(world.store.retry(key(parked)).await.unwrap());
        let (stuck, oldest) = told(&world).await;
        assert!(stuck == 0 && oldest < 300, "{stuck} {oldest}");
        pass_time(&world, 660).await;
        let (stuck, oldest) = told(&world).await;
        assert!(stuck == 1 && (660..960).contains(&oldest), "{stuck} {oldest}");
    }

    /// Rows that were in the queue before migration 6: for rows that were put off, the notification has the time.
    async fn e11_rows_from_before_the_column_have_an_age(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("transient=again").unwrap();
        world.capture(json!({})).await;
        world.enqueue("again", json!({})).await;
        pass(&world).await;
        world.enqueue("a", json!({})).await;
        world.execute("UPDATE postcommit.delivery_queue SET first_due_at = NULL", vec![]).await;
        pass_time(&world, 660).await;
        world.execute("UPDATE postcommit.delivery_queue SET due_at = {now} WHERE attempts > 0", vec![]).await;
        assert_eq!(told(&world).await.0, 1, "the one that was not tried is due since it was enqueued");
        let migration = MIGRATIONS.iter().find(|step| step.version == 6).unwrap();
        let text = if world.is_postgres() { migration.postgres } else { migration.sqlite };
        let fill = text.split(';').find_map(|part| part.find("UPDATE ").map(|at| &part[at..])).unwrap();
        assert_eq!(world.execute(fill, vec![]).await, 1);
        let (stuck, oldest) = told(&world).await;
        assert!(stuck == 2 && oldest >= 660, "{stuck} {oldest}");
    }
}
