//! What a connection of ours holds against the settings of its server, database and role. Whoever may write `ALTER DATABASE … SET` must not change what our
//! statements mean, nor whether what we acknowledge is on disk (docs/decisions/0030).

use deadpool_postgres::{Hook, HookError};
use tokio_postgres::error::SqlState;

/// Settings that change what a statement means, and the values our statements are written for. Given when the connection is made, after what the URL
/// says: they are not the operator's to choose. `default_transaction_read_only` is missing on purpose: it is the operator's switch, and `/readyz` tells it.
const PINNED: [(&str, &str); 18] = [
    // How texts are read: ours may hold a backslash, and `= NULL` is never true.
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("array_nulls", "on"),
    // Which things a name finds. Ours are always qualified; functions and operators are the system's.
    ("search_path", "pg_catalog,pg_temp"),
    ("quote_all_identifiers", "off"),
    // Which rows are there: off would refuse every table with a policy.
    ("row_security", "on"),
    // A claim skips what others hold, and a new statement must see what others have committed.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    // How times, numbers and bytes become texts; and how long a day is where a clock is put forward.
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    // A pool keeps connections; one that listens is idle for hours. A refused statement must not end it.
    ("idle_session_timeout", "0"),
    ("exit_on_error", "off"),
    // Migrations and partitions: rows that are updated and locked, in functions whose text was checked.
    ("default_table_access_method", "heap"),
    ("check_function_bodies", "on"),
    ("plpgsql.extra_errors", "none"),
];

/// What cannot be asked for while connecting, in one exchange afterwards.
///
/// - `synchronous_commit`: at least `on`, whatever server, database, role or URL say; `remote_apply` stays. Set in any case, so that a server that reads its
///   settings again changes nothing.
/// - `session_replication_role`: our triggers count changes of providers and outcomes. Only a superuser may change it, so it is touched only where it must be.
/// - `transaction_timeout` and `restrict_nonsystem_relation_kind`: not every version knows them.
const AFTERWARDS: &str = "SELECT set_config('synchronous_commit',
      CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on' ELSE current_setting('synchronous_commit') END, false),
    CASE WHEN current_setting('session_replication_role') <> 'origin' THEN set_config('session_replication_role', 'origin', false) END,
    CASE WHEN current_setting('transaction_timeout', true) <> '0' THEN set_config('transaction_timeout', '0', false) END,
    CASE WHEN current_setting('restrict_nonsystem_relation_kind', true) <> '' THEN set_config('restrict_nonsystem_relation_kind', '', false) END";

/// The startup options that pin [`PINNED`].
pub(super) fn pinned_options() -> String {
    // A space inside a value would end the option.
    PINNED.map(|(name, value)| format!("-c {name}={}", value.replace(' ', "\\ "))).join(" ")
}

/// Runs on every new connection of a pool, before anybody gets it.
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
