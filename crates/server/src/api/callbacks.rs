//! Callbacks: providers report what became of their messages. The token in the path is the credential, so these routes
//! need no key.

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, RawQuery, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use postcommit_channel::driver::CallbackRefusal;
use postcommit_channel::model::Provider;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ProblemResponses, TenantQuery};
use crate::app::{App, AppState};
use crate::auth::Editor;
use crate::callbacks::{self, Arrived, CallbackUrl, NoCallback, NotTaken, Rotation, Taken};
use crate::door::{Client, RequestId};
use crate::problem::{Problem, ProblemKind};
use crate::read::{Body, Id};

/// The maximum size of a callback's body, in bytes.
const BODY_BYTES: usize = 256 * 1024;

/// The answer to a callback.
#[derive(Debug, Serialize, ToSchema)]
pub struct CallbackTaken {
    /// The number of receipts in the callback that were not known before.
    receipts: usize,
}

/// Takes a callback of a provider. The token in the path identifies the provider and its tenant, and the driver
/// verifies the signature or credential that its service sends, if any. A repeated callback changes nothing. The answer
/// is sent after the receipts are stored.
#[utoipa::path(post, path = "/v1/callbacks/{token}", tag = "callbacks", security(()), params(("token" = String, Path, description = "The token of the provider's callback URL")),
    request_body(content = String, content_type = "application/octet-stream", description = "The bytes that the service sends, in its own format: at most 256 KB"),
    responses((status = 200, description = "The receipts are stored", body = CallbackTaken), ProblemResponses))]
pub async fn take_callback(
    State(app): State<AppState>,
    (client, request_id): (Option<Extension<Client>>, Option<Extension<RequestId>>),
    Id(token): Id<String>,
    RawQuery(query): RawQuery,
    mut request: Request,
) -> Result<Json<CallbackTaken>, Problem> {
    // The token is checked before the body is read, so that a request without a known token costs little.
    let provider = provider(&app, client, &token).await?;
    let headers = request.headers().clone();
    DefaultBodyLimit::max(BODY_BYTES).apply(&mut request);
    let body = Bytes::from_request(request, &()).await?;
    match take(&app, &provider, request_id, &token, query, headers, Some(body)).await? {
        Taken::Receipts(receipts) => Ok(Json(CallbackTaken { receipts })),
        Taken::Challenge(_) => Ok(Json(CallbackTaken { receipts: 0 })),
    }
}

/// Answers the challenge by which a service checks a callback URL, and takes callbacks of services that send them by
/// GET.
#[utoipa::path(get, path = "/v1/callbacks/{token}", tag = "callbacks", security(()), params(("token" = String, Path, description = "The token of the provider's callback URL")),
    responses((status = 200, description = "The challenge of the service, or `ok`", body = String, content_type = "text/plain"), ProblemResponses))]
pub async fn answer_callback(
    State(app): State<AppState>,
    (client, request_id): (Option<Extension<Client>>, Option<Extension<RequestId>>),
    Id(token): Id<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let provider = provider(&app, client, &token).await?;
    let text = match take(&app, &provider, request_id, &token, query, headers, None).await? {
        Taken::Challenge(challenge) => challenge,
        Taken::Receipts(_) => "ok".to_owned(),
    };
    // A browser must not show the answer as HTML, because the text of the challenge comes from the request.
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, text).into_response())
}

/// The provider of a callback URL. An unknown token is counted, so that a client that guesses tokens is slowed down.
async fn provider(app: &App, client: Option<Extension<Client>>, token: &str) -> Result<Provider, Problem> {
    let provider = app.store.provider_of_callback(token).await?;
    provider
        .ok_or_else(|| app.auth.callback_failed(client.map(|client| client.address), Problem::not_found("callback")))
}

/// Takes a callback. `body` is `None` for a callback by GET.
async fn take(
    app: &App,
    provider: &Provider,
    request_id: Option<Extension<RequestId>>,
    token: &str,
    query: Option<String>,
    headers: HeaderMap,
    body: Option<Bytes>,
) -> Result<Taken, Problem> {
    let arrived = Arrived {
        is_get: body.is_none(),
        url: format!("{}{}", app.base_url, callbacks::path(token)),
        query: query.unwrap_or_default(),
        headers,
        body: body.unwrap_or_default(),
    };
    let taken = callbacks::take(&app.tools, provider, arrived, request_id.map(|id| id.0.0)).await;
    taken.map_err(|not| {
        if let NotTaken::Refused(reason) = &not {
            tracing::warn!(provider = provider.name, ?reason, "a callback was refused; the provider may repeat it");
        }
        not.into()
    })
}

impl From<NotTaken> for Problem {
    fn from(not: NotTaken) -> Self {
        match not {
            NotTaken::Refused(CallbackRefusal::Unverified(why)) => Self::new(ProblemKind::Unauthenticated, why),
            NotTaken::Refused(CallbackRefusal::Malformed(why)) => Self::new(ProblemKind::Malformed, why),
            NotTaken::Refused(CallbackRefusal::Method) => Self::not_found("callback"),
            NotTaken::Secrets(problem) => {
                tracing::error!(%problem, "a callback could not be verified, because the secrets of its provider cannot \
                    be decrypted; the provider is asked to repeat it");
                Self::new(ProblemKind::Unavailable, "the callback cannot be verified now; repeat it later")
                    .retry_after(60)
            }
            // The answer is 503 for every database error, so that the service keeps the callback and repeats it.
            NotTaken::Database(problem) => {
                tracing::error!(%problem, "the receipts of a callback could not be stored; the provider is asked to \
                    repeat it");
                Self::new(ProblemKind::Unavailable, "the receipts cannot be stored now; repeat the callback later")
                    .retry_after(1)
            }
        }
    }
}

/// Whether the provider gets a new callback URL.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallbackRequested {
    /// Make a new URL. The previous one works for another 24 hours.
    #[serde(default)]
    rotate: bool,
    /// With `rotate`: the previous URLs no longer work.
    #[serde(default)]
    now: bool,
}

/// Returns the URL to which the provider sends its callbacks. The first request creates the URL. Later requests return
/// the same URL, unless they set `rotate`.
#[utoipa::path(post, path = "/v1/providers/{name}/callback", tag = "providers", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery), request_body = CallbackRequested,
    responses((status = 200, description = "The URL", body = CallbackUrl), ProblemResponses))]
pub async fn get_callback_url(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
    Body(wanted): Body<CallbackRequested>,
) -> Result<Json<CallbackUrl>, Problem> {
    let rotation = match (wanted.rotate, wanted.now) {
        (true, false) => Rotation::Rotate,
        (true, true) => Rotation::RotateNow,
        (false, false) => Rotation::Keep,
        (false, true) => return Err(Problem::invalid("now", "is true without rotate; set rotate to true as well")),
    };
    let store = caller.store_of_one(&app);
    let provider = store.provider(caller.tenant(), &name).await?.ok_or_else(|| Problem::not_found("provider"))?;
    let url = callbacks::url(&store, &app.tools.keys, &app.tools.public_url, &provider, rotation).await;
    Ok(Json(url.map_err(|not| match not {
        NoCallback::NotTaken(_) => Problem::new(ProblemKind::StateConflict, not.to_string()),
        NoCallback::Database(problem) => problem.into(),
    })?))
}
