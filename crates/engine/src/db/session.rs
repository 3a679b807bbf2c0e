//! Settings that every connection pins. An `ALTER DATABASE … SET` or `ALTER ROLE … SET` must change neither the meaning
//! of this program's statements nor whether an acknowledged commit is on disk (docs/decisions/0030).

use std::pin::{Pin, pin};

use deadpool_postgres::Connect;
use futures_util::future::{Either, select};
use tokio::task::JoinHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Error, Socket};

/// Settings that change what a statement means, with the values for which this program's statements are written. They
/// are sent at connect after the options of the URL, so an operator cannot override them.
/// `default_transaction_read_only` is left out on purpose: an operator may set it, and `/readyz` reports it.
const PINNED: [(&str, &str); 18] = [
    // How literals are read. Our statements contain backslashes, and `= NULL` must never be true.
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("array_nulls", "on"),
    // Name resolution. Our own tables and functions are always qualified, and all other names are PostgreSQL's.
    ("search_path", "pg_catalog,pg_temp"),
    ("quote_all_identifiers", "off"),
    // Row visibility. `off` would raise an error for every table with a policy.
    ("row_security", "on"),
    // A claim skips locked rows, and each statement must see what other transactions have committed.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    // How times, numbers and bytes are printed. UTC also keeps every day 24 hours long.
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    // A pool keeps its connections, and a listening connection is idle for hours, so idle sessions must not be closed.
    // A refused statement must not end the session either.
    ("idle_session_timeout", "0"),
    ("exit_on_error", "off"),
    // Migrations and new partitions need the usual table type, which supports updates and row locks, and checked
    // function bodies.
    ("default_table_access_method", "heap"),
    ("check_function_bodies", "on"),
    ("plpgsql.extra_errors", "none"),
];

/// Settings that cannot be sent at connect. One statement sets them in the first round trip of a connection.
///
/// - `synchronous_commit` is at least `on`, whatever the server, database, role or URL set. `remote_apply` is kept. It
///   is always set, so that a configuration reload of the server does not change it.
/// - `session_replication_role` must be `origin`, because otherwise our triggers would not count changes of providers
///   and outcomes. Only a superuser may change it, so it is set only if its value is wrong.
/// - `transaction_timeout` and `restrict_nonsystem_relation_kind` do not exist in older versions of PostgreSQL.
const AFTERWARDS: &str = "
    SELECT
      set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
        THEN 'on' ELSE current_setting('synchronous_commit') END, false),
      CASE WHEN current_setting('session_replication_role') <> 'origin'
        THEN set_config('session_replication_role', 'origin', false) END,
      CASE WHEN current_setting('transaction_timeout', true) <> '0'
        THEN set_config('transaction_timeout', '0', false) END,
      CASE WHEN current_setting('restrict_nonsystem_relation_kind', true) <> ''
        THEN set_config('restrict_nonsystem_relation_kind', '', false) END";

/// Returns the startup options that set [`PINNED`].
pub(super) fn pinned_options() -> String {
    // A space inside a value must be escaped, because it would end the option.
    PINNED.map(|(name, value)| format!("-c {name}={}", value.replace(' ', "\\ "))).join(" ")
}

/// Opens a pool's connections and applies the session settings. If the attempt is dropped before it ends, the
/// connection is closed and nothing continues in the background.
pub(super) struct Sessions<T>(pub(super) T);

impl<T> Connect for Sessions<T>
where
    T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static,
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(
        &self,
        config: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send>> {
        let (config, tls) = (config.clone(), self.0.clone());
        Box::pin(async move {
            let (client, connection) = config.connect(tls).await?;
            let driven = match select(pin!(client.batch_execute(AFTERWARDS)), connection).await {
                Either::Left((settled, connection)) => {
                    settled?;
                    tokio::spawn(async move {
                        if let Err(problem) = connection.await {
                            tracing::warn!(
                                %problem,
                                "a connection to the database broke; a new one is opened when it is needed"
                            );
                        }
                    })
                }
                Either::Right((ended, settled)) => {
                    ended?;
                    settled.await?;
                    tokio::spawn(async {})
                }
            };
            Ok((client, driven))
        })
    }
}

/// Returns whether the session settings failed because the login may not set `session_replication_role`.
pub(super) fn lacks_replication_role(error: &Error) -> bool {
    error.as_db_error().is_some_and(|refusal| refusal.message().contains("session_replication_role"))
}
