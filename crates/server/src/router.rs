//! All routes that a process serves, by its role.

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::Method;
use axum::http::header::ACCEPT;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use postcommit_engine::dispatch::Tools;

use crate::api::inbox::cors;
use crate::app::AppState;
use crate::auth::csrf;
use crate::problem::{Problem, ProblemKind, ProblemPage};
use crate::settings::Settings;
use crate::{api, door, health, hosts, ui, watching};

/// The routes of the probes and `/metrics`. With `app`, also those of the API and the pages. A worker has no `app`.
pub fn router(settings: &Settings, tools: &Tools, app: Option<AppState>) -> Router {
    let metrics = watching::routes(tools, &settings.metrics, settings.server.is_loopback());
    let probes = health::routes(tools.store.clone()).merge(metrics);
    let all = match app {
        Some(app) => probes.merge(hosts::guarded(api_and_pages(app), settings)),
        None => probes.fallback(not_by_a_worker),
    };
    // The module `door` already limits the size of bodies, so axum's limit is switched off.
    watching::watched(door::named_routes(all), tools).layer(DefaultBodyLimit::disable())
}

fn api_and_pages(app: AppState) -> Router {
    api::router()
        .merge(ui::router(&app))
        .fallback(no_such_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn(csrf::keep_form_token))
        .layer(from_fn_with_state(app.clone(), cors::answer_browsers))
        .with_state(app)
}

/// Answers a request that no route matches: a browser gets an HTML page, any other client gets JSON.
async fn no_such_route(request: Request) -> Response {
    let accepts = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    if request.method() == Method::GET && accepts.is_some_and(|accept| accept.contains("text/html")) {
        return ProblemPage::from(Problem::new(ProblemKind::NotFound, "there is no page at this address"))
            .into_response();
    }
    Problem::new(ProblemKind::NotFound, "there is no such route; /openapi.json lists the routes").into_response()
}

async fn method_not_allowed() -> Problem {
    Problem::new(ProblemKind::MethodNotAllowed, "the route exists, but does not support this method")
}

async fn not_by_a_worker() -> Problem {
    let detail = "this process is a worker and serves only /healthz, /readyz and /metrics; \
        a process of `serve --role api` or `--role all` serves the API";
    Problem::new(ProblemKind::NotFound, detail)
}
