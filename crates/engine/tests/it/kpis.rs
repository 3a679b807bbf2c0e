//! KPIs equal a slow exact count, whatever happened to the deliveries. Roll-ups lose and double nothing. The tables of
//! history are not read.

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::FailOn;
use postcommit_channel::model::{DeliveryKey, Policy};
use postcommit_engine::db::Db;
use postcommit_engine::store::{
    Depth, GroupBy, Kpi, KpiSeries, KpiSettings, LINES, OTHER, SITES, SeriesLine, SlotLength, Store, TimeRange,
};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

const STUCK: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);

/// Events that the tables no longer show.
#[derive(Default)]
struct Past {
    /// Deliveries that were parked and have been retried or discarded since, by tenant and site.
    failed: BTreeMap<(i32, String), i64>,
    confirmed: i64,
}

/// Two tenants, each with three sites and with none; deliveries that entered and left the ledger in every possible way.
async fn seed(world: &mut World) -> (i32, Past) {
    world.fail_on = FailOn::parse("permanent=no,transient=again,unclear=unclear").unwrap();
    let other = world.store.tenant_or_new("hotel").await.unwrap();
    for tenant in [world.tenant, other] {
        let mut draft = world.draft("capture", "capture", json!({}));
        draft.policy = Policy::from_json(&json!("marketplace")).unwrap();
        world.store.create_provider(tenant, &draft).await.unwrap();
    }
    let mut past = Past::default();
    for (tenant, name) in [(world.tenant, "default"), (other, "hotel")] {
        for (site, source) in
            [("", json!({})), ("goa", json!({"site": "goa"})), ("berlin", json!({"site": "berlin", "rule": "r"}))]
        {
            let base = json!({"tenant": name, "source": source, "entity": format!("{name}{site}")});
            let failed = seed_site(world, tenant, &base, &mut past).await;
            past.failed.insert((tenant, site.to_owned()), failed);
        }
    }
    (other, past)
}

async fn seed_site(world: &World, tenant: i32, base: &serde_json::Value, past: &mut Past) -> i64 {
    let with = |more: serde_json::Value| {
        let mut all = base.clone();
        more.as_object().unwrap().iter().for_each(|(name, value)| all[name] = value.clone());
        all
    };
    let key = |notification: Uuid| DeliveryKey { tenant, notification, n: 1 };
    // Settled from the notification's own row, and from rows of the targets.
    let sent = world.enqueue("yes", with(json!({}))).await;
    world
        .enqueue("yes", with(json!({"recipients": [{"email": "a@example.com"}, {"email": "b@example.com"}, {"phone": "+4915112345678"}]})))
        .await;
    let parked = [
        world.enqueue("no", with(json!({}))).await,
        world.enqueue("no", with(json!({}))).await,
        world.enqueue("no", with(json!({}))).await,
    ];
    world.enqueue("again", with(json!({}))).await;
    world.enqueue("again", with(json!({}))).await;
    // Skipped when the notification was expanded: a phone number has no mail address.
    let off_channel =
        json!({"channels": ["email"], "recipients": [{"email": "a@example.com"}, {"phone": "+4915112345678"}]});
    world.enqueue("yes", with(off_channel)).await;
    world.pass().await;
    world.enqueue("later", with(json!({"due_at": "2999-01-01T00:00:00Z", "expires_at": "2999-02-01T00:00:00Z"}))).await;
    // Cancelled by the application, and one by an operator.
    let gone = with(json!({"entity": "gone", "due_at": "2999-01-01T00:00:00Z", "expires_at": "2999-02-01T00:00:00Z"}));
    world.enqueue("gone", gone.clone()).await;
    let name = base["tenant"].as_str().unwrap();
    let cancel = match world.is_postgres() {
        true => format!("SELECT postcommit.cancel('{name}', 'gone')"),
        false => format!("INSERT INTO postcommit_cancel (tenant, entity) VALUES ('{name}', 'gone')"),
    };
    world.execute(&cancel, vec![]).await;
    let by_hand = world.enqueue("gone", gone).await;
    assert!(world.store.cancel_delivery(DeliveryKey { n: 0, ..key(by_hand) }).await.unwrap());
    // Decisions of an operator, and a receipt.
    assert!(world.store.of_tenant(tenant).discard(key(parked[0])).await.unwrap());
    assert!(world.store.retry(key(parked[1])).await.unwrap());
    receipt(world, key(sent)).await;
    past.confirmed += 1;
    world.enqueue("yes", with(json!({"due_at": "2999-01-01T00:00:00Z", "expires_at": "2999-02-01T00:00:00Z"}))).await;
    2
}

