//! The reader of an inbox: a user with a token, or a key of the tenant.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use axum::extract::{FromRequestParts, Path};
use axum::http::Method;
use axum::http::request::Parts;
use postcommit::Recipient;
use postcommit_channel::model::{Actor, Scope};
use postcommit_channel::secret::Secret;
use postcommit_engine::db::DbError;
use postcommit_engine::store::Store;
use postcommit_engine::user_token::{self, Bearer, PREFIX, TokenError};

use super::refused;
use crate::app::AppState;
use crate::auth::{self, Caller, Credential};
use crate::door::Client;
use crate::problem::{Problem, ProblemKind};

/// A caller that may open the inbox of the path.
pub struct Visitor {
    /// The store, limited to the tenants that the caller may see, with the caller as the actor of changes.
    pub store: Store,
    pub tenant: i32,
    pub user: String,
    /// The remaining validity of a user token, by the database's clock. `None` for a key or a session.
    pub left: Option<Duration>,
    pass: Pass,
}

/// The credential of the caller.
enum Pass {
    Token(Secret),
    Caller(Credential),
}

impl Visitor {
    pub async fn unread(&self) -> Result<i64, DbError> {
        self.store.inbox_unread(self.tenant, &self.user).await
    }

    /// Refuses a reader that may no longer read the inbox: the token or key expired or was revoked, the session is
    /// over, or the tenant is suspended.
    pub(super) async fn may_stay(&self, app: &AppState) -> Result<(), Problem> {
        match &self.pass {
            // The token is revealed here to verify it.
            Pass::Token(token) => admitted(app, token.reveal(), None).await.map(drop),
            Pass::Caller(credential) => credential.still_allows(app, Scope::Read).await,
        }
    }

    /// Authenticates the caller by its header, or by the given token.
    pub(super) async fn of(parts: &mut Parts, app: &AppState, token: Option<String>) -> Result<Self, Problem> {
        let user = inbox_named(parts, app).await?;
        let bearer = auth::bearer(&parts.headers)?.map(str::to_owned);
        let is_anonymous = bearer.is_none() && token.is_none() && auth::cookie(&parts.headers).is_none();
        match bearer.filter(|token| token.starts_with(PREFIX)).or(token) {
            _ if is_anonymous => Err(noted(Problem::new(ProblemKind::Unauthenticated, NO_TOKEN))),
            Some(token) => Self::by_token(parts, app, &token, user).await,
            None => Self::by_key(Caller::from_request_parts(parts, app).await?, parts, app, user),
        }
    }

    fn by_key(caller: Caller, parts: &Parts, app: &AppState, user: String) -> Result<Self, Problem> {
        let looks_only = matches!(parts.method, Method::GET | Method::HEAD);
        caller.may(if looks_only { Scope::Read } else { Scope::Operate })?;
        let pass = Pass::Caller(caller.credential().clone());
        Ok(Self { store: caller.store(app), tenant: caller.tenant(), user, left: None, pass })
    }

    async fn by_token(parts: &Parts, app: &AppState, token: &str, user: String) -> Result<Self, Problem> {
        let from = parts.extensions.get::<Client>().map(|client| client.address);
        let bearer = admitted(app, token, from).await?;
        if bearer.user != user {
            return Err(noted(Problem::new(ProblemKind::Forbidden, OTHER_USER)));
        }
        app.auth.permit(&format!("user:{}:{user}", bearer.tenant))?;
        let pass = Pass::Token(Secret::new(token));
        let store = app.store.of_tenant(bearer.tenant).by(Actor::user(&user));
        Ok(Self { store, tenant: bearer.tenant, user, left: Some(bearer.left), pass })
    }
}

const NO_TOKEN: &str = "the token is missing; send a user token of this inbox, or a key, as `Authorization: Bearer …` \
    (POST /v1/inbox/{user}/token creates a user token)";
const OTHER_USER: &str = "the token belongs to another user; use a token of the user whose inbox this is";

/// Logs a refusal that is an error of the application's page, so that the developer of the page finds it.
fn noted(refusal: Problem) -> Problem {
    tracing::warn!(problem = %refusal, "a request for an inbox was refused; check the token and the user that the page sends");
    refusal
}

/// Returns the user of a token. Refuses the token if its tenant is suspended. An invalid token counts as a failed
/// sign-in of the address `from`, like an invalid key. An expired token does not count.
async fn admitted(app: &AppState, token: &str, from: Option<IpAddr>) -> Result<Bearer, Problem> {
    let guessed = || app.auth.failed(from, refused(TokenError::Bad));
    let bearer = user_token::verify(&app.store, token).await.map_err(|error| match error {
        TokenError::Bad => guessed(),
        other => refused(other),
    })?;
    let tenant = app.store.tenant_row(bearer.tenant).await?.ok_or_else(guessed)?;
    if tenant.suspended_at.is_some() { Err(auth::suspended()) } else { Ok(bearer) }
}

/// The user whose inbox the path names.
async fn inbox_named(parts: &mut Parts, app: &AppState) -> Result<String, Problem> {
    let named = Path::<HashMap<String, String>>::from_request_parts(parts, app)
        .await
        .map_err(|_| Problem::not_found("inbox"))?;
    let user = named.0.get("user").cloned().unwrap_or_default();
    Recipient::user(&user).check().map_err(|problem| Problem::invalid("user", problem))?;
    Ok(user)
}

impl FromRequestParts<AppState> for Visitor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        Self::of(parts, app, None).await
    }
}
