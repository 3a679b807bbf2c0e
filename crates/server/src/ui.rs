//! The pages for browsers, and their assets and charts. Pages use the functions of the store and the rules of `acts`, as
//! the API and the command line do. They have no queries and no rights of their own.
//!
//! - [`pages`]: the page table, which the router, the navigation and the tests read;
//! - `frame`: checks the visitor's scope, and draws the navigation around a page; `words`: how pages show states, times
//!   and numbers;
//! - one file for each page, and its template of the same name in `ui/pages`;
//! - [`chart`]: charts as SVG.

mod acts;
mod assets;
mod audit;
mod captured;
pub mod chart;
mod confirm;
mod demo;
mod entities;
mod event_types;
mod frame;
mod glossary;
mod go_live;
mod jobs;
mod keys;
mod login;
mod member_lists;
mod notification;
mod notifications;
mod overview;
mod parked;
mod providers;
mod query;
mod suppressions;
mod system;
mod templates;
mod typed;
mod unsubscribe;
mod users;
mod words;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use postcommit_channel::model::Scope;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;

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
    /// The scope that a person needs. It is checked before the handler runs. With `None`, everybody who is signed in
    /// may open the page.
    pub scope: Option<Scope>,
    /// The group and the label of the page in the navigation. `None` if the page is not in it.
    pub listed: Option<(Group, &'static str)>,
    answer: MethodRouter<AppState>,
}

impl Page {
    fn shows(path: &'static str, scope: impl Into<Option<Scope>>, answer: MethodRouter<AppState>) -> Self {
        Self { path, method: "GET", scope: scope.into(), listed: None, answer }
    }

    fn changes(path: &'static str, scope: impl Into<Option<Scope>>, answer: MethodRouter<AppState>) -> Self {
        Self { path, method: "POST", scope: scope.into(), listed: None, answer }
    }

    fn listed(self, group: Group, label: &'static str) -> Self {
        Self { listed: Some((group, label)), ..self }
    }
}

/// Returns the page table: every page and every form that a page posts.
pub fn pages() -> Vec<Page> {
    use Scope::{Admin, Edit, Operate, Ops, Read};
    vec![
        Page::shows("/", Read, get(overview::page)).listed(Group::Watch, "Overview"),
        Page::shows("/notifications", Read, get(notifications::list)).listed(Group::Watch, "Notifications"),
        Page::shows("/notifications/export", Read, get(notifications::export::export)),
        Page::shows("/notifications/{id}", Read, get(notification::page)),
        Page::shows("/notifications/{id}/{n}/mail", Read, get(notification::mail)),
        Page::changes("/notifications/{id}/cancel", Operate, post(notification::acts::cancel)),
        Page::changes("/notifications/{id}/resend", Operate, post(notification::acts::resend)),
        Page::changes("/notifications/{id}/{n}/suppress", Edit, post(notification::acts::suppress)),
        Page::changes("/notifications/views", Read, post(notifications::views::save)),
        Page::changes("/notifications/views/delete", Read, post(notifications::views::delete)),
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
        Page::shows("/event-types", Read, get(event_types::list)).listed(Group::Say, "Event types"),
        Page::changes("/event-types", Edit, post(event_types::create)),
        Page::shows("/event-types/{name}", Read, get(event_types::page)),
        Page::changes("/event-types/{name}", Edit, post(event_types::save)),
        Page::changes("/event-types/{name}/delete", Edit, post(event_types::delete)),
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
        Page::shows("/audit", Admin, get(audit::page)).listed(Group::Run, "Audit"),
        Page::shows("/audit/export", Admin, get(audit::export)),
        Page::shows("/system", Ops, get(system::page)).listed(Group::Run, "System"),
        Page::shows("/keys", Admin, get(keys::page)).listed(Group::Run, "Keys and people"),
        Page::changes("/keys", Admin, post(keys::create)),
        Page::changes("/keys/{id}/revoke", Admin, post(keys::revoke)),
        Page::changes("/keys/sign-in-links", Admin, post(keys::create_link)),
        Page::changes("/keys/sign-out", Admin, post(keys::sign_out)),
        Page::shows("/glossary", None, get(glossary::page)),
        Page::shows("/go-live", Ops, get(go_live::page)).listed(Group::Run, "Go live"),
        Page::changes("/theme", None, post(frame::choose_theme)),
        Page::changes("/sign-out", None, post(login::sign_out)),
    ]
}

/// The pages that only a demo has. All tenants share its fakes, so a person of one tenant may not see what they
/// received.
pub fn demo_pages() -> Vec<Page> {
    use Scope::Ops;
    vec![
        Page::shows("/demo", Ops, get(demo::page)).listed(Group::Watch, "Demo"),
        Page::changes("/demo/chaos", Ops, post(demo::chaos)),
        Page::changes("/demo/break", Ops, post(demo::break_all)),
        Page::changes("/demo/mend", Ops, post(demo::mend)),
    ]
}

/// The routes of the pages and of the asset files.
pub fn router(app: &AppState) -> Router<AppState> {
    let open = Router::new()
        .route("/login", get(login::login_page).post(login::login))
        .route("/u/{token}", get(unsubscribe::unsubscribe_page).post(unsubscribe::unsubscribe));
    let of_demo = if app.demo.is_some() { demo_pages() } else { vec![] };
    let all = pages().into_iter().chain(of_demo).fold(open, |router, page| {
        let gate = from_fn_with_state((app.clone(), page.scope), frame::admit);
        router.route(page.path, page.answer.layer(gate))
    });
    let compressed = CompressionLayer::new().gzip(true).quality(CompressionLevel::Fastest);
    all.method_not_allowed_fallback(method_not_allowed).merge(assets::router()).layer(compressed)
}

async fn method_not_allowed() -> ProblemPage {
    Problem::new(ProblemKind::MethodNotAllowed, "the page exists, but does not support this method").into()
}
