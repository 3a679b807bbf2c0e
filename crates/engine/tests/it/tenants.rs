//! Tenants: created, listed, suspended; on both databases. Nothing of a suspended tenant is sent, and it delays no
//! other tenant.

use std::collections::BTreeSet;

use postcommit::Notification;
use postcommit_channel::model::Guarantee;
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::{DeliveryRow, TenantError};
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

/// Creates a tenant with a capture provider of its own, in addition to the default tenant's.
async fn acme(world: &World, guarantee: Guarantee) -> i32 {
    let acme = world.store.create_tenant("acme").await.unwrap();
    let mut draft = world.draft("capture", "capture", json!({}));
    draft.guarantee = guarantee;
    world.store.create_provider(acme, &draft).await.unwrap();
    world.capture(json!({})).await;
    acme
}

async fn enqueue_for(world: &World, tenant: &str, recipients: usize) -> Uuid {
    let to: Vec<_> = (0..recipients).map(|i| json!({"email": format!("guest{i}@example.com")})).collect();
    let note: Notification =
        serde_json::from_value(json!({"event_type": "a", "tenant": tenant, "recipients": to})).unwrap();
    world.store.enqueue(&note).await.unwrap()
}

async fn states(world: &World, id: Uuid) -> BTreeSet<String> {
    world.deliveries(id).await.into_iter().map(|row: DeliveryRow| row.state).collect()
}

async fn are(world: &World, ids: &[Uuid], state: &str) -> bool {
    for id in ids {
        if states(world, *id).await != BTreeSet::from([state.to_owned()]) {
            return false;
        }
    }
    true
}

