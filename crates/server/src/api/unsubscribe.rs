//! Unsubscribe links, for applications that write messages themselves.

use axum::Json;
use axum::extract::State;
use postcommit_channel::model::ANY;
use postcommit_engine::unsubscribe::{Unsubscribe, Who};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::Operator;
use crate::problem::Problem;
use crate::read::Body;

/// The messages that the link stops. Either `user` or `address` is needed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUnsubscribeLink {
    /// The user that unsubscribes. Using the link sets a preference of this user.
    #[schema(min_length = 1, max_length = 255)]
    user: Option<String>,
    /// The address that unsubscribes. Using the link suppresses the address on the channel.
    #[schema(min_length = 1, max_length = 2048)]
    address: Option<String>,
    /// The channel. `*` means every channel.
    #[schema(min_length = 1, max_length = 63, pattern = r"^(\*|[A-Za-z0-9_.-]+)$", example = "email")]
    channel: String,
    /// The event type of a user's preference. Without it, the link stops messages of every event type.
    #[schema(min_length = 1, max_length = 255)]
    event_type: Option<String>,
}

/// An unsubscribe link.
#[derive(Debug, Serialize, ToSchema)]
pub struct UnsubscribeLink {
    /// The URL of a page with one button. A POST to this URL unsubscribes (RFC 8058).
    url: String,
    /// The value of the mail header `List-Unsubscribe`.
    list_unsubscribe: String,
    /// The value of the mail header `List-Unsubscribe-Post`.
    list_unsubscribe_post: &'static str,
}

/// Creates a link by which a recipient stops messages with one click, without signing in. Everyone who has the link can
/// use it, and it does not expire. The same request returns the same link.
#[utoipa::path(post, path = "/v1/unsubscribe-links", tag = "users", security(("key" = ["operate"])), params(TenantQuery), request_body = NewUnsubscribeLink,
    responses((status = 200, description = "The link", body = UnsubscribeLink), ProblemResponses))]
pub async fn create_unsubscribe_link(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Body(new): Body<NewUnsubscribeLink>,
) -> Result<Json<UnsubscribeLink>, Problem> {
    let who = match (new.user, new.address) {
        (Some(user), None) => Who::User(user),
        (None, Some(address)) => Who::Address(address),
        (None, None) => return Err(Problem::invalid("user", "is missing; either user or address is needed")),
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("address", "is given together with user; give only one of them"));
        }
    };
    let event_type = new.event_type.unwrap_or_else(|| ANY.to_owned());
    let link = Unsubscribe { tenant: caller.tenant(), who, event_type, channel: new.channel };
    let store = caller.store_of_one(&app);
    link.check(&store).await?;
    let url = format!("{}/u/{}", app.base_url, link.token(&store).await?);
    Ok(Json(UnsubscribeLink {
        list_unsubscribe: format!("<{url}>"),
        list_unsubscribe_post: "List-Unsubscribe=One-Click",
        url,
    }))
}
