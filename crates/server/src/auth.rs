//! Authenticates the caller of a request by a key or a session and checks its scopes. Keys are cached for at most a
//! second, so a change takes effect almost immediately.

pub mod csrf;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use postcommit_channel::clock;
use postcommit_channel::model::{Actor, Scope, Scopes};
use postcommit_channel::secret::Secret;
use postcommit_engine::db::DbError;
use postcommit_engine::store::{Key, KeyError, Login, Session, Store};

use crate::app::{App, AppState};
use crate::door::{Client, RequestId, holder};
use crate::problem::{Problem, ProblemKind};
use crate::rate::Buckets;
use crate::settings::ApiSettings;

/// The cookie of a session. The prefix `__Host-` binds it to this host, and to HTTPS or loopback.
pub const COOKIE: &str = "__Host-postcommit";
/// How long a session lasts after its last request.
pub const SESSION_LASTS: Duration = Duration::from_secs(12 * 3600);
/// The header of requests that the script of an open page makes by itself. These requests do not renew the session, so
/// that it ends even if a page stays open.
pub const POLL: &str = "postcommit-poll";
/// The time for which a key is cached. The process that revokes a key clears its own cache immediately.
const BELIEVED: Duration = Duration::from_secs(1);
/// The maximum number of keys in the cache.
const REMEMBERED: usize = 10_000;
/// The number of failed sign-ins per second that one address may make after its burst is used up.
const FAILURES_PER_S: f64 = 1.0 / 6.0;

const NO_KEY: &str = "the request has no key; send `Authorization: Bearer pc_…`";

/// The state about callers that the server keeps between requests.
/// A credential is checked first, and only a failure is counted. So one person who mistypes does not lock out an office
/// behind the same address. The limit on failures is not what prevents guessing: keys, sessions and links have 32
/// random bytes, and user tokens have an HMAC-SHA256. The limit keeps the log short and slows down a client that keeps
/// failing. A failure costs one indexed read, over at most `server.connections_per_address` connections.
pub struct Auth {
    believed: Mutex<HashMap<String, (Key, Instant)>>,
    requests: Buckets<String>,
    /// The rate limits of failed keys, user tokens and sessions, by address.
    failures: Buckets<IpAddr>,
    /// The rate limits of failed sign-in links, by address. They are counted separately, so that a program with a wrong
    /// key does not block people from signing in, and the reverse.
    link_failures: Buckets<IpAddr>,
    /// The rate limits of callbacks with an unknown token, by address.
    callback_failures: Buckets<IpAddr>,
    /// The keys that were used since `note_used_once` last stored them.
    used: Mutex<Vec<String>>,
}

impl Auth {
    /// Creates the state with the limits of the settings: requests per second and burst per key, failed sign-ins per
    /// address.
    pub fn new(settings: &ApiSettings) -> Self {
        let failures_per_s = if settings.failed_sign_ins > 0.0 { FAILURES_PER_S } else { 0.0 };
        Self {
            believed: Mutex::default(),
            requests: Buckets::new(settings.requests_per_s, settings.burst),
            failures: Buckets::new(failures_per_s, settings.failed_sign_ins),
            link_failures: Buckets::new(failures_per_s, settings.failed_sign_ins),
            callback_failures: Buckets::new(failures_per_s, settings.failed_sign_ins),
            used: Mutex::default(),
        }
    }

    /// Expires all cached keys. Call it after a key was changed.
    pub fn forget(&self) {
        let now = clock::monotonic();
        self.believed.lock().unwrap_or_else(PoisonError::into_inner).values_mut().for_each(|(_, until)| *until = now);
    }