async fn receipt(world: &World, key: DeliveryKey) {
    let sql = "UPDATE postcommit.delivery_ledger SET state = 'delivered' \
        WHERE tenant = $1 AND notification_id = $2 AND n = $3 AND state IN ('sent', 'parked')";
    assert_eq!(world.execute(sql, vec![key.tenant.into(), key.notification.into(), key.n.into()]).await, 1);
}

/// A delivery in the public view, with the columns that KPIs depend on.
struct Seen {
    tenant: i32,
    site: String,
    state: String,
    reason: Option<String>,
    due_later: bool,
}

async fn look_at_everything(world: &World) -> Vec<Seen> {
    let sql = "SELECT d.tenant_id, coalesce(n.source ->> 'site', ''), d.state, d.reason, n.due_at > {now} FROM postcommit.delivery d
        JOIN postcommit.notification n ON n.tenant = d.tenant_id AND n.id = d.notification_id";
    let sql = if world.is_postgres() { sql.replace("{now}", "clock_timestamp()") } else { sql.to_owned() };
    let seen = |row: &postcommit_engine::db::Row| Seen {
        tenant: row.get(0).unwrap(),
        site: row.get(1).unwrap(),
        state: row.get(2).unwrap(),
        reason: row.get(3).unwrap(),
        due_later: row.get(4).unwrap(),
    };
    world.sql(&sql, vec![]).await.iter().map(seen).collect()
}

/// The slow exact count. Stuck deliveries and the age of the oldest have tests of their own.
fn count(seen: &[Seen], past: &Past, tenant: Option<i32>, site: Option<&str>) -> Kpi {
    let of = |t: i32, s: &str| tenant.is_none_or(|tenant| tenant == t) && site.is_none_or(|site| site == s);
    let mut kpi = Kpi::default();
    for one in seen.iter().filter(|one| of(one.tenant, &one.site)) {
        match one.state.as_str() {
            "pending" if one.due_later => kpi.queue.scheduled += 1,
            "pending" => kpi.queue.pending += 1,
            "retrying" => kpi.queue.retrying += 1,
            "sending" => kpi.queue.sending += 1,
            "sent" | "delivered" => kpi.delivered += 1,
            "parked" => {
                kpi.failed += 1;
                kpi.parked.total += 1;
                match one.reason.as_deref() {
                    Some("rejected") => kpi.parked.rejected += 1,
                    Some("exhausted") => kpi.parked.exhausted += 1,
                    Some("outcome_unknown") => kpi.parked.outcome_unknown += 1,
                    _ => kpi.parked.config += 1,
                }
            }
            _ => {}
        }
    }
    let Depth { pending, sending, retrying, scheduled, .. } = kpi.queue;
    kpi.queue.total = pending + sending + retrying + scheduled;
    kpi.failed += past.failed.iter().filter(|((t, s), _)| of(*t, s)).map(|(_, failed)| failed).sum::<i64>();
    kpi
}

async fn assert_equal(world: &World, other: i32, past: &Past) {
    let seen = look_at_everything(world).await;
    for tenant in [None, Some(world.tenant), Some(other)] {
        let mut kpis = world.store.kpis(tenant, true, STUCK, HOUR).await.unwrap();
        kpis.total.oldest_pending_s = 0;
        assert_eq!(kpis.total, count(&seen, past, tenant, None), "{tenant:?}");
        // A store of one tenant sees the same numbers, and none of another tenant.
        if let Some(tenant) = tenant {
            let mut walled = world.store.of_tenant(tenant).kpis(Some(tenant), false, STUCK, HOUR).await.unwrap();
            walled.total.oldest_pending_s = 0;
            assert_eq!(walled.total, kpis.total);
            if world.is_postgres() {
                let nobody = world.store.of_tenant(tenant + 1000).kpis(Some(tenant), true, STUCK, HOUR).await.unwrap();
                assert_eq!((nobody.total, nobody.sites), (Kpi::default(), vec![]));
            }
        }
        let mut plain = world.store.kpis(tenant, false, STUCK, HOUR).await.unwrap();
        plain.total.oldest_pending_s = 0;
        assert_eq!(plain.total, kpis.total);
        assert!(plain.sites.is_empty());
        let mut sites: Vec<&str> = kpis.sites.iter().map(|s| s.site.as_str()).collect();
        sites.sort_unstable();
        assert_eq!(sites, ["", "berlin", "goa"]);
        for one in &mut kpis.sites {
            one.kpi.oldest_pending_s = 0;
            assert_eq!(one.kpi, count(&seen, past, tenant, Some(&one.site)), "{tenant:?} {}", one.site);
        }
    }
}

