use std::sync::atomic::{AtomicU32, Ordering};

use postcommit_testkit::{Cluster, Proxy, database};
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn current_database(client: &Client) -> String {
    let row = client.query_one("SELECT current_database()", &[]).await;
    row.expect("the name of the database").get(0)
}

#[tokio::test]
async fn a_database_is_new_reachable_by_proxy_and_gone_when_dropped() {
    let (one, other) = (database().await, database().await);
    assert_ne!(one.name(), other.name());
    let client = connect(&one.url).await.unwrap();
    assert_eq!(current_database(&client).await, one.name());
    let proxy = Proxy::start(one.addr());
    let by_proxy = connect(&one.url_via(proxy.addr())).await.unwrap();
    assert_eq!(current_database(&by_proxy).await, one.name());

    let url = one.url.clone();
    drop(one);
    assert!(connect(&url).await.is_err());
    assert!(connect(&other.url).await.is_ok());
}

#[tokio::test]
async fn a_crashed_cluster_comes_back_with_what_was_committed() {
    let mut cluster = Cluster::start();
    let database = cluster.postgres().database().await;
    let client = connect(&database.url).await.unwrap();
    let commit = "CREATE TABLE t (n int); INSERT INTO t VALUES (7)";
    client.batch_execute(commit).await.unwrap();

    cluster.stop_immediate();
    assert!(client.query_one("SELECT n FROM t", &[]).await.is_err());
    assert!(connect(&database.url).await.is_err());

    cluster.start_again();
    let client = connect(&database.url).await.unwrap();
    let row = client.query_one("SELECT n FROM t", &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 7);
}

#[tokio::test]
async fn a_template_is_prepared_once_and_its_copies_are_their_own() {
    let cluster = Cluster::start();
    let postgres = cluster.postgres();
    let prepared = AtomicU32::new(0);
    let copy = async || {
        let prepare = async |url: String| {
            prepared.fetch_add(1, Ordering::Relaxed);
            let client = connect(&url).await.unwrap();
            client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (7)").await.unwrap();
        };
        postgres.copy("of_this_test", prepare).await
    };
    let (one, other) = tokio::join!(copy(), copy());
    assert_eq!(prepared.load(Ordering::Relaxed), 1);
    let (one, other) = (connect(&one.url).await.unwrap(), connect(&other.url).await.unwrap());
    one.batch_execute("DELETE FROM t").await.unwrap();
    assert_eq!(other.query_one("SELECT n FROM t", &[]).await.unwrap().get::<_, i32>(0), 7);
}
