//! Settings that every connection pins. An `ALTER DATABASE … SET` or `ALTER ROLE … SET` must not change what our
//! statements mean, nor whether an acknowledged commit is on disk (docs/decisions/0030).

use deadpool_postgres::{Hook, HookError};
use tokio_postgres::error::SqlState;

/// Settings that change what a statement means, with the values that our statements are written for. They are given at
/// connect, after the options of the URL, so an operator cannot override them. `default_transaction_read_only` is
/// missing on purpose: it is the operator's switch, and `/readyz` reports it.
const PINNED: [(&str, &str); 18] = [
    // How literals are read: our statements contain backslashes, and `= NULL` must never be true.
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("array_nulls", "on"),
    // Name resolution. Our tables and functions are always qualified; other functions and operators are those of the
    // system.
    ("search_path", "pg_catalog,pg_temp"),
    ("quote_all_identifiers", "off"),
    // Row visibility: `off` would refuse every table with a policy.
    ("row_security", "on"),
    // A claim skips locked rows, and each statement must see what other transactions have committed.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    // How times, numbers and bytes are printed, and the length of a day when a clock is changed.
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    // A pool keeps its connections, and a listening connection is idle for hours. A refused statement must not end the
    // session.
    ("idle_session_timeout", "0"),
    ("exit_on_error", "off"),
    // Migrations and partitions need tables with updates and row locks, and function bodies that were checked.
    ("default_table_access_method", "heap"),
    ("check_function_bodies", "on"),
    ("plpgsql.extra_errors", "none"),
];

/// Settings that cannot be given at connect. They are set in one round trip afterwards.
///
/// - `synchronous_commit`: at least `on`, whatever the server, database, role or URL say; `remote_apply` stays. It is
///   always set, so that a configuration reload of the server changes nothing.
/// - `session_replication_role`: our triggers count changes of providers and outcomes. Only a superuser may change it,
///   so it is set only where its value is wrong.
/// - `transaction_timeout` and `restrict_nonsystem_relation_kind`: older versions of PostgreSQL do not have them.
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

/// The startup options that pin [`PINNED`].
pub(super) fn pinned_options() -> String {
    // A space inside a value would end the option.
    PINNED.map(|(name, value)| format!("-c {name}={}", value.replace(' ', "\\ "))).join(" ")
}

/// The hook that a pool runs on every new connection before its first use.
pub(super) fn settle_session() -> Hook {
    Hook::async_fn(|client, _| {
        Box::pin(async move {
            client.batch_execute(AFTERWARDS).await.map_err(|error| match error.code() {
                Some(&SqlState::INSUFFICIENT_PRIVILEGE) => HookError::message(
                    "session_replication_role is not origin for this login, which may not change it, so no trigger would run; as a superuser: \
                     ALTER DATABASE … RESET session_replication_role, or ALTER ROLE … RESET session_replication_role",
                ),
                _ => HookError::Backend(error),
            })
        })
    })
}
