//! The pages for browsers, and their assets and charts. Pages use the functions of the store and the rules of `acts`, as
//! the API and the command line do. They have no queries and no rights of their own.
//!
//! - [`pages`]: the page table, which the router, the navigation and the tests read;
//! - `frame`: who is admitted to a page, and what surrounds it; `words`: how pages show states, times and numbers;
//! - one file for each page, and its template of the same name in `ui/pages`;
//! - [`chart`]: charts as SVG.

mod acts;
mod assets;
pub mod chart;
mod confirm;
mod frame;
mod jobs;
mod login;
mod member_lists;
mod notification;
mod notifications;
mod overview;
mod parked;
mod query;
mod suppressions;
mod templates;
mod typed;
mod unsubscribe;
mod users;
pub(crate) mod words;

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
        Page::shows("/templates", Read, get(templates::list)).listed(Group::Say, "Templates"),
        Page::changes("/templates", Edit, post(templates::editor::create)),
        Page::shows("/templates/{id}", Read, get(templates::editor::page)),
        Page::shows("/templates/{id}/mail", Read, get(templates::editor::mail)),
        Page::shows("/templates/{id}/versions", Read, get(templates::versions::page)),
        Page::changes("/templates/{id}", Edit, post(templates::editor::save)),
        Page::changes("/templates/{id}/test", Operate, post(templates::trial::send)),
        Page::changes("/templates/{id}/roll-back", Edit, post(templates::versions::roll_back)),
        Page::changes("/templates/{id}/activate", Edit, post(templates::versions::activate)),
        Page::changes("/templates/{id}/deactivate", Edit, post(templates::versions::deactivate)),
        Page::changes("/templates/{id}/delete", Edit, post(templates::versions::delete)),
        Page::shows("/users", Read, get(users::list)).listed(Group::Whom, "Users"),
        Page::changes("/users", Edit, post(users::acts::create)),
        Page::shows("/users/{id}", Read, get(users::one::page)),
        Page::changes("/users/{id}", Edit, post(users::acts::save)),
        Page::changes("/users/{id}/address", Edit, post(users::acts::address)),
        Page::changes("/users/{id}/preferences", Edit, post(users::acts::preference)),
        Page::changes("/users/{id}/delete", Edit, post(users::acts::delete)),
        Page::shows("/lists", Read, get(member_lists::list)).listed(Group::Whom, "Lists"),
        Page::changes("/lists", Edit, post(member_lists::create)),
        Page::shows("/lists/{name}", Read, get(member_lists::page)),
        Page::changes("/lists/{name}", Edit, post(member_lists::save)),
        Page::changes("/lists/{name}/members", Edit, post(member_lists::members)),
        Page::changes("/lists/{name}/delete", Edit, post(member_lists::delete)),
        Page::shows("/suppressions", Read, get(suppressions::list)).listed(Group::Whom, "Suppressions"),
        Page::changes("/suppressions", Edit, post(suppressions::add)),
        Page::changes("/suppressions/remove", Edit, post(suppressions::remove)),
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
