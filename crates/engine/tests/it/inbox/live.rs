//! Changes of an inbox since a position, and the notification of open pages.

use postcommit_channel::model::DeliveryId;
use postcommit_engine::inbox::Inboxes;
use postcommit_engine::store::{InboxChange, InboxChanges, MAX_CHANGES, Mark};
use serde_json::json;

use crate::world::World;

async fn changes(world: &World, user: &str, after: i64) -> InboxChanges {
    world.store.inbox_changes(world.tenant, user, after).await.unwrap()
}

/// Formats each change: the event, the title, and whether the message is read and archived.
fn told(changes: &InboxChanges) -> Vec<String> {
    let word = |change: &InboxChange| {
        let (happened, row) = match change {
            InboxChange::Came(row) => ("came", row),
            InboxChange::Marked(row) => ("marked", row),
        };
        let marks = [row.read_at.map(|_| " read"), row.archived_at.map(|_| " archived")];
        format!(
            "{happened} {}{}",
            row.title.as_deref().unwrap_or_default(),
            marks.into_iter().flatten().collect::<String>()
        )
    };
    changes.changes.iter().flatten().map(word).collect()
}

on_both! {
    async fn changes_are_returned_from_a_position(world) {
        assert_eq!((changes(&world, "alice", 0).await.position, told(&changes(&world, "alice", 0).await).len()), (0, 0));
        let one = world.deliver("alice", "one").await;
        world.deliver("alice", "two").await;
        let seen = changes(&world, "alice", 0).await;
        assert_eq!((told(&seen), seen.unread), (vec!["came one".into(), "came two".into()], 2));
        assert!(told(&changes(&world, "alice", seen.position).await).is_empty());

        world.mark("alice", one, Mark::Read).await;
        world.deliver("alice", "three").await;
        let more = changes(&world, "alice", seen.position).await;
        assert_eq!((told(&more), more.unread), (vec!["marked one read".into(), "came three".into()], 2));
        world.store.mark_all_read(world.tenant, "alice", more.position).await.unwrap();
        assert_eq!(told(&changes(&world, "alice", more.position).await), ["marked two read", "marked three read"]);
        assert_eq!(told(&changes(&world, "alice", 0).await), ["came one read", "came two read", "came three read"]);
        world.mark("alice", one, Mark::Archive).await;
        assert_eq!(told(&changes(&world, "alice", more.position + 1).await), ["marked one read archived"]);
    }

    async fn after_too_many_changes_or_an_unknown_position_the_list_must_be_read_again(world) {
        world.deliver("alice", "one").await;
        let position = changes(&world, "alice", 0).await.position;
        assert!(changes(&world, "alice", position + 1).await.changes.is_none(), "a position that this inbox never had");
        assert!(changes(&world, "nobody", 7).await.changes.is_none());
        for title in 0..MAX_CHANGES {
            world.enqueue("a", json!({"recipients": [{"user": "alice"}], "title": title.to_string()})).await;
        }
        world.pass().await;
        let all = changes(&world, "alice", 0).await;
        assert!(all.changes.is_none());
        assert_eq!(changes(&world, "alice", position).await.changes.unwrap().len(), MAX_CHANGES);
        assert_eq!(all.unread, i64::try_from(MAX_CHANGES + 1).unwrap());
    }

    /// Two processes: one has the pages open, the other delivers and marks.
    async fn b1_open_pages_are_notified_of_a_change_made_by_another_process(world) {
        let inboxes = Inboxes::new(world.another_store().await);
        let mut page = inboxes.open(world.tenant, "alice");
        let mut second = inboxes.open(world.tenant, "alice");
        let _other = inboxes.open(world.tenant, "bob");
        assert_eq!((inboxes.users(), inboxes.pages(world.tenant, "alice"), inboxes.pages(world.tenant, "eve")), (2, 2, 0));
        let running = world.run().await;
        let id = world.enqueue("a", json!({"recipients": [{"user": "alice"}], "title": "one"})).await;
        page.beyond(0).await;
        second.beyond(0).await;
        let seen = changes(&world, "alice", 0).await;
        assert_eq!(told(&seen), ["came one"]);
        world.mark("alice", DeliveryId { notification: id, n: 1 }, Mark::Read).await;
        page.beyond(seen.position).await;
        assert_eq!(told(&changes(&world, "alice", seen.position).await), ["marked one read"]);
        running.finish().await;
        drop((page, second));
        assert_eq!(inboxes.users(), 1, "the last page of a user takes its watch along");
    }

    async fn positions_of_many_users_are_read_together(world) {
        world.deliver("alice", "one").await;
        world.deliver("al\"ice", "two").await;
        world.deliver("al\"ice", "three").await;
        let asked: Vec<_> = ["nobody", "al\"ice", "alice"].map(|user| (world.tenant, user.to_owned())).into();
        assert_eq!(world.store.inbox_positions(&asked).await.unwrap(), [0, 2, 1]);
    }
}

