//! Low-water marks, where a claim begins to search, are only a hint: rows before the mark are found as well. On
//! PostgreSQL; SQLite always searches from the beginning.

use std::collections::HashSet;

use postcommit_channel::model::Finish;
use postcommit_engine::store::{Lease, Settlement, Store};
use serde_json::json;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::store::claim;
use crate::world::World;

/// A transaction that has enqueued and is not committed. Its notification will be due before all later notifications.
async fn late(world: &World) -> (Client, Uuid) {
    let (client, connection) = tokio_postgres::connect(&world.url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("BEGIN").await.unwrap();
    let sql = "SELECT postcommit.enqueue('late', '{}', 'late', recipients => '[{\"email\": \"guest@example.com\"}]')";
    let id = client.query_one(sql, &[]).await.unwrap().get(0);
    (client, id)
}

async fn backlog(world: &World, count: usize) -> HashSet<Uuid> {
    let mut ids = HashSet::new();
    for _ in 0..count {
        ids.insert(world.enqueue("on time", json!({})).await);
    }
    ids
}

async fn claim_ids(store: &Store, quota: i32) -> Vec<Uuid> {
    claim(store, -1, quota).await.iter().map(|d| d.key.notification).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_committed_late_is_found_once_the_backlog_is_done() {
    let world = World::postgres().await;
    let (client, late) = late(&world).await;
    let mut expected = backlog(&world, 9).await;
    let mut found = claim_ids(&world.store, 2).await;
    assert!(found.len() == 2 && !found.contains(&late), "it is not there yet");
    client.batch_execute("COMMIT").await.unwrap();
    expected.insert(late);
    // Two at a time: each claim but the last leaves more, so the next one begins at the same mark.
    while let more @ [_, ..] = &claim_ids(&world.store, 2).await[..] {
        found.extend(more);
    }
    let again = tokio::sync::Mutex::new(found);
    world
        .until("the late one is found", async || {
            let mut found = again.lock().await;
            found.extend(claim_ids(&world.store, 2).await);
            found.contains(&late)
        })
        .await;
    let found = again.into_inner();
    assert_eq!((found.len(), found.into_iter().collect::<HashSet<_>>()), (10, expected), "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_committed_late_is_found_although_the_backlog_never_ends() {
    let world = World::postgres().await;
    let (client, late) = late(&world).await;
    backlog(&world, 5).await;
    assert_eq!(claim_ids(&world.store, 1).await.len(), 1);
    client.batch_execute("COMMIT").await.unwrap();
    world
        .until("a full look", async || {
            // The claimed row is returned, so the queue always has more rows than the claim asked for.
            let one = claim(&world.store, -world.tenant, 1).await.remove(0);
            world.store.settle(vec![Settlement::unbegun(Lease::of(&one), Finish::Returned)]).await.unwrap();
            one.key.notification == late
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_row_before_the_mark_is_found_although_the_backlog_never_ends() {
    let world = World::postgres().await;
    backlog(&world, 6).await;
    let lost: HashSet<Uuid> = claim_ids(&world.store, 2).await.into_iter().collect();
    let later = claim(&world.store, -world.tenant, 1).await.remove(0);
    world.store.settle(vec![Settlement::unbegun(Lease::of(&later), Finish::Returned)]).await.unwrap();
    world.expire_leases().await;
    let found = tokio::sync::Mutex::new(HashSet::new());
    world
        .until("both are taken over", async || {
            let one = claim(&world.store, -world.tenant, 1).await.remove(0);
            if one.lost_since.is_some() {
                found.lock().await.insert(one.key.notification);
            } else {
                world.store.settle(vec![Settlement::unbegun(Lease::of(&one), Finish::Returned)]).await.unwrap();
            }
            found.lock().await.len() == 2
        })
        .await;
    assert_eq!(found.into_inner(), lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_search_finds_everything() {
    let world = World::postgres().await;
    let (client, late) = late(&world).await;
    let mut expected = backlog(&world, 5).await;
    // Marks belong to one process: they hide nothing from another, whose first search is a full one.
    assert_eq!(claim_ids(&world.store, 2).await.len(), 2);
    world.expire_leases().await;
    client.batch_execute("COMMIT").await.unwrap();
    expected.insert(late);
    let found = claim_ids(&world.another_store().await, 10).await;
    assert_eq!((found.len(), found.into_iter().collect::<HashSet<_>>()), (6, expected));
    assert!(claim(&world.store, -world.tenant, 10).await.is_empty());
}
