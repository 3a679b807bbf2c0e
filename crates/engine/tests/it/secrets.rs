//! Providers whose secrets a process cannot open.

use std::collections::BTreeMap;

use postcommit_channel::model::ProviderChange;
use postcommit_channel::secret::{KeySource, Keyring, Secret, Secrets};
use postcommit_engine::store::{SealedWith, Store};
use serde_json::json;

use crate::world::World;

const WRONG: &str = "they were encrypted with another key than the server's secrets.key";
const PASS_MISSING: &str =
    "the pass cannot read its key, secrets.key_file (reported by `postcommit dispatch --once` at ";

fn secrets() -> Secrets {
    [("secret".to_owned(), Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))].into()
}

/// A webhook provider with a secret that is sealed with the world's key.
async fn hooks(world: &World) -> i32 {
    let mut draft = world.draft("hooks", "webhook", json!({}));
    draft.secrets = Some(world.keys.or_new().unwrap().seal(&secrets(), world.tenant, "hooks"));
    world.provider(draft).await
}

fn another_key() -> KeySource {
    KeySource::Given(Secret::new("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="))
}

async fn closed(store: &Store) -> BTreeMap<i32, String> {
    store.unopened(None).await.unwrap().into_iter().map(|(lane, not)| (lane, not.reason)).collect()
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

async fn counted(world: &World, store: &Store) -> i64 {
    let (tenant, minute) = (Some(world.tenant), std::time::Duration::from_secs(60));
    let shut = store.kpis(tenant, None, minute, minute).await.unwrap().shut;
    assert_eq!(shut, store.count_closed(tenant).await.unwrap());
    shut.lanes_unopened
}

on_both! {
    async fn a_lane_is_closed_when_no_worker_can_open_its_secrets(world) {
        let mut world = world;
        let lane = hooks(&world).await;
        let right = std::mem::replace(&mut world.keys, another_key());
        let wrong = world.run().await;
        world.until("the worker has said so", async || !closed(&world.store).await.is_empty()).await;
        assert_eq!(closed(&world.store).await, BTreeMap::from([(lane, WRONG.to_owned())]));
        // The tenant's own store shows it as well. Another tenant's store does not.
        let (own, other) = (world.store.of_tenant(world.tenant), world.store.create_tenant("acme").await.unwrap());
        assert_eq!((counted(&world, &own).await, counted(&world, &world.store).await), (1, 1));
        assert!(world.store.of_tenant(other).unopened(Some(other)).await.unwrap().is_empty());

        world.keys = right;
        let able = world.run().await;
        world.until("another worker serves the lane", async || closed(&world.store).await.is_empty()).await;
        able.finish().await;
        world.until("that worker is gone", async || !closed(&world.store).await.is_empty()).await;
        wrong.finish().await;
        assert!(closed(&world.store).await.is_empty() && world.count("unopened_secret").await == 0, "nothing is left");
    }

    async fn a_pass_says_what_it_cannot_open_until_the_next_one(world) {
        let lane = hooks(&world).await;
        let KeySource::File(file) = world.keys.clone() else { panic!("a file") };
        let away = file.with_extension("away");
        std::fs::rename(&file, &away).unwrap();
        world.pass().await;
        assert!(closed(&world.store).await.is_empty(), "one pass may be a person's, in a directory without the key");
        for _ in 0..2 {
            world.pass().await;
            let not = world.store.unopened(None).await.unwrap().remove(&lane).unwrap();
            assert!(not.reason.starts_with(PASS_MISSING), "{not:?}");
            assert_eq!(not.pass_on.as_deref(), Some(host().as_str()));
        }
        // A worker was killed some minutes ago. Reports of passes say nothing about its key.
        let killed = "INSERT INTO postcommit.duty (name, ran_at) VALUES ('worker:killed', $1)";
        let then = postcommit::Timestamp::from_micros(world.store.now().await.unwrap().as_micros() - 300_000_000);
        world.execute(killed, vec![then.into()]).await;
        assert!(closed(&world.store).await.is_empty());
        world.execute("DELETE FROM postcommit.duty WHERE name = 'worker:killed'", vec![]).await;
        assert!(!closed(&world.store).await.is_empty());
        std::fs::rename(&away, &file).unwrap();
        world.pass().await;
        assert!(closed(&world.store).await.is_empty());
    }

    async fn two_keys_that_begin_concurrently_cannot_both_seal(world) {
        assert_eq!(world.store.secret_key().await.unwrap(), None);
        let (first, second) = (world.keys.or_new().unwrap(), another_key().existing().unwrap());
        // Both keys were checked while no secret was encrypted.
        let with = |ring: &Keyring, known: Option<&Keyring>, may_follow| SealedWith {
            fingerprint: ring.fingerprint().clone(),
            known: known.map(|ring| ring.fingerprint().clone()),
            may_follow,
        };
        let begin = async |name: &str, ring: &Keyring, key: SealedWith| {
            let mut draft = world.draft(name, "webhook", json!({}));
            draft.secrets = Some(ring.seal(&secrets(), world.tenant, name));
            world.store.create_sealed_provider(world.tenant, &draft, true, &key).await.unwrap()
        };
        assert!(begin("one", &first, with(&first, None, false)).await);
        assert!(!begin("two", &second, with(&second, None, false)).await, "another key has begun");
        assert!(!begin("two", &second, with(&second, None, true)).await, "the known key has changed");
        assert!(!begin("two", &second, with(&second, Some(&first), false)).await, "a secret is sealed");
        assert_eq!(world.store.secret_key().await.unwrap().as_ref(), Some(first.fingerprint()));
        assert!(world.store.provider(world.tenant, "two").await.unwrap().is_none(), "nothing was written");

        // The key is replaced once. A write with the former key is refused as well.
        assert!(begin("two", &second, with(&second, Some(&first), true)).await);
        assert!(!begin("three", &first, with(&first, Some(&first), true)).await);
        let from = world.store.provider(world.tenant, "one").await.unwrap().unwrap();
        let change = ProviderChange { to: from.draft.clone(), from, secrets: vec!["secret".into()] };
        assert!(!world.store.update_sealed_provider(&change, &with(&first, Some(&first), true)).await.unwrap());
        assert!(world.store.update_sealed_provider(&change, &with(&second, Some(&second), true)).await.unwrap());
        assert_eq!(world.store.secret_key().await.unwrap().as_ref(), Some(second.fingerprint()));
        assert_eq!(world.count("secret_key").await, 1);
    }
}
