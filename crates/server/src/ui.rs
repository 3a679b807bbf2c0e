//! The pages for browsers, and their assets and charts.

mod assets;
pub mod chart;
mod login;
mod unsubscribe;

use axum::Router;
use axum::routing::get;

use crate::app::AppState;
use crate::problem::{Problem, ProblemKind, ProblemPage};

/// The routes of the pages and of the asset files.
pub fn router() -> Router<AppState> {
    Router::new()
        .route("/", get(login::home))
        .route("/login", get(login::login_page).post(login::login))
        .route("/u/{token}", get(unsubscribe::unsubscribe_page).post(unsubscribe::unsubscribe))
        .method_not_allowed_fallback(method_not_allowed)
        .merge(assets::router())
}

async fn method_not_allowed() -> ProblemPage {
    Problem::new(ProblemKind::MethodNotAllowed, "the page exists, but does not support this method").into()
}
