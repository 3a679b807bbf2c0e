//! Concurrent changes of providers: nothing is lost, a channel has one default, the number per tenant is limited; on
//! both databases.

use std::time::Duration;

use futures_util::future::join_all;
use postcommit_channel::model::{PROVIDERS, ProviderDraft};
use postcommit_engine::db::Db;
use serde_json::json;
use tokio::task::JoinSet;

use crate::world::World;

impl World {
    /// A provider of channel `sms` that is not the default.
    fn texts(&self, name: &str) -> ProviderDraft {
        ProviderDraft { channel: "sms".into(), is_default: false, ..self.draft(name, "capture", json!({})) }
    }

    /// The defaults of channel `sms`.
    async fn defaults(&self) -> Vec<String> {
        let all = self.store.providers_of(self.tenant).await.unwrap();
        all.into_iter()
            .filter(|provider| provider.channel == "sms" && provider.is_default)
            .map(|provider| provider.draft.name)
            .collect()
    }
}

/// A named pipe without a reader: opening it to write blocks forever.
fn pipe() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe").to_str().unwrap().to_owned();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    (folder, path)
}

on_both! {
    async fn a_journal_that_is_a_pipe_pauses_only_its_own_lane(world) {
        let (_folder, path) = pipe();
        let stuck = ProviderDraft { channel: "sms".into(), ..world.draft("stuck", "capture", json!({"journal": path})) };
        world.provider(stuck).await;
        world.capture(json!({})).await;
        let (journalled, mail) = (world.enqueue("a", json!({"recipients": [{"provider": "stuck", "address": "x"}]})).await, world.enqueue("a", json!({})).await);
        world.pass().await;
        let row = world.delivery(journalled).await;
        assert_eq!((row.state.as_str(), row.error_code.as_deref()), ("parked", Some("capture_journal")), "{row:?}");
        assert_eq!(world.delivery(mail).await.state, "sent");
        let lane = world.store.provider(world.tenant, "stuck").await.unwrap().unwrap();
        assert_eq!(lane.paused.as_deref(), Some("capture_journal: settings.journal: is not a regular file"));
    }

    async fn a_concurrent_change_is_not_overwritten(world) {
        world.provider(ProviderDraft { is_default: true, ..world.texts("first") }).await;
        world.provider(world.texts("second")).await;
        let (mine, theirs) = (ProviderDraft { is_default: true, ..world.texts("second") }, ProviderDraft { concurrency: 3, ..world.texts("second") });
        let (mine, theirs) = (world.change(&mine).await, world.change(&theirs).await);
        assert!(world.store.update_provider(&theirs).await.unwrap());
        assert!(!world.store.update_provider(&mine).await.unwrap(), "it was made for what is no longer there");
        let now = world.store.provider(world.tenant, "second").await.unwrap().unwrap();
        assert_eq!((now.concurrency, now.revision, now.is_default), (3, 2, false));
        assert_eq!(world.defaults().await, ["first"], "the loser of a race does not become the default");
    }

    async fn a_default_that_stays_the_default_never_loses_the_role_in_between(world) {
        let rerouted = world.store.providers_version().await.unwrap().1;
        world.provider(ProviderDraft { is_default: true, ..world.texts("first") }).await;
        assert_eq!(world.store.providers_version().await.unwrap().1, rerouted, "before the first there was none to send by");
        world.provider(world.texts("second")).await;
        let rerouted = world.store.providers_version().await.unwrap().1;
        world.update(&ProviderDraft { is_default: true, concurrency: 3, ..world.texts("first") }).await;
        assert_eq!(world.store.providers_version().await.unwrap().1, rerouted, "nothing is sent another way");
        // A default that moves to another channel becomes the default of that channel, and its former channel has none.
        world.update(&ProviderDraft { is_default: true, channel: "push".into(), ..world.texts("first") }).await;
        assert_eq!(world.defaults().await, Vec::<String>::new());
        world.update(&ProviderDraft { is_default: true, ..world.texts("second") }).await;
        world.update(&ProviderDraft { is_default: true, ..world.texts("first") }).await;
        assert_eq!(world.defaults().await, ["first"]);
        assert_eq!(world.store.provider(world.tenant, "second").await.unwrap().unwrap().revision, 3, "stepping down is a change");
    }

    async fn of_many_concurrent_new_defaults_the_last_one_wins(world) {
        let names: Vec<String> = (0..25).map(|n| format!("p{n}")).collect();
        for name in &names {
            world.provider(world.texts(name)).await;
        }
        let become_default = names.iter().map(async |name| {
            let draft = ProviderDraft { is_default: true, ..world.texts(name) };
            // Losing the default is a change as well, so a loser reads its provider again.
            while !world.store.update_provider(&world.change(&draft).await).await.unwrap() {}
        });
        let made_default = (0..25).map(async |n| {
            let draft = ProviderDraft { is_default: true, ..world.texts(&format!("new{n}")) };
            assert!(world.store.create_provider(world.tenant, &draft).await.unwrap());
        });
        tokio::join!(join_all(become_default), join_all(made_default));
        assert_eq!(world.defaults().await.len(), 1);
        let last = "SELECT subject \
            FROM postcommit.audit \
            WHERE action IN ('provider.create', 'provider.update') \
            ORDER BY id DESC \
            LIMIT 1";
        assert_eq!(world.defaults().await[0], world.sql(last, vec![]).await[0].get::<String>(0).unwrap());
    }

    async fn a_default_changes_while_its_lane_is_paused_without_a_deadlock(world) {
        let lanes = [world.provider(world.texts("one")).await, world.provider(world.texts("two")).await];
        let become_default = ["one", "two"].map(async |name| {
            let draft = ProviderDraft { is_default: true, ..world.texts(name) };
            for _ in 0..100 {
                world.store.update_provider(&world.change(&draft).await).await.unwrap();
            }
        });
        // A dispatcher changes the same rows in the meantime.
        let paused = lanes.map(async |lane| {
            for _ in 0..100 {
                world.store.pause_lane(lane, None, "by hand").await.unwrap();
                world.store.hold_lane(lane, None, Duration::from_secs(60)).await.unwrap();
                world.store.resume_lane(lane).await.unwrap();
            }
        });
        tokio::join!(join_all(become_default), join_all(paused));
        assert_eq!(world.defaults().await.len(), 1);
    }

    async fn of_many_concurrent_first_providers_one_is_the_default_and_the_others_fail(world) {
        let made = join_all((0..25).map(async |n| {
            let draft = ProviderDraft { is_default: true, ..world.texts(&format!("p{n}")) };
            world.store.create_first_provider(world.tenant, &draft).await.unwrap()
        }));
        assert_eq!(made.await.into_iter().filter(|made| *made).count(), 1);
        assert_eq!((world.defaults().await.len(), world.count("provider").await), (1, 1));
    }

    async fn concurrent_creation_keeps_the_limit_of_providers_per_tenant(world) {
        world.provider(ProviderDraft { is_default: true, ..world.texts("first") }).await;
        let draft = |n: usize| ProviderDraft { channel: "push".into(), ..world.texts(&format!("p{n}")) };
        let make = async |n: usize| world.store.create_provider(world.tenant, &draft(n)).await.unwrap();
        for n in 6..PROVIDERS {
            assert!(make(n).await);
        }
        let made = join_all((PROVIDERS..PROVIDERS + 20).map(make)).await;
        assert_eq!(made.into_iter().filter(|made| *made).count(), 5);
        let one_more = ProviderDraft { is_default: true, ..world.texts("one-more") };
        assert!(!world.store.create_provider(world.tenant, &one_more).await.unwrap(), "there are {PROVIDERS}");
        assert_eq!(world.defaults().await, ["first"], "a provider that was not created is not the default");
        assert!(world.store.create_provider(world.store.tenant_or_new("other").await.unwrap(), &world.texts("p0")).await.unwrap(), "each tenant has its own");
        // The inbox provider is created in any case.
        world.make_in_app().await;
        assert_eq!(world.store.providers_of(world.tenant).await.unwrap().len(), PROVIDERS + 1);
    }
}

/// Another session holds a lock on a provider's row, for example in psql. Changes of that provider wait; everything
/// else continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_provider_delays_only_its_own_changes() {
    let world = World::postgres().await;
    world.capture(json!({})).await;
    let change = world.change(&ProviderDraft { concurrency: 3, ..world.draft("capture", "capture", json!({})) }).await;
    let outside = world.another_store().await;
    let Db::Postgres(outside) = outside.db() else { unreachable!() };
    let mut client = outside.client().await.unwrap();
    let open = client.transaction().await.unwrap();
    open.batch_execute("SELECT 1 FROM postcommit.provider FOR UPDATE").await.unwrap();
    let mut changes = JoinSet::new();
    for _ in 0..20 {
        let (store, change) = (world.store.clone(), change.clone());
        changes.spawn(async move { store.update_provider(&change).await });
    }
    for _ in 0..50 {
        world.store.now().await.unwrap();
    }
    assert!(changes.try_join_next().is_none(), "the other changes did not wait for them");
    open.batch_execute("ROLLBACK").await.unwrap();
    let changed = changes.join_all().await.into_iter().filter(|changed| matches!(changed, Ok(true))).count();
    assert_eq!(changed, 1, "and one of them was first");
}
