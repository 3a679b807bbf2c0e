//! Checks who may open a page, and draws the frame around it: navigation, theme, tenant and messages.

use std::sync::LazyLock;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Value, context};
use postcommit_channel::clock;
use postcommit_channel::model::Scope;
use postcommit_engine::store::{Store, masked_csrf_token};
use serde::{Deserialize, Serialize};

use super::acts::{Done, see};
use super::assets::{self, PAGES};
use super::login::to_sign_in;
use super::words::{self, shown};
use super::{Group, Page, demo_pages, pages};
use crate::app::{App, AppState};
use crate::auth::{self, Caller};
use crate::html;
use crate::problem::{Answer, Problem, ProblemKind, ProblemPage};
use crate::read::Form;

/// The maximum number of tenants that the menu offers. With more tenants, a person types the name.
const TENANTS_OFFERED: i64 = 100;
/// The cookie that keeps the theme.
const THEME: &str = "theme";
const THEMES: [(&str, &str); 3] = [("auto", "Auto"), ("light", "Light"), ("dark", "Dark")];

/// The person who looks at a page, or a program with a key.
#[derive(Clone)]
pub struct Visitor {
    pub caller: Caller,
    /// The CSRF token that forms send back, masked for this answer. Empty for a key, which needs none.
    csrf: String,
    theme: &'static str,
    /// The path of the request, which the navigation marks.
    path: String,
    /// The path and the query of the page, to which forms lead back. For a form that was posted to a path without a
    /// page it is the home page, or the page that its question leads back to.
    here: String,
    /// Whether the visitor chose a tenant, which then is in every link.
    chosen_tenant: Option<String>,
}

/// The middleware of every page. It admits a signed-in caller with the scope of the page, and draws a refusal of the
/// page in the frame.
pub async fn admit(State((app, scope)): State<(AppState, Option<Scope>)>, request: Request, next: Next) -> Answer {
    let (mut parts, body) = request.into_parts();
    if let Some(all) = without_tenant(&parts.uri).filter(|_| reads(&parts.method)) {
        return Ok(see(all));
    }
    let caller = match Caller::from_request_parts(&mut parts, &app).await {
        Ok(caller) => caller,
        Err(problem) if problem.kind() == ProblemKind::Unauthenticated && !by_key(&parts.headers) => {
            return Ok(to_sign_in(&parts.method, &parts.uri));
        }
        Err(problem) => return Err(problem.into()),
    };
    let visitor = Visitor::of(&parts, caller);
    if let Some(Err(problem)) = scope.map(|scope| visitor.caller.may(scope)) {
        return Ok(visitor.refusal(&app, &no_scope(scope, &problem)).await);
    }
    parts.extensions.insert(visitor.clone());
    let response = next.run(Request::from_parts(parts, body)).await;
    match response.extensions().get::<Problem>().cloned() {
        Some(problem) => Ok(visitor.refusal(&app, &problem).await),
        None => Ok(response),
    }
}

/// Returns the URL without its empty `tenant=`, with which the menu chooses all tenants. `None` if the URL has none.
/// The API refuses an empty name, because a script may have lost the name.
fn without_tenant(uri: &Uri) -> Option<String> {
    let query = uri.query()?;
    let kept: Vec<&str> = query.split('&').filter(|pair| *pair != "tenant=").collect();
    (kept.len() < query.split('&').count()).then(|| match kept.join("&") {
        kept if kept.is_empty() => uri.path().to_owned(),
        kept => format!("{}?{kept}", uri.path()),
    })
}

fn by_key(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION)
}

fn no_scope(scope: Option<Scope>, problem: &Problem) -> Problem {
    let name = scope.map_or("", Scope::name);
    Problem::new(problem.kind(), format!("this page needs the scope `{name}`, which your sign-in does not have"))
}