on_both! {
    async fn a_name_is_held_to_its_limit_and_given_once(world) {
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(64)] {
            let said = world.store.create_tenant(bad).await.unwrap_err().to_string();
            assert!(said.contains("name: ") && said.contains("1 to 63 letters"), "{said}");
        }
        let longest = "x".repeat(63);
        let id = world.store.create_tenant(&longest).await.unwrap();
        assert_eq!(world.store.tenant(&longest).await.unwrap(), Some(id));
        assert!(matches!(world.store.create_tenant(&longest).await, Err(TenantError::Taken(name)) if name == longest));
        assert_eq!(world.store.tenant_or_new("new").await.unwrap(), world.store.tenant_or_new("new").await.unwrap());
    }

    async fn pages_of_tenants_are_in_order(world) {
        for name in ["delta", "alpha", "gamma", "beta"] {
            world.store.create_tenant(name).await.unwrap();
        }
        let (mut seen, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = world.store.tenant_rows(after.as_deref(), 2).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            seen.extend(page.into_iter().map(|tenant| tenant.name));
        }
        assert_eq!(seen, ["alpha", "beta", "default", "delta", "gamma"]);
    }

    async fn b4_c15_nothing_of_a_suspended_tenant_is_sent_and_a_resume_goes_on(world) {
        let acme = acme(&world, Guarantee::Idempotent).await;
        // One is sent from its own row, the other is expanded.
        let before = [enqueue_for(&world, "acme", 1).await, enqueue_for(&world, "acme", 2).await];
        assert!(world.store.suspend_tenant(acme, "unpaid").await.unwrap());
        assert!(!world.store.suspend_tenant(acme, "again").await.unwrap(), "it keeps its reason");
        let row = world.store.tenant_row(acme).await.unwrap().unwrap();
        assert_eq!((row.suspended_reason.as_deref(), row.suspended_at.is_some()), (Some("unpaid"), true));
        let after = [enqueue_for(&world, "acme", 1).await, enqueue_for(&world, "acme", 2).await];
        let others = [enqueue_for(&world, "default", 1).await, enqueue_for(&world, "default", 2).await];
        for _ in 0..2 {
            world.pass().await;
        }
        assert!(are(&world, &others, "sent").await, "the suspended tenant delays no other");
        assert!(are(&world, &before, "pending").await && are(&world, &after, "pending").await);
        assert!(world.store.attempts(acme, before[0]).await.unwrap().is_empty());
        // A manual pass for one of them sends neither.
        let mut dispatcher = Dispatcher::new(world.tools(world.another_store().await)).await.unwrap();
        dispatcher.pass(Some((acme, before[0]))).await.unwrap();
        dispatcher.pass(Some((acme, after[1]))).await.unwrap();
        assert!(are(&world, &before, "pending").await && are(&world, &after, "pending").await);
        assert_eq!(world.store.queue_health().await.unwrap().oldest_due_s, 0, "what is suspended is not late");
        assert!(world.store.resume_tenant(acme).await.unwrap() && !world.store.resume_tenant(acme).await.unwrap());
        world.pass().await;
        assert!(are(&world, &before, "sent").await && are(&world, &after, "sent").await);
        assert_eq!(world.count("delivery_queue").await, 0);
        assert_eq!(world.store.attempts(acme, before[1]).await.unwrap().len(), 2, "each once");
    }

    async fn a_running_dispatcher_notices_a_suspension_with_its_next_claim(world) {
        for guarantee in [Guarantee::AtMostOnce, Guarantee::Idempotent] {
            world.execute("DELETE FROM postcommit.provider", vec![]).await;
            world.execute("DELETE FROM postcommit.tenant WHERE name = 'acme'", vec![]).await;
            let acme = acme(&world, guarantee).await;
            // The dispatcher has read the providers, and reads them again only when a claim reports a change.
            let mut dispatcher = Dispatcher::new(world.tools(world.another_store().await)).await.unwrap();
            world.store.suspend_tenant(acme, "unpaid").await.unwrap();
            let held = enqueue_for(&world, "acme", 1).await;
            dispatcher.pass(None).await.unwrap();
            assert!(are(&world, &[held], "pending").await, "{guarantee:?}");
            world.store.resume_tenant(acme).await.unwrap();
            let next = enqueue_for(&world, "acme", 1).await;
            dispatcher.pass(None).await.unwrap();
            assert!(are(&world, &[held, next], "sent").await, "{guarantee:?}");
        }
    }

    async fn retries_of_a_suspended_tenant_wait_as_well(world) {
        let server = HttpServer::start(|request| if request.n == 1 { Reply::status(503) } else { Reply::ok() });
        world.provider(world.draft("hooks", "webhook", json!({}))).await;
        let running = world.run().await;
        let id = world.enqueue("a", json!({"recipients": [{"webhook": server.url("/")}]})).await;
        world.until("it waits", async || world.delivery(id).await.state == "retrying").await;
        world.store.suspend_tenant(world.tenant, "unpaid").await.unwrap();
        world.make_due().await;
        // A later notification of another tenant shows that the dispatcher has claimed since.
        let other = world.store.create_tenant("other").await.unwrap();
        world.store.create_provider(other, &world.draft("capture", "capture", json!({}))).await.unwrap();
        let seen = enqueue_for(&world, "other", 1).await;
        world.until("the other is sent", async || are(&world, &[seen], "sent").await).await;
        assert_eq!((world.delivery(id).await.state.as_str(), server.requests().len()), ("retrying", 1));
        world.store.resume_tenant(world.tenant).await.unwrap();
        world.drained().await;
        assert_eq!((world.delivery(id).await.state.as_str(), server.requests().len()), ("sent", 2));
        running.finish().await;
    }

    async fn b4_a_suspended_tenant_s_application_may_enqueue_and_its_keys_are_its_own(world) {
        world.store.suspend_tenant(world.tenant, "unpaid").await.unwrap();
        let first = world.enqueue_by_sql("a", "[]").await;
        let note = |tenant: &str| -> Notification { serde_json::from_value(json!({"event_type": "b", "tenant": tenant, "idempotency_key": "by-sql"})).unwrap() };
        let other = world.store.enqueue(&note("acme")).await.unwrap();
        assert_ne!(first, other, "the same key is another one in another tenant");
        assert_eq!((world.store.enqueue(&note("acme")).await.unwrap(), world.count("key_conflict").await), (other, 0));
        assert_eq!(world.sql("SELECT 1 FROM postcommit.notification WHERE tenant IS NULL", vec![]).await.len(), 0);
        let refused = world.store.suspend_tenant(world.tenant, "").await.unwrap_err().to_string();
        assert_eq!(refused, "reason: has 0 characters; 1 to 255 are allowed");
    }
}
