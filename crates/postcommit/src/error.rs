use uuid::Uuid;

/// Ends the text of an error that PostgreSQL found.
pub(crate) const ABORTED: &str = ". The transaction is aborted; roll back";

/// The reason why a notification was not enqueued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field is missing, malformed or beyond its limit. Nothing was written. Most fields are checked before any SQL is
    /// run; if PostgreSQL found the problem, `problem` ends with "The transaction is aborted; roll back".
    #[error("{field}: {problem}")]
    Invalid {
        /// The name of the field in SQL and HTTP, e.g. `recipients[3].phone`.
        field: String,
        /// A sentence that says what is wrong and what is allowed.
        problem: String,
    },
    /// The key was already used with other content. Over HTTP this is always an error, in SQL only with `strict`.
    #[error(
        "idempotency_key: {key:?} was used with other content by notification {first}; nothing was enqueued{}",
        if *.aborted { ABORTED } else { "; use another key" }
    )]
    Conflict {
        /// The key that both notifications have.
        key: String,
        /// The notification that used the key first.
        first: Uuid,
        /// True if PostgreSQL found the conflict: it accepts only a rollback, of the transaction or to an earlier
        /// savepoint. False on SQLite, where the transaction goes on, and over HTTP.
        aborted: bool,
    },
    /// The database refused the statement or could not be reached.
    #[error("database: {}", shown(&**.0))]
    Database(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server refused the request. Repeating it will not help.
    #[cfg(feature = "http")]
    #[error("{status}{}{kind}: {detail}", if .kind.is_empty() { "" } else { " " })]
    Refused {
        /// The status of the HTTP response.
        status: u16,
        /// The kind of refusal, e.g. `forbidden` or `not-found`. Empty if a proxy or another program refused the
        /// request.
        kind: String,
        /// The server's explanation.
        detail: String,
    },
    /// The server could not be reached, was overloaded, or sent an unreadable response. It is not known whether
    /// anything was enqueued. Enqueueing the same notification again is safe.
    #[cfg(feature = "http")]
    #[error("server: {0}")]
    Unavailable(String),
}

impl Error {
    pub(crate) fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }
}

/// The error and its causes in one line. For an error of PostgreSQL only the message is shown, because its detail may
/// quote the row, which contains addresses and bodies.
fn shown(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    #[cfg(feature = "tokio-postgres")]
    if let Some(refused) = error.downcast_ref::<tokio_postgres::Error>().and_then(|e| e.as_db_error()) {
        return refused.message().to_owned();
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        // Some drivers already include the cause in their own text.
        if !text.contains(&deeper.to_string()) {
            text = format!("{text}: {deeper}");
        }
        cause = deeper.source();
    }
    text
}