impl Visitor {
    fn of(parts: &Parts, caller: Caller) -> Self {
        let session = auth::cookie(&parts.headers).filter(|_| !by_key(&parts.headers));
        // The token is revealed here to the page whose forms must send it.
        let csrf = session.and_then(masked_csrf_token).map(|token| token.reveal().to_owned()).unwrap_or_default();
        let chosen_tenant = caller.chose().then(|| caller.tenant_name().to_owned());
        let path = parts.uri.path().to_owned();
        let pattern = parts.extensions.get::<MatchedPath>().map_or(path.as_str(), MatchedPath::as_str);
        let is_page = TABLE.iter().chain(OF_DEMO.iter()).any(|page| page.path == pattern && page.method == "GET");
        let here = parts.uri.path_and_query().filter(|_| is_page).map_or("/", |here| here.as_str()).to_owned();
        Self { csrf, theme: theme(&parts.headers), path, here, chosen_tenant, caller }
    }

    /// Returns the visitor of a confirmation page, whose forms lead back to the page before it.
    pub fn asked_on(&self, page: &str) -> Self {
        let path = page.split(['?', '#']).next().unwrap_or("/").to_owned();
        Self { path, here: page.to_owned(), ..self.clone() }
    }

    pub fn may(&self, scope: Scope) -> bool {
        self.caller.scopes().allows(scope)
    }

    pub fn store(&self, app: &App) -> Store {
        self.caller.store(app)
    }

    /// Whether the page shows several tenants, so that rows name theirs.
    pub fn sees_all(&self) -> bool {
        self.caller.whose().is_none()
    }

    /// Returns a link to another page, which keeps the chosen tenant.
    pub fn link(&self, to: &str) -> String {
        with_tenant(to, self.chosen_tenant.as_deref())
    }

    /// The path of an object in a list. People who see all tenants get a link that names its tenant.
    pub fn path_in(&self, tenant: &str, path: String) -> String {
        let is_own = !self.sees_all() || tenant == self.caller.tenant_name();
        if is_own { path } else { with_tenant(&path, Some(tenant)) }
    }

    /// Whether the visitor sees several tenants, and must choose one before something can be created.
    pub async fn must_choose(&self, app: &App) -> Result<bool, Problem> {
        Ok(self.sees_all() && self.caller.store_of_all(app).tenant_rows(None, 2).await?.len() > 1)
    }

    /// Refuses to create something for a visitor who sees several tenants and chose none.
    pub async fn has_chosen(&self, app: &App) -> Result<(), Problem> {
        let detail = "is not chosen; you see all tenants, so choose the one to which the new object will belong";
        if self.must_choose(app).await? { Err(Problem::invalid("tenant", detail)) } else { Ok(()) }
    }

    /// Draws a page: the template `name` in the frame. `content` are the values of the template.
    pub async fn page(&self, app: &App, name: &str, title: &str, content: Value) -> Answer {
        self.page_as(app, StatusCode::OK, name, title, content).await
    }

    /// Draws a page with this status, e.g. of a form that was refused.
    pub async fn page_as(&self, app: &App, status: StatusCode, name: &str, title: &str, content: Value) -> Answer {
        let frame = self.frame(app, title, status).await?;
        // The values of the frame take precedence, so that no page replaces the token or the tenant by accident.
        drawn(status, name, context! { ..frame, ..content }).map_err(ProblemPage::from)
    }

    /// Draws a refusal in the frame, or on a page of its own if the frame cannot be made.
    async fn refusal(&self, app: &App, problem: &Problem) -> Response {
        let (status, title) = (problem.status(), problem.title());
        let content = context! { detail => problem.told(), advice => problem.advice() };
        let framed = self.frame(app, title, status).await.map(|frame| context! { ..frame, ..content });
        let drawn = framed.and_then(|values| drawn(status, "problem.html", values));
        let mut response = drawn.unwrap_or_else(|_| ProblemPage::from(problem.clone()).into_response());
        problem.add_headers(response.headers_mut());
        response
    }

