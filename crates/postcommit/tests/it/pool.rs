//! A `begin()` of sqlx that is dropped half-way, as the documentation of `adapters::sqlx` tells it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use postcommit::adapters;
use postcommit_engine::store::Store;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use crate::world::booking;

/// Sends `BEGIN` and goes away before the answer, as a timeout does.
fn begin_and_go_away<T>(begin: impl Future<Output = T>) {
    let polled = pin!(begin).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending), "BEGIN was answered at once");
}

#[tokio::test]
async fn a1_with_the_hook_a_dropped_begin_on_postgres_loses_nothing() {
    let database = postcommit_testkit::database().await;
    Store::open(&database.url).await.unwrap().db().migrate().await.unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .after_release(|connection, _| Box::pin(async move { sqlx::query("ROLLBACK").execute(connection).await.map(|_| true) }))
        .connect(&database.url)
        .await
        .unwrap();
    begin_and_go_away(pool.begin());
    let mut connection = pool.acquire().await.unwrap();
    adapters::sqlx::postgres::enqueue(&mut connection, &booking("k").build().unwrap()).await.unwrap();
    // Closed, not returned: the hook must not have the last word on what is committed.
    sqlx::Connection::close(connection.detach()).await.unwrap();
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM postcommit.notification").fetch_one(&pool).await.unwrap();
    assert_eq!(count, 1);
}

#[tokio::test]
async fn a1_without_a_hook_a_dropped_begin_on_sqlite_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    Store::open(&format!("sqlite:{}", file.display())).await.unwrap().db().migrate().await.unwrap();
    let options = SqliteConnectOptions::new().filename(&file);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    begin_and_go_away(pool.begin());
    let mut connection = pool.acquire().await.unwrap();
    adapters::sqlx::sqlite::enqueue(&mut connection, &booking("k").build().unwrap()).await.unwrap();
    sqlx::Connection::close(connection.detach()).await.unwrap();
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM postcommit_notification").fetch_one(&pool).await.unwrap();
    assert_eq!(count, 1);
}
