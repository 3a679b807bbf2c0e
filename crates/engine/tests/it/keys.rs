//! API keys: created once, found by their token, refused with a reason; on both databases.

use std::collections::BTreeSet;

use postcommit::Timestamp;
use postcommit_channel::model::{Actor, Scope, Scopes};
use postcommit_engine::store::{KeyDraft, KeyError, KeyFilter};

use crate::world::World;

pub fn draft(name: &str, scopes: &[&str]) -> KeyDraft {
    KeyDraft { name: name.into(), scopes: Scopes::from_names(scopes).unwrap(), expires_at: None }
}

fn far() -> Timestamp {
    "2099-01-01T00:00:00Z".parse().unwrap()
}

fn past() -> Timestamp {
    Timestamp::from_micros(1_000_000)
}

async fn refusal(world: &World, token: &str) -> String {
    world.store.find_key(token).await.unwrap_err().to_string()
}

on_both! {
    async fn a_key_is_found_by_its_token_and_its_secret_is_not_stored(world) {
        assert!(!world.store.any_key().await.unwrap());
        let made = world.store.by(Actor::new("cli:ada")).create_key(world.tenant, &draft("deploy", &["enqueue", "operate"])).await.unwrap();
        let token = made.token.reveal();
        let parts: Vec<&str> = token.splitn(3, '_').collect();
        assert_eq!((parts[0], parts[1], parts[2].len()), ("pc", made.id.as_str(), 43), "base64url of 32 bytes");
        let key = world.store.find_key(token).await.unwrap();
        assert_eq!((key.tenant, key.tenant_name.as_str(), key.name.as_str(), key.created_by.as_str()), (world.tenant, "default", "deploy", "cli:ada"));
        assert!(key.scopes.allows(Scope::Read) && !key.scopes.allows(Scope::Edit) && !key.suspended);
        assert!(world.store.any_key().await.unwrap());
        let row = world.sql("SELECT * FROM postcommit.api_key", vec![]).await.remove(0);
        assert!(!format!("{row:?}").contains(parts[2]) && !format!("{made:?}").contains(parts[2]));
    }

    async fn a_guessed_token_learns_nothing_and_a_valid_secret_learns_the_reason(world) {
        let made = world.store.create_key(world.tenant, &draft("a", &["read"])).await.unwrap();
        let other = world.store.create_key(world.tenant, &draft("b", &["read"])).await.unwrap();
        let (token, secret) = (made.token.reveal(), other.token.reveal().splitn(3, '_').last().unwrap());
        for wrong in ["", "pc", "pc__", "pc_a", "nonsense", &format!("pc_{}_", made.id), &format!("pc_{}_{secret}", made.id), &format!("xx{}", &token[2..]), &format!("pc_0000000000000000_{secret}")] {
            assert_eq!(refusal(&world, wrong).await, "the API key is not known; check it, or create another key", "{wrong}");
        }
        let expiring = world.store.create_key(world.tenant, &KeyDraft { expires_at: Some(far()), ..draft("c", &["read"]) }).await.unwrap();
        world.store.find_key(expiring.token.reveal()).await.unwrap();
        world.execute("UPDATE postcommit.api_key SET expires_at = $1 WHERE id = $2", vec![past().into(), expiring.id.as_str().into()]).await;
        assert!(matches!(world.store.find_key(expiring.token.reveal()).await, Err(KeyError::Expired(at)) if at == past()));
        assert!(world.store.revoke_key(world.tenant, &made.id).await.unwrap());
        assert!(!world.store.revoke_key(world.tenant, &made.id).await.unwrap(), "once");
        assert!(refusal(&world, token).await.starts_with("the API key was revoked at "));
        assert_eq!(refusal(&world, &format!("pc_{}_{secret}", made.id)).await, "the API key is not known; check it, or create another key");
        assert!(world.store.any_key().await.unwrap(), "the other one");
        world.store.revoke_key(world.tenant, &other.id).await.unwrap();
        assert!(!world.store.any_key().await.unwrap(), "neither a revoked nor an expired one counts");
    }

    async fn c15_a_tenant_lists_and_revokes_its_own_keys_alone(world) {
        let acme = world.store.create_tenant("acme").await.unwrap();
        let made = world.store.create_key(acme, &draft("acme's", &["admin"])).await.unwrap();
        assert!(!world.store.revoke_key(world.tenant, &made.id).await.unwrap());
        assert!(world.store.key_row(Some(world.tenant), &made.id).await.unwrap().is_none());
        assert_eq!(world.store.key_row(Some(acme), &made.id).await.unwrap().unwrap().name, "acme's");
        assert_eq!(world.store.key_row(None, &made.id).await.unwrap().unwrap().tenant_name, "acme");
        assert!(world.store.key_rows(&KeyFilter { tenant: Some(world.tenant), limit: 10, ..KeyFilter::default() }).await.unwrap().is_empty());
        world.store.find_key(made.token.reveal()).await.unwrap();
    }

    async fn pages_of_keys_hold_each_once(world) {
        let mut made = BTreeSet::new();
        for i in 0..7 {
            made.insert(world.store.create_key(world.tenant, &draft(&format!("k{i}"), &["read"])).await.unwrap().id);
        }
        // All keys have the same time, so the id decides the order.
        world.execute("UPDATE postcommit.api_key SET created_at = $1 WHERE name <> 'k6'", vec![past().into()]).await;
        let (mut seen, mut filter) = (Vec::new(), KeyFilter { tenant: Some(world.tenant), before: None, limit: 3 });
        loop {
            let page = world.store.key_rows(&filter).await.unwrap();
            let Some(last) = page.last() else { break };
            filter.before = Some((last.created_at, last.id.clone()));
            seen.extend(page.into_iter().map(|key| (key.name, key.id)));
        }
        assert_eq!(seen[0].0, "k6", "newest first");
        assert_eq!((seen.len(), seen.into_iter().map(|(_, id)| id).collect::<BTreeSet<_>>()), (7, made));
    }

    async fn the_last_use_is_recorded_once_a_minute(world) {
        let (a, b) = (world.store.create_key(world.tenant, &draft("a", &["read"])).await.unwrap(), world.store.create_key(world.tenant, &draft("b", &["read"])).await.unwrap());
        let used = async |id: &str| world.store.key_row(None, id).await.unwrap().unwrap().last_used_at;
        assert_eq!(used(&a.id).await, None);
        world.store.note_keys_used(&[a.id.clone(), a.id.clone()]).await.unwrap();
        let first = used(&a.id).await.unwrap();
        assert_eq!(used(&b.id).await, None);
        world.store.note_keys_used(&[a.id.clone(), b.id.clone()]).await.unwrap();
        assert_eq!(used(&a.id).await, Some(first), "within the minute");
        assert!(used(&b.id).await.is_some());
        world.execute("UPDATE postcommit.api_key SET last_used_at = $1", vec![past().into()]).await;
        world.store.note_keys_used(std::slice::from_ref(&a.id)).await.unwrap();
        assert!(used(&a.id).await.unwrap() >= first);
        assert_eq!(used(&b.id).await, Some(past()));
        world.store.note_keys_used(&[]).await.unwrap();
    }

    async fn a_value_beyond_a_limit_is_refused_with_its_field(world) {
        let refused = async |draft: KeyDraft| world.store.create_key(world.tenant, &draft).await.unwrap_err().to_string();
        assert_eq!(refused(draft("", &["read"])).await, "name: has 0 characters; 1 to 255 are allowed, and no line breaks");
        assert!(refused(draft(&"ä".repeat(256), &["read"])).await.starts_with("name: has 256 characters"));
        assert!(refused(draft("a\nb", &["read"])).await.contains("no line breaks"));
        assert!(refused(KeyDraft { scopes: Scopes::default(), ..draft("a", &["read"]) }).await.starts_with("scopes: at least one is needed"));
        assert!(refused(KeyDraft { expires_at: Some(past()), ..draft("a", &["read"]) }).await.starts_with("expires_at: is 1970-01-01"));
        world.store.create_key(world.tenant, &draft(&"ä".repeat(255), &["read"])).await.unwrap();
        assert_eq!(world.count("api_key").await, 1);
    }
}