    async fn frame(&self, app: &App, title: &str, status: StatusCode) -> Result<Value, Problem> {
        let back_path = self.here.split(['?', '#']).next().unwrap_or("/");
        let kpis = app.tallies.current(app, &self.caller).await?;
        let groups = navigation(&self.path, app.demo.is_some(), |scope| scope.is_none_or(|scope| self.may(scope)));
        let tenants = self.tenants(app).await?;
        let is_only = tenants.as_ref().is_none_or(|names| names.len() == 1);
        let done = Done::read(&self.here).filter(|_| status == StatusCode::OK);
        Ok(context! {
            title, back_path, navigation => groups,
            here => without_done(&self.here),
            parked => kpis.total.parked.total,
            kpis => shown(&kpis.total),
            done => done.map(|done| done.sentence()),
            environment => app.ui.environment.as_str(),
            version => env!("CARGO_PKG_VERSION"),
            style => assets::STYLE.path(), script => assets::SCRIPT.path(),
            csrf => self.csrf.as_str(),
            theme => self.theme, themes => THEMES.map(|(name, label)| context! { name, label }).to_vec(),
            actor => self.caller.actor(),
            tenant => self.chosen_tenant.as_deref(),
            own_tenant => self.caller.tenant_name(),
            tenants => shown(tenants),
            sees_all => self.sees_all() && !is_only,
            may_operate => self.may(Scope::Operate),
            may_edit => self.may(Scope::Edit),
            now => clock::now().to_string(),
        })
    }

    /// The tenants to choose from, for people with the scope `ops`. Other people do not learn that there are several
    /// tenants.
    async fn tenants(&self, app: &App) -> Result<Option<Vec<String>>, Problem> {
        if !self.may(Scope::Ops) {
            return Ok(None);
        }
        let rows = self.caller.store_of_all(app).tenant_rows(None, TENANTS_OFFERED + 1).await?;
        let is_short = i64::try_from(rows.len()).is_ok_and(|rows| rows <= TENANTS_OFFERED);
        Ok(Some(if is_short { rows.into_iter().map(|row| row.name).collect() } else { vec![] }))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Visitor {
    type Rejection = ProblemPage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ProblemPage> {
        let missing = || Problem::new(ProblemKind::Internal, "the page is not in the page table; report it as a bug");
        parts.extensions.get::<Self>().cloned().ok_or_else(|| missing().into())
    }
}

/// A group of the navigation with the pages that the visitor may open.
#[derive(Serialize)]
struct NavGroup {
    name: &'static str,
    pages: Vec<NavPage>,
}

#[derive(Serialize)]
struct NavPage {
    path: &'static str,
    label: &'static str,
    is_current: bool,
}

static TABLE: LazyLock<Vec<Page>> = LazyLock::new(pages);
static OF_DEMO: LazyLock<Vec<Page>> = LazyLock::new(demo_pages);

fn navigation(here: &str, in_demo: bool, may: impl Fn(Option<Scope>) -> bool) -> Value {
    let of_demo: &[Page] = if in_demo { &OF_DEMO } else { &[] };
    let of = |group: Group| {
        let pages = TABLE.iter().chain(of_demo).filter(|page| may(page.scope)).filter_map(|page| {
            let (_, label) = page.listed.filter(|(of, _)| *of == group)?;
            Some(NavPage { path: page.path, label, is_current: is_within(here, page.path) })
        });
        NavGroup { name: group.name(), pages: pages.collect() }
    };
    shown(Group::ALL.map(of).into_iter().filter(|group| !group.pages.is_empty()).collect::<Vec<_>>())
}

/// Whether the path `here` is the page `page` of the navigation, or below it.
fn is_within(here: &str, page: &str) -> bool {
    here == page || here.strip_prefix(page).is_some_and(|rest| page != "/" && rest.starts_with('/'))
}

/// Adds the chosen tenant to a link.
pub fn with_tenant(to: &str, tenant: Option<&str>) -> String {
    let Some(tenant) = tenant else { return to.to_owned() };
    let (to, fragment) = to.split_once('#').map_or((to, String::new()), |(to, part)| (to, format!("#{part}")));
    let joint = if to.contains('?') { '&' } else { '?' };
    let tenant: String = form_urlencoded::byte_serialize(tenant.as_bytes()).collect();
    format!("{to}{joint}tenant={tenant}{fragment}")
}

fn without_done(here: &str) -> String {
    let Some((path, query)) = here.split_once('?') else { return here.to_owned() };
    let kept: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("done=")).collect();
    if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) }
}

fn theme(headers: &HeaderMap) -> &'static str {
    let chosen = auth::cookie_named(headers, THEME);
    let known = THEMES.iter().find(|(name, _)| Some(*name) == chosen);
    known.map_or("auto", |(name, _)| name)
}

/// The form that chooses the theme.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThemeForm {
    theme: String,
    back: String,
}

