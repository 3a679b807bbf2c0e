//! Signing in: links that work once, sessions that end, on both databases.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Scope, Scopes};
use postcommit_engine::store::{Login, csrf_token};

use crate::keys::draft;
use crate::world::World;

const HOUR: Duration = Duration::from_secs(3600);

fn login(world: &World) -> Login {
    Login {
        tenant: world.tenant,
        key_id: None,
        actor: "login:ada".into(),
        scopes: Scopes::from_names(&["operate"]).unwrap(),
    }
}

fn past() -> Timestamp {
    Timestamp::from_micros(1_000_000)
}

on_both! {
    async fn a_link_signs_in_once_even_when_many_try(world) {
        let link = world.store.create_login_link(&login(&world), HOUR).await.unwrap();
        let tries = (0..8).map(|_| {
            let (url, link) = (world.url.clone(), link.clone());
            tokio::spawn(async move {
                let store = postcommit_engine::store::Store::open(&url).await.unwrap();
                store.redeem_login_link(link.reveal(), HOUR).await.unwrap()
            })
        });
        let mut signed_in = Vec::new();
        for one in tries.collect::<Vec<_>>() {
            signed_in.extend(one.await.unwrap());
        }
        assert_eq!((signed_in.len(), world.count("session").await), (1, 1));
        let session = world.store.find_session(signed_in[0].token.reveal()).await.unwrap().unwrap();
        assert_eq!((&session.login, session.tenant_name.as_str(), session.suspended), (&login(&world), "default", false));
        assert!(session.login.scopes.allows(Scope::Read) && !session.login.scopes.allows(Scope::Admin));
        let stored = format!("{:?}", world.sql("SELECT * FROM postcommit.session", vec![]).await);
        assert!(!stored.contains(signed_in[0].token.reveal()) && !stored.contains(signed_in[0].csrf.reveal()) && !format!("{signed_in:?}").contains(signed_in[0].token.reveal()));
    }

    async fn an_expired_or_invented_link_does_not_sign_in(world) {
        let link = world.store.create_login_link(&login(&world), HOUR).await.unwrap();
        world.execute("UPDATE postcommit.login_link SET expires_at = $1", vec![past().into()]).await;
        for token in [link.reveal(), "", "made up", &"A".repeat(43)] {
            assert!(world.store.redeem_login_link(token, HOUR).await.unwrap().is_none(), "{token}");
        }
        assert_eq!((world.count("session").await, world.count("login_link").await), (0, 1));
        assert_eq!((world.store.purge_sessions_once().await.unwrap(), world.count("login_link").await), (1, 0));
    }

    async fn a_person_is_listed_once_per_session_and_signed_out_everywhere(world) {
        let (ada, bob) = (login(&world), Login { actor: "login:bob".into(), ..login(&world) });
        let mut tokens = Vec::new();
        for login in [&ada, &ada, &bob] {
            tokens.push(world.store.create_session(login, HOUR).await.unwrap().token);
        }
        let link = world.store.create_login_link(&ada, HOUR).await.unwrap();
        let listed = async |tenant, actor| -> Vec<String> {
            let rows = world.store.session_rows(tenant, actor, 100).await.unwrap();
            let mut actors: Vec<String> = rows.into_iter().map(|row| row.login.actor).collect();
            actors.sort();
            actors
        };
        assert_eq!(listed(Some(world.tenant), None).await, ["login:ada", "login:ada", "login:bob"]);
        assert_eq!(listed(None, Some("login:bob")).await, ["login:bob"]);
        assert_eq!(world.store.session_rows(None, None, 2).await.unwrap().len(), 2, "no more than the limit");
        let other = world.store.create_tenant("other").await.unwrap();
        assert!(listed(Some(other), None).await.is_empty());
        assert!(!world.store.sign_out(other, "login:ada").await.unwrap(), "another tenant's person stays");
        assert!(world.store.of_tenant(world.tenant).sign_out(world.tenant, "login:ada").await.unwrap());
        assert_eq!(listed(None, None).await, ["login:bob"]);
        assert!(world.store.find_session(tokens[0].reveal()).await.unwrap().is_none());
        assert!(world.store.find_session(tokens[2].reveal()).await.unwrap().is_some());
        assert!(world.store.redeem_login_link(link.reveal(), HOUR).await.unwrap().is_none(), "an unused link is void");
        assert!(!world.store.sign_out(world.tenant, "login:ada").await.unwrap());
    }

    async fn a_session_ends_with_its_key(world) {
        let key = world.store.create_key(world.tenant, &draft("a", &["admin"])).await.unwrap();
        let by_key = Login { key_id: Some(key.id.clone()), ..login(&world) };
        let (used, unused) = (world.store.create_login_link(&by_key, HOUR).await.unwrap(), world.store.create_login_link(&by_key, HOUR).await.unwrap());
        let session = world.store.redeem_login_link(used.reveal(), HOUR).await.unwrap().unwrap();
        assert!(world.store.find_session(session.token.reveal()).await.unwrap().is_some());
        world.execute("UPDATE postcommit.api_key SET expires_at = $1", vec![past().into()]).await;
        assert!(world.store.find_session(session.token.reveal()).await.unwrap().is_none(), "the key expired");
        world.execute("UPDATE postcommit.api_key SET expires_at = NULL", vec![]).await;
        assert!(world.store.find_session(session.token.reveal()).await.unwrap().is_some());
        world.store.revoke_key(world.tenant, &key.id).await.unwrap();
        assert!(world.store.find_session(session.token.reveal()).await.unwrap().is_none(), "the key was revoked");
        assert!(world.store.redeem_login_link(unused.reveal(), HOUR).await.unwrap().is_none());
    }

    async fn a_session_is_renewed_and_ends(world) {
        let new = world.store.create_session(&login(&world), HOUR).await.unwrap();
        let token = new.token.reveal();
        let look = async || world.store.find_session(token).await.unwrap();
        let begun = look().await.unwrap();
        world.store.renew_session(token, 10 * HOUR).await.unwrap();
        assert_eq!(look().await.unwrap().expires_at, begun.expires_at, "not within the first minute");
        world.execute("UPDATE postcommit.session SET last_seen_at = $1", vec![past().into()]).await;
        world.store.renew_session(token, 10 * HOUR).await.unwrap();
        let renewed = look().await.unwrap();
        assert!(renewed.expires_at >= begun.expires_at.plus(8 * HOUR) && renewed.last_seen_at >= begun.last_seen_at);
        // A session that began long ago: no renewal goes beyond 30 days after its start.
        world.execute("UPDATE postcommit.session SET created_at = $1, last_seen_at = $1", vec![past().into()]).await;
        world.store.renew_session(token, 10 * HOUR).await.unwrap();
        assert!(look().await.is_none() && world.count("session").await == 1);
        // It is known for a day, so that its token is not taken for a guess.
        let knew = async || world.store.knew_session(token).await.unwrap();
        let expire = async |at: Timestamp| { world.execute("UPDATE postcommit.session SET expires_at = $1", vec![at.into()]).await; };
        let hours_ago = |hours: i64, now: Timestamp| Timestamp::from_micros(now.as_micros() - hours * 3_600_000_000);
        expire(hours_ago(23, world.store.now().await.unwrap())).await;
        assert_eq!((knew().await, world.store.purge_sessions_once().await.unwrap()), (true, 0));
        expire(hours_ago(25, world.store.now().await.unwrap())).await;
        assert_eq!((world.store.purge_sessions_once().await.unwrap(), world.count("session").await), (1, 0));
        assert!(!knew().await && !world.store.knew_session("nonsense").await.unwrap());
        let other = world.store.create_session(&login(&world), HOUR).await.unwrap();
        assert!(world.store.end_session(other.token.reveal()).await.unwrap());
        assert!(!world.store.end_session(other.token.reveal()).await.unwrap());
        assert!(world.store.find_session(other.token.reveal()).await.unwrap().is_none());
    }

    async fn forms_carry_a_token_of_their_own(world) {
        let (new, other) = (world.store.create_session(&login(&world), HOUR).await.unwrap(), world.store.create_session(&login(&world), HOUR).await.unwrap());
        let session = world.store.find_session(new.token.reveal()).await.unwrap().unwrap();
        assert!(session.accepts_csrf(new.csrf.reveal()));
        assert!(session.accepts_csrf(csrf_token(new.token.reveal()).unwrap().reveal()), "a page finds it again");
        for wrong in [other.csrf.reveal(), new.token.reveal(), "", "x"] {
            assert!(!session.accepts_csrf(wrong));
        }
        assert!(world.store.find_session(new.csrf.reveal()).await.unwrap().is_none(), "a CSRF token does not sign in");
    }

    async fn expired_links_and_sessions_are_deleted_by_the_duties(world) {
        world.store.create_session(&login(&world), HOUR).await.unwrap();
        world.execute("UPDATE postcommit.session SET expires_at = $1", vec![past().into()]).await;
        world.store.create_session(&login(&world), HOUR).await.unwrap();
        postcommit_engine::dispatch::run_duties_once(&world.store, &postcommit_engine::store::KpiSettings::default()).await.unwrap();
        assert_eq!(world.count("session").await, 1);
    }
}
