//! KPIs equal a slow exact count, for deliveries in every state. Roll-ups lose and double nothing. The tables of
//! history are not read.

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::FailOn;
use postcommit_channel::model::{DeliveryKey, Policy, ProviderDraft};
use postcommit_engine::db::Db;
use postcommit_engine::store::{
    Depth, GROUPS_LISTED, GroupBy, Kpi, KpiGrouping, KpiSeries, KpiSettings, LINES, OTHER, SITES, SeriesLine,
    SlotLength, Store, TimeRange,
};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

const STUCK: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);
const BY_SITE: Option<KpiGrouping> = Some(KpiGrouping::Site);

/// The labels of a delivery, in the order of [`KpiGrouping::ALL`]: site, channel, provider, event type, error,
/// tenant.
type Labels = [String; 6];

/// Events that the tables no longer show.
#[derive(Default)]
struct Past {
    /// Deliveries that were parked and have been retried or discarded since, with their tenants.
    failed: Vec<(i32, Labels)>,
    confirmed: i64,
}

/// Creates two tenants, each with three sites and with none, and deliveries that entered and left the ledger in every
/// possible way.
async fn seed(world: &mut World) -> (i32, Past) {
    world.fail_on = FailOn::parse("permanent=no,transient=again,unclear=unclear").unwrap();
    let other = world.store.tenant_or_new("hotel").await.unwrap();
    for tenant in [world.tenant, other] {
        let mut draft = world.draft("capture", "capture", json!({}));
        draft.policy = Policy::from_json(&json!("marketplace")).unwrap();
        world.store.create_provider(tenant, &draft).await.unwrap();
        let texts = ProviderDraft { name: "texts".into(), channel: "sms".into(), ..draft };
        world.store.create_provider(tenant, &texts).await.unwrap();
    }
    let mut past = Past::default();
    for (tenant, name) in [(world.tenant, "default"), (other, "hotel")] {
        for (site, source) in
            [("", json!({})), ("goa", json!({"site": "goa"})), ("berlin", json!({"site": "berlin", "rule": "r"}))]
        {
            let base = json!({"tenant": name, "source": source, "entity": format!("{name}{site}")});
            seed_site(world, tenant, &base, &mut past).await;
            let labels = [site, "email", "capture", "no", "unknown", name].map(str::to_owned);
            past.failed.extend([(tenant, labels.clone()), (tenant, labels)]);
        }
    }
    (other, past)
}

async fn seed_site(world: &World, tenant: i32, base: &serde_json::Value, past: &mut Past) {
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
    world.enqueue("no", with(json!({"recipients": [{"phone": "+4915112345678"}]}))).await;
    let again = [world.enqueue("again", with(json!({}))).await, world.enqueue("again", with(json!({}))).await];
    // Parked before it had a target.
    world.enqueue("nobody", with(json!({"recipients": []}))).await;
    // Skipped when the notification was expanded: a phone number has no mail address.
    let off_channel =
        json!({"channels": ["email"], "recipients": [{"email": "a@example.com"}, {"phone": "+4915112345678"}]});
    world.enqueue("yes", with(off_channel)).await;
    world.pass().await;
    for (age, id) in (1..).zip(again) {
        first_due(world, id, age * 400 + i64::from(tenant)).await;
    }
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
}

/// Makes the notification look as if it had been first due this many seconds ago.
async fn first_due(world: &World, id: Uuid, seconds: i64) {
    let then = Timestamp::from_micros(world.store.now().await.unwrap().as_micros() - seconds * 1_000_000);
    let sql = "UPDATE postcommit.delivery_queue SET first_due_at = $1 WHERE notification_id = $2";
    assert_eq!(world.execute(sql, vec![then.into(), id.into()]).await, 1);
}

async fn receipt(world: &World, key: DeliveryKey) {
    let sql = "UPDATE postcommit.delivery_ledger SET state = 'delivered' \
        WHERE tenant = $1 AND notification_id = $2 AND n = $3 AND state IN ('sent', 'parked')";
    assert_eq!(world.execute(sql, vec![key.tenant.into(), key.notification.into(), key.n.into()]).await, 1);
}

/// A delivery in the public view, with the columns that KPIs depend on.
struct Seen {
    tenant: i32,
    labels: Labels,
    state: String,
    reason: Option<String>,
    due_later: bool,
    first_due: Option<Timestamp>,
    captured: bool,
    unclear: bool,
}

