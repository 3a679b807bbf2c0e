//! Lists of users, addresses and other lists, and how the expansion reads their members; on both databases.

use postcommit_engine::store::{EditError, LIST_MEMBERS, ListFilter, MEMBERS_CHANGED, MemberDraft, MembersChanged};

use crate::world::World;

pub fn member(kind: &str, of: &str) -> MemberDraft {
    MemberDraft { kind: kind.into(), member: of.into(), channel: None }
}

fn on(channel: &str, kind: &str, of: &str) -> MemberDraft {
    MemberDraft { channel: Some(channel.into()), ..member(kind, of) }
}

async fn add(world: &World, list: &str, members: &[MemberDraft]) -> Result<MembersChanged, String> {
    world.store.change_members(world.tenant, list, members, &[]).await.map_err(|problem| problem.to_string())
}

async fn lists(world: &World, names: &[&str]) {
    for name in names {
        world.store.create_list(world.tenant, name, None).await.unwrap();
    }
}

/// The members of a list as the expansion reads them.
async fn flat(world: &World, list: &str) -> Vec<String> {
    let key = (world.tenant, list.to_owned());
    let found = world.store.members_of(std::slice::from_ref(&key), LIST_MEMBERS).await.unwrap();
    let said = |member: &postcommit_channel::model::ListMember| {
        format!("{} {} {}", member.kind, member.member, member.channel).trim_end().to_owned()
    };
    found[&key].members.iter().map(said).collect()
}

