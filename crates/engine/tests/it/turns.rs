//! Tenants take turns: the backlog of one tenant does not delay another, and due work that no claim asked for is found.

use std::collections::BTreeSet;

use postcommit_engine::dispatch::DispatchSettings;
use postcommit_engine::store::{ProviderChanges, Search, Want};
use serde_json::json;

use crate::store::LEASE;
use crate::world::World;

/// Enqueues `count` notifications for a tenant with one statement.
async fn enqueue(world: &World, tenant: &str, count: u32) {
    let key = uuid::Uuid::new_v4();
    let to = r#"[{"email": "guest@example.com"}]"#;
    let sql = match world.is_postgres() {
        true => format!(
            "DO $do$ BEGIN PERFORM postcommit.enqueue('turns', '{{}}', '{key}:' || g, tenant => '{tenant}', recipients => '{to}') FROM generate_series(1, {count}) g; END $do$"
        ),
        false => format!(
            "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, tenant, recipients)
             WITH RECURSIVE g (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM g WHERE x < {count}) SELECT 'turns', '{{}}', '{key}:' || x, '{tenant}', '{to}' FROM g"
        ),
    };
    world.execute(&sql, vec![]).await;
}

/// A tenant with a provider without limits.
async fn tenant(world: &World, name: &str) -> i32 {
    let tenant = world.store.tenant_or_new(name).await.unwrap();
    let mut draft = world.draft("capture", "capture", json!({"record": false}));
    draft.concurrency = 1000;
    assert!(world.store.create_provider(tenant, &draft).await.unwrap());
    tenant
}

async fn number(world: &World, sql: &str) -> i64 {
    world.sql(sql, vec![]).await[0].get(0).unwrap()
}

/// A search through all lanes, for up to `quota` rows.
fn search_all(quota: i32, visits: i32) -> Search {
    Search { between: vec![(i32::MIN, 0), (0, i32::MAX)], around: vec![], visits, quota, each: quota.max(1) }
}