/// The series of the last hour, by the database's clock.
async fn series(world: &World, tenant: Option<i32>, per: SlotLength, by: GroupBy) -> KpiSeries {
    let now = world.store.now().await.unwrap();
    let span = TimeRange::new(
        per,
        Timestamp::from_micros(now.as_micros() - 3_600_000_000),
        Timestamp::from_micros(now.as_micros() + 1),
    )
    .unwrap();
    world.store.series(tenant, span, by).await.unwrap()
}

fn sums(series: &KpiSeries) -> BTreeMap<String, i64> {
    series.lines.iter().map(|SeriesLine { label, counts }| (label.clone(), counts.iter().sum())).collect()
}

async fn assert_series(world: &World, past: &Past) {
    let seen = look_at_everything(world).await;
    let total = |state: &str| i64::try_from(seen.iter().filter(|one| one.state == state).count()).unwrap();
    let failed = total("parked") + past.failed.values().sum::<i64>();
    for per in [SlotLength::Minute, SlotLength::Hour] {
        let drawn = series(world, None, per, GroupBy::State).await;
        assert!(drawn.lines.iter().all(|line| line.counts.len() == drawn.slots.len()));
        let by_state = sums(&drawn);
        let of = |state: &str| by_state.get(state).copied().unwrap_or(0);
        assert_eq!(of("sent") + of("delivered"), total("sent") + total("delivered"));
        assert_eq!((of("confirmed"), of("parked")), (past.confirmed, failed));
        for state in ["discarded", "cancelled", "skipped"] {
            assert_eq!(of(state), total(state), "{state}");
            assert!(total(state) > 0, "{state}");
        }
        let by_channel = sums(&series(world, None, per, GroupBy::Channel).await);
        let by_site = sums(&series(world, None, per, GroupBy::Site).await);
        let ended = of("sent") + of("delivered") + of("parked");
        assert_eq!((by_channel.values().sum::<i64>(), by_site.values().sum::<i64>()), (ended, ended));
        assert!(by_channel["email"] > 0 && by_channel["sms"] > 0 && by_site["goa"] > 0, "{by_channel:?} {by_site:?}");
    }
}

