//! `/healthz`: the process lives. `/readyz`: the database answers, has our schema and takes writes.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use postcommit_engine::db::DbError;
use postcommit_engine::store::Store;

/// Both routes, for GET and HEAD.
pub fn routes(store: Store) -> Router {
    let only_get = async || (StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
    Router::new()
        .route("/healthz", get(async || "ok\n").fallback(only_get))
        .route("/readyz", get(ready).fallback(only_get))
        .with_state(store)
}

async fn ready(State(store): State<Store>) -> (StatusCode, String) {
    match check(&store).await {
        Ok(false) => (StatusCode::OK, "ready\n".into()),
        Ok(true) => (StatusCode::SERVICE_UNAVAILABLE, "the database is read-only\n".into()),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

async fn check(store: &Store) -> Result<bool, DbError> {
    store.db().check_schema().await?;
    store.is_read_only().await
}
