//! Templates: write, list and preview. Each change of a part creates a new version.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use postcommit::limits;
use postcommit_channel::model::{DigestRule, Throttle};
use postcommit_channel::template::{Missing, Source, Warning};
use postcommit_engine::store::{Store, TemplateFilter, TemplatePosition, TemplateRow, VersionRow};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::openapi::schema::Object;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::page::{Listing, PageQuery, Paged};
use super::{ProblemResponses, TenantQuery, one_of};
use crate::app::AppState;
use crate::auth::{Caller, Editor, Reader};
use crate::problem::Problem;
use crate::read::{Body, Id, Params, check_lengths, given};
use crate::templates::preview::{Preview, Wanted};
use crate::templates::{Change, ONCE_PER, Saved, Templates};

/// The filter of templates.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TemplateQuery {
    /// Only templates of this event type.
    #[param(max_length = 255)]
    event_type: Option<String>,
    /// Only templates of this channel.
    #[param(max_length = 255)]
    channel: Option<String>,
    /// Only templates for this audience. An empty string selects templates without an audience.
    #[param(max_length = 255)]
    audience: Option<String>,
    /// Only templates in this language. An empty string selects templates for any language.
    #[param(max_length = 255)]
    language: Option<String>,
    /// Only templates with a scope of this type. An empty string selects templates without a scope.
    #[param(max_length = 255)]
    scope_type: Option<String>,
    /// Only templates with this scope id.
    #[param(max_length = 255)]
    scope_id: Option<String>,
    /// `true`: only active templates. `false`: only inactive templates.
    active: Option<bool>,
    /// Only templates that use this layout or partial.
    #[param(max_length = 255)]
    layout: Option<String>,
}

/// Lists templates, ordered by id.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", security(("key" = ["read"])), params(TemplateQuery, PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<TemplateRow>), ProblemResponses))]
pub async fn list_templates(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Paged(wanted, page): Paged<TemplateQuery>,
) -> Result<Json<Listing<TemplateRow>>, Problem> {
    let names = [
        ("event_type", wanted.event_type.as_deref()),
        ("channel", wanted.channel.as_deref()),
        ("audience", wanted.audience.as_deref()),
        ("language", wanted.language.as_deref()),
        ("scope_type", wanted.scope_type.as_deref()),
        ("scope_id", wanted.scope_id.as_deref()),
        ("layout", wanted.layout.as_deref()),
    ];
    check_lengths(&names, limits::NAME_CHARS)?;
    let filter = TemplateFilter {
        tenant: caller.whose(),
        event_type: wanted.event_type,
        channel: wanted.channel,
        audience: wanted.audience,
        language: wanted.language,
        scope_type: wanted.scope_type,
        scope_id: wanted.scope_id,
        active: wanted.active,
        layout: wanted.layout,
        words: None,
        after: page.place()?,
        limit: page.limit() + 1,
    };
    let rows = caller.store(&app).template_rows(&filter).await?;
    Ok(Json(Listing::of(rows, page.limit(), |row| TemplatePosition(row.tenant_id, row.draft.id.clone()))))
}

/// The parts of a version.
#[derive(Debug, Serialize, ToSchema)]
pub struct Parts {
    /// The part that renders the address.
    to: Option<String>,
    /// The subject or heading.
    subject: Option<String>,
    /// The message as plain text.
    text: Option<String>,
    /// The message as HTML.
    html: Option<String>,
    /// Additional fields for the channel, as JSON. Each string in it is rendered as a template.
    data: Option<Value>,
    /// The layout that surrounds the HTML.
    layout: Option<String>,
    /// The treatment of placeholders without a value.
    missing: Missing,
    /// The format of dates without a format of their own, as a strftime pattern.
    date_format: String,
    /// The time zone in which the template writes times.
    time_zone: String,
}

impl From<Source> for Parts {
    fn from(source: Source) -> Self {
        let Source { to, subject, text, html, data, layout, missing, date_format, time_zone, .. } = source;
        Self { to, subject, text, html, data, layout, missing, date_format, time_zone }
    }
}

/// A template with the parts of its current version.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownTemplate {
    #[serde(flatten)]
    template: TemplateRow,
    #[serde(flatten)]
    parts: Parts,
}

/// A template that was saved.
#[derive(Debug, Serialize, ToSchema)]
pub struct SavedTemplate {
    #[serde(flatten)]
    template: ShownTemplate,
    /// Whether the request wrote something.
    changed: bool,
    /// Warnings, e.g. about placeholders that no event of this type has.
    warnings: Vec<Warning>,
    /// The number of notifications of the template's event type that are not expanded yet. They will use the changed
    /// template.
    waiting: i64,
    /// Whether `waiting` is exact. If not, there may be more.
    waiting_is_exact: bool,
}

