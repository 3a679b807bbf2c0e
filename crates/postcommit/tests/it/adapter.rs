//! The four adapters behind one trait, so that every case is written once.

use postcommit::adapters;
use postcommit::{Error, Notification};
use sqlx::{AssertSqlSafe, Connection as _};
use tokio_postgres::NoTls;
use uuid::Uuid;

/// The database of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Postgres,
    Sqlite,
}

/// A connection of an application, and the SDK's functions on it.
pub trait Adapter: Sized + 'static {
    const KIND: Kind;

    /// Connects to a `postgres://` URL or a file.
    async fn connect(to: &str) -> Self;
    async fn run(&mut self, sql: &str);
    /// The first column, which must be text.
    async fn texts(&mut self, sql: &str) -> Vec<String>;

    async fn enqueue(&mut self, note: &Notification) -> Result<Uuid, Error>;
    async fn enqueue_many(&mut self, notes: &[Notification]) -> Result<Vec<Uuid>, Error>;
    async fn cancel(&mut self, tenant: &str, entity: &str, event_type: Option<&str>) -> Result<u64, Error>;
    async fn assert_enqueued(&mut self, event_type: &str, entity: Option<&str>);
    async fn refute_enqueued(&mut self, event_type: &str, entity: Option<&str>);
}

pub struct TokioPostgres(tokio_postgres::Client);

impl Adapter for TokioPostgres {
    const KIND: Kind = Kind::Postgres;

    async fn connect(to: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(to, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    async fn run(&mut self, sql: &str) {
        self.0.batch_execute(sql).await.unwrap();
    }

    async fn texts(&mut self, sql: &str) -> Vec<String> {
        self.0.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    async fn enqueue(&mut self, note: &Notification) -> Result<Uuid, Error> {
        adapters::tokio_postgres::enqueue(&self.0, note).await
    }

    async fn enqueue_many(&mut self, notes: &[Notification]) -> Result<Vec<Uuid>, Error> {
        adapters::tokio_postgres::enqueue_many(&self.0, notes).await
    }

    async fn cancel(&mut self, tenant: &str, entity: &str, event_type: Option<&str>) -> Result<u64, Error> {
        adapters::tokio_postgres::cancel(&self.0, tenant, entity, event_type).await
    }

    async fn assert_enqueued(&mut self, event_type: &str, entity: Option<&str>) {
        postcommit::testing::tokio_postgres::assert_enqueued(&self.0, event_type, entity).await;
    }

    async fn refute_enqueued(&mut self, event_type: &str, entity: Option<&str>) {
        postcommit::testing::tokio_postgres::refute_enqueued(&self.0, event_type, entity).await;
    }
}

macro_rules! sqlx_adapter {
    ($name:ident($connection:ty), $kind:expr, $adapter:ident, $testing:ident, |$to:ident| $connect:expr) => {
        pub struct $name($connection);

        impl Adapter for $name {
            const KIND: Kind = $kind;

            async fn connect($to: &str) -> Self {
                Self($connect.await.unwrap())
            }

            async fn run(&mut self, sql: &str) {
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.0).await.unwrap();
            }

            async fn texts(&mut self, sql: &str) -> Vec<String> {
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut self.0).await.unwrap()
            }

            async fn enqueue(&mut self, note: &Notification) -> Result<Uuid, Error> {
                adapters::sqlx::$adapter::enqueue(&mut self.0, note).await
            }

            async fn enqueue_many(&mut self, notes: &[Notification]) -> Result<Vec<Uuid>, Error> {
                adapters::sqlx::$adapter::enqueue_many(&mut self.0, notes).await
            }

            async fn cancel(&mut self, tenant: &str, entity: &str, event_type: Option<&str>) -> Result<u64, Error> {
                adapters::sqlx::$adapter::cancel(&mut self.0, tenant, entity, event_type).await
            }

            async fn assert_enqueued(&mut self, event_type: &str, entity: Option<&str>) {
                postcommit::testing::$testing::assert_enqueued(&mut self.0, event_type, entity).await;
            }

            async fn refute_enqueued(&mut self, event_type: &str, entity: Option<&str>) {
                postcommit::testing::$testing::refute_enqueued(&mut self.0, event_type, entity).await;
            }
        }
    };
}

sqlx_adapter!(SqlxPostgres(sqlx::PgConnection), Kind::Postgres, postgres, sqlx_postgres, |to| {
    sqlx::PgConnection::connect(to)
});
sqlx_adapter!(SqlxSqlite(sqlx::SqliteConnection), Kind::Sqlite, sqlite, sqlx_sqlite, |to| {
    // The options must live until the connection is made.
    async { sqlx::SqliteConnection::connect_with(&sqlx::sqlite::SqliteConnectOptions::new().filename(to)).await }
});

pub struct Rusqlite(rusqlite::Connection);

impl Adapter for Rusqlite {
    const KIND: Kind = Kind::Sqlite;

    async fn connect(to: &str) -> Self {
        Self(rusqlite::Connection::open(to).unwrap())
    }

    async fn run(&mut self, sql: &str) {
        self.0.execute_batch(sql).unwrap();
    }

    async fn texts(&mut self, sql: &str) -> Vec<String> {
        let mut select = self.0.prepare(sql).unwrap();
        let rows = select.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }

    async fn enqueue(&mut self, note: &Notification) -> Result<Uuid, Error> {
        adapters::rusqlite::enqueue(&self.0, note)
    }

    async fn enqueue_many(&mut self, notes: &[Notification]) -> Result<Vec<Uuid>, Error> {
        adapters::rusqlite::enqueue_many(&self.0, notes)
    }

    async fn cancel(&mut self, tenant: &str, entity: &str, event_type: Option<&str>) -> Result<u64, Error> {
        adapters::rusqlite::cancel(&self.0, tenant, entity, event_type)
    }

    async fn assert_enqueued(&mut self, event_type: &str, entity: Option<&str>) {
        postcommit::testing::rusqlite::assert_enqueued(&self.0, event_type, entity);
    }

    async fn refute_enqueued(&mut self, event_type: &str, entity: Option<&str>) {
        postcommit::testing::rusqlite::refute_enqueued(&self.0, event_type, entity);
    }
}

/// Makes a test of every case on every adapter. A case that is missing in the list is dead code, which the lints
/// refuse.
macro_rules! on_every_adapter {
    ($($case:ident),* $(,)?) => {
        on_every_adapter!(@ tokio_postgres TokioPostgres: $($case)*);
        on_every_adapter!(@ sqlx_postgres SqlxPostgres: $($case)*);
        on_every_adapter!(@ sqlx_sqlite SqlxSqlite: $($case)*);
        on_every_adapter!(@ rusqlite Rusqlite: $($case)*);
    };
    (@ $name:ident $adapter:ident: $($case:ident)*) => {
        mod $name {
            $(#[tokio::test]
            async fn $case() {
                super::$case(crate::world::World::<crate::adapter::$adapter>::new().await).await;
            })*
        }
    };
}
pub(crate) use on_every_adapter;