on_both! {
    async fn lists_tell_their_sizes_and_who_is_in_them(world) {
        lists(&world, &["a", "b", "c"]).await;
        add(&world, "b", &[member("user", "42"), member("email", "x@example.com"), member("user", "7")]).await.unwrap();
        add(&world, "c", &[member("user", "42"), member("list", "b")]).await.unwrap();
        let filter = ListFilter { tenant: Some(world.tenant), after: None, limit: 10 };
        let rows = world.store.member_list_rows(&filter).await.unwrap();
        assert_eq!(world.store.list_sizes(&rows, 100).await.unwrap(), [0, 3, 2]);
        assert_eq!(world.store.list_sizes(&rows, 2).await.unwrap(), [0, 2, 2], "no more are counted");
        assert_eq!(world.store.list_sizes(&[], 2).await.unwrap(), Vec::<i64>::new());
        assert_eq!(world.store.lists_of_user(world.tenant, "42", 10).await.unwrap(), ["b", "c"]);
        assert_eq!(world.store.lists_of_user(world.tenant, "42", 1).await.unwrap(), ["b"]);
        assert_eq!(world.store.lists_of_user(world.tenant, "x@example.com", 10).await.unwrap(), Vec::<String>::new());
    }

    async fn e4_a_list_is_created_changed_and_deleted(world) {
        let made = world.store.create_list(world.tenant, "staff", Some("Night shift")).await.unwrap();
        assert_eq!((made.name.as_str(), made.description.as_deref(), made.revision), ("staff", Some("Night shift"), 1));
        assert!(matches!(world.store.create_list(world.tenant, "staff", None).await, Err(EditError::Exists { .. })));
        let changed = world.store.update_list(world.tenant, "staff", Some(1), Some(None)).await.unwrap();
        assert_eq!((changed.description, changed.revision), (None, 2));
        assert!(matches!(world.store.update_list(world.tenant, "staff", Some(1), Some(Some("x"))).await, Err(EditError::Outdated { .. })));
        add(&world, "staff", &[member("user", "42")]).await.unwrap();
        world.store.delete_list(world.tenant, "staff").await.unwrap();
        assert!(matches!(world.store.delete_list(world.tenant, "staff").await, Err(EditError::Unknown { .. })));
        assert!(world.sql("SELECT 1 FROM postcommit.list_member", vec![]).await.is_empty());
        for name in ["", "a\nb", "..", &"x".repeat(256)] {
            assert!(world.store.create_list(world.tenant, name, None).await.unwrap_err().to_string().starts_with("name: "), "{name:?}");
        }
    }

    async fn e4_members_are_added_once_listed_and_removed(world) {
        lists(&world, &["staff", "inner"]).await;
        let all = [member("user", "42"), member("email", "a@example.com"), member("phone", "+919876543210"), on("sms", "phone", "+919876543210"), on("whatsapp", "phone", "+919876543210"), member("list", "inner"), member("user", "42")];
        assert_eq!(add(&world, "staff", &all).await, Ok(MembersChanged { added: 5, removed: 0, members: 5 }), "sms is the default channel of a phone");
        assert_eq!(add(&world, "staff", &all).await, Ok(MembersChanged { added: 0, removed: 0, members: 5 }));
        let first = world.store.member_rows(world.tenant, "staff", None, 3).await.unwrap();
        let rest = world.store.member_rows(world.tenant, "staff", Some(&first[2].place()), 3).await.unwrap();
        let mut read: Vec<(String, String, Option<String>)> = first.into_iter().chain(rest).map(|row| (row.kind, row.member, row.channel)).collect();
        read.sort();
        let phone = "+919876543210".to_owned();
        assert_eq!(read, [("email".into(), "a@example.com".into(), None), ("list".into(), "inner".into(), None), ("phone".into(), phone.clone(), None), ("phone".into(), phone, Some("whatsapp".into())), ("user".into(), "42".into(), None)]);
        let gone = [member("user", "42"), on("whatsapp", "phone", "+919876543210"), member("user", "nobody")];
        let changed = world.store.change_members(world.tenant, "staff", &[member("user", "7")], &gone).await.unwrap();
        assert_eq!(changed, MembersChanged { added: 1, removed: 2, members: 4 });
        world.store.create_user(world.tenant, "7", &crate::users::user(&[])).await.unwrap();
        world.store.delete_user(world.tenant, "7").await.unwrap();
        assert_eq!(world.store.member_count(world.tenant, "staff").await.unwrap(), 3, "a deleted user leaves its lists");
    }

    async fn c7_members_are_checked_by_kind(world) {
        lists(&world, &["staff"]).await;
        let refused: [(MemberDraft, &str); 8] = [
            (member("phone", "9876543210"), "add[0].member: is not a phone number in E.164"),
            (member("email", "a"), "add[0].member: is not a mail address"),
            (member("user", "a/../b"), "add[0].member: is or contains the path segment \"..\""),
            (member("group", "x"), "add[0].kind: is \"group\"; allowed are user, list and, for an address, email, phone, slack, teams, webhook, push, web_push"),
            (on("sms", "email", "a@example.com"), "add[0].channel: is \"sms\"; allowed for email are email"),
            (on("pager", "phone", "+919876543210"), "add[0].channel: is \"pager\"; allowed for phone are sms, whatsapp, voice"),
            (on("email", "user", "42"), "add[0].channel: is given for a user; only an address has a channel; leave the field out"),
            (member("list", "nobody"), "add[0].member: there is no list \"nobody\"; create it first"),
        ];
        for (draft, problem) in refused {
            let said = add(&world, "staff", &[draft]).await.unwrap_err();
            assert!(said.starts_with(problem), "{said}");
        }
        assert_eq!(add(&world, "nobody", &[member("user", "42")]).await.unwrap_err(), "there is no list \"nobody\"");
        let removed = world.store.change_members(world.tenant, "staff", &[], &[member("group", "x")]).await;
        assert!(removed.unwrap_err().to_string().starts_with("remove[0].kind: is \"group\"; allowed are user, list"));
        let many: Vec<_> = (0..=MEMBERS_CHANGED).map(|n| member("user", &n.to_string())).collect();
        assert!(add(&world, "staff", &many).await.unwrap_err().starts_with("add: has 1001 members together with remove; at most 1000 are allowed"));
        assert_eq!(world.store.member_count(world.tenant, "staff").await.unwrap(), 0);
    }

    async fn a_list_cannot_contain_itself(world) {
        lists(&world, &["a", "b", "c"]).await;
        let cycle = |inner: &str, outer: &str| Err(format!("add[0].member: list {inner:?} is {outer:?} or contains it; a list cannot contain itself"));
        assert_eq!(add(&world, "a", &[member("list", "a")]).await, cycle("a", "a"));
        add(&world, "a", &[member("list", "b")]).await.unwrap();
        add(&world, "b", &[member("list", "c")]).await.unwrap();
        assert_eq!(add(&world, "c", &[member("list", "a"), member("user", "42")]).await, cycle("a", "c"));
        assert_eq!(world.store.member_count(world.tenant, "c").await.unwrap(), 0, "nothing of the change is written");
        let said = world.store.delete_list(world.tenant, "c").await.unwrap_err().to_string();
        assert_eq!(said, r#"list "c" is a member of list "b"; remove it from that list first"#);
    }

    async fn two_changes_make_no_cycle_together(world) {
        lists(&world, &["a", "b"]).await;
        for _ in 0..20 {
            let (inner, outer) = ([member("list", "b")], [member("list", "a")]);
            let (one, two) = tokio::join!(add(&world, "a", &inner), add(&world, "b", &outer));
            assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
            world.store.change_members(world.tenant, "a", &[], &inner).await.unwrap();
            world.store.change_members(world.tenant, "b", &[], &outer).await.unwrap();
        }
    }

    async fn e4_members_of_nested_lists_are_read_once_each(world) {
        lists(&world, &["a", "b", "c", "empty"]).await;
        let other = world.store.create_tenant("other").await.unwrap();
        world.store.create_list(other, "a", None).await.unwrap();
        world.store.change_members(other, "a", &[member("user", "theirs")], &[]).await.unwrap();
        add(&world, "a", &[member("list", "b"), member("list", "c"), member("user", "1")]).await.unwrap();
        add(&world, "b", &[member("list", "c"), member("user", "1"), member("email", "a@example.com")]).await.unwrap();
        add(&world, "c", &[member("user", "2"), on("whatsapp", "phone", "+919876543210")]).await.unwrap();
        let mut all = flat(&world, "a").await;
        all.sort();
        assert_eq!(all, ["email a@example.com", "phone +919876543210 whatsapp", "user 1", "user 2"]);
        // A cycle that was written by hand ends as well.
        let sql = "INSERT INTO postcommit.list_member (tenant, list, kind, member, added_at) VALUES ($1, 'c', 'list', 'a', {now})";
        world.execute(sql, vec![world.tenant.into()]).await;
        assert_eq!(flat(&world, "c").await.len(), 4);
        let asked: Vec<(i32, String)> = [(world.tenant, "a"), (other, "a"), (world.tenant, "empty"), (world.tenant, "nobody")].map(|(tenant, name)| (tenant, name.to_owned())).into();
        let before = world.store.db().trips().statements;
        let found = world.store.members_of(&asked, 3).await.unwrap();
        assert_eq!(world.store.db().trips().statements - before, 2);
        let sizes: Vec<Option<(usize, bool)>> = asked.iter().map(|key| found.get(key).map(|list| (list.members.len(), list.is_cut))).collect();
        assert_eq!(sizes, [Some((3, true)), Some((1, false)), Some((0, false)), None]);
    }

    async fn a_list_of_100_000_is_full(world) {
        lists(&world, &["all"]).await;
        let sql = "WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 99999)
            INSERT INTO postcommit.list_member (tenant, list, kind, member, added_at)
            SELECT $1, 'all', 'user', 'u' || value, {now} FROM n";
        world.execute(sql, vec![world.tenant.into()]).await;
        assert_eq!(add(&world, "all", &[member("user", "u1"), member("user", "last")]).await, Ok(MembersChanged { added: 1, removed: 0, members: 100_000 }));
        let said = add(&world, "all", &[member("user", "one more")]).await.unwrap_err();
        assert_eq!(said, "add: the list has 100000 members already; at most 100000 are allowed; use several lists, and a list of them");
        assert_eq!(flat(&world, "all").await.len(), LIST_MEMBERS);
    }

    async fn pages_of_lists_go_by_tenant_and_name(world) {
        lists(&world, &["b", "a", "c"]).await;
        let filter = ListFilter { tenant: Some(world.tenant), after: None, limit: 2 };
        let first = world.store.member_list_rows(&filter).await.unwrap();
        let after = first.last().map(|list| (list.tenant_id, list.name.clone()));
        let rest = world.store.of_tenant(world.tenant).member_list_rows(&ListFilter { after, ..filter }).await.unwrap();
        assert_eq!(first.iter().chain(&rest).map(|list| list.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
