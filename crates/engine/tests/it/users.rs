//! Users, addresses and preferences, and how the expansion reads them; on both databases.

use postcommit_channel::model::{Actor, QuietHours};
use postcommit_engine::store::{
    AuditFilter, EditError, PreferenceDraft, UserAddress, UserChange, UserDraft, UserFilter,
};
use serde_json::json;

use crate::world::World;

pub fn address(kind: &str, to: &str) -> UserAddress {
    UserAddress { kind: kind.into(), address: to.into(), verified_at: None, disabled_reason: None }
}

pub fn user(addresses: &[(&str, &str)]) -> UserDraft {
    UserDraft { addresses: addresses.iter().map(|(kind, to)| address(kind, to)).collect(), ..UserDraft::default() }
}

fn preference(event_type: &str, channel: &str, allowed: Option<bool>) -> PreferenceDraft {
    PreferenceDraft { event_type: event_type.into(), channel: channel.into(), allowed }
}

/// A user with all fields set.
fn ada() -> UserDraft {
    UserDraft {
        name: Some("Ada".into()),
        language: Some("pt-BR".into()),
        time_zone: Some("Asia/Kolkata".into()),
        quiet_hours: Some(QuietHours { from: "22:00".into(), until: "07:00".into() }),
        data: json!({"room": 7, "vip": true}),
        addresses: vec![
            UserAddress { disabled_reason: Some("bounced".into()), ..address("email", "old@example.com") },
            UserAddress {
                verified_at: Some("2026-03-01T10:00:00.123456Z".parse().unwrap()),
                ..address("email", "Ada@example.com")
            },
            address("email", "third@example.com"),
            address("phone", "+919876543210"),
        ],
    }
}

async fn actions(world: &World) -> Vec<(String, String, String)> {
    let entries = world
        .store
        .audit_rows(&AuditFilter { tenant: Some(world.tenant), limit: 100, ..AuditFilter::default() })
        .await
        .unwrap();
    entries
        .into_iter()
        .rev()
        .filter(|entry| entry.actor == "cli:ada")
        .map(|entry| (entry.action, entry.subject, entry.details.unwrap_or_default().to_string()))
        .collect()
}