    /// Stores the time of use of the keys that were used since the last call.
    pub async fn note_used_once(&self, store: &Store) -> Result<(), DbError> {
        let mut used = std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner));
        used.sort_unstable();
        used.dedup();
        if used.is_empty() { Ok(()) } else { store.note_keys_used(&used).await }
    }

    async fn key(&self, store: &Store, token: &str, from: Option<IpAddr>) -> Result<Key, Problem> {
        let now = clock::monotonic();
        let known = self.believed.lock().unwrap_or_else(PoisonError::into_inner).get(token).cloned();
        if let Some((key, until)) = known
            && until > now
        {
            return Ok(key);
        }
        match store.find_key(token).await {
            Ok(key) => {
                self.believe(token, &key, now);
                Ok(key)
            }
            Err(KeyError::Database(problem)) => Err(problem.into()),
            Err(refused) => {
                self.believed.lock().unwrap_or_else(PoisonError::into_inner).remove(token);
                Err(self.failed(from, Problem::new(ProblemKind::Unauthenticated, refused.to_string())))
            }
        }
    }

    async fn session(&self, store: &Store, token: &str, from: Option<IpAddr>) -> Result<Session, Problem> {
        if let Some(session) = store.find_session(token).await? {
            return Ok(session);
        }
        let refusal = Problem::new(ProblemKind::Unauthenticated, "the session has ended; sign in again");
        // A session token that was valid once is not a guess, so it is not counted as a failure. Its browser must still
        // be able to sign in.
        Err(if store.knew_session(token).await? { refusal } else { self.failed(from, refusal) })
    }

    fn believe(&self, token: &str, key: &Key, now: Instant) {
        let mut believed = self.believed.lock().unwrap_or_else(PoisonError::into_inner);
        if believed.len() >= REMEMBERED {
            believed.clear();
        }
        believed.insert(token.to_owned(), (key.clone(), now + BELIEVED));
        drop(believed);
        self.used.lock().unwrap_or_else(PoisonError::into_inner).push(key.id.clone());
    }

    /// Counts a failure. Returns `refusal`, or a request to wait if the address has failed too often.
    pub fn failed(&self, from: Option<IpAddr>, refusal: Problem) -> Problem {
        count_failure(&self.failures, from, refusal)
    }

    /// Counts a failed sign-in link, like [`Auth::failed`].
    pub fn link_failed(&self, from: Option<IpAddr>, refusal: Problem) -> Problem {
        count_failure(&self.link_failures, from, refusal)
    }

    /// Counts a callback with an unknown token, like [`Auth::failed`]. A token that is known is never counted, so that a
    /// provider's callbacks are not held up.
    pub fn callback_failed(&self, from: Option<IpAddr>, refusal: Problem) -> Problem {
        count_failure(&self.callback_failures, from, refusal)
    }

    /// Counts a request of the caller. Refuses it if the caller exceeds its rate limit.
    pub fn permit(&self, actor: &str) -> Result<(), Problem> {
        self.requests
            .take(actor.to_owned(), clock::monotonic())
            .map_err(|wait| slow_down(wait, "too many requests by this caller; wait, then try again"))
    }
}

fn count_failure(failures: &Buckets<IpAddr>, from: Option<IpAddr>, refusal: Problem) -> Problem {
    match from.map(|from| failures.take(holder(from), clock::monotonic())) {
        Some(Err(wait)) => slow_down(wait, "too many failed sign-ins from this address; wait, then try again"),
        _ => refusal,
    }
}

fn slow_down(wait: Duration, why: &str) -> Problem {
    Problem::new(ProblemKind::RateLimited, why).retry_after(wait.as_secs_f64().ceil() as u64)
}

#[derive(Debug, Clone)]
pub enum Credential {
    Key(Secret),
    Session(Secret),
}

impl Credential {
    fn in_headers(headers: &HeaderMap) -> Result<Self, Problem> {
        match (bearer(headers)?, cookie(headers)) {
            (Some(token), _) => Ok(Self::Key(Secret::new(token))),
            (None, Some(token)) => Ok(Self::Session(Secret::new(token))),
            (None, None) => Err(Problem::new(ProblemKind::Unauthenticated, NO_KEY)),
        }
    }

    /// Refuses a credential that no longer grants the scope: it was revoked, it has expired, its session has ended, or
    /// its tenant is suspended. Streams call it, because they last longer than the check at the start of their request.
    pub async fn still_allows(&self, app: &App, scope: Scope) -> Result<(), Problem> {
        // The secret is revealed here to look it up. The credential was valid before, so a failure is not a guess and
        // is not counted.
        let caller = match self {
            Self::Key(token) => Caller::by_key(app.auth.key(&app.store, token.reveal(), None).await?, self)?,
            Self::Session(token) => {
                Caller::by_session(app.auth.session(&app.store, token.reveal(), None).await?, self)?
            }
        };
        caller.may(scope)
    }
}

