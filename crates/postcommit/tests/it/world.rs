//! A migrated database and an application connected to it.

use std::ops::{Deref, DerefMut};

use postcommit::{Builder, Notification, Recipient};
use postcommit_engine::db::schema_hash;
use postcommit_engine::store::Store;
use postcommit_testkit::{Postgres, TestDatabase};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::adapter::{Adapter, Kind};

/// Derefs to the application's connection, on which a case begins and ends its transactions.
pub struct World<A> {
    app: A,
    place: Place,
}

/// The database, which is removed when dropped.
enum Place {
    Postgres(TestDatabase),
    Sqlite(TempDir),
}

impl Place {
    async fn new(kind: Kind) -> Self {
        match kind {
            Kind::Postgres => Self::Postgres(Postgres::shared().copy(schema_hash(true), migrate).await),
            Kind::Sqlite => Self::Sqlite(tempfile::tempdir().unwrap()),
        }
    }

    fn path(&self) -> String {
        match self {
            Self::Postgres(database) => database.url.clone(),
            Self::Sqlite(folder) => folder.path().join("app.db").to_str().unwrap().to_owned(),
        }
    }
}

async fn migrate(url: String) {
    Store::open(&url).await.unwrap().db().migrate().await.unwrap();
}

impl<A: Adapter> World<A> {
    pub async fn new() -> Self {
        let place = Place::new(A::KIND).await;
        let scheme = if A::KIND == Kind::Sqlite { "sqlite:" } else { "" };
        migrate(format!("{scheme}{}", place.path())).await;
        Self { app: A::connect(&place.path()).await, place }
    }

    /// Another connection, which sees only committed rows.
    pub async fn onlooker(&self) -> A {
        A::connect(&self.place.path()).await
    }

    /// Creates the roles, and returns the name of the producer's. `None` on SQLite, which has no roles.
    pub async fn producer_role(&self) -> Option<String> {
        let Place::Postgres(database) = &self.place else { return None };
        let made = Store::open(&database.url).await.unwrap().db().make_roles().await.unwrap();
        made.names.into_iter().find(|name| name.starts_with("postcommit_producer_"))
    }

    /// The first column as text, of a query that both databases accept.
    pub async fn all(&mut self, sql: &str) -> Vec<String> {
        self.app.texts(&dialect::<A>(sql)).await
    }

    /// The number of rows in one of Postcommit's tables.
    pub async fn count(&mut self, table: &str) -> usize {
        count(&mut self.app, table).await
    }

    /// All fields of a stored notification; times in microseconds.
    pub async fn stored(&mut self, id: Uuid) -> Value {
        let select = match A::KIND {
            Kind::Postgres => STORED_POSTGRES,
            Kind::Sqlite => STORED_SQLITE,
        };
        let found = self.app.texts(&format!("{select} WHERE note.id = '{id}'")).await;
        assert_eq!(found.len(), 1, "notifications with id {id}");
        serde_json::from_str(&found[0]).unwrap()
    }
}

impl<A> Deref for World<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.app
    }
}

impl<A> DerefMut for World<A> {
    fn deref_mut(&mut self) -> &mut A {
        &mut self.app
    }
}

fn dialect<A: Adapter>(sql: &str) -> String {
    match A::KIND {
        Kind::Postgres => sql.to_owned(),
        Kind::Sqlite => sql.replace("postcommit.", "postcommit_"),
    }
}

pub async fn count<A: Adapter>(app: &mut A, table: &str) -> usize {
    let sql = dialect::<A>(&format!("SELECT CAST(count(*) AS text) FROM postcommit.{table}"));
    app.texts(&sql).await[0].parse().unwrap()
}

/// A notification for the cases, each of which changes the fields it tests.
pub fn booking(key: &str) -> Builder {
    Notification::event("booking.confirmed", json!({"bookingId": 12345}))
        .key(key)
        .entity("12345")
        .to(Recipient::email("guest@example.com"))
}

const STORED_POSTGRES: &str = "SELECT json_build_object('event_type', event_type, 'payload', payload, 'idempotency_key', idempotency_key,
    'tenant', tenant.name, 'entity', entity, 'recipients', recipients, 'channels', channels, 'title', title, 'body', body,
    'action_url', action_url, 'data', data, 'priority', priority, 'due_at', (extract(epoch FROM due_at) * 1000000)::bigint,
    'expires_at', (extract(epoch FROM expires_at) * 1000000)::bigint, 'source', source, 'correlation_id', correlation_id,
    'topic', topic, 'schema_version', schema_version, 'created_at', (extract(epoch FROM note.created_at) * 1000000)::bigint)::text
    FROM postcommit.notification note JOIN postcommit.tenant ON tenant.id = note.tenant";

const STORED_SQLITE: &str = "SELECT json_object('event_type', event_type, 'payload', json(payload), 'idempotency_key', idempotency_key,
    'tenant', tenant.name, 'entity', entity, 'recipients', json(recipients), 'channels', json(channels), 'title', title, 'body', body,
    'action_url', action_url, 'data', json(data), 'priority', priority, 'due_at', due_at,
    'expires_at', expires_at, 'source', json(source), 'correlation_id', correlation_id,
    'topic', topic, 'schema_version', schema_version, 'created_at', note.created_at)
    FROM postcommit_notification note JOIN postcommit_tenant tenant ON tenant.id = note.tenant";