async fn look_at_everything(world: &World) -> Vec<Seen> {
    let sql = "SELECT d.tenant_id, d.state, d.reason, n.due_at > {now},
          (SELECT q.first_due_at FROM postcommit.delivery_queue q
            WHERE q.tenant = d.tenant_id AND q.notification_id = d.notification_id AND q.n = d.n),
          coalesce(n.source ->> 'site', ''), coalesce(d.channel, ''), coalesce(d.provider, ''), d.event_type,
          coalesce(d.error_class, ''), d.captured, (SELECT t.name FROM postcommit.tenant t WHERE t.id = d.tenant_id), d.unclear
        FROM postcommit.delivery d
        JOIN postcommit.notification n ON n.tenant = d.tenant_id AND n.id = d.notification_id";
    let sql = if world.is_postgres() { sql.replace("{now}", "clock_timestamp()") } else { sql.to_owned() };
    let seen = |row: &postcommit_engine::db::Row| Seen {
        tenant: row.get(0).unwrap(),
        labels: [5, 6, 7, 8, 9, 11].map(|place| row.get(place).unwrap()),
        state: row.get(1).unwrap(),
        reason: row.get(2).unwrap(),
        due_later: row.get(3).unwrap(),
        first_due: row.get(4).unwrap(),
        captured: row.get(10).unwrap(),
        unclear: row.get(12).unwrap(),
    };
    world.sql(&sql, vec![]).await.iter().map(seen).collect()
}