on_both! {
    async fn e10_kpis_equal_a_slow_exact_count(world) {
        let mut world = world;
        let (other, past) = seed(&mut world).await;
        assert_equal(&world, other, &past).await;
        assert_series(&world, &past).await;
        world.store.fold_rollups_once(&KpiSettings::default()).await.unwrap();
        assert_eq!(world.count("rollup_fresh").await, 0);
        assert_equal(&world, other, &past).await;
        assert_series(&world, &past).await;
        // Later deliveries are added to the same slots after a fold.
        let (_, more) = (world.pass().await, past);
        world.store.fold_rollups_once(&KpiSettings::default()).await.unwrap();
        assert_equal(&world, other, &more).await;
    }

    async fn e11_stuck_is_pending_or_retrying_for_longer_than_the_threshold(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("transient=again").unwrap();
        let lane = world.capture(json!({})).await;
        let stuck = async |after: Duration| {
            let kpis = world.store.kpis(None, true, after, HOUR).await.unwrap();
            assert_eq!(kpis.total.stuck, kpis.sites.iter().map(|s| s.kpi.stuck).sum::<i64>());
            (kpis.total.stuck, kpis.total.oldest_pending_s)
        };
        let age = async |id: Uuid, column: &str, seconds: i64| {
            let then = Timestamp::from_micros(world.store.now().await.unwrap().as_micros() - seconds * 1_000_000);
            world.execute(&format!("UPDATE postcommit.delivery_queue SET {column} = $1 WHERE notification_id = $2"), vec![then.into(), id.into()]).await;
        };
        // A retrying delivery is not stuck while it waits for its next attempt. It is stuck when the attempt has been
        // due for eleven minutes.
        let again = world.enqueue("again", json!({})).await;
        world.pass().await;
        assert_eq!(stuck(STUCK).await, (0, 0));
        age(again, "due_at", 660).await;
        let (count, oldest) = stuck(STUCK).await;
        assert!(count == 1 && (660..700).contains(&oldest), "{count} {oldest}");
        assert_eq!(stuck(Duration::from_secs(900)).await.0, 0, "the threshold is a setting");
        // A scheduled delivery is not stuck. A due delivery is, even when its lane is paused.
        world.enqueue("a", json!({"due_at": "2999-01-01T00:00:00Z", "expires_at": "2999-02-01T00:00:00Z"})).await;
        let pending = world.enqueue("a", json!({})).await;
        assert_eq!(stuck(STUCK).await.0, 1);
        world.store.pause_lane(lane, None, "for the test").await.unwrap();
        age(pending, "due_at", 720).await;
        assert_eq!(stuck(STUCK).await.0, 2);
        // A delivery that is being sent is not stuck.
        world.store.resume_lane(lane).await.unwrap();
        // The row was aged by hand, so it lies before the low-water mark that this store keeps.
        let fresh = world.another_store().await;
        let held = fresh.claim(&[postcommit_engine::store::Want { lane: -world.tenant, quota: 5 }], Duration::from_secs(60), None).await.unwrap();
        assert_eq!(held.deliveries.len(), 1);
        assert_eq!(stuck(STUCK).await.0, 1);
    }

    async fn e10_an_empty_store_has_zeros(world) {
        let kpis = world.store.kpis(Some(world.tenant), true, STUCK, HOUR).await.unwrap();
        assert_eq!((kpis.total, kpis.sites), (Kpi::default(), vec![]));
        let drawn = series(&world, None, SlotLength::Minute, GroupBy::State).await;
        assert!(drawn.lines.is_empty() && drawn.slots.len() == 61, "{}", drawn.slots.len());
    }

    async fn a_fold_that_fails_half_way_changes_nothing(world) {
        world.capture(json!({})).await;
        world.enqueue("a", json!({})).await;
        world.pass().await;
        // Minutes are written before hours.
        world.execute("ALTER TABLE postcommit.rollup_hour RENAME TO postcommit_elsewhere", vec![]).await;
        world.store.fold_rollups_once(&KpiSettings::default()).await.unwrap_err();
        assert_eq!((world.count("rollup_minute").await, world.count("rollup_fresh").await), (0, 1));
        let back = if world.is_postgres() { "ALTER TABLE postcommit.postcommit_elsewhere RENAME TO rollup_hour" } else { "ALTER TABLE postcommit_elsewhere RENAME TO postcommit_rollup_hour" };
        world.execute(back, vec![]).await;
        for _ in 0..2 {
            world.store.fold_rollups_once(&KpiSettings::default()).await.unwrap();
            let sum = world.sql("SELECT CAST((SELECT sum(count) \
                FROM postcommit.rollup_minute) + (SELECT sum(count) \
                FROM postcommit.rollup_hour) AS BIGINT)", vec![]).await;
            assert_eq!(sum[0].get::<i64>(0).unwrap(), 2);
        }
    }

    async fn sites_and_channels_beyond_the_bound_are_other(world) {
        let more = SITES + 5;
        let numbers = if world.is_postgres() { format!("generate_series(1, {more}) g (x)") } else { format!("(WITH RECURSIVE g (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM g WHERE x < {more}) SELECT x FROM g) g") };
        let sql = format!("INSERT INTO postcommit.rollup_fresh (tenant, slot, site, channel, state, count) \
            SELECT 1, $1, 'site' || x, 'c' || x, 'sent', 1 \
            FROM {numbers}");
        let slot = SlotLength::Minute.floor(world.store.now().await.unwrap());
        for _ in 0..2 {
            world.execute(&sql, vec![slot.into()]).await;
            world.store.fold_rollups_once(&KpiSettings::default()).await.unwrap();
        }
        let sql = "SELECT count(DISTINCT site), count(DISTINCT channel), CAST(sum(count) AS BIGINT), CAST(sum(count) FILTER (WHERE site = 'other') AS BIGINT) \
            FROM postcommit.rollup_hour";
        let row = &world.sql(sql, vec![]).await[0];
        let counts: Vec<i64> = (0..4).map(|place| row.get(place).unwrap()).collect();
        assert_eq!(counts, [SITES + 1, 101, 2 * more, 10]);
        // The result has a bounded number of sites, too, and loses nothing.
        let kpis = world.store.kpis(None, true, STUCK, HOUR).await.unwrap();
        assert_eq!((kpis.total.delivered, kpis.sites.iter().map(|s| s.kpi.delivered).sum::<i64>()), (2 * more, 2 * more));
        assert!(kpis.sites.len() <= usize::try_from(SITES).unwrap() + 1);
        let drawn = sums(&series(&world, None, SlotLength::Hour, GroupBy::Site).await);
        assert_eq!((drawn.len() <= LINES, drawn.values().sum::<i64>(), drawn.contains_key(OTHER)), (true, 2 * more, true));
    }

    async fn slots_that_are_too_old_are_forgotten(world) {
        let now = world.store.now().await.unwrap();
        for (per, hours) in [("minute", 47), ("minute", 49), ("hour", 399 * 24), ("hour", 401 * 24)] {
            let slot = Timestamp::from_micros(now.as_micros() - hours * 3_600_000_000);
            let sql = format!("INSERT INTO postcommit.rollup_{per} (tenant, slot, state, channel, site, count) \
                VALUES (1, $1, 'sent', '', '', 1)");
            world.execute(&sql, vec![slot.into()]).await;
        }
        postcommit_engine::dispatch::run_duties_once(&world.store, &KpiSettings::default()).await.unwrap();
        assert_eq!((world.count("rollup_minute").await, world.count("rollup_hour").await), (1, 1));
    }

    /// A result that came too late, or is written a second time, counts nothing.
    async fn a_settle_that_changes_nothing_counts_nothing(world) {
        use crate::store::{SENT, in_lane, settlement};
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 1).await;
        let held = world.store.claim(&[postcommit_engine::store::Want { lane, quota: 1 }], Duration::from_secs(60), None).await.unwrap().deliveries.remove(0);
        for site in [None, Some(""), Some("goa")] {
            let one = postcommit_engine::store::Settlement { site: site.map(Into::into), ..settlement(&held, SENT, "sent") };
            world.store.settle(vec![one.clone(), one]).await.unwrap();
        }
        let kpis = world.store.kpis(None, true, STUCK, HOUR).await.unwrap();
        assert_eq!((kpis.total.delivered, kpis.sites.len()), (1, 1));
    }
}

