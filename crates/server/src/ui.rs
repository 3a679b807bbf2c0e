//! The pages that browsers are given, and what they are made of.

mod assets;
pub mod chart;
mod login;

use axum::Router;
use axum::routing::get;

use crate::app::AppState;
use crate::problem::{Problem, ProblemKind, ProblemPage};

/// The page table, then the asset files.
pub fn router() -> Router<AppState> {
    Router::new()
        .route("/", get(login::home))
        .route("/login", get(login::login_page).post(login::login))
        .method_not_allowed_fallback(method_not_allowed)
        .merge(assets::router())
}

async fn method_not_allowed() -> ProblemPage {
    Problem::new(ProblemKind::MethodNotAllowed, "the page is known, but not with this method").into()
}