/// Defines a request body that describes a template: its own fields, and the fields that creation and change share. The
/// shared fields are in a macro, because an error of serde's `flatten` would not name the field.
macro_rules! description {
    ($(#[$about:meta])* $body:ident { $($own:tt)* }) => {
        $(#[$about])*
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $body {
            $($own)*
            /// The audience of the template, e.g. `guest` or `host`. Each audience gets its own message. An empty
            /// string means anyone.
            #[schema(max_length = 63, pattern = "^[A-Za-z0-9_.-]*$")]
            audience: Option<String>,
            /// The language of the template, e.g. `pt-BR`. An empty string means any language.
            #[schema(max_length = 35, pattern = "^([A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3})?$")]
            language: Option<String>,
            /// The type of the scope: the template is used only for payloads in this scope. The type `listing` means
            /// the field `listingId`. An empty string means every payload.
            #[schema(max_length = 63, pattern = "^[A-Za-z0-9_.-]*$")]
            scope_type: Option<String>,
            /// The id of the scope, e.g. `10`.
            #[schema(max_length = 255)]
            scope_id: Option<String>,
            /// Whether the template is active.
            active: Option<bool>,
            /// `entity`: send the template once per entity and event type. `notification`, the default: send it for
            /// each notification.
            #[schema(schema_with = once_per)]
            once_per: Option<String>,
            /// A limit of the messages to one recipient in a period. `null` removes it.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<Throttle>)]
            throttle: Option<Option<Throttle>>,
            /// The rule to collect the events of a recipient and send one message for them. `null` removes it.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<DigestRule>)]
            digest: Option<Option<DigestRule>>,
            /// The part that renders the address. Default: the address of the recipient, or the phone or email of the
            /// payload. `null` removes the part.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<String>)]
            to: Option<Option<String>>,
            /// The subject or heading.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<String>)]
            subject: Option<Option<String>>,
            /// The message as plain text. Default: derived from the HTML.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<String>)]
            text: Option<Option<String>>,
            /// The message as HTML.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<String>)]
            html: Option<Option<String>>,
            /// Additional fields for the channel, as JSON. Each string in it is rendered as a template.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<Object>)]
            data: Option<Option<Map<String, Value>>>,
            /// The layout that surrounds the HTML.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<String>, max_length = 63)]
            layout: Option<Option<String>>,
            /// The treatment of placeholders without a value. `null`: the value of the content settings.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<Missing>)]
            missing: Option<Option<Missing>>,
            /// The format of dates without a format of their own, as a strftime pattern. `null`: the value of the
            /// content settings.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<String>, min_length = 1, max_length = 63)]
            date_format: Option<Option<String>>,
            /// The time zone in which the template writes times, e.g. `Asia/Kolkata`. `null`: the value of the content
            /// settings.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<String>, min_length = 1, max_length = 63)]
            time_zone: Option<Option<String>>,
            /// A note about the new version.
            #[schema(max_length = 1000)]
            note: Option<String>,
        }

        impl $body {
            fn change(self, event_type: Option<String>, channel: Option<String>, from_version: Option<i32>) -> Change {
                Change {
                    event_type,
                    channel,
                    from_version,
                    audience: self.audience,
                    language: self.language,
                    scope_type: self.scope_type,
                    scope_id: self.scope_id,
                    active: self.active,
                    once_per: self.once_per,
                    throttle: self.throttle,
                    digest: self.digest,
                    to: self.to,
                    subject: self.subject,
                    text: self.text,
                    html: self.html,
                    data: self.data.map(|data| data.map(Value::Object)),
                    layout: self.layout,
                    missing: self.missing.map(|missing| missing.map(|missing| missing.name().to_owned())),
                    date_format: self.date_format,
                    time_zone: self.time_zone,
                    note: self.note,
                }
            }
        }
    };
}

description! {
    /// A template to be created. It needs at least one of `subject`, `text`, `html` and `data`.
    NewTemplate {
        /// The id: 1 to 63 letters, digits, `_`, `-`, `.`; unique in the tenant.
        #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
        id: String,
        /// The event type for which the template is used.
        #[schema(min_length = 1, max_length = 255)]
        event_type: String,
        /// The channel of the template.
        #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
        channel: String,
    }
}

description! {
    /// The fields to change. Omitted fields keep their values.
    TemplateChange {
        /// Change the template only if it still has this revision. Without it, the change applies to any revision.
        #[schema(minimum = 1)]
        revision: Option<i32>,
        /// The version whose parts the change starts from. Default: the current version.
        #[schema(minimum = 1)]
        from_version: Option<i32>,
        /// The event type for which the template is used.
        #[schema(min_length = 1, max_length = 255)]
        event_type: Option<String>,
        /// The channel of the template.
        #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
        channel: Option<String>,
    }
}

fn once_per() -> Object {
    one_of(ONCE_PER).build()
}

fn templates<'a>(store: &'a Store, caller: &Caller) -> Templates<'a> {
    Templates { store, tenant: caller.tenant() }
}

