//! Lists over 200,000 notifications examine a bounded part of them, regardless of the statistics. The rows are counted,
//! and nothing is timed.

use std::time::Duration;

use postcommit_engine::db::{Row, Value};
use postcommit_engine::store::{DeliveryFilter, EXAMINED, NotificationFilter};
use serde_json::Value as Json;

use crate::world::World;

const HISTORY: i64 = 200_000;
/// Rows in the queue.
const LIVE: i64 = 300;
/// The time of the oldest ids, for which partitions exist.
const BEGIN_MS: i64 = 1_798_800_000_000;
const APART_MS: i64 = 39_000;

const LIMIT: i64 = 50;
/// The rows that the first window of a page may read: the rows of the window in each of two tenants, read once to count
/// and once to list, and a few deliveries of each.
const FIRST: i64 = 6 * 4 * LIMIT * 2;
/// Rows that the widest window may read.
const WIDEST: i64 = 6 * EXAMINED;

/// Inserts the history with set-based statements, because single enqueues would take minutes. Every thousandth
/// notification belongs to another tenant. One in 20,000 is parked and comes from a site.
async fn seed(world: &World) {
    let other = world.store.tenant_or_new("other").await.unwrap();
    let (series, id, due) = match world.is_postgres() {
        true => (
            format!("generate_series(1, {HISTORY}) AS s (g)"),
            format!(
                "(lpad(to_hex({BEGIN_MS}::bigint + g * {APART_MS}::bigint), 12, '0') || '70008000' || lpad(to_hex(g), 12, '0'))::uuid"
            ),
            "now()",
        ),
        false => (
            format!(
                "(WITH RECURSIVE s (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM s WHERE g < {HISTORY}) SELECT g FROM s) s"
            ),
            format!(
                "printf('%08x-%04x-7000-8000-%012x', ({BEGIN_MS} + g * {APART_MS}) >> 16, ({BEGIN_MS} + g * {APART_MS}) & 65535, g)"
            ),
            "{now}",
        ),
    };
    let tenant = format!("CASE WHEN g % 1000 = 0 THEN {other} ELSE {} END", world.tenant);
    let channels = if world.is_postgres() { "'{}'" } else { "'[]'" };
    let later = if world.is_postgres() { "now() + interval '1 year'" } else { "{now} + 31536000000000" };
    for sql in [
        format!(
            "INSERT INTO postcommit.notification (tenant, id, event_type, entity, idempotency_key, payload, recipients, channels, title, priority, due_at, expires_at, source, created_at)
             SELECT {tenant}, {id}, 'e' || (g % 10), 'entity-' || (g / 5), 'k' || g, '{{}}', '[]', {channels}, 'Order ' || g || ' is ready', 5, {due}, {later},
               CASE WHEN g % 20000 = 7 THEN '{{\"site\": \"plant\"}}'{} END, {due} FROM {series}",
            if world.is_postgres() { "::jsonb" } else { "" }
        ),
        format!(
            "INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, state, reason, code, attempts, seq, finished_at)
             SELECT {tenant}, {id}, 1, 1, 'email', 'guest' || g || '@example.com', CASE WHEN g % 20000 = 7 THEN 'parked' ELSE 'sent' END,
               CASE WHEN g % 20000 = 7 THEN 'rejected' END, CASE WHEN g % 20000 = 7 THEN '550' END, 1, 1, {due} FROM {series} WHERE g % 666 <> 5"
        ),
        format!(
            "INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at)
             SELECT {tenant}, {id}, 1, 1, 5, {} FROM {series} WHERE g % 666 = 5",
            if world.is_postgres() { "now() - interval '1 day'" } else { "{now} - 86400000000" }
        ),
    ] {
        world.execute(&sql, vec![]).await;
    }
    assert!((LIVE..LIVE + 2).contains(&world.count("delivery_queue").await));
}