/// Returns the slow exact count, as of `at`, of one group or of all.
fn count(seen: &[Seen], past: &Past, tenant: Option<i32>, group: Option<(KpiGrouping, &str)>, at: Timestamp) -> Kpi {
    let is_of_group = |labels: &Labels| {
        group.is_none_or(|(by, label)| {
            KpiGrouping::ALL.iter().zip(labels).any(|(known, own)| *known == by && own == label)
        })
    };
    let of = |t: i32, labels: &Labels| tenant.is_none_or(|tenant| tenant == t) && is_of_group(labels);
    let mut kpi = Kpi::default();
    for one in seen.iter().filter(|one| of(one.tenant, &one.labels)) {
        let age = one.first_due.filter(|due| *due <= at).map_or(Duration::ZERO, |due| at.since(due));
        kpi.stuck += i64::from(age > STUCK && one.state != "sending");
        kpi.oldest_pending_s = kpi.oldest_pending_s.max(i64::try_from(age.as_secs()).unwrap());
        match one.state.as_str() {
            "pending" if one.due_later => kpi.queue.scheduled += 1,
            "pending" => kpi.queue.pending += 1,
            "retrying" => kpi.queue.retrying += 1,
            "sending" => kpi.queue.sending += 1,
            "sent" | "delivered" if one.captured => kpi.captured += 1,
            "sent" | "delivered" => kpi.delivered += 1,
            "parked" => {
                kpi.failed += 1;
                kpi.parked.total += 1;
                kpi.parked.unclear += i64::from(one.unclear);
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
    kpi.failed += i64::try_from(past.failed.iter().filter(|(t, labels)| of(*t, labels)).count()).unwrap();
    kpi
}

async fn assert_equal(world: &World, other: i32, past: &Past) {
    let seen = look_at_everything(world).await;
    for tenant in [None, Some(world.tenant), Some(other)] {
        for by in KpiGrouping::ALL {
            assert_groups(world, &seen, past, tenant, by).await;
        }
        // A store of one tenant sees the same numbers, and none of another tenant.
        if let Some(tenant) = tenant {
            let walled = world.store.of_tenant(tenant).kpis(Some(tenant), None, STUCK, HOUR).await.unwrap();
            assert_eq!(walled.total, count(&seen, past, Some(tenant), None, walled.at));
            if world.is_postgres() {
                let nobody =
                    world.store.of_tenant(tenant + 1000).kpis(Some(tenant), BY_SITE, STUCK, HOUR).await.unwrap();
                assert_eq!((nobody.total, nobody.groups), (Kpi::default(), vec![]));
            }
        }
        let plain = world.store.kpis(tenant, None, STUCK, HOUR).await.unwrap();
        assert_eq!(plain.total, count(&seen, past, tenant, None, plain.at));
        assert!(plain.groups.is_empty());
    }
}

async fn assert_groups(world: &World, seen: &[Seen], past: &Past, tenant: Option<i32>, by: KpiGrouping) {
    let kpis = world.store.kpis(tenant, Some(by), STUCK, HOUR).await.unwrap();
    assert_eq!(kpis.total, count(seen, past, tenant, None, kpis.at), "{tenant:?}");
    assert!(kpis.total.stuck >= 3 && kpis.total.oldest_pending_s > 800, "{:?}", kpis.total);
    let mut labels: Vec<&str> = kpis.groups.iter().map(|one| one.label.as_str()).collect();
    labels.sort_unstable();
    let expected: &[&str] = match by {
        KpiGrouping::Site => &["", "berlin", "goa"],
        KpiGrouping::Channel => &["", "email", "sms"],
        // Over all tenants, equal names of two tenants are two groups.
        KpiGrouping::Provider if tenant.is_none() => &["", "capture", "capture", "texts", "texts"],
        KpiGrouping::Provider => &["", "capture", "texts"],
        KpiGrouping::EventType => &["again", "later", "no", "nobody", "yes"],
        KpiGrouping::Error => &["", "invalid_address", "unknown"],
        KpiGrouping::Tenant if tenant.is_none() => &["default", "hotel"],
        KpiGrouping::Tenant if tenant == Some(world.tenant) => &["default"],
        KpiGrouping::Tenant => &["hotel"],
    };
    assert_eq!((kpis.by, labels.as_slice()), (Some(by), expected));
    for one in &kpis.groups {
        let owner = match &one.tenant {
            Some(name) => Some(world.store.tenant_or_new(name).await.unwrap()),
            None => tenant,
        };
        let is_named = by == KpiGrouping::Provider && tenant.is_none() && !one.label.is_empty();
        assert_eq!(one.tenant.is_some(), is_named, "{one:?}");
        let exact = count(seen, past, owner, Some((by, &one.label)), kpis.at);
        assert_eq!(one.kpi, exact, "{tenant:?} {by:?} {}", one.label);
        // Only errors have codes, and they add up.
        let coded = one.codes.iter().fold((0, 0), |sum, code| (sum.0 + code.queue, sum.1 + code.parked));
        let has_codes = by == KpiGrouping::Error && !one.label.is_empty();
        assert_eq!(coded, if has_codes { (exact.queue.total, exact.parked.total) } else { (0, 0) }, "{one:?}");
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
    let failed = total("parked") + i64::try_from(past.failed.len()).unwrap();
    for per in [SlotLength::Minute, SlotLength::Hour] {
        let drawn = series(world, None, per, GroupBy::State).await;
        assert!(drawn.lines.iter().all(|line| line.counts.len() == drawn.slots.len()));
        let by_state = sums(&drawn);
        let of = |state: &str| by_state.get(state).copied().unwrap_or(0);
        assert_eq!(of("captured"), total("sent") + total("delivered"), "nothing was sent by a driver of its own");
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

    async fn e10_only_what_ended_in_the_interval_is_counted(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("permanent=no").unwrap();
        world.capture(json!({})).await;
        world.enqueue("no", json!({"source": {"site": "goa"}})).await;
        // The inbox is used, because captured deliveries do not count as delivered.
        world.enqueue("yes", json!({"source": {"site": "goa"}, "recipients": [{"user": "ada"}]})).await;
        world.pass().await;
        world.store.fold_rollups_once(&KpiSettings::default()).await.unwrap();
        for (hours_ago, expected) in [(0, 1), (2, 0)] {
            let slot = SlotLength::Minute.floor(world.store.now().await.unwrap());
            let slot = Timestamp::from_micros(slot.as_micros() - hours_ago * 3_600_000_000);
            world.execute("UPDATE postcommit.rollup_minute SET slot = $1", vec![slot.into()]).await;
            let kpis = world.store.kpis(None, BY_SITE, STUCK, HOUR).await.unwrap();
            assert_eq!((kpis.total.delivered, kpis.total.failed, kpis.total.parked.total), (expected, expected, 1));
            assert_eq!(kpis.groups.len(), 1);
            assert_eq!((kpis.groups[0].label.as_str(), &kpis.groups[0].kpi), ("goa", &kpis.total));
            let longer = world.store.kpis(None, BY_SITE, STUCK, 3 * HOUR).await.unwrap();
            assert_eq!((longer.total.delivered, longer.groups[0].kpi.failed), (1, 1));
        }
    }

    async fn e10_an_empty_store_has_zeros(world) {
        let kpis = world.store.kpis(Some(world.tenant), BY_SITE, STUCK, HOUR).await.unwrap();
        assert_eq!((kpis.total, kpis.groups), (Kpi::default(), vec![]));
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

    async fn e10_groups_beyond_the_bound_are_other(world) {
        let more = SITES + 5;
        let numbers = if world.is_postgres() { format!("generate_series(1, {more}) g (x)") } else { format!("(WITH RECURSIVE g (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM g WHERE x < {more}) SELECT x FROM g) g") };
        let sql = format!("INSERT INTO postcommit.rollup_fresh \
              (tenant, slot, site, channel, state, count, event_type, lane, error_class) \
            SELECT 1, $1, 'site' || x, 'c' || x, 'sent', 1, 'e' || x, x, 'x' || x \
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
        // The result has a bounded number of sites as well, and loses nothing.
        for by in KpiGrouping::ALL {
            let kpis = world.store.kpis(None, Some(by), STUCK, HOUR).await.unwrap();
            let sum = kpis.groups.iter().map(|one| one.kpi.delivered).sum::<i64>();
            assert_eq!((kpis.total.delivered, sum), (2 * more, 2 * more), "{by:?}");
            assert!(kpis.groups.len() <= GROUPS_LISTED + 1);
            // The list has room for only 999 of the 1,000 sites.
            let rest = match by {
                // All of them are of one tenant.
                KpiGrouping::Tenant => continue,
                KpiGrouping::Channel => 2 * (more - 100),
                KpiGrouping::Provider => 2 * (more - SITES),
                _ => 2 * (more - SITES) + 2,
            };
            let other = kpis.groups.iter().find(|one| one.label == OTHER).unwrap();
            assert_eq!(other.kpi.delivered, rest, "{by:?}");
        }
        let drawn = sums(&series(&world, None, SlotLength::Hour, GroupBy::Site).await);
        assert_eq!((drawn.len() <= LINES, drawn.values().sum::<i64>(), drawn.contains_key(OTHER)), (true, 2 * more, true));
    }

    async fn slots_that_are_too_old_are_forgotten(world) {
        let now = world.store.now().await.unwrap();
        for (per, hours) in
            [("minute", 47), ("minute", 49), ("group", 47), ("group", 49), ("hour", 399 * 24), ("hour", 401 * 24)]
        {
            let slot = Timestamp::from_micros(now.as_micros() - hours * 3_600_000_000);
            let labels = if per == "group" { "kind, label" } else { "channel, site" };
            let sql = format!("INSERT INTO postcommit.rollup_{per} (tenant, slot, state, {labels}, count) \
                VALUES (1, $1, 'sent', '', '', 1)");
            world.execute(&sql, vec![slot.into()]).await;
        }
        postcommit_engine::dispatch::run_duties_once(&world.store, &KpiSettings::default()).await.unwrap();
        for per in ["minute", "group", "hour"] {
            assert_eq!(world.count(&format!("rollup_{per}")).await, 1, "{per}");
        }
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
        let kpis = world.store.kpis(None, BY_SITE, STUCK, HOUR).await.unwrap();
        assert_eq!((kpis.total.delivered, kpis.groups.len()), (1, 1));
    }
}

/// Tables that grow without bound.
const HISTORY: [&str; 3] = ["delivery_ledger", "notification", "logged_attempt"];

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
    let groupings = || std::iter::once(None).chain(KpiGrouping::ALL.map(Some));
    for (tenant, by) in [None, Some(1)].into_iter().flat_map(|tenant| groupings().map(move |by| (tenant, by))) {
        let looks_up = matches!(by, Some(KpiGrouping::Site | KpiGrouping::EventType));
        for (name, sql) in Store::kpi_statements(tenant, by) {
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
            assert_eq!(reached > 0, name == "parked" || (name == "queue" && looks_up), "{name}: {plan:#}");
        }
    }
}
