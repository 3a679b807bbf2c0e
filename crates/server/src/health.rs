//! `/healthz`: the process runs. `/readyz`: the database answers, has our schema and takes writes. Both answer to any
//! `Host`, since probes use any name and the answers hold no tenant's data.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use postcommit_engine::db::DbError;
use postcommit_engine::store::Store;
use tokio::sync::watch;

/// The longest time until a probe is answered, whether the database has answered or not.
const PATIENCE: Duration = Duration::from_millis(1500);

type Readiness = (StatusCode, String);

/// One check at a time, shared by all concurrent probes. It is never cancelled, because a database call never is.
#[derive(Clone)]
struct ReadyProbe {
    store: Store,
    under_way: Arc<Mutex<Option<watch::Receiver<Option<Readiness>>>>>,
}

/// Both routes, for GET and HEAD.
pub fn routes(store: Store) -> Router {
    let only_get = async || (StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
    Router::new()
        .route("/healthz", get(async || "ok\n").fallback(only_get))
        .route("/readyz", get(ready).fallback(only_get))
        .with_state(ReadyProbe { store, under_way: Arc::default() })
}

async fn ready(State(look): State<ReadyProbe>) -> Readiness {
    let mut answer = look.join();
    let waited = tokio::time::timeout(PATIENCE, answer.wait_for(Option::is_some)).await;
    let found = match waited {
        Ok(found) => found.ok().and_then(|found| found.clone()),
        Err(_) => Some((
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the database has not answered for {} ms; is a lock held?\n", PATIENCE.as_millis()),
        )),
    };
    found.unwrap_or_else(|| {
        (StatusCode::SERVICE_UNAVAILABLE, "the check of the database ended without a result\n".into())
    })
}

impl ReadyProbe {
    /// Joins the check under way, or starts one.
    fn join(&self) -> watch::Receiver<Option<Readiness>> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open =
            |look: &&watch::Receiver<Option<Readiness>>| look.has_changed().is_ok() && look.borrow().is_none();
        if let Some(look) = under_way.as_ref().filter(is_open) {
            return look.clone();
        }
        let (tell, told) = watch::channel(None);
        let store = self.store.clone();
        tokio::spawn(async move { tell.send(Some(look_at(&store).await)) });
        under_way.insert(told).clone()
    }
}

async fn look_at(store: &Store) -> Readiness {
    match check(store).await {
        Ok(false) => (StatusCode::OK, "ready\n".into()),
        Ok(true) => (StatusCode::SERVICE_UNAVAILABLE, "the database is read-only\n".into()),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

async fn check(store: &Store) -> Result<bool, DbError> {
    store.db().check_schema().await?;
    store.is_read_only().await
}