on_both! {
    async fn users_are_found_by_id_name_and_address(world) {
        for (id, name, to) in [("g-1", Some("Ada Lovelace"), "ada@example.com"), ("g-2", Some("50 %"), "Bob@Example.com"), ("x_3", None, "+919876543210"), ("y", Some("Élodie"), "+33123456789")] {
            let kind = if to.starts_with('+') { "phone" } else { "email" };
            let draft = UserDraft { name: name.map(str::to_owned), ..user(&[(kind, to)]) };
            world.store.create_user(world.tenant, id, &draft).await.unwrap();
        }
        let search = async |text: &str, after: Option<&str>, limit: i64| {
            let after = after.map(|id| (world.tenant, id.to_owned()));
            let filter = UserFilter { tenant: Some(world.tenant), after, limit };
            let found = world.store.search_users(&filter, text).await.unwrap();
            (found.rows.into_iter().map(|row| row.id).collect::<Vec<_>>(), found.more.map(|(_, id)| id))
        };
        for (text, ids) in [
            ("G-", vec!["g-1", "g-2"]),
            ("LOVE", vec!["g-1"]),
            ("%", vec!["g-2"]),
            ("_", vec!["x_3"]),
            ("ADA@example.com", vec!["g-1"]),
            ("bob@example.com", vec!["g-2"]),
            ("+919876543210", vec!["x_3"]),
            ("example", vec![]),
            ("Élodie", vec!["y"]),
        ] {
            assert_eq!(search(text, None, 10).await, (ids.into_iter().map(str::to_owned).collect(), None), "{text}");
        }
        assert_eq!(search("g-", None, 1).await, (vec!["g-1".to_owned()], Some("g-1".to_owned())));
        assert_eq!(search("g-", Some("g-1"), 1).await, (vec!["g-2".to_owned()], None));
    }

    async fn b10_a_user_is_created_read_changed_and_deleted(world) {
        let store = world.store.by(Actor::new("cli:ada"));
        let made = store.create_user(world.tenant, "42", &ada()).await.unwrap();
        assert_eq!((made.user.clone(), made.revision, made.tenant.as_str(), made.id.as_str()), (ada(), 1, "default", "42"));
        assert_eq!(store.user_row(world.tenant, "42").await.unwrap(), Some(made.clone()));
        assert!(matches!(store.create_user(world.tenant, "42", &ada()).await, Err(EditError::Exists { .. })));
        let change = UserChange { name: Some(None), addresses: Some(vec![address("phone", "+14155550100")]), ..UserChange::default() };
        let changed = store.update_user(world.tenant, "42", Some(1), &change).await.unwrap();
        let expected = UserDraft { name: None, addresses: vec![address("phone", "+14155550100")], ..ada() };
        assert_eq!((changed.user, changed.revision, changed.created_at), (expected.clone(), 2, made.created_at));
        let unchanged = store.update_user(world.tenant, "42", Some(2), &change).await.unwrap();
        assert_eq!(unchanged.revision, 2, "a change of nothing writes nothing");
        let outdated = store.update_user(world.tenant, "42", Some(1), &UserChange::default()).await.unwrap_err();
        assert_eq!(outdated.to_string(), r#"user "42" has revision 2 by now, not 1; read it again, and send the change for that revision"#);
        store.delete_user(world.tenant, "42").await.unwrap();
        assert_eq!(store.user_row(world.tenant, "42").await.unwrap(), None);
        assert!(world.sql("SELECT 1 FROM postcommit.user_address", vec![]).await.is_empty());
        assert_eq!(store.delete_user(world.tenant, "42").await.unwrap_err().to_string(), r#"there is no user "42""#);
        let written: Vec<String> = actions(&world).await.into_iter().map(|(action, subject, details)| format!("{action} {subject} {details}")).collect();
        assert_eq!(written, [r#"user.create 42 {"addresses":4}"#, r#"user.update 42 {"fields":["name","addresses"]}"#, "user.delete 42 null"]);
    }

    async fn a_user_is_replaced_or_created_by_its_id(world) {
        let (made, is_new) = world.store.put_user(world.tenant, "7", None, &ada()).await.unwrap();
        assert_eq!((is_new, made.revision), (true, 1));
        let (kept, is_new) = world.store.put_user(world.tenant, "7", None, &ada()).await.unwrap();
        assert_eq!((is_new, kept.revision), (false, 1));
        let (replaced, is_new) = world.store.put_user(world.tenant, "7", Some(1), &UserDraft::default()).await.unwrap();
        assert_eq!((is_new, replaced.revision, replaced.user), (false, 2, UserDraft::default()));
        assert!(matches!(world.store.put_user(world.tenant, "7", Some(1), &ada()).await, Err(EditError::Outdated { .. })));
        assert!(matches!(world.store.put_user(world.tenant, "8", Some(1), &ada()).await, Err(EditError::Unknown { .. })));
    }

    async fn concurrent_changes_of_different_fields_are_all_kept(world) {
        world.store.create_user(world.tenant, "7", &UserDraft::default()).await.unwrap();
        let set = |change: UserChange| {
            let store = world.store.clone();
            async move { store.update_user(world.tenant, "7", None, &change).await.unwrap() }
        };
        let name = set(UserChange { name: Some(Some("Ada".into())), ..UserChange::default() });
        let language = set(UserChange { language: Some(Some("en".into())), ..UserChange::default() });
        let addresses = set(UserChange { addresses: Some(vec![address("email", "a@example.com")]), ..UserChange::default() });
        tokio::join!(name, language, addresses);
        let user = world.store.user_row(world.tenant, "7").await.unwrap().unwrap();
        let expected = UserDraft { name: Some("Ada".into()), language: Some("en".into()), ..user_with_mail() };
        assert_eq!((user.user, user.revision), (expected, 4));
    }

    async fn c7_addresses_are_checked_by_kind_and_kept_byte_for_byte(world) {
        let made = world.store.create_user(world.tenant, "1", &user(&[("phone", "+919876543210")])).await.unwrap();
        assert_eq!(made.user.addresses[0].address, "+919876543210");
        let refused: [(&str, &str, &str); 8] = [
            ("phone", "919876543210", "addresses[0].address: is not a phone number in E.164"),
            ("phone", "+91 98765 43210", "addresses[0].address: is not a phone number in E.164"),
            ("email", "ada", "addresses[0].address: is not a mail address"),
            ("email", "a@example.com\r\nBcc: b@example.com", "addresses[0].address: holds '\\r'"),
            ("slack", "ftp://example.com", "addresses[0].address: must be an absolute URL"),
            ("webhook", "", "addresses[0].address: has 0 bytes"),
            ("fax", "+919876543210", "addresses[0].kind: is \"fax\"; allowed are email, phone, slack, teams, webhook, push, web_push"),
            ("user", "7", "addresses[0].kind: is \"user\""),
        ];
        for (kind, to, problem) in refused {
            let said = world.store.create_user(world.tenant, "2", &user(&[(kind, to)])).await.unwrap_err().to_string();
            assert!(said.starts_with(problem), "{kind} {to:?}: {said}");
        }
        let twice = user(&[("email", "a@example.com"), ("email", "a@example.com")]);
        assert_eq!(world.store.create_user(world.tenant, "2", &twice).await.unwrap_err().to_string(), "addresses[1].address: is given twice; give each address once");
        assert_eq!(world.store.user_row(world.tenant, "2").await.unwrap(), None);
    }

    async fn every_limit_of_a_user_is_named(world) {
        let many: Vec<(String, String)> = (0..21).map(|n| ("email".to_owned(), format!("a{n}@example.com"))).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(kind, to)| (kind.as_str(), to.as_str())).collect();
        let drafts = [
            (UserDraft { name: Some("x".repeat(256)), ..UserDraft::default() }, "name: has 256 characters; 1 to 255 are allowed"),
            (UserDraft { name: Some("a\nb".into()), ..UserDraft::default() }, "name: holds '\\n'; control characters are not allowed"),
            (UserDraft { language: Some("english".into()), ..UserDraft::default() }, "language: \"english\" is not a language tag; write one such as en or pt-BR"),
            (UserDraft { time_zone: Some("Mars/Olympus".into()), ..UserDraft::default() }, "time_zone: \"Mars/Olympus\" is not a time zone; write one such as Asia/Kolkata"),
            (UserDraft { time_zone: Some("Mars Base".into()), ..UserDraft::default() }, "time_zone: \"Mars Base\" is not a time zone; write one such as Asia/Kolkata"),
            (UserDraft { time_zone: Some("Mars/Base".into()), ..UserDraft::default() }, "time_zone: \"Mars/Base\" is not a time zone; write one such as Asia/Kolkata"),
            (UserDraft { quiet_hours: Some(QuietHours { from: "22".into(), until: "07:00".into() }), ..UserDraft::default() }, "quiet_hours.from: \"22\" is not a time of day; write one such as 22:00"),
            (UserDraft { data: json!([]), ..UserDraft::default() }, "data: must be an object"),
            (UserDraft { data: json!({"a": "x".repeat(2048)}), ..UserDraft::default() }, "data: has 2057 bytes; at most 2048 are allowed"),
            (UserDraft { data: json!({"a": "\0"}), ..UserDraft::default() }, "data: holds NUL (\\u0000), which is not allowed"),
            (user(&many), "addresses: has 21 entries; at most 20 are allowed"),
        ];
        for (draft, problem) in drafts {
            assert_eq!(world.store.create_user(world.tenant, "1", &draft).await.unwrap_err().to_string(), problem);
        }
        for id in ["", "a\u{7}b", "a/../b", &"x".repeat(256)] {
            assert!(world.store.create_user(world.tenant, id, &UserDraft::default()).await.unwrap_err().to_string().starts_with("id: "), "{id:?}");
        }
        world.store.create_user(world.tenant, &"é".repeat(255), &user(&many[..20])).await.unwrap();
        world.store.create_user(world.tenant, "full", &UserDraft { data: json!({"a": "x".repeat(2039)}), ..UserDraft::default() }).await.unwrap();
    }

    async fn pages_of_users_go_by_tenant_and_id(world) {
        let other = world.store.create_tenant("other").await.unwrap();
        for (tenant, id) in [(world.tenant, "c"), (world.tenant, "a"), (other, "b"), (world.tenant, "b")] {
            world.store.create_user(tenant, id, &user(&[("email", "a@example.com")])).await.unwrap();
        }
        let all = UserFilter { tenant: None, after: None, limit: 3 };
        let first = world.store.user_rows(&all).await.unwrap();
        assert_eq!(first.iter().map(|user| user.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(first[1].user.addresses.len(), 1);
        let after = Some((first[2].tenant_id, first[2].id.clone()));
        let rest = world.store.user_rows(&UserFilter { after, ..all }).await.unwrap();
        assert_eq!(rest.iter().map(|user| (user.tenant.as_str(), user.id.as_str())).collect::<Vec<_>>(), [("other", "b")]);
        let own = world.store.of_tenant(other).user_rows(&UserFilter { tenant: Some(other), after: None, limit: 10 }).await.unwrap();
        assert_eq!(own.len(), 1);
        assert_eq!(world.store.of_tenant(other).user_row(world.tenant, "a").await.unwrap().is_some(), world.store.db().kind() == "sqlite", "the second wall is PostgreSQL's");
    }

    async fn b10_preferences_are_set_replaced_and_removed(world) {
        let store = world.store.by(Actor::new("cli:ada"));
        store.set_preferences(world.tenant, "42", &[preference("*", "sms", Some(false)), preference("order.paid", "*", Some(true))]).await.unwrap();
        let read = |rows: Vec<postcommit_engine::store::PreferenceRow>| rows.into_iter().map(|row| (row.event_type, row.channel, row.allowed)).collect::<Vec<_>>();
        let first = store.preferences(world.tenant, "42").await.unwrap();
        assert!(first.iter().all(|row| row.updated_by == "cli:ada"));
        world.store.set_preferences(world.tenant, "42", &[preference("*", "sms", Some(false)), preference("order.paid", "*", None), preference("*", "email", Some(false))]).await.unwrap();
        let second = store.preferences(world.tenant, "42").await.unwrap();
        assert_eq!(read(second.clone()), [("*".into(), "email".into(), false), ("*".into(), "sms".into(), false)]);
        assert_eq!(second[1], first[0], "what stays the same keeps its time and author");
        store.replace_preferences(world.tenant, "42", &[preference("*", "email", Some(true)), preference("*", "sms", Some(false))]).await.unwrap();
        assert_eq!(read(store.preferences(world.tenant, "42").await.unwrap()), [("*".into(), "email".into(), true), ("*".into(), "sms".into(), false)]);
        store.replace_preferences(world.tenant, "42", &[]).await.unwrap();
        assert_eq!(store.preferences(world.tenant, "42").await.unwrap(), []);
        assert_eq!(actions(&world).await.len(), 3);
        let refused = [
            (preference("", "*", Some(true)), "preferences[0].event_type: has 0 characters; 1 to 255 are allowed"),
            (preference("*", "a b", Some(true)), "preferences[0].channel: holds ' '; letters, digits, '_', '-' and '.' are allowed, or '*' for all"),
        ];
        for (one, problem) in refused {
            assert_eq!(store.set_preferences(world.tenant, "42", &[one]).await.unwrap_err().to_string(), problem);
        }
        let many: Vec<_> = (0..500).map(|n| preference(&format!("e{n}"), "*", Some(true))).collect();
        store.replace_preferences(world.tenant, "42", &many).await.unwrap();
        let said = store.set_preferences(world.tenant, "42", &[preference("more", "*", Some(true))]).await.unwrap_err().to_string();
        assert!(said.starts_with("preferences: the user would have 501; at most 500 are allowed"), "{said}");
    }

    async fn b10_the_expansion_reads_users_of_several_tenants_in_three_queries(world) {
        let other = world.store.create_tenant("other").await.unwrap();
        world.store.create_user(world.tenant, "42", &ada()).await.unwrap();
        world.store.create_user(other, "42", &user(&[("slack", "https://hooks.example.com/T1")])).await.unwrap();
        world.store.set_preferences(world.tenant, "42", &[preference("*", "sms", Some(false))]).await.unwrap();
        world.store.set_preferences(world.tenant, "no profile", &[preference("*", "*", Some(false))]).await.unwrap();
        let asked: Vec<(i32, String)> = (0..500).map(|n| (world.tenant, format!("nobody {n}")))
            .chain([(world.tenant, "42".into()), (other, "42".into()), (world.tenant, "no profile".into()), (other, "no profile".into())]).collect();
        let before = world.store.db().trips().statements;
        let known = world.store.users_by_id(&asked).await.unwrap();
        assert_eq!(world.store.db().trips().statements - before, 3);
        assert_eq!(known.len(), 3);
        let one = &known[&(world.tenant, "42".into())];
        assert_eq!(one.addresses, [("email".into(), "Ada@example.com".into()), ("phone".into(), "+919876543210".into())].into());
        let profile = one.profile.clone().unwrap();
        assert_eq!((profile.name.as_deref(), profile.language.as_deref(), profile.time_zone.as_deref(), profile.data), (Some("Ada"), Some("pt-BR"), Some("Asia/Kolkata"), json!({"room": 7, "vip": true})));
        assert!(!one.allows("order.paid", "sms") && one.allows("order.paid", "email"));
        assert_eq!(known[&(other, "42".into())].addresses, [("slack".into(), "https://hooks.example.com/T1".into())].into());
        let without = &known[&(world.tenant, "no profile".into())];
        assert!(without.profile.is_none() && !without.allows("order.paid", "in_app"));
        assert!(world.store.users_by_id(&[]).await.unwrap().is_empty());
    }
}

fn user_with_mail() -> UserDraft {
    user(&[("email", "a@example.com")])
}