async fn shown(store: &Store, caller: &Caller, id: &str) -> Result<ShownTemplate, Problem> {
    let templates = templates(store, caller);
    let template = templates.find(id).await?;
    let parts = templates.source(id, template.version).await?.into();
    Ok(ShownTemplate { template, parts })
}

async fn saved(store: &Store, caller: &Caller, id: &str, saved: Saved) -> Result<Json<SavedTemplate>, Problem> {
    let Saved { is_changed: changed, warnings, waiting } = saved;
    let (waiting, waiting_is_exact) = (waiting.count, waiting.is_exact);
    let template = shown(store, caller, id).await?;
    Ok(Json(SavedTemplate { template, changed, warnings, waiting, waiting_is_exact }))
}

/// Creates a template. A deleted template with the same id is restored and keeps its versions.
#[utoipa::path(post, path = "/v1/templates", tag = "templates", security(("key" = ["edit"])), params(TenantQuery), request_body = NewTemplate,
    responses((status = 201, description = "The template is created", body = SavedTemplate), ProblemResponses))]
pub async fn create_template(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Body(new): Body<NewTemplate>,
) -> Result<(StatusCode, Json<SavedTemplate>), Problem> {
    let store = caller.store_of_one(&app);
    let (id, event_type, channel) = (new.id.clone(), new.event_type.clone(), new.channel.clone());
    let made = templates(&store, &caller).create(&id, &new.change(Some(event_type), Some(channel), None)).await?;
    Ok((StatusCode::CREATED, saved(&store, &caller, &id, made).await?))
}

/// Shows a template with the parts of its current version.
#[utoipa::path(get, path = "/v1/templates/{id}", tag = "templates", security(("key" = ["read"])), params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "The template", body = ShownTemplate), ProblemResponses))]
pub async fn get_template(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<String>,
) -> Result<Json<ShownTemplate>, Problem> {
    Ok(Json(shown(&caller.store_of_one(&app), &caller, &id).await?))
}

/// Changes the given fields and keeps the others. A change of a part creates a new version. Existing deliveries keep
/// their version.
#[utoipa::path(patch, path = "/v1/templates/{id}", tag = "templates", security(("key" = ["edit"])), params(("id" = String, Path), TenantQuery), request_body = TemplateChange,
    responses((status = 200, description = "The template after the change", body = SavedTemplate), ProblemResponses))]
pub async fn update_template(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(id): Id<String>,
    Body(given): Body<TemplateChange>,
) -> Result<Json<SavedTemplate>, Problem> {
    let store = caller.store_of_one(&app);
    let (revision, from_version) = (given.revision, given.from_version);
    let (event_type, channel) = (given.event_type.clone(), given.channel.clone());
    let change = given.change(event_type, channel, from_version);
    let made = templates(&store, &caller).update(&id, revision, &change).await?;
    saved(&store, &caller, &id, made).await
}

async fn set_active(app: &AppState, caller: &Caller, id: &str, active: bool) -> Result<Json<SavedTemplate>, Problem> {
    let store = caller.store_of_one(app);
    let change = Change { active: Some(active), ..Change::default() };
    let made = templates(&store, caller).update(id, None, &change).await?;
    saved(&store, caller, id, made).await
}

/// Activates a template.
#[utoipa::path(post, path = "/v1/templates/{id}/activate", tag = "templates", security(("key" = ["edit"])), params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "The template is active", body = SavedTemplate), ProblemResponses))]
pub async fn activate_template(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(id): Id<String>,
) -> Result<Json<SavedTemplate>, Problem> {
    set_active(&app, &caller, &id, true).await
}

/// Deactivates a template. Existing deliveries keep it.
#[utoipa::path(post, path = "/v1/templates/{id}/deactivate", tag = "templates", security(("key" = ["edit"])), params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "The template is not active", body = SavedTemplate), ProblemResponses))]
pub async fn deactivate_template(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(id): Id<String>,
) -> Result<Json<SavedTemplate>, Problem> {
    set_active(&app, &caller, &id, false).await
}

/// Deletes an inactive template. Its versions are kept, because deliveries refer to them.
#[utoipa::path(delete, path = "/v1/templates/{id}", tag = "templates", security(("key" = ["edit"])), params(("id" = String, Path), TenantQuery),
    responses((status = 204, description = "The template is deleted"), ProblemResponses))]