/// The authenticated caller, and the tenant that it acts for.
#[derive(Debug, Clone)]
pub struct Caller {
    credential: Credential,
    actor: Actor,
    scopes: Scopes,
    tenant: i32,
    tenant_name: String,
    /// Whether the query named the tenant. Only the scope `ops` may name another tenant.
    chose: bool,
}

impl Caller {
    /// Refuses a caller that does not have this scope.
    pub fn may(&self, scope: Scope) -> Result<(), Problem> {
        if self.scopes.allows(scope) {
            return Ok(());
        }
        Err(Problem::new(ProblemKind::Forbidden, format!("this request needs a key with the scope `{}`", scope.name())))
    }

    /// The tenant that a change or a single object belongs to.
    pub fn tenant(&self) -> i32 {
        self.tenant
    }

    pub fn tenant_name(&self) -> &str {
        &self.tenant_name
    }

    /// Whether the query named the tenant.
    pub fn chose(&self) -> bool {
        self.chose
    }

    /// The credential, so that streams can check it again.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    pub fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    pub fn actor(&self) -> &str {
        &self.actor.name
    }

    /// The tenant whose rows a list shows. `None` means all tenants: for the scope `ops` without `?tenant=`.
    pub fn whose(&self) -> Option<i32> {
        if self.scopes.allows(Scope::Ops) && !self.chose { None } else { Some(self.tenant) }
    }

    /// The store as this caller may see it. Row-level security applies unless the caller sees all tenants, and the
    /// caller is the actor of changes.
    pub fn store(&self, app: &App) -> Store {
        let store = match self.whose() {
            Some(tenant) => app.store.of_tenant(tenant),
            None => app.store.clone(),
        };
        store.by(self.actor.clone())
    }

    /// The store for a change, which always belongs to one tenant.
    pub fn store_of_one(&self, app: &App) -> Store {
        app.store.of_tenant(self.tenant).by(self.actor.clone())
    }

    /// The store without row-level security, for changes of the tenants themselves.
    pub fn store_of_all(&self, app: &App) -> Store {
        app.store.by(self.actor.clone())
    }

    /// The tenant that a request's body names. It must be the caller's own, or any tenant with the scope `ops`.
    pub async fn tenant_named(&self, app: &App, named: Option<&str>) -> Result<(i32, String), Problem> {
        match named {
            None => Ok((self.tenant, self.tenant_name.clone())),
            Some(name) if name == self.tenant_name => Ok((self.tenant, self.tenant_name.clone())),
            Some(name) if self.scopes.allows(Scope::Ops) => {
                let found = app.store.tenant(name).await?;
                found.map(|id| (id, name.to_owned())).ok_or_else(|| Problem::invalid("tenant", no_tenant(name)))
            }
            Some(_) => Err(Problem::new(
                ProblemKind::Forbidden,
                "the key belongs to another tenant; use a key of this tenant, or one with the scope ops",
            )
            .about("tenant")),
        }
    }

    async fn of(parts: &Parts, app: &App) -> Result<Self, Problem> {
        let from = parts.extensions.get::<Client>().map(|client| client.address);
        let request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone());
        let credential = Credential::in_headers(&parts.headers)?;
        // The secret is revealed here to look it up.
        let mut caller = match &credential {
            Credential::Key(token) => Self::by_key(app.auth.key(&app.store, token.reveal(), from).await?, &credential)?,
            Credential::Session(token) => {
                let session = app.auth.session(&app.store, token.reveal(), from).await?;
                csrf::check(parts, &session)?;
                let caller = Self::by_session(session, &credential)?;
                // If the database accepts no writes, the session can still read. It then ends earlier, because it is
                // not renewed.
                if !parts.headers.contains_key(POLL)
                    && let Err(problem) = app.store.renew_session(token.reveal(), SESSION_LASTS).await
                {
                    tracing::warn!(%problem, "could not renew a session; its request is answered, and the session ends \
                        earlier");
                }
                caller
            }
        };
        app.auth.permit(&caller.actor.name)?;
        caller.actor.request_id = request_id;
        caller.choose(app, parts.uri.query().unwrap_or("")).await?;
        Ok(caller)
    }

    fn by_key(key: Key, credential: &Credential) -> Result<Self, Problem> {
        let login =
            Login { tenant: key.tenant, actor: format!("key:{}", key.id), key_id: Some(key.id), scopes: key.scopes };
        Self::signed_in(login, key.tenant_name, key.suspended, credential)
    }

    fn by_session(session: Session, credential: &Credential) -> Result<Self, Problem> {
        Self::signed_in(session.login, session.tenant_name, session.suspended, credential)
    }

    fn signed_in(login: Login, tenant_name: String, is_suspended: bool, of: &Credential) -> Result<Self, Problem> {
        if is_suspended && !login.scopes.allows(Scope::Ops) {
            return Err(suspended());
        }
        let (credential, actor) = (of.clone(), Actor::new(login.actor));
        Ok(Self { credential, actor, scopes: login.scopes, tenant: login.tenant, tenant_name, chose: false })
    }

    /// Acts for the tenant of `?tenant=`, if the caller may name it.
    async fn choose(&mut self, app: &App, query: &str) -> Result<(), Problem> {
        let named = form_urlencoded::parse(query.as_bytes())
            .find(|(name, _)| name == "tenant")
            .map(|(_, value)| value.into_owned());
        let Some(named) = named else { return Ok(()) };
        if named != self.tenant_name && !self.scopes.allows(Scope::Ops) {
            return Err(Problem::new(
                ProblemKind::Forbidden,
                "the key belongs to another tenant; use a key of this tenant, or one with the scope ops",
            )
            .about("tenant"));
        }
        let found = if named == self.tenant_name { Some(self.tenant) } else { app.store.tenant(&named).await? };
        let found = found.ok_or_else(|| Problem::new(ProblemKind::NotFound, no_tenant(&named)).about("tenant"))?;
        (self.tenant, self.tenant_name, self.chose) = (found, named, true);
        Ok(())
    }
}

