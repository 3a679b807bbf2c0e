//! The audit log: each change and its entry are one transaction, on both databases.

use postcommit_channel::model::Actor;
use postcommit_engine::store::{AuditEntry, AuditFilter, AuditRow, Mark};
use postcommit_engine::user_token;
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use crate::keys::draft;
use crate::store::claim;
use crate::world::World;

async fn log(world: &World) -> Vec<AuditRow> {
    let mut rows = world.store.audit_rows(&AuditFilter { limit: 200, ..AuditFilter::default() }).await.unwrap();
    rows.reverse();
    rows
}

async fn told(world: &World) -> Vec<String> {
    log(world).await.into_iter().map(|row| format!("{} {} {}", row.actor, row.action, row.subject)).collect()
}

on_both! {
    async fn every_change_is_logged_with_its_actor(world) {
        let ada = world.store.by(Actor::new("cli:ada").by_request("r1"));
        let mut draft_of = world.draft("capture", "capture", json!({"fail_on": "permanent=a"}));
        ada.create_provider(world.tenant, &draft_of).await.unwrap();
        let lane = world.store.provider(world.tenant, "capture").await.unwrap().unwrap().id;
        let (one, two) = (world.enqueue("a", json!({})).await, world.enqueue("a", json!({})).await);
        world.pass().await;
        ada.retry(world.key(one, 1)).await.unwrap();
        ada.discard(world.key(two, 1)).await.unwrap();
        ada.cancel_delivery(world.key(one, 1)).await.unwrap();
        draft_of.settings = json!({});
        ada.update_provider(&world.change(&draft_of).await).await.unwrap();
        ada.pause_lane(lane, None, "by hand").await.unwrap();
        ada.resume_lane(lane).await.unwrap();
        ada.delete_provider(world.tenant, "capture").await.unwrap();
        let key = ada.create_key(world.tenant, &draft("k", &["read"])).await.unwrap();
        ada.revoke_key(world.tenant, &key.id).await.unwrap();
        let acme = ada.create_tenant("acme").await.unwrap();
        ada.suspend_tenant(acme, "unpaid").await.unwrap();
        ada.resume_tenant(acme).await.unwrap();
        let expected = [
            "provider.create capture".into(), format!("delivery.retry {one}.1"), format!("delivery.discard {two}.1"), format!("delivery.cancel {one}.1"),
            "provider.update capture".into(), "provider.pause capture".into(), "provider.resume capture".into(), "provider.delete capture".into(),
            format!("key.create {}", key.id), format!("key.revoke {}", key.id), "tenant.create acme".into(), "tenant.suspend acme".into(), "tenant.resume acme".into(),
        ].map(|line: String| format!("cli:ada {line}"));
        assert_eq!(told(&world).await, expected);
        let rows = log(&world).await;
        assert!(rows.iter().all(|row| row.request_id.as_deref() == Some("r1") && row.count == 1));
        assert_eq!((rows[5].details.clone().unwrap(), rows[5].tenant.as_str()), (json!({"reason": "by hand"}), "default"));
        assert_eq!((rows[11].details.clone().unwrap(), rows[11].tenant.as_str()), (json!({"reason": "unpaid"}), "acme"));
        assert!(!format!("{rows:?}").contains(key.token.reveal().splitn(3, '_').last().unwrap()));
    }

    async fn a_bulk_cancel_is_logged_with_its_filter_and_count(world) {
        world.capture(json!({})).await;
        let one = world.enqueue("a", json!({"entity": "7"})).await;
        assert_eq!(claim(&world.store, -world.tenant, 10).await.len(), 1);
        let two = world.enqueue("a", json!({"entity": "7"})).await;
        let ada = world.store.by(Actor::new("cli:ada"));
        assert_eq!(ada.cancel_notification(Some(world.tenant), one).await.unwrap(), Some((0, 1)), "it is under way");
        assert_eq!(ada.cancel_entity(world.tenant, "7", Some("b")).await.unwrap(), (0, 0));
        assert_eq!(ada.cancel_entity(world.tenant, "7", Some("a")).await.unwrap(), (1, 1));
        let rows: Vec<AuditRow> = log(&world).await.into_iter().filter(|row| row.actor == "cli:ada").collect();
        let told: Vec<_> = rows.iter().map(|row| (row.action.as_str(), row.subject.clone(), row.count)).collect();
        let expected = [("notification.cancel", one.to_string(), 1), ("entity.cancel", "7".into(), 2), ("delivery.cancel", format!("{two}.0"), 1)];
        assert_eq!(told, expected);
        assert_eq!((&rows[0].details, &rows[1].details), (&None, &Some(json!({"event_type": "a"}))));
    }

    async fn an_operator_s_inbox_marks_and_tokens_are_logged_but_not_a_user_s_own_marks(world) {
        world.capture(json!({})).await;
        let ids = [world.deliver("alice", "one").await, world.deliver("alice", "two").await, world.deliver("alice", "three").await];
        let before = world.count("audit").await;
        let alice = world.store.by(Actor::user("alice"));
        for mark in [Mark::Read, Mark::Archive, Mark::Unarchive, Mark::Unread] {
            assert!(alice.mark_message(world.tenant, "alice", ids[0], mark).await.unwrap());
        }
        assert_eq!(alice.mark_all_read(world.tenant, "alice", 1).await.unwrap(), 1);
        assert_eq!(world.count("audit").await, before);
        let ada = world.store.by(Actor::new("key:ada"));
        assert!(ada.mark_message(world.tenant, "alice", ids[1], Mark::Archive).await.unwrap());
        assert!(ada.mark_message(world.tenant, "alice", ids[1], Mark::Archive).await.unwrap(), "once more changes nothing");
        assert!(ada.mark_message(world.tenant, "alice", ids[0], Mark::Unread).await.unwrap());
        assert_eq!(ada.mark_all_read(world.tenant, "alice", i64::MAX).await.unwrap(), 2);
        assert_eq!(ada.mark_all_read(world.tenant, "alice", i64::MAX).await.unwrap(), 0);
        user_token::mint(&ada, world.tenant, "alice", user_token::DEFAULT_TTL).await.unwrap();
        let rows: Vec<AuditRow> = log(&world).await.into_iter().filter(|row| row.actor == "key:ada").collect();
        let told: Vec<_> = rows.iter().map(|row| (row.action.as_str(), row.subject.clone(), row.count)).collect();
        let expected = [
            ("message.archive", ids[1].to_string(), 1),
            ("message.unread", ids[0].to_string(), 1),
            ("inbox.read_all", "alice".into(), 2),
            ("user_token.create", "alice".into(), 1),
        ];
        assert_eq!(told, expected);
        assert_eq!((&rows[0].details, &rows[2].details), (&Some(json!({"user": "alice"})), &Some(json!({"up_to": i64::MAX}))));
    }

    async fn an_action_that_changed_nothing_is_not_logged(world) {
        let lane = world.capture(json!({})).await;
        let id = world.enqueue("a", json!({})).await;
        world.pass().await;
        let before = world.count("audit").await;
        let key = world.key(id, 1);
        assert!(!world.store.retry(key).await.unwrap() && !world.store.discard(key).await.unwrap() && !world.store.cancel_delivery(key).await.unwrap());
        let mut stale = world.change(&world.draft("capture", "capture", json!({"slow_ms": 1}))).await;
        stale.from.revision += 1;
        assert!(!world.store.update_provider(&stale).await.unwrap());
        assert_eq!(world.store.delete_provider(world.tenant, "none").await.unwrap(), None);
        assert!(!world.store.pause_lane(lane, Some(99), "stale").await.unwrap() && !world.store.resume_lane(lane + 1).await.unwrap());
        assert!(!world.store.resume_lane(lane).await.unwrap(), "it is open");
        assert!(!world.store.revoke_key(world.tenant, "none").await.unwrap());
        assert!(world.store.create_tenant("default").await.is_err());
        assert!(!world.store.suspend_tenant(99, "who?").await.unwrap() && !world.store.resume_tenant(world.tenant).await.unwrap());
        assert_eq!(world.count("audit").await, before);
    }

    async fn a_refused_change_leaves_no_entry_and_without_an_entry_nothing_is_changed(world) {
        world.capture(json!({})).await;
        let before = world.count("audit").await;
        assert!(!world.store.create_provider(world.tenant, &world.draft("capture", "capture", json!({}))).await.unwrap(), "the name is taken");
        assert_eq!(world.count("audit").await, before);
        // When the log cannot be written, nothing is changed.
        world.execute("ALTER TABLE postcommit.audit RENAME TO away", vec![]).await;
        assert!(world.store.create_key(world.tenant, &draft("k", &["read"])).await.is_err());
        assert!(world.store.create_tenant("acme").await.is_err());
        assert_eq!((world.count("api_key").await, world.count("tenant").await), (0, 1));
    }

    async fn a_dispatcher_s_own_pause_is_the_system_s(world) {
        let server = HttpServer::start(|_| Reply::status(401));
        world.provider(world.draft("hooks", "webhook", json!({}))).await;
        world.enqueue("a", json!({"recipients": [{"webhook": server.url("/")}]})).await;
        world.pass().await;
        assert_eq!(told(&world).await.last().unwrap(), "system provider.pause hooks");
    }

    async fn c15_the_log_is_read_by_tenant_actor_action_and_time_in_pages(world) {
        let acme = world.store.create_tenant("acme").await.unwrap();
        for i in 0..5 {
            let by = world.store.by(Actor::new(if i % 2 == 0 { "key:even" } else { "key:odd" }));
            by.note(AuditEntry::new(acme, "deliveries.retry", format!("job {i}")).details(json!({"state": "parked"})).count(i)).await.unwrap();
        }
        let list = async |filter: AuditFilter| {
            let rows = world.store.audit_rows(&AuditFilter { limit: 200, ..filter }).await.unwrap();
            rows.into_iter().map(|row| row.subject).collect::<Vec<_>>()
        };
        assert_eq!(list(AuditFilter { tenant: Some(world.tenant), ..AuditFilter::default() }).await, Vec::<String>::new());
        assert_eq!(list(AuditFilter { tenant: Some(acme), ..AuditFilter::default() }).await.len(), 6);
        assert_eq!(list(AuditFilter { actor: Some("key:odd".into()), ..AuditFilter::default() }).await, ["job 3", "job 1"]);
        assert_eq!(list(AuditFilter { tenant: Some(acme), action: Some("tenant.create".into()), ..AuditFilter::default() }).await, ["acme"]);
        let all = log(&world).await;
        assert_eq!((all[4].count, all[4].details.clone()), (3, Some(json!({"state": "parked"}))));
        let page = world.store.audit_rows(&AuditFilter { before: Some(all[2].id), limit: 1, ..AuditFilter::default() }).await.unwrap();
        assert_eq!(page.iter().map(|row| row.id).collect::<Vec<_>>(), [all[1].id]);
        let last = all.last().unwrap().at;
        assert!(list(AuditFilter { until: Some(all[0].at), ..AuditFilter::default() }).await.is_empty());
        assert!(list(AuditFilter { from: Some(last), ..AuditFilter::default() }).await.contains(&"job 4".to_owned()));
        assert!(world.store.db().execute_one("UPDATE postcommit.audit SET actor = 'nobody'", vec![]).await.unwrap_err().to_string().contains("append-only"));
    }
}