on_both! {
    /// Formerly all rows were sorted by priority and time: the last one enqueued was the last to be sent.
    async fn a_single_notification_does_not_wait_for_another_tenant_s_backlog(world) {
        let mut world = world;
        world.settings = DispatchSettings { batch: 50, ..world.settings };
        tenant(&world, "default").await;
        let small = tenant(&world, "small").await;
        enqueue(&world, "default", 2000).await;
        enqueue(&world, "small", 1).await;
        world.pass().await;
        assert_eq!(world.count("delivery_ledger").await, 2001);
        let before = format!("SELECT count(*) \
            FROM postcommit.attempt \
            WHERE at < (SELECT max(at) FROM postcommit.attempt WHERE tenant = {small})");
        let before = number(&world, &before).await;
        assert!(before < 1000, "{before} of another were sent before it");
    }

    async fn tenants_get_their_share_by_weight(world) {
        let mut world = world;
        world.settings = DispatchSettings { batch: 40, ..world.settings };
        let (heavy, light) = (tenant(&world, "heavy").await, tenant(&world, "light").await);
        assert!(world.store.weigh_tenant(heavy, 3).await.unwrap() && !world.store.weigh_tenant(heavy, 3).await.unwrap());
        assert_eq!(world.store.tenant_row(heavy).await.unwrap().unwrap().weight, 3);
        for weight in [0, 101] {
            assert!(world.store.weigh_tenant(light, weight).await.unwrap_err().to_string().contains("1 to 100"));
        }
        enqueue(&world, "light", 1200).await;
        enqueue(&world, "heavy", 1200).await;
        world.pass().await;
        let sql = format!("SELECT count(*) \
            FROM (SELECT tenant FROM postcommit.attempt ORDER BY at LIMIT 800) first \
            WHERE tenant = {heavy}");
        let of_heavy = number(&world, &sql).await;
        assert!((520..=680).contains(&of_heavy), "{of_heavy} of the first 800, 600 would be its share");
    }

    /// Without a provider the deliveries are parked: only the order matters here.
    async fn of_a_thousand_tenants_none_starves(world) {
        for large in 0..6 {
            enqueue(&world, &format!("large-{large}"), 1000).await;
        }
        let (name, now) = match world.is_postgres() {
            true => ("'small-' || g", "DO $do$ BEGIN PERFORM postcommit.enqueue('turns', '{}', 'k', tenant => {name}) FROM generate_series(1, 1000) g; END $do$"),
            false => ("'small-' || x", "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, tenant)
                WITH RECURSIVE g (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM g WHERE x < 1000) SELECT 'turns', '{}', 'k', {name} FROM g"),
        };
        world.execute(&now.replace("{name}", name), vec![]).await;
        world.pass().await;
        assert_eq!((world.count("delivery_ledger").await, world.count("delivery_queue").await), (7000, 0));
        let last = "SELECT max(l.finished_at) \
            FROM postcommit.delivery_ledger l \
            JOIN postcommit.tenant t ON t.id = l.tenant \
            WHERE t.name LIKE 'small-%'";
        let before = number(&world, &format!("SELECT count(*) FROM postcommit.delivery_ledger WHERE finished_at < ({last})")).await;
        assert!(before < 5000, "the last of those that had one came after {before} of 7,000");
    }

    /// A search claims notifications that are not expanded, by priority within a tenant, and reports open lanes of
    /// providers.
    async fn a_search_finds_lanes_that_are_due_and_open(world) {
        let mut lanes = vec![];
        for name in ["open", "paused", "held", "limited", "empty"] {
            let mut draft = world.draft(name, "capture", json!({}));
            draft.rate_per_s = (name == "limited").then_some(1.0);
            lanes.push(world.provider(draft).await);
        }
        let [open, paused, held, limited, _] = lanes[..] else { panic!() };
        let suspended = tenant(&world, "suspended").await;
        let of_suspended = world.store.provider(suspended, "capture").await.unwrap().unwrap().id;
        for lane in [open, paused, held, limited, of_suspended] {
            let whose = if lane == of_suspended { suspended } else { world.tenant };
            let sql = format!("INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at) \
                VALUES ({whose}, $1, 1, {lane}, 5, {{now}})");
            world.execute(&sql, vec![uuid::Uuid::new_v4().into()]).await;
        }
        world.store.pause_lane(paused, None, "test").await.unwrap();
        world.store.hold_lane(held, None, std::time::Duration::from_secs(600)).await.unwrap();
        world.store.suspend_tenant(suspended, "unpaid").await.unwrap();
        for priority in [3, 9, 5] {
            world.enqueue("turns", json!({"priority": priority})).await;
        }
        world.enqueue("later", json!({"due_at": "2100-01-01T00:00:00Z", "tenant": "patient"})).await;
        let found = world.store.claim_and_search(&[], &search_all(2, 100), LEASE, None).await.unwrap();
        let mut priorities: Vec<i16> = found.deliveries.iter().map(|delivery| delivery.priority).collect();
        priorities.sort_unstable();
        assert_eq!(priorities, [5, 9], "as much as there is room for, the highest first");
        assert_eq!(found.searched.lanes.iter().copied().collect::<BTreeSet<_>>(), [open, limited].into());
        assert_eq!(found.searched.reached.iter().copied().collect::<BTreeSet<_>>(), [(0, 0), (i32::MAX, i32::MAX)].into());
        // One claim asks for lanes and searches; lanes that are left out of the search are not found.
        let around = Search { around: vec![-world.tenant, open], ..search_all(5, 100) };
        let found = world.store.claim_and_search(&[Want { lane: open, quota: 5 }], &around, LEASE, None).await.unwrap();
        assert_eq!((found.deliveries.len(), found.searched.lanes), (1, vec![limited]));
        let found = world.store.claim_and_search(&[], &search_all(5, 100), LEASE, None).await.unwrap();
        assert_eq!((found.deliveries.len(), found.deliveries[0].priority, found.searched.lanes), (1, 3, vec![limited]), "what is under way is not told");
    }

    async fn a_search_in_pieces_continues_at_its_position(world) {
        for number in 0..40 {
            enqueue(&world, &format!("t{number}"), 1).await;
        }
        let (mut after, mut pieces, mut claimed) = (i32::MIN, 0, BTreeSet::new());
        while after < 0 {
            let search = Search { between: vec![(after, 0)], ..search_all(100, 16) };
            let found = world.store.claim_and_search(&[], &search, LEASE, None).await.unwrap();
            assert!(found.deliveries.len() <= 16);
            assert_eq!((found.searched.lanes.len(), found.searched.reached.len()), (0, 1));
            claimed.extend(found.deliveries.iter().map(|delivery| delivery.lane));
            after = found.searched.reached[0].1;
            pieces += 1;
        }
        assert_eq!((claimed.len(), pieces), (40, 3));
    }

    /// A dispatcher reads only the changed providers.
    async fn changes_of_providers_are_reported_one_by_one(world) {
        let store = &world.store;
        let names = |changes: &ProviderChanges| changes.providers.iter().map(|provider| provider.name.clone()).collect::<Vec<_>>();
        let (one, other) = (world.provider(world.draft("one", "capture", json!({}))).await, tenant(&world, "other").await);
        let all = store.provider_changes(None).await.unwrap();
        assert_eq!((all.is_all, names(&all)), (true, vec!["one".to_owned(), "capture".into()]));
        let nothing = store.provider_changes(Some(all.version)).await.unwrap();
        assert!(!nothing.is_all && nothing.providers.is_empty() && nothing.gone.is_empty() && nothing.weights.is_empty());

        world.provider(world.draft("two", "capture", json!({}))).await;
        let more = store.provider_changes(Some(all.version)).await.unwrap();
        assert_eq!(names(&more), ["one", "two"], "the new default, and the one before it");
        store.hold_lane(one, None, std::time::Duration::from_secs(60)).await.unwrap();
        let held = store.provider_changes(Some(more.version)).await.unwrap();
        assert_eq!((names(&held), held.version), (vec!["one".to_owned()], more.version + 1));
        store.hold_lane(one, None, std::time::Duration::from_secs(1)).await.unwrap();
        assert_eq!(store.provider_changes(Some(held.version)).await.unwrap().version, held.version, "a shorter hold changes nothing");

        assert_eq!(store.delete_provider(world.tenant, "one").await.unwrap(), Some(0));
        let gone = store.provider_changes(Some(held.version)).await.unwrap();
        assert_eq!((names(&gone), gone.gone), (vec![], vec![one]));
        store.suspend_tenant(other, "unpaid").await.unwrap();
        let suspended = store.provider_changes(Some(gone.version)).await.unwrap();
        assert!(suspended.providers.len() == 1 && suspended.providers[0].tenant == other && suspended.providers[0].suspended);
        store.resume_tenant(other).await.unwrap();
        store.weigh_tenant(world.tenant, 7).await.unwrap();
        let resumed = store.provider_changes(Some(suspended.version)).await.unwrap();
        assert!(resumed.providers.iter().all(|provider| !provider.suspended) && resumed.providers.len() == 2, "of whom something is new");
        assert!(resumed.weights.contains(&(world.tenant, 7)), "{:?}", resumed.weights);

        for elsewhere in [resumed.version + 1, resumed.version - 200_000] {
            let all = store.provider_changes(Some(elsewhere)).await.unwrap();
            assert_eq!((all.is_all, all.providers.len(), all.weights), (true, 2, vec![(world.tenant, 7)]), "it knows nothing of that");
        }
    }

    /// The changes are made by another process while the dispatcher runs.
    async fn a_running_dispatcher_notices_new_deleted_and_paused_providers(world) {
        world.provider(world.draft("first", "capture", json!({}))).await;
        let running = world.run().await;
        let other = world.another_store().await;
        let provider_of = async |id| world.attempts(id).await.remove(0).provider;
        let id = world.enqueue("a", json!({})).await;
        world.drained().await;
        assert_eq!(provider_of(id).await.as_deref(), Some("first"));
        assert!(other.create_provider(world.tenant, &world.draft("second", "capture", json!({}))).await.unwrap());
        assert_eq!(other.delete_provider(world.tenant, "first").await.unwrap(), Some(0));
        let id = world.enqueue("b", json!({})).await;
        world.drained().await;
        assert_eq!(provider_of(id).await.as_deref(), Some("second"));
        assert!(other.suspend_tenant(world.tenant, "unpaid").await.unwrap());
        let id = world.enqueue("c", json!({})).await;
        world.until("it waits in its lane", async || world.delivery(id).await.n == 1).await;
        assert_eq!(world.delivery(id).await.attempts, 0);
        assert!(other.resume_tenant(world.tenant).await.unwrap());
        world.drained().await;
        assert_eq!(world.delivery(id).await.state, "sent");
        running.finish().await;
    }
}