/// Tables that grow without bound.
const HISTORY: [&str; 3] = ["delivery_ledger", "notification", "attempt"];

#[tokio::test]
async fn e10_history_is_not_read_for_kpis() {
    let mut world = World::postgres().await;
    seed(&mut world).await;
    let Db::Postgres(db) = world.store.db() else { panic!("a test of PostgreSQL's planner") };
    let client = db.client().await.unwrap();
    let parked = "SELECT indexrelid::regclass::text \
        FROM pg_index \
        WHERE pg_get_indexdef(indexrelid) LIKE '%postcommit.delivery_ledger%state = ''parked''%'";
    let parked: Vec<String> = client
        .query(parked, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get::<_, String>(0).replace("postcommit.", ""))
        .collect();
    assert!(parked.len() > 20, "{parked:?}");
    let is_of =
        |name: &str, table: &str| name == table || name.strip_prefix(table).is_some_and(|rest| rest.starts_with('_'));
    for (tenant, by_site) in [(None, false), (None, true), (Some(1), false), (Some(1), true)] {
        for (name, sql) in Store::kpi_statements(tenant, by_site) {
            let times: &[&str] = match name {
                "queue" => &["now()", "now() - interval '600 s'", "1"],
                "parked" => &["1"],
                _ => &["now() - interval '1 h'", "1"],
            };
            let said = times.iter().enumerate().fold(sql, |sql, (i, value)| sql.replace(&format!("${}", i + 1), value));
            let plan: serde_json::Value =
                client.query_one(format!("EXPLAIN (FORMAT JSON) {said}").as_str(), &[]).await.unwrap().get(0);
            let mut nodes = vec![&plan[0]["Plan"]];
            let mut reached = 0;
            while let Some(node) = nodes.pop() {
                nodes.extend(node["Plans"].as_array().into_iter().flatten());
                let text = |field: &str| node[field].as_str().unwrap_or("");
                let (kind, index, condition) = (text("Node Type"), text("Index Name"), text("Index Cond"));
                let relation = if text("Relation Name").is_empty() { index } else { text("Relation Name") };
                let Some(table) = HISTORY.iter().find(|table| is_of(relation, table)) else { continue };
                reached += 1;
                assert!(!kind.contains("Seq"), "{name}: {plan:#}");
                if kind.contains("Index") {
                    let by_key = condition.contains("tenant = ") && condition.contains("id = ");
                    assert!(
                        by_key || (*table == "delivery_ledger" && parked.iter().any(|known| known == index)),
                        "{name}: {plan:#}"
                    );
                }
            }
            assert_eq!(reached > 0, name == "parked" || (name == "queue" && by_site), "{name}: {plan:#}");
        }
    }
}
