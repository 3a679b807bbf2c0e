//! `/healthz` says that the process runs. `/readyz` says that the database answers, has our schema and accepts writes.
//! Both accept any `Host`, because probes use any name and the answers hold no tenant's data.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use postcommit_engine::db::DbError;
use postcommit_engine::store::{Lacking, Store, UnopenedLane};
use tokio::sync::watch;

/// The longest time until a probe is answered, even if the database has not answered.
const PATIENCE: Duration = Duration::from_millis(1500);

type Readiness = (StatusCode, String);

/// Runs one check at a time, which all concurrent probes share. A check is never cancelled, because a database call is
/// never cancelled.
#[derive(Clone)]
struct ReadyProbe {
    store: Store,
    under_way: Arc<Mutex<Option<watch::Receiver<Option<Readiness>>>>>,
}

/// The routes `/healthz` and `/readyz`, for GET and HEAD.
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
            format!("the database has not answered for {} ms; check whether a lock blocks it\n", PATIENCE.as_millis()),
        )),
    };
    found.unwrap_or_else(|| {
        (StatusCode::SERVICE_UNAVAILABLE, "the readiness check failed; see the log of the server\n".into())
    })
}

impl ReadyProbe {
    /// Joins the running check, or starts one.
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
        Ok(false) => (StatusCode::OK, closed(store).await.unwrap_or_else(|| "ready\n".into())),
        Ok(true) => (StatusCode::SERVICE_UNAVAILABLE, "the database is read-only; check database.url\n".into()),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

/// Describes lanes that no worker can serve, if there are any. The process still counts as ready, because another
/// instance could not serve them either.
async fn closed(store: &Store) -> Option<String> {
    let lanes = store.unopened(None).await.ok()?;
    let UnopenedLane { lacking, reason, .. } = lanes.values().next()?;
    let (count, cause) = (
        lanes.len(),
        match lacking {
            Lacking::Secrets => "the secrets of their providers cannot be decrypted",
            Lacking::Driver => "no running process can set up the drivers of their providers",
        },
    );
    Some(format!("ready\nlanes closed: {count}, because {cause}: {reason}; `postcommit doctor` names them\n"))
}

async fn check(store: &Store) -> Result<bool, DbError> {
    store.db().check_schema().await?;
    store.is_read_only().await
}
