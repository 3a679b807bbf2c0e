//! Assertions for the application's own tests: they check whether a notification was enqueued in a transaction.
//!
//! Call an assertion on the transaction in which the code under test ran, then roll the transaction back: nothing is
//! sent. Outside a transaction every assertion panics: on PostgreSQL `refute_enqueued` would otherwise always pass.
//!
//! The assertions read the view `notification_status`, so the database login of the test must own the schema or have
//! the reader role. A login that has only the producer role may enqueue and cannot assert; the panic says so.
//!
//! ```ignore
//! let mut transaction = client.transaction().await?;
//! confirm_booking(&mut transaction, 12345).await?;
//! postcommit::testing::tokio_postgres::assert_enqueued(&transaction, "booking.confirmed", Some("12345")).await;
//! transaction.rollback().await?;
//! ```

/// Panics unless the transaction has, or does not have, a matching notification, as `wanted` says. `found` is limited
/// in number and begins with the matching notifications.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres", feature = "sqlx-sqlite", feature = "rusqlite"))]
fn judge(found: &[(String, Option<String>)], event_type: &str, entity: Option<&str>, wanted: bool) {
    let matching = found
        .iter()
        .filter(|(event, about)| event == event_type && (entity.is_none() || about.as_deref() == entity))
        .count();
    let about = entity.map(|entity| format!(" about {entity:?}")).unwrap_or_default();
    assert!(
        !wanted || matching > 0,
        "expected a notification {event_type:?}{about} in this transaction; found {found:?}"
    );
    assert!(
        wanted || matching == 0,
        "expected no notification {event_type:?}{about} in this transaction; found {matching}"
    );
}

#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres", feature = "sqlx-sqlite", feature = "rusqlite"))]
const NO_TRANSACTION: &str = "this connection is not in a transaction; call assert_enqueued and refute_enqueued on the \
    transaction in which the code under test ran, before it is committed or rolled back";

/// Fails outside a transaction with the SQLSTATE 25P01, and changes nothing inside one. No function of PostgreSQL tells
/// whether `BEGIN` was run.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
const POSTGRES_IN_TRANSACTION: &str = "SAVEPOINT postcommit_assertion; RELEASE SAVEPOINT postcommit_assertion";

#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
const POSTGRES_SEEN: &str = "\
    SELECT event_type, entity
    FROM postcommit.notification_status
    WHERE created_at = pg_catalog.now()
    ORDER BY event_type = $1::text AND ($2::text IS NULL OR entity IS NOT DISTINCT FROM $2) DESC, id DESC
    LIMIT 100";

/// Panics because the notifications cannot be read. `code` is the SQLSTATE.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres"))]
fn cannot_read(code: Option<&str>, problem: &dyn std::fmt::Display) -> ! {
    const INSUFFICIENT_PRIVILEGE: &str = "42501";
    const NO_ACTIVE_TRANSACTION: &str = "25P01";
    assert!(code != Some(NO_ACTIVE_TRANSACTION), "{NO_TRANSACTION}");
    if code == Some(INSUFFICIENT_PRIVILEGE) {
        panic!(
            "the assertion needs the right to read the view postcommit.notification_status, which this login does not have \
             ({problem}). A producer may only enqueue. Run the test as the login that owns the schema, or as a login \
             with the reader role; an administrator grants it in psql: SELECT format('GRANT %I TO your_login', \
             postcommit.role_name('reader')) \\gexec"
        );
    }
    panic!("cannot read postcommit.notification_status: {problem}");
}

#[cfg(any(feature = "sqlx-sqlite", feature = "rusqlite"))]
const SQLITE_SEEN: &str = "\
    SELECT event_type, entity
    FROM postcommit_notification_status
    ORDER BY event_type = ?1 AND (?2 IS NULL OR entity IS ?2) DESC, id DESC
    LIMIT 100";

