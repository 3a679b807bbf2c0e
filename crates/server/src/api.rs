//! The HTTP API: one route table, and the OpenAPI document, which is generated from the same types.
//!
//! Every route names its scope in `security`. A test reads the OpenAPI document and checks the scope of each route.

#![allow(unused_qualifications, reason = "utoipa's macros write qualified paths")]

pub mod audit;
pub mod callbacks;
pub mod content;
pub mod deliveries;
pub mod dispatch;
pub mod entities;
pub mod event_types;
pub mod inbox;
pub mod jobs;
pub mod keys;
pub mod kpis;
pub mod layouts;
pub mod member_lists;
pub mod notifications;
pub mod page;
pub mod providers;
pub mod recipients;
pub mod session;
pub mod states;
pub mod suppressions;
pub mod templates;
pub mod tenants;
pub mod unsubscribe;
pub mod users;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{OpenApi, RefOr, Required, Response, ResponsesBuilder, Schema};
use utoipa::{IntoResponses, Modify, OpenApi as _};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::AppState;
use crate::problem::ProblemBody;

/// The route table.
fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(notifications::enqueue_notification, notifications::list_notifications))
        .routes(routes!(notifications::enqueue_notifications))
        .routes(routes!(notifications::get_notification))
        .routes(routes!(notifications::get_notification_status))
        .routes(routes!(notifications::cancel_notification))
        .routes(routes!(deliveries::list_deliveries))
        .routes(routes!(deliveries::retry_deliveries))
        .routes(routes!(deliveries::discard_deliveries))
        .routes(routes!(deliveries::get_delivery))
        .routes(routes!(deliveries::retry_delivery))
        .routes(routes!(deliveries::discard_delivery))
        .routes(routes!(deliveries::mark_delivery_delivered))
        .routes(routes!(entities::list_entity_deliveries))
        .routes(routes!(entities::cancel_entity))
        .routes(routes!(entities::resend_entity))
        .routes(routes!(jobs::list_jobs))
        .routes(routes!(jobs::get_job))
        .routes(routes!(jobs::cancel_job))
        .routes(routes!(providers::list_providers, providers::create_provider))
        .routes(routes!(providers::get_provider, providers::update_provider, providers::delete_provider))
        .routes(routes!(providers::test_provider))
        .routes(routes!(providers::pause_provider))
        .routes(routes!(providers::resume_provider))
        .routes(routes!(callbacks::get_callback_url))
        .routes(routes!(callbacks::take_callback, callbacks::answer_callback))
        .routes(routes!(templates::list_templates, templates::create_template))
        .routes(routes!(templates::get_template, templates::update_template, templates::delete_template))
        .routes(routes!(templates::activate_template))
        .routes(routes!(templates::deactivate_template))
        .routes(routes!(templates::list_template_versions))
        .routes(routes!(templates::get_template_version))
        .routes(routes!(templates::preview_template))
        .routes(routes!(layouts::list_layouts, layouts::create_layout))
        .routes(routes!(layouts::get_layout, layouts::update_layout, layouts::delete_layout))
        .routes(routes!(content::get_content, content::update_content))
        .routes(routes!(users::list_users, users::create_user))
        .routes(routes!(users::get_user, users::put_user, users::update_user, users::delete_user))
        .routes(routes!(users::list_preferences, users::replace_preferences, users::set_preferences))
        .routes(routes!(unsubscribe::create_unsubscribe_link))
        .routes(routes!(member_lists::list_lists, member_lists::create_list))
        .routes(routes!(member_lists::get_list, member_lists::update_list, member_lists::delete_list))
        .routes(routes!(member_lists::list_members, member_lists::change_members))
        .routes(routes!(suppressions::list_suppressions, suppressions::create_suppression))
        .routes(routes!(suppressions::remove_suppression))
        .routes(routes!(event_types::list_event_types, event_types::create_event_type))
        .routes(routes!(event_types::get_event_type, event_types::update_event_type, event_types::delete_event_type))
        .routes(routes!(inbox::list_inbox))
        .routes(routes!(inbox::count_unread))
        .routes(routes!(inbox::follow_inbox))
        .routes(routes!(inbox::read_all))
        .routes(routes!(inbox::read_message))
        .routes(routes!(inbox::unread_message))
        .routes(routes!(inbox::archive_message))
        .routes(routes!(inbox::unarchive_message))
        .routes(routes!(inbox::mint_user_token))
        .routes(routes!(dispatch::dispatch))
        .routes(routes!(kpis::get_kpis))
        .routes(routes!(kpis::get_kpi_series))
        .routes(routes!(keys::list_keys, keys::create_key))
        .routes(routes!(keys::revoke_key))
        .routes(routes!(tenants::list_tenants, tenants::create_tenant))
        .routes(routes!(tenants::update_tenant))
        .routes(routes!(tenants::suspend_tenant))
        .routes(routes!(tenants::resume_tenant))
        .routes(routes!(audit::list_audit))
        .routes(routes!(session::show_session, session::end_session))
}