/// Keeps the theme in a cookie for a year and returns to the page.
pub async fn choose_theme(form: Result<Form<ThemeForm>, Problem>) -> Answer {
    let Form(ThemeForm { theme, back }) = form?;
    let Some((name, _)) = THEMES.iter().find(|(name, _)| *name == theme) else {
        return Err(Problem::invalid("theme", format!("is {theme:?}; allowed are auto, light and dark")).into());
    };
    let cookie = format!("{THEME}={name}; Path=/; Max-Age=31536000; Secure; HttpOnly; SameSite=Lax");
    Ok((StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, own_path(&back))]).into_response())
}

/// A path of this server that a form named as the way back. Anything else becomes the home page, so that a forged form
/// cannot lead to another site.
pub fn own_path(named: &str) -> String {
    let is_path = named.starts_with('/') && !named.starts_with("//") && !named.contains(['\\', '\r', '\n', '\t']);
    let parsed = named.parse::<Uri>().ok().filter(|uri| is_path && uri.authority().is_none());
    parsed.map_or_else(|| "/".to_owned(), |uri| uri.to_string())
}

/// Whether a request only reads a page, so that a person can be led back to its URL.
pub fn reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn drawn(status: StatusCode, name: &str, values: Value) -> Result<Response, Problem> {
    let rendered = if cfg!(debug_assertions) { render(&engine(), name, values) } else { render(&ENGINE, name, values) };
    let text = rendered.map_err(|problem| {
        tracing::error!(
            page = name,
            problem = format!("{problem:#}"),
            "a page could not be drawn; the request is \
            answered with status 500"
        );
        Problem::new(ProblemKind::Internal, "the page could not be drawn; the server's log has details")
    })?;
    Ok(html::answer(status, text))
}

fn render(engine: &Environment<'_>, name: &str, values: Value) -> Result<String, minijinja::Error> {
    engine.get_template(name)?.render(values)
}

/// The templates of the pages. Debug builds make them anew for each page, so that an edited file is seen immediately.
static ENGINE: LazyLock<Environment<'static>> = LazyLock::new(engine);

fn engine() -> Environment<'static> {
    let mut engine = Environment::new();
    engine.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        engine.set_syntax(syntax);
    }
    engine.set_loader(|name| Ok(PAGES.iter().find(|page| page.name == name).map(|page| page.text().into_owned())));
    // Texts are escaped by the function that escapes all other HTML of the server.
    engine.set_formatter(|out, state, value| match value.as_str().filter(|_| !value.is_safe()) {
        Some(text) if *state.auto_escape() == AutoEscape::Html => Ok(out.write_str(&html::escape(text))?),
        _ => minijinja::escape_formatter(out, state, value),
    });
    words::add_to(&mut engine);
    engine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_back_never_leads_to_another_site() {
        for (named, to) in [
            ("/notifications?state=parked", "/notifications?state=parked"),
            ("/", "/"),
            ("", "/"),
            ("//evil.example/x", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example", "/"),
            ("javascript:alert(1)", "/"),
            ("/x\r\nSet-Cookie: a=b", "/"),
        ] {
            assert_eq!(own_path(named), to, "{named:?}");
        }
    }

    #[test]
    fn a_link_keeps_the_chosen_tenant() {
        assert_eq!(with_tenant("/a", None), "/a");
        assert_eq!(with_tenant("/a", Some("b c&d")), "/a?tenant=b+c%26d");
        assert_eq!(with_tenant("/a?x=1#y", Some("b")), "/a?x=1&tenant=b#y");
    }

    #[test]
    fn every_template_is_read_and_escapes_html() {
        let engine = engine();
        for page in PAGES {
            let template = engine.get_template(page.name).unwrap_or_else(|e| panic!("{}: {e:#}", page.name));
            assert!(template.name().ends_with(".html"), "only this ending is escaped as HTML");
        }
        let shown =
            engine.render_named_str("x.html", "{{ text }}", context! { text => "<b>\"'&\u{202e}\u{1}" }).unwrap();
        assert!(
            !shown.contains('<') && !shown.contains('"') && !shown.contains('\'') && !shown.contains('\u{202e}'),
            "{shown}"
        );
    }
}