fn no_tenant(name: &str) -> String {
    format!("there is no tenant {name:?}; create it first")
}

pub fn suspended() -> Problem {
    Problem::new(ProblemKind::Suspended, "the tenant is suspended; ask the operator of this server")
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        Self::of(parts, app).await
    }
}

/// Defines extractors of callers by the scope that a route needs. The scope is checked before the rest of the request
/// is read. A caller without the scope learns nothing about other errors in the request.
macro_rules! callers {
    ($($who:ident: $scope:ident),+) => {
        $(
            #[doc = concat!("A caller whose key holds [`Scope::", stringify!($scope), "`].")]
            pub struct $who(pub Caller);

            impl FromRequestParts<AppState> for $who {
                type Rejection = Problem;

                async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
                    let caller = Caller::of(parts, app).await?;
                    caller.may(Scope::$scope)?;
                    Ok(Self(caller))
                }
            }
        )+
    };
}

callers!(Enqueuer: Enqueue, Reader: Read, Operator: Operate, Editor: Edit, Administrator: Admin, Ops: Ops);

/// The optional caller of routes that also work without a credential but answer less.
impl OptionalFromRequestParts<AppState> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Option<Self>, Problem> {
        if !parts.headers.contains_key(header::AUTHORIZATION) && cookie(&parts.headers).is_none() {
            return Ok(None);
        }
        Self::of(parts, app).await.map(Some)
    }
}

/// The bearer token of the request. A second `Authorization` header is refused.
pub fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (first, second) = (all.next(), all.next());
    if second.is_some() {
        return Err(Problem::new(
            ProblemKind::Malformed,
            "the header Authorization is given more than once; send it once",
        ));
    }
    let Some(value) = first else { return Ok(None) };
    let token = value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match token {
        Some((_, token)) => Ok(Some(token.trim())),
        None => Err(Problem::new(ProblemKind::Unauthenticated, NO_KEY)),
    }
}

/// The session token in the browser's cookie.
pub fn cookie(headers: &HeaderMap) -> Option<&str> {
    cookie_named(headers, COOKIE)
}

/// The value of a cookie.
pub fn cookie_named<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == wanted)
        .map(|(_, value)| value)
}
