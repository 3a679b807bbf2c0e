//! The pages for browsers, and their assets and charts. Pages use the functions of the store and the rules of `acts`, as
//! the API and the command line do. They have no queries and no rights of their own.
//!
//! - [`pages`]: the page table, which the router, the navigation and the tests read;
//! - `frame`: who is admitted to a page, and what surrounds it; `words`: how pages show states, times and numbers;
//! - one file for each page, and its template of the same name in `ui/pages`;
//! - [`chart`]: charts as SVG.

mod acts;
mod assets;
mod captured;
pub mod chart;
mod confirm;
mod entities;
mod frame;
mod jobs;
mod login;
mod notification;
mod notifications;
mod overview;
mod parked;
mod providers;
mod unsubscribe;
mod words;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use postcommit_channel::model::Scope;

use crate::app::AppState;
use crate::problem::{Problem, ProblemKind, ProblemPage};

pub use assets::STYLE;

/// The groups of the navigation, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Watch,
    Say,
    Whom,
    Send,
    Run,
}

impl Group {
    pub const ALL: [Self; 5] = [Self::Watch, Self::Say, Self::Whom, Self::Send, Self::Run];

    pub fn name(self) -> &'static str {
        match self {
            Self::Watch => "Watch",
            Self::Say => "Say",
            Self::Whom => "Whom",
            Self::Send => "Send",
            Self::Run => "Run",
        }
    }
}

/// A page, or a form that a page posts.
pub struct Page {
    /// The path, with parameters in braces.
    pub path: &'static str,
    pub method: &'static str,
    /// The scope that a person needs. It is checked before the handler runs. `None` is everybody who is signed in.
    pub scope: Option<Scope>,
    /// The place in the navigation: group and label.
    pub listed: Option<(Group, &'static str)>,
    answer: MethodRouter<AppState>,
}

impl Page {
    fn shows(path: &'static str, scope: Scope, answer: MethodRouter<AppState>) -> Self {
        Self { path, method: "GET", scope: Some(scope), listed: None, answer }
    }

    fn changes(path: &'static str, scope: impl Into<Option<Scope>>, answer: MethodRouter<AppState>) -> Self {
        Self { path, method: "POST", scope: scope.into(), listed: None, answer }
    }

    fn listed(self, group: Group, label: &'static str) -> Self {
        Self { listed: Some((group, label)), ..self }
    }
}

/// The page table.
pub fn pages() -> Vec<Page> {
    use Scope::{Edit, Operate, Read};
    vec![
        Page::shows("/", Read, get(overview::page)).listed(Group::Watch, "Overview"),
        Page::shows("/notifications", Read, get(notifications::list)).listed(Group::Watch, "Notifications"),
        Page::shows("/notifications/export", Read, get(notifications::export::export)),
        Page::shows("/notifications/{id}", Read, get(notification::page)),
        Page::shows("/notifications/{id}/{n}/mail", Read, get(notification::mail)),
        Page::changes("/notifications/{id}/cancel", Operate, post(notification::acts::cancel)),
        Page::changes("/notifications/{id}/resend", Operate, post(notification::acts::resend)),
        Page::changes("/deliveries/retry", Operate, post(acts::retry)),
        Page::changes("/deliveries/discard", Operate, post(acts::discard)),
        Page::changes("/deliveries/mark-delivered", Operate, post(notification::acts::mark_delivered)),
        Page::shows("/parked", Read, get(parked::page)).listed(Group::Watch, "Parked"),
        Page::shows("/entities", Read, get(entities::search)).listed(Group::Watch, "Entities"),
        Page::shows("/entities/{entity}", Read, get(entities::page)),
        Page::shows("/entities/{entity}/resend", Operate, get(entities::resend::page)),
        Page::changes("/entities/{entity}/resend", Operate, post(entities::resend::resend)),
        Page::changes("/entities/{entity}/cancel", Operate, post(entities::cancel)),
        Page::shows("/providers", Read, get(providers::list)).listed(Group::Send, "Providers"),
        Page::shows("/providers/new", Edit, get(providers::catalogue::page)),
        Page::shows("/providers/new/{driver}", Edit, get(providers::edit::new)),
        Page::changes("/providers/new/{driver}", Edit, post(providers::edit::create)),
        Page::shows("/providers/{name}", Read, get(providers::page)),
        Page::shows("/providers/{name}/edit", Edit, get(providers::edit::edit)),
        Page::changes("/providers/{name}/edit", Edit, post(providers::edit::update)),
        Page::shows("/providers/{name}/test", Operate, get(providers::trial::page)),
        Page::changes("/providers/{name}/test", Operate, post(providers::trial::test)),
        Page::changes("/providers/{name}/callback", Edit, post(providers::callback::show)),
        Page::changes("/providers/{name}/pause", Operate, post(providers::acts::pause)),
        Page::changes("/providers/{name}/resume", Operate, post(providers::acts::resume)),
        Page::changes("/providers/{name}/disable", Edit, post(providers::acts::disable)),
        Page::changes("/providers/{name}/enable", Edit, post(providers::acts::enable)),
        Page::changes("/providers/{name}/delete", Edit, post(providers::acts::delete)),
        Page::shows("/captured", Read, get(captured::page)).listed(Group::Send, "Captured"),
        Page::shows("/jobs", Read, get(jobs::list)).listed(Group::Run, "Jobs"),
        Page::shows("/jobs/{id}", Read, get(jobs::page)),
        Page::changes("/jobs/{id}/cancel", Operate, post(jobs::cancel)),
        Page::changes("/theme", None, post(frame::choose_theme)),
        Page::changes("/sign-out", None, post(login::sign_out)),
    ]
}

/// The routes of the pages and of the asset files.
pub fn router(app: &AppState) -> Router<AppState> {
    let open = Router::new()
        .route("/login", get(login::login_page).post(login::login))
        .route("/u/{token}", get(unsubscribe::unsubscribe_page).post(unsubscribe::unsubscribe));
    let all = pages().into_iter().fold(open, |router, page| {
        let gate = from_fn_with_state((app.clone(), page.scope), frame::admit);
        router.route(page.path, page.answer.layer(gate))
    });
    all.method_not_allowed_fallback(method_not_allowed).merge(assets::router())
}

async fn method_not_allowed() -> ProblemPage {
    Problem::new(ProblemKind::MethodNotAllowed, "the page exists, but does not support this method").into()
}