/// The routes and the OpenAPI document. In the document, a request body is optional if all its fields are optional.
fn described() -> (Router<AppState>, OpenApi) {
    let (router, mut document) = routes().split_for_parts();
    let schemas = document.components.as_ref().map(|components| components.schemas.clone()).unwrap_or_default();
    let is_optional = |schema: &RefOr<Schema>| match schema {
        RefOr::Ref(to) => {
            schemas.get(to.ref_location.rsplit('/').next().unwrap_or_default()).is_some_and(needs_nothing)
        }
        described => needs_nothing(described),
    };
    let paths = document.paths.paths.values_mut();
    let operations = paths.flat_map(|path| [&mut path.post, &mut path.put, &mut path.patch]).flatten();
    for body in operations.filter_map(|operation| operation.request_body.as_mut()) {
        let RefOr::T(body) = body else { continue };
        if body
            .content
            .values()
            .all(|content| matches!(content, RefOr::T(content) if content.schema.as_ref().is_some_and(is_optional)))
        {
            body.required = Some(Required::False);
        }
    }
    (router, document)
}

fn needs_nothing(schema: &RefOr<Schema>) -> bool {
    matches!(schema, RefOr::T(Schema::Object(object)) if object.required.is_empty())
}

/// The routes of the API and their description at `/openapi.json`.
pub fn router() -> Router<AppState> {
    let (router, document) = described();
    let document = serde_json::to_string_pretty(&document).unwrap_or_default();
    let describe = move || async move { ([("content-type", "application/json")], document).into_response() };
    router.route("/openapi.json", get(describe))
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Postcommit", description = "Commit the notification with your data. Postcommit delivers it, once, and can prove it.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")),
    components(schemas(ProblemBody)),
    modifiers(&Keys)
)]
struct Document;

struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut OpenApi) {
        let bearer = Http::builder().scheme(HttpAuthScheme::Bearer).bearer_format("pc_<id>_<secret>");
        let about = "An API key of one tenant. Each route names the scope that it needs.";
        let scheme = SecurityScheme::Http(bearer.description(Some(about)).build());
        let token = Http::builder().scheme(HttpAuthScheme::Bearer).bearer_format("pcu_<token>");
        let about = "A token of one user, for that user's browser. It opens only that user's inbox.";
        let user_token = SecurityScheme::Http(token.description(Some(about)).build());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", scheme);
        components.add_security_scheme("user_token", user_token);
    }
}

/// The tenant of a request, for callers that may choose it.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only describes the parameter for OpenAPI; `Caller` parses it")]
pub struct TenantQuery {
    /// The name of the tenant that the request is about. Only for keys of scope `ops`. Without it, a list shows the
    /// rows of every tenant.
    tenant: Option<String>,
}

/// The schema of a string with these allowed values.
fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names))
}

/// The problems that every route may return.
pub struct ProblemResponses;

impl IntoResponses for ProblemResponses {
    fn responses() -> std::collections::BTreeMap<String, RefOr<Response>> {
        let known = [
            ("400", "The request cannot be read"),
            ("401", "The key is missing or unknown"),
            ("403", "The key does not allow this, or the tenant is suspended"),
            ("404", "The object does not exist, or belongs to another tenant"),
            ("405", "Method not allowed"),
            ("409", "The state does not allow this, or the idempotency key was used with other content"),
            ("413", "The body is too large"),
            ("415", "The body must be JSON"),
            ("421", "The header Host names another host, and the server listens on loopback"),
            ("422", "A field is invalid"),
            ("429", "Too many requests"),
            ("503", "The database is unavailable, or there are too many connections; nothing was done"),
        ];
        let mut responses = ResponsesBuilder::new();
        for (status, description) in known {
            let schema = utoipa::openapi::Ref::from_schema_name("Problem");
            let content = utoipa::openapi::ContentBuilder::new().schema(Some(schema)).build();
            let refused = utoipa::openapi::ResponseBuilder::new()
                .description(description)
                .content("application/problem+json", content);
            responses = responses.response(status, refused);
        }
        responses.build().responses.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares docs/openapi.json with the code. `UPDATE_GOLDEN=1` rewrites the file.
    #[test]
    fn the_document_is_the_one_that_is_checked_in() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let now = serde_json::to_string_pretty(&described().1).unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap_or_default() == now,
            "docs/openapi.json differs from the code; run this test with UPDATE_GOLDEN=1 to rewrite the file"
        );
    }
}
