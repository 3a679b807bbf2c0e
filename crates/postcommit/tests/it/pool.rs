//! A `begin()` of sqlx that is dropped half-way, as documented in `adapters::sqlx`.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use postcommit::adapters;
use postcommit_engine::store::Store;
use sqlx::Connection;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use crate::world::booking;

/// Sends `BEGIN` and drops the future, like a timeout. Returns whether it was dropped before the answer came.
fn begin_and_drop<T>(begin: impl Future<Output = T>) -> bool {
    pin!(begin).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[tokio::test]
async fn a1_with_the_hook_a_dropped_begin_on_postgres_loses_nothing() {
    let database = postcommit_testkit::database().await;
    Store::open(&database.url).await.unwrap().db().migrate().await.unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .after_release(|connection, _| {
            Box::pin(async move { sqlx::query("ROLLBACK").execute(connection).await.map(|_| true) })
        })
        .connect(&database.url)
        .await
        .unwrap();
    let mut connection = pool.acquire().await.unwrap();
    // If the answer comes immediately, the transaction is ordinary and ends normally: begin another.
    while !begin_and_drop(connection.begin()) {}
    drop(connection);
    let mut connection = pool.acquire().await.unwrap();
    adapters::sqlx::postgres::enqueue(&mut connection, &booking("k").build().unwrap()).await.unwrap();
    let mut onlooker = sqlx::PgConnection::connect(&database.url).await.unwrap();
    let count: i64 =
        sqlx::query_scalar("SELECT count(*) FROM postcommit.notification").fetch_one(&mut onlooker).await.unwrap();
    assert_eq!(count, 1);
}

#[tokio::test]
async fn a1_without_a_hook_a_dropped_begin_on_sqlite_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    Store::open(&format!("sqlite:{}", file.display())).await.unwrap().db().migrate().await.unwrap();
    let options = SqliteConnectOptions::new().filename(&file);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await.unwrap();
    // Sometimes the answer comes before the drop, sometimes after. Neither may lose anything.
    for i in 0..100 {
        begin_and_drop(pool.acquire().await.unwrap().begin());
        let mut connection = pool.acquire().await.unwrap();
        adapters::sqlx::sqlite::enqueue(&mut connection, &booking(&i.to_string()).build().unwrap()).await.unwrap();
    }
    // As another process sees it.
    let mut onlooker = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    let count: i64 =
        sqlx::query_scalar("SELECT count(*) FROM postcommit_notification").fetch_one(&mut onlooker).await.unwrap();
    assert_eq!(count, 100);
}