/// Assertions for a `tokio_postgres` transaction.
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres {
    use ::tokio_postgres::GenericClient;

    async fn seen(
        client: &impl GenericClient,
        event_type: &str,
        entity: Option<&str>,
    ) -> Vec<(String, Option<String>)> {
        client.batch_execute(super::POSTGRES_IN_TRANSACTION).await.unwrap_or_else(|problem| cannot_read(&problem));
        let rows = client.query(super::POSTGRES_SEEN, &[&event_type, &entity]).await;
        let rows = rows.unwrap_or_else(|problem| cannot_read(&problem));
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    fn cannot_read(problem: &::tokio_postgres::Error) -> ! {
        let said = problem.as_db_error().map_or_else(|| problem.to_string(), ToString::to_string);
        super::cannot_read(problem.code().map(::tokio_postgres::error::SqlState::code), &said)
    }

    /// Panics unless this transaction has enqueued a notification of this event type, about `entity` if that is given.
    pub async fn assert_enqueued(client: &impl GenericClient, event_type: &str, entity: Option<&str>) {
        super::judge(&seen(client, event_type, entity).await, event_type, entity, true);
    }

    /// Panics if this transaction has enqueued a notification of this event type, about `entity` if that is given.
    pub async fn refute_enqueued(client: &impl GenericClient, event_type: &str, entity: Option<&str>) {
        super::judge(&seen(client, event_type, entity).await, event_type, entity, false);
    }
}

/// Assertions for a `sqlx` transaction on PostgreSQL.
#[cfg(feature = "sqlx-postgres")]
pub mod sqlx_postgres {
    use ::sqlx::PgConnection;

    async fn seen(
        connection: &mut PgConnection,
        event_type: &str,
        entity: Option<&str>,
    ) -> Vec<(String, Option<String>)> {
        let in_transaction = ::sqlx::raw_sql(super::POSTGRES_IN_TRANSACTION).execute(&mut *connection).await;
        in_transaction.unwrap_or_else(|problem| cannot_read(&problem));
        let select = ::sqlx::query_as(super::POSTGRES_SEEN).bind(event_type).bind(entity);
        select.fetch_all(connection).await.unwrap_or_else(|problem| cannot_read(&problem))
    }

    fn cannot_read(problem: &::sqlx::Error) -> ! {
        let code = problem.as_database_error().and_then(|database| database.code());
        super::cannot_read(code.as_deref(), problem)
    }

    /// Panics unless this transaction has enqueued a notification of this event type, about `entity` if that is given.
    pub async fn assert_enqueued(connection: &mut PgConnection, event_type: &str, entity: Option<&str>) {
        super::judge(&seen(connection, event_type, entity).await, event_type, entity, true);
    }

    /// Panics if this transaction has enqueued a notification of this event type, about `entity` if that is given.
    pub async fn refute_enqueued(connection: &mut PgConnection, event_type: &str, entity: Option<&str>) {
        super::judge(&seen(connection, event_type, entity).await, event_type, entity, false);
    }
}

/// Assertions for a `sqlx` transaction on SQLite. SQLite has no transaction time, so every notification in the file
/// counts.
#[cfg(feature = "sqlx-sqlite")]
pub mod sqlx_sqlite {
    use ::sqlx::SqliteConnection;

    async fn seen(
        connection: &mut SqliteConnection,
        event_type: &str,
        entity: Option<&str>,
    ) -> Vec<(String, Option<String>)> {
        // BEGIN succeeds only outside a transaction. This is tried, because sqlx does not show SQLite's own flag.
        if ::sqlx::raw_sql("BEGIN").execute(&mut *connection).await.is_ok() {
            ::sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await.expect("roll back an empty transaction");
            panic!("{}", super::NO_TRANSACTION);
        }
        let select = ::sqlx::query_as(super::SQLITE_SEEN).bind(event_type).bind(entity);
        select.fetch_all(connection).await.expect("read postcommit_notification_status")
    }

    /// Panics unless a notification of this event type is enqueued, about `entity` if that is given.
    pub async fn assert_enqueued(connection: &mut SqliteConnection, event_type: &str, entity: Option<&str>) {
        super::judge(&seen(connection, event_type, entity).await, event_type, entity, true);
    }

    /// Panics if a notification of this event type is enqueued, about `entity` if that is given.
    pub async fn refute_enqueued(connection: &mut SqliteConnection, event_type: &str, entity: Option<&str>) {
        super::judge(&seen(connection, event_type, entity).await, event_type, entity, false);
    }
}

/// Assertions for a `rusqlite` transaction. SQLite has no transaction time, so every notification in the file counts.
#[cfg(feature = "rusqlite")]
pub mod rusqlite {
    use ::rusqlite::Connection;

    fn seen(connection: &Connection, event_type: &str, entity: Option<&str>) -> Vec<(String, Option<String>)> {
        assert!(!connection.is_autocommit(), "{}", super::NO_TRANSACTION);
        let mut select = connection.prepare_cached(super::SQLITE_SEEN).expect("read postcommit_notification_status");
        let rows = select
            .query_map((event_type, entity), |row| Ok((row.get(0)?, row.get(1)?)))
            .expect("read postcommit_notification_status");
        rows.collect::<Result<_, _>>().expect("read postcommit_notification_status")
    }

    /// Panics unless a notification of this event type is enqueued, about `entity` if that is given.
    pub fn assert_enqueued(connection: &Connection, event_type: &str, entity: Option<&str>) {
        super::judge(&seen(connection, event_type, entity), event_type, entity, true);
    }

    /// Panics if a notification of this event type is enqueued, about `entity` if that is given.
    pub fn refute_enqueued(connection: &Connection, event_type: &str, entity: Option<&str>) {
        super::judge(&seen(connection, event_type, entity), event_type, entity, false);
    }
}
