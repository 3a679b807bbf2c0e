//! `/healthz` and `/readyz`, on an accept loop of our own: a slow or silent client is cut off, and there is room for so many at once only.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use postcommit_engine::store::Store;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

const CONNECTIONS: usize = 256;
const HEADER_DEADLINE: Duration = Duration::from_secs(10);
const CONNECTION_DEADLINE: Duration = Duration::from_secs(60);

/// Answers until the process ends.
pub async fn serve(listener: TcpListener, store: Store) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(problem) => {
                // Out of file descriptors, most likely: give others time to close theirs.
                tracing::warn!(%problem, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let store = store.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, store.clone()));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_DEADLINE)
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION_DEADLINE, connection).await;
            drop(slot);
        });
    }
}

async fn answer(request: Request<Incoming>, store: Store) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/healthz") => (200, "ok\n".to_owned()),
        (&Method::GET | &Method::HEAD, "/readyz") => match store.db().check_schema().await {
            Ok(()) => (200, "ready\n".to_owned()),
            Err(problem) => (503, format!("{problem}\n")),
        },
        (_, "/healthz" | "/readyz") => (405, "GET only\n".to_owned()),
        _ => (404, "here are /healthz and /readyz\n".to_owned()),
    };
    let response = Response::builder().status(status).header("content-type", "text/plain; charset=utf-8").body(Full::from(text));
    Ok(response.unwrap_or_default())
}