fn notification_filters() -> Vec<NotificationFilter> {
    let all = || NotificationFilter { limit: LIMIT, ..NotificationFilter::default() };
    let text = |value: &str| Some(value.to_owned());
    vec![
        all(),
        NotificationFilter { states: vec!["pending".into()], ..all() },
        NotificationFilter { states: vec!["parked".into()], ..all() },
        NotificationFilter { states: vec!["sent".into()], ..all() },
        NotificationFilter { states: vec!["expired".into()], ..all() },
        NotificationFilter { event_type: text("e3"), ..all() },
        NotificationFilter { event_type: text("none"), ..all() },
        NotificationFilter { entity: text("entity-20000"), ..all() },
        NotificationFilter { site: text("plant"), ..all() },
        NotificationFilter { site: text("none"), ..all() },
        NotificationFilter { idempotency_key: text("none"), ..all() },
        NotificationFilter { channel: text("email"), ..all() },
        NotificationFilter { channel: text("none"), ..all() },
        NotificationFilter { list: text("none"), ..all() },
        NotificationFilter { recipient: text("guest70@example.com"), ..all() },
        NotificationFilter { recipient: text("none@example.com"), ..all() },
        NotificationFilter { attempts: Some(1), ..all() },
        NotificationFilter { stuck: Some(Duration::from_secs(60)), ..all() },
        NotificationFilter { words: vec!["ready".into()], ..all() },
        NotificationFilter { words: vec!["none".into()], ..all() },
        NotificationFilter {
            from: Some(postcommit::Timestamp::from_micros((BEGIN_MS + APART_MS * HISTORY / 2) * 1000)),
            ..all()
        },
        NotificationFilter {
            until: Some(postcommit::Timestamp::from_micros((BEGIN_MS + APART_MS * HISTORY / 2) * 1000)),
            ..all()
        },
    ]
}

fn delivery_filters() -> Vec<DeliveryFilter> {
    let all = || DeliveryFilter { limit: LIMIT, ..DeliveryFilter::default() };
    let text = |value: &str| Some(value.to_owned());
    let in_state = |state: &str| DeliveryFilter { states: vec![state.to_owned()], ..all() };
    vec![
        all(),
        in_state("pending"),
        in_state("parked"),
        in_state("sent"),
        in_state("skipped"),
        DeliveryFilter { reason: text("rejected"), ..in_state("parked") },
        DeliveryFilter { event_type: text("e7"), ..in_state("parked") },
        DeliveryFilter { event_type: text("none"), ..all() },
        DeliveryFilter { channel: text("none"), ..all() },
        DeliveryFilter { recipient: text("none@example.com"), ..all() },
        DeliveryFilter { recipient: text("guest70@example.com"), ..all() },
        DeliveryFilter { error_code: text("550"), ..all() },
        DeliveryFilter { entity: text("entity-20000"), ..all() },
        DeliveryFilter { site: text("plant"), ..all() },
        DeliveryFilter { provider: text("none"), ..all() },
        DeliveryFilter { stuck: Some(Duration::from_secs(60)), ..all() },
    ]
}

/// The statements of every list, for one tenant and for all, each with the most rows that it may read.
async fn statements(world: &World) -> Vec<(String, i64, String, Vec<Value>)> {
    let mut all = Vec::new();
    for tenant in [Some(world.tenant), None] {
        for (step, most) in [(4 * LIMIT, FIRST), (EXAMINED, WIDEST)] {
            for filter in notification_filters() {
                let filter = NotificationFilter { tenant, ..filter };
                let said = world.store.notification_statements(&filter, step).await.unwrap();
                all.extend(said.into_iter().map(|(sql, parameters)| (format!("{filter:?}"), most, sql, parameters)));
            }
            for filter in delivery_filters() {
                let filter = DeliveryFilter { tenant, ..filter };
                let said = world.store.delivery_statements(&filter, step).await.unwrap();
                all.extend(said.into_iter().map(|(sql, parameters)| (format!("{filter:?}"), most, sql, parameters)));
            }
        }
    }
    all
}