pub async fn delete_template(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(id): Id<String>,
) -> Result<StatusCode, Problem> {
    templates(&caller.store_of_one(&app), &caller).delete(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the versions of a template, newest first.
#[utoipa::path(get, path = "/v1/templates/{id}/versions", tag = "templates", security(("key" = ["read"])), params(("id" = String, Path), PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<VersionRow>), ProblemResponses))]
pub async fn list_template_versions(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<String>,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<VersionRow>>, Problem> {
    let store = caller.store_of_one(&app);
    templates(&store, &caller).find(&id).await?;
    let rows = store.template_versions(caller.tenant(), &id, page.place()?, page.limit() + 1).await?;
    Ok(Json(Listing::of(rows, page.limit(), |row| row.version)))
}

/// One version of a template, with its copies of the layout, partials and brand values.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownVersion {
    #[serde(flatten)]
    version: VersionRow,
    #[serde(flatten)]
    parts: Parts,
    /// Copies of the layout and the partials that the version uses, by name.
    #[schema(value_type = Object)]
    copies: Value,
    /// A copy of the brand values, if the version uses any.
    #[schema(value_type = Object)]
    brand: Value,
}

/// Shows one version of a template.
#[utoipa::path(get, path = "/v1/templates/{id}/versions/{version}", tag = "templates", security(("key" = ["read"])), params(("id" = String, Path), ("version" = i32, Path, minimum = 1), TenantQuery),
    responses((status = 200, description = "The version", body = ShownVersion), ProblemResponses))]
pub async fn get_template_version(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Path((id, version)): Path<(String, String)>,
) -> Result<Json<ShownVersion>, Problem> {
    let store = caller.store_of_one(&app);
    templates(&store, &caller).find(&id).await?;
    let version = version.parse().map_err(|_| Problem::not_found("version"))?;
    let found = store.template_version(caller.tenant(), &id, version).await?;
    let (version, source) = found.ok_or_else(|| Problem::not_found("version"))?;
    let (copies, brand) = (serde_json::json!(source.parts), source.brand.clone());
    Ok(Json(ShownVersion { version, parts: source.into(), copies, brand }))
}

/// The version and the data to render.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest {
    /// The number of the version. Default: the current version.
    #[schema(minimum = 1)]
    version: Option<i32>,
    /// The event's data. Default: the sample of the event type, or else its newest event.
    #[schema(value_type = Option<Object>)]
    payload: Option<Map<String, Value>>,
    /// The id of a past notification, whose data is used instead of `payload`.
    #[schema(value_type = Option<String>, format = Uuid)]
    notification_id: Option<Uuid>,
    /// The user that receives the message, with the fields that templates read.
    #[schema(value_type = Option<Object>)]
    user: Option<Map<String, Value>>,
    /// The language of the recipient.
    #[schema(max_length = 35)]
    language: Option<String>,
    /// The time zone of the recipient.
    #[schema(max_length = 63)]
    time_zone: Option<String>,
}

impl PreviewRequest {
    fn check(&self) -> Result<(), Problem> {
        if self.payload.is_some() && self.notification_id.is_some() {
            return Err(Problem::invalid(
                "payload",
                "is not allowed together with `notification_id`; give only one of them",
            ));
        }
        for (field, value, most) in [("language", &self.language, 35), ("time_zone", &self.time_zone, 63)] {
            let count = value.as_ref().map_or(0, |text| text.chars().count());
            if count > most {
                return Err(Problem::invalid(field, format!("has {count} characters; at most {most} are allowed")));
            }
        }
        Ok(())
    }
}

/// Renders a version with sample data or a past notification. Nothing is sent.
#[utoipa::path(post, path = "/v1/templates/{id}/preview", tag = "templates", security(("key" = ["read"])), params(("id" = String, Path), TenantQuery), request_body = PreviewRequest,
    responses((status = 200, description = "The rendered message, or the reason why it cannot be rendered", body = Preview), ProblemResponses))]
pub async fn preview_template(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<String>,
    Body(request): Body<PreviewRequest>,
) -> Result<Json<Preview>, Problem> {
    request.check()?;
    let store = caller.store_of_one(&app);
    let wanted = Wanted {
        version: request.version,
        payload: request.payload.map(Value::Object),
        notification: request.notification_id,
        user: request.user.map(Value::Object),
        language: request.language,
        time_zone: request.time_zone,
        public_url: app.tools.public_url.clone(),
    };
    Ok(Json(templates(&store, &caller).preview(&id, wanted).await?))
}