/// The notification of a change, without the poll: it is sent only while a process watches, and names neither tenant
/// nor user.
#[tokio::test]
async fn a_change_is_notified_only_while_a_process_watches() {
    use postcommit_engine::db::Signal;
    let world = World::postgres().await;
    let (heard, mut words) = tokio::sync::mpsc::unbounded_channel();
    let listening = tokio::spawn(
        world.another_store().await.db().clone().watch(Signal::Inbox, move |word| drop(heard.send(word.to_owned()))),
    );
    assert_eq!(words.recv().await.unwrap(), "", "it listens");
    world.deliver("alice", "unheard").await;
    world.store.watch_inboxes(uuid::Uuid::new_v4(), 3600.0).await.unwrap();
    world.deliver("bob", "heard").await;
    assert_eq!(words.recv().await.unwrap(), "", "without a key the text is empty, which stands for every user");

    // The notified text is a hash with a key that a listener without access to the table does not know. A test in
    // src/inbox.rs expects the same hash.
    let made = world.store.inbox_bell_key().await.unwrap();
    assert!(made.is_some() && made == world.store.inbox_bell_key().await.unwrap(), "made once");
    world.execute("UPDATE postcommit.inbox_token_key SET key = $1 WHERE tenant = 0", vec![vec![7_u8; 32].into()]).await;
    world.deliver("zoë", "heard").await;
    assert_eq!((world.tenant, words.recv().await.unwrap().as_str()), (1, "e083bebe06c62ead4e2b829d2c3bdb9f"));
    world.execute("UPDATE postcommit.inbox_token_key SET key = $1 WHERE tenant = 0", vec![vec![8_u8; 32].into()]).await;
    world.deliver("zoë", "heard").await;
    assert_ne!(words.recv().await.unwrap(), "e083bebe06c62ead4e2b829d2c3bdb9f", "another key, another word");
    listening.abort();
}

/// A transaction that takes its position first and commits last delays later transactions: a position is never visible
/// before an earlier one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_is_never_overtaken() {
    let world = World::postgres().await;
    world.deliver("alice", "zero").await;
    let (mut client, connection) = tokio_postgres::connect(&world.url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let late = client.transaction().await.unwrap();
    late.batch_execute(
        "UPDATE postcommit.inbox SET position = position + 1 WHERE user_id = 'alice';
         INSERT INTO postcommit.inbox_message (tenant, notification_id, n, user_id, position, changed, event_type, title, created_at, expires_at)
         SELECT tenant, gen_random_uuid(), 1, user_id, position, position, 'a', 'late', now(), now() + interval '1 day' FROM postcommit.inbox WHERE user_id = 'alice'",
    )
    .await
    .unwrap();
    world.enqueue("a", json!({"recipients": [{"user": "alice"}], "title": "behind"})).await;
    world.enqueue("a", json!({"recipients": [{"user": "bob"}], "title": "another's"})).await;
    let running = world.run().await;
    let waiting = "SELECT count(*) \
        FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    world.until("it waits", async || world.sql(waiting, vec![]).await[0].get::<i64>(0).unwrap() > 0).await;
    let seen = changes(&world, "alice", 0).await;
    assert_eq!((told(&seen), seen.position), (vec!["came zero".into()], 1), "neither is visible before the first");
    late.commit().await.unwrap();
    world.drained().await;
    running.finish().await;
    assert_eq!(told(&changes(&world, "alice", seen.position).await), ["came late", "came behind"]);
}