/// The rows that the scans of a plan read, including rows that filters removed.
fn touched(plan: &Json) -> f64 {
    let number = |name: &str| plan[name].as_f64().unwrap_or(0.0);
    let below: f64 = plan["Plans"].as_array().into_iter().flatten().map(touched).sum();
    let is_scan = plan.get("Relation Name").is_some();
    let own = (number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck"))
        * number("Actual Loops");
    below + if is_scan { own } else { 0.0 }
}

#[tokio::test]
async fn on_postgres_no_list_touches_more_than_its_window() {
    let world = World::postgres().await;
    seed(&world).await;
    for known in ["nothing", "all"] {
        if known == "all" {
            for table in ["notification", "delivery_queue", "delivery_ledger"] {
                world.execute(&format!("ANALYZE postcommit.{table}"), vec![]).await;
            }
        }
        for (filter, most, sql, parameters) in statements(&world).await {
            let rows = world.sql(&format!("EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) {sql}"), parameters).await;
            let plan: Json = rows[0].get(0).unwrap();
            let touched = touched(&plan[0]["Plan"]);
            assert!(
                touched <= most as f64,
                "{touched} rows, when the planner knows {known}: {filter}\n{sql}\n{plan:#}"
            );
        }
    }
}

#[tokio::test]
async fn no_statistics_change_the_plans_of_lists() {
    let world = World::postgres().await;
    let _asleep = crate::planner::make_statistics_wrong(&world).await;
    let many = "SELECT postcommit.enqueue('planned', '{}', 'planned:' || g) FROM generate_series(1, 5000) g";
    world.sql(many, vec![]).await;
    for (filter, most, sql, parameters) in statements(&world).await.into_iter().filter(|(_, most, _, _)| *most == FIRST)
    {
        let rows = world.sql(&format!("EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) {sql}"), parameters).await;
        let plan: Json = rows[0].get(0).unwrap();
        let touched = touched(&plan[0]["Plan"]);
        assert!(touched <= most as f64, "{touched} rows: {filter}\n{sql}\n{plan:#}");
    }
}

#[tokio::test]
async fn on_sqlite_every_list_uses_an_index() {
    let world = World::sqlite().await;
    seed(&world).await;
    for known in ["nothing", "all"] {
        if known == "all" {
            world.execute("ANALYZE", vec![]).await;
        }
        for (filter, _, sql, parameters) in statements(&world).await {
            let plan = world.sql(&format!("EXPLAIN QUERY PLAN {sql}"), parameters).await;
            let lines: Vec<String> = plan.iter().map(|row| row.get(3).unwrap()).collect();
            for line in &lines {
                // The tables k, q and note grow. Each must be searched by its tenant and another column.
                let large = ["k", "q", "l", "note"]
                    .iter()
                    .any(|name| line.starts_with(&format!("SCAN {name} ")) || line == &format!("SCAN {name}"));
                let half = line.starts_with("SEARCH") && line.ends_with("(tenant=?)");
                assert!(!large && !half, "{line}, when the planner knows {known}: {filter}\n{sql}\n{lines:#?}");
            }
            // A counting subquery that sorts would read all rows of a tenant.
            let subquery = plan
                .iter()
                .find(|row| row.get::<String>(3).unwrap().contains("CORRELATED SCALAR SUBQUERY"))
                .filter(|_| sql.starts_with("SELECT f.id"));
            let of_it = |row: &&Row| {
                subquery.is_some_and(|subquery| subquery.get::<i64>(0).unwrap() == row.get::<i64>(1).unwrap())
            };
            let sorts = plan.iter().filter(of_it).any(|row| row.get::<String>(3).unwrap().contains("TEMP B-TREE"));
            assert!(!sorts, "{filter}\n{lines:#?}");
        }
    }
}

on_both! {
    async fn a_search_through_all_of_history_ends_early_and_returns_a_cursor(world) {
        seed(&world).await;
        // Only the oldest notifications match.
        let mut filter = NotificationFilter { words: vec!["order".into(), "17".into(), "is".into()], event_type: Some("e7".into()), tenant: Some(world.tenant), limit: LIMIT, ..NotificationFilter::default() };
        filter.words[1] = " 17 ".into();
        let (mut found, mut calls) = (Vec::new(), 0);
        loop {
            let before = world.store.db().trips();
            let page = world.store.notification_rows(&filter).await.unwrap();
            let asked = world.store.db().trips().since(before);
            assert!(asked.statements < 20, "a few windows, and the page: {asked:?}");
            calls += 1;
            found.extend(page.rows);
            match page.more {
                Some(place) => filter.before = Some(place),
                None => break,
            }
        }
        assert_eq!(found.iter().map(|row| row.idempotency_key.as_str()).collect::<Vec<_>>(), ["k17"]);
        let (least, most) = (HISTORY / EXAMINED, HISTORY / EXAMINED + 2);
        assert!((least..=most).contains(&calls), "{calls} calls of {EXAMINED} each");
    }

    async fn pages_over_all_of_a_long_list_repeat_and_skip_nothing(world) {
        seed(&world).await;
        let mut filter = DeliveryFilter { states: vec!["parked".into()], limit: 3, ..DeliveryFilter::default() };
        let mut keys = Vec::new();
        loop {
            let page = world.store.delivery_rows(&filter).await.unwrap();
            keys.extend(page.rows.into_iter().map(|row| row.id));
            match page.more {
                Some(place) => filter.before = Some(place),
                None => break,
            }
        }
        let every = "SELECT count(*) FROM postcommit.delivery_ledger WHERE state = 'parked'";
        assert_eq!(keys.len(), usize::try_from(world.sql(every, vec![]).await[0].get::<i64>(0).unwrap()).unwrap());
        assert!(keys.windows(2).all(|pair| pair[0] > pair[1]), "{keys:?}");
    }
}
