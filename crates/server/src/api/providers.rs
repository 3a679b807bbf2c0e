//! Providers: configure, test and pause. Secrets can be set but are never shown.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use postcommit::Timestamp;
use postcommit_channel::driver;
use postcommit_channel::model::{Guarantee, Provider};
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_engine::store::{CloseOutcome, ClosedHost, Lacking, MAX_CLOSED_HOSTS, Store, UnopenedLane};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, SchemaType, Type};

use super::{ProblemResponses, TenantQuery};
use crate::app::{App, AppState};
use crate::auth::{Caller, Editor, Operator, Reader};
use crate::problem::{Problem, ProblemKind};
use crate::providers::{self, Change, ProviderError, TEST_TEXT, TestResult, workshop};
use crate::read::{Body, Id, given};

/// The maximum number of paused or held hosts that are shown, for one provider and in a list. The KPIs count all.
const HOSTS_SHOWN: i64 = 100;
const HOSTS_LISTED: i64 = 1000;

/// A configured account of a driver on a channel.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownProvider {
    /// The name, unique in the tenant.
    name: String,
    /// The tenant of the provider.
    tenant: String,
    /// The channel that the provider serves. `*` means every channel.
    channel: String,
    /// The driver of the provider.
    driver: String,
    /// The driver's own settings.
    #[schema(value_type = Object)]
    settings: Value,
    /// Whether the provider has secrets. They are not shown.
    secrets: bool,
    /// The guarantee, which decides what happens after an unclear outcome: idempotent, at_most_once or at_least_once.
    guarantee: String,
    /// The retry policy.
    #[schema(value_type = Object)]
    policy: Value,
    /// The maximum number of concurrent sends per server process.
    concurrency: i32,
    /// The time limit of one send, in milliseconds.
    timeout_ms: i32,
    /// Whether the provider serves recipients that name no provider.
    is_default: bool,
    /// Whether the provider accepts new deliveries.
    enabled: bool,
    /// The maximum number of sends per second over this provider, from all processes together. `null` means no limit.
    rate_per_s: Option<f64>,
    /// The burst: the maximum number of sends without a wait after an idle time.
    burst: Option<i32>,
    /// The reason why the provider is paused. `null` if it is not paused.
    paused: Option<String>,
    /// The number of failures of the service in a row after which nothing is sent for a while. 0 means that this breaker
    /// is off.
    breaker_failures: i32,
    /// The number of seconds for which nothing is sent when the breaker trips for the first time.
    breaker_cool_down_s: i32,
    /// The next provider, which takes over while this one cannot send. `null` if there is none.
    failover: Option<String>,
    /// How many seconds this provider may ask to wait before the next one takes over.
    failover_after_s: i32,
    /// The time until which the provider is held, because it asked to wait or its breaker tripped. `null` if it is not
    /// held.
    held_until: Option<Timestamp>,
    /// The reason why the breaker tripped. `null` if it did not, or if the provider asked to wait.
    hold_reason: Option<String>,
    /// How often the breaker tripped since the last success. While it is above 0 and the provider is not held, one send
    /// is made at a time.
    trips: i32,
    /// The reason why no worker can serve the provider, so that nothing is sent. `null` if a worker can.
    unopened: Option<String>,
    /// What the workers lack to serve the provider. `null` if a worker can serve it.
    lacking: Option<Lacking>,
    /// The paused and held hosts, paused hosts first: at most 100 of one provider, and 1,000 in a list of all
    /// providers.
    hosts: Vec<ClosedHost>,
    /// The number of changes so far, including pauses and changes of the default.
    revision: i32,
}

/// The paused and held hosts, and the providers that no worker can serve, by provider id.
struct Closed {
    hosts: Vec<ClosedHost>,
    unopened: BTreeMap<i32, UnopenedLane>,
}

impl ShownProvider {
    fn of(provider: Provider, tenants: &BTreeMap<i32, String>, now: Timestamp, closed: &Closed) -> Self {
        let hosts = &closed.hosts;
        Self {
            unopened: closed.unopened.get(&provider.id).map(|not| not.reason.clone()),
            lacking: closed.unopened.get(&provider.id).map(|not| not.lacking),
            hosts: hosts.iter().filter(|host| host.lane == provider.id).cloned().collect(),
            tenant: tenants.get(&provider.tenant).cloned().unwrap_or_default(),
            secrets: provider.secrets.is_some(),
            guarantee: provider.guarantee.name().to_owned(),
            policy: json!(provider.policy),
            burst: provider.rate().map(|rate| rate.burst),
            name: provider.draft.name,
            channel: provider.draft.channel,
            driver: provider.draft.driver,
            settings: provider.draft.settings,
            concurrency: provider.draft.concurrency,
            timeout_ms: provider.draft.timeout_ms,
            is_default: provider.draft.is_default,
            enabled: provider.draft.enabled,
            rate_per_s: provider.draft.rate_per_s,
            breaker_failures: provider.draft.breaker_failures,
            breaker_cool_down_s: provider.draft.breaker_cool_down_s,
            failover: provider.draft.failover,
            failover_after_s: provider.draft.failover_after_s,
            hold_reason: provider.hold_reason,
            trips: provider.trips,
            paused: provider.paused,
            held_until: provider.held_until.filter(|until| *until > now),
            revision: provider.revision,
        }
    }
}

impl From<ProviderError> for Problem {
    fn from(error: ProviderError) -> Self {
        match error {
            ProviderError::Field(problem) | ProviderError::Untestable(problem) => Self::of_field(&problem),
            ProviderError::Exists(_) => Self::new(ProblemKind::StateConflict, error.to_string()).about("name"),
            ProviderError::TooMany => Self::new(ProblemKind::StateConflict, error.to_string()).about("name"),
            ProviderError::Outdated { .. } => {
                Self::new(ProblemKind::StateConflict, error.to_string()).about("revision")
            }
            ProviderError::Overtaken(_) => Self::new(ProblemKind::StateConflict, error.to_string()).retry_after(1),
            ProviderError::Unknown(_) => Self::not_found("provider"),
            ProviderError::Waited(..) | ProviderError::InApp => {
                Self::new(ProblemKind::StateConflict, error.to_string())
            }
            ProviderError::Secrets(_) | ProviderError::OtherKey(_) | ProviderError::KeyReplaced(_) => {
                tracing::error!(problem = %error, "the secrets of a provider cannot be encrypted or decrypted; the \
                    request is refused");
                Self::new(
                    ProblemKind::Unavailable,
                    "the key that encrypts the providers' secrets is not available on the server; its log has details",
                )
            }
            ProviderError::Database(problem) => problem.into(),
        }
    }
}

/// All providers.
#[derive(Debug, Serialize, ToSchema)]
pub struct Providers {
    /// The providers, sorted by tenant, then the oldest first.
    items: Vec<ShownProvider>,
}

/// Lists the tenant's providers.
#[utoipa::path(get, path = "/v1/providers", tag = "providers", security(("key" = ["read"])), params(TenantQuery),
    responses((status = 200, description = "All providers of the tenant", body = Providers), ProblemResponses))]
pub async fn list_providers(State(app): State<AppState>, Reader(caller): Reader) -> Result<Json<Providers>, Problem> {
    let (store, whose) = (caller.store(&app), caller.whose());
    let (all, tenants, now) = (store.providers().await?, app.store.tenants().await?, store.now().await?);
    let closed =
        Closed { hosts: store.closed_hosts(whose, None, HOSTS_LISTED).await?, unopened: store.unopened(whose).await? };
    let mine = all.into_iter().filter(|provider| whose.is_none_or(|tenant| provider.tenant == tenant));
    Ok(Json(Providers { items: mine.map(|provider| ShownProvider::of(provider, &tenants, now, &closed)).collect() }))
}

/// Defines a request body that describes a provider: its own fields, and the fields that creation and change share. The
/// shared fields are in a macro, because an error of serde's `flatten` would not name the field.
macro_rules! description {
    ($(#[$about:meta])* $body:ident { $($own:tt)* }) => {
        $(#[$about])*
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $body {
            $($own)*
            /// The channel that the provider serves. `*` means every channel. Default: the default channel of the
            /// driver.
            #[schema(min_length = 1, max_length = 63, pattern = r"^(\*|[A-Za-z0-9_.-]+)$")]
            channel: Option<String>,
            /// The driver's own settings by name. The value `null` removes a setting.
            #[serde(default)]
            #[schema(value_type = Object)]
            settings: Map<String, Value>,
            /// The driver's secrets by name. They are stored encrypted and never shown again.
            #[serde(default)]
            #[schema(write_only)]
            secrets: BTreeMap<String, String>,
            /// The guarantee, which decides what happens after an unclear outcome.
            #[schema(schema_with = guarantees)]
            guarantee: Option<String>,
            /// The retry policy: `doubling`, `marketplace`, `standard_webhooks`, or an object such as
            /// `{"name": "fixed", "interval_s": 60, "max_attempts": 5}`. Default: the default policy of the driver.
            policy: Option<Value>,
            /// The maximum number of concurrent sends per server process.
            #[schema(minimum = 1, maximum = 1000)]
            concurrency: Option<i32>,
            /// The time limit of one send, in milliseconds.
            #[schema(minimum = 100, maximum = 300_000)]
            timeout_ms: Option<i32>,
            /// Whether the provider serves recipients that name no provider.
            is_default: Option<bool>,
            /// The maximum number of sends per second over this provider, from all processes together, 0.001 to 10,000.
            /// `null` removes the limit.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<f64>, minimum = 0.001, maximum = 10_000)]
            rate_per_s: Option<Option<f64>>,
            /// The burst: the maximum number of sends without a wait after an idle time. `null` is the rate of one
            /// second.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<i32>, minimum = 1, maximum = 10_000)]
            burst: Option<Option<i32>>,
            /// The number of failures of the service in a row after which nothing is sent for a while. 0 switches this
            /// breaker off. Default: 5.
            #[schema(minimum = 0, maximum = 100)]
            breaker_failures: Option<i32>,
            /// The number of seconds for which nothing is sent when the breaker trips. It doubles each time, up to 300.
            /// Default: 5.
            #[schema(minimum = 1, maximum = 300)]
            breaker_cool_down_s: Option<i32>,
            /// The next provider of the same channel, which takes over while this one cannot send. At most 5 providers
            /// form a chain. `null` removes it.
            #[serde(default, deserialize_with = "given")]
            #[schema(value_type = Option<String>, min_length = 1, max_length = 63)]
            failover: Option<Option<String>>,
            /// How many seconds this provider may ask to wait before the next one takes over. Default: 30.
            #[schema(minimum = 0, maximum = 86_400)]
            failover_after_s: Option<i32>,
            /// Whether the provider accepts new deliveries.
            enabled: Option<bool>,
        }

        impl From<$body> for Change {
            fn from(given: $body) -> Self {
                Self {
                    channel: given.channel,
                    settings: given.settings,
                    secrets: hidden(given.secrets),
                    guarantee: given.guarantee,
                    policy: given.policy,
                    concurrency: given.concurrency,
                    timeout_ms: given.timeout_ms,
                    is_default: given.is_default,
                    rate_per_s: given.rate_per_s,
                    burst: given.burst,
                    breaker_failures: given.breaker_failures,
                    breaker_cool_down_s: given.breaker_cool_down_s,
                    failover: given.failover,
                    failover_after_s: given.failover_after_s,
                    enabled: given.enabled,
                }
            }
        }
    };
}

description! {
    /// A provider to be created.
    NewProvider {
        /// The name: 1 to 63 letters, digits, `_`, `-`, `.`; unique in the tenant.
        #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
        name: String,
        /// The driver of the provider.
        #[schema(schema_with = drivers)]
        driver: String,
    }
}

description! {
    /// The fields to change. Omitted fields keep their values.
    ProviderChange {
        /// Change the provider only if it still has this revision. Without it, the change applies to any revision.
        #[schema(minimum = 1)]
        revision: Option<i32>,
    }
}

fn drivers() -> Object {
    let about =
        format!("The driver of the provider: {}, or a recipe of this installation.", driver::names().join(", "));
    ObjectBuilder::new().schema_type(Type::String).description(Some(about)).build()
}

fn guarantees() -> Object {
    let names = Guarantee::ALL.into_iter().map(|guarantee| Value::from(guarantee.name()));
    let about = "The guarantee, which decides what happens after an unclear outcome. Default: the default guarantee of the driver.";
    let text_or_null = SchemaType::from_iter([Type::String, Type::Null]);
    ObjectBuilder::new()
        .schema_type(text_or_null)
        .enum_values(Some(names.chain([Value::Null])))
        .description(Some(about))
        .build()
}

fn hidden(secrets: BTreeMap<String, String>) -> Secrets {
    secrets.into_iter().map(|(name, value)| (name, Secret::new(value))).collect()
}

/// A provider that was just created.
#[derive(Debug, Serialize, ToSchema)]
pub struct MadeProvider {
    #[serde(flatten)]
    provider: ShownProvider,
    /// The signing secret that was created, if the driver is `webhook` and none was given. It is not shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    signing_secret: Option<String>,
}

/// Creates a provider.
#[utoipa::path(post, path = "/v1/providers", tag = "providers", security(("key" = ["edit"])), params(TenantQuery), request_body = NewProvider,
    responses((status = 201, description = "Created", body = MadeProvider), ProblemResponses))]
pub async fn create_provider(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Body(new): Body<NewProvider>,
) -> Result<(StatusCode, Json<MadeProvider>), Problem> {
    let store = caller.store_of_one(&app);
    let (name, driver) = (new.name.clone(), new.driver.clone());
    let made = workshop(&app, &store, &caller).create(caller.tenant(), &name, &driver, new.into()).await?;
    // The secret is revealed here to return it once. The secret of a key pair is not returned.
    let signing_secret = made.filter(|made| made.public.is_none()).map(|made| made.secret.reveal().to_owned());
    Ok((
        StatusCode::CREATED,
        Json(MadeProvider { provider: shown(&app, &store, &caller, &name).await?, signing_secret }),
    ))
}

async fn shown(app: &App, store: &Store, caller: &Caller, name: &str) -> Result<ShownProvider, Problem> {
    let provider = workshop(app, store, caller).find(caller.tenant(), name).await?;
    let closed = Closed {
        hosts: store.closed_hosts(Some(caller.tenant()), Some(provider.id), HOSTS_SHOWN).await?,
        unopened: store.unopened(Some(caller.tenant())).await?,
    };
    let tenants = BTreeMap::from([(caller.tenant(), caller.tenant_name().to_owned())]);
    Ok(ShownProvider::of(provider, &tenants, store.now().await?, &closed))
}

/// Returns one provider, without its secrets.
#[utoipa::path(get, path = "/v1/providers/{name}", tag = "providers", security(("key" = ["read"])), params(("name" = String, Path), TenantQuery),
    responses((status = 200, description = "The provider", body = ShownProvider), ProblemResponses))]
pub async fn get_provider(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(name): Id<String>,
) -> Result<Json<ShownProvider>, Problem> {
    Ok(Json(shown(&app, &caller.store_of_one(&app), &caller, &name).await?))
}

/// Changes the given fields of a provider and keeps the others.
#[utoipa::path(patch, path = "/v1/providers/{name}", tag = "providers", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery), request_body = ProviderChange,
    responses((status = 200, description = "The provider after the change", body = ShownProvider), ProblemResponses))]
pub async fn update_provider(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
    Body(given): Body<ProviderChange>,
) -> Result<Json<ShownProvider>, Problem> {
    let store = caller.store_of_one(&app);
    workshop(&app, &store, &caller).update(caller.tenant(), &name, given.revision, &given.into()).await?;
    Ok(Json(shown(&app, &store, &caller, &name).await?))
}

/// Deletes a provider. Refused while deliveries wait for it.
#[utoipa::path(delete, path = "/v1/providers/{name}", tag = "providers", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery),
    responses((status = 204, description = "The provider is deleted"), ProblemResponses))]
pub async fn delete_provider(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
) -> Result<StatusCode, Problem> {
    workshop(&app, &caller.store_of_one(&app), &caller).delete(caller.tenant(), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The reason of a pause, and the host to pause.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// The reason, shown to operators.
    #[schema(min_length = 1, max_length = 255)]
    reason: String,
    /// Pause only this host: a name or an IP address, with the port if it is not 443.
    #[schema(min_length = 1, max_length = 300)]
    host: Option<String>,
}

fn host_of(given: Option<&str>) -> Result<Option<String>, Problem> {
    given.map(|host| driver::host_of(host).map_err(|problem| Problem::of_field(&problem))).transpose()
}

/// Pauses a provider, or only one host that it sends to; its deliveries wait.
#[utoipa::path(post, path = "/v1/providers/{name}/pause", tag = "providers", security(("key" = ["operate"])), params(("name" = String, Path), TenantQuery), request_body = Pause,
    responses((status = 200, description = "The provider. If it was paused before, the first reason is kept", body = ShownProvider), ProblemResponses))]
pub async fn pause_provider(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(name): Id<String>,
    Body(why): Body<Pause>,
) -> Result<Json<ShownProvider>, Problem> {
    providers::check_reason(&why.reason)?;
    let store = caller.store_of_one(&app);
    let provider = workshop(&app, &store, &caller).find(caller.tenant(), &name).await?;
    match host_of(why.host.as_deref())? {
        None => drop(store.pause_lane(provider.id, None, &why.reason).await?),
        Some(host) if store.pause_host(provider.id, &host, None, &why.reason).await? == CloseOutcome::TooMany => {
            let detail = format!(
                "{MAX_CLOSED_HOSTS} hosts of this provider are paused or held, which is the limit; pause the whole \
                 provider"
            );
            return Err(Problem::new(ProblemKind::StateConflict, detail).about("host"));
        }
        Some(_) => {}
    }
    Ok(Json(shown(&app, &store, &caller, &name).await?))
}

/// The host to resume.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Resume only this host: a name or an IP address, with the port if it is not 443. Default: the provider and all
    /// its hosts.
    #[schema(min_length = 1, max_length = 300)]
    host: Option<String>,
}

/// Resumes a provider and all its hosts, or only one host, whether paused or held. Deliveries that waited for a host
/// become due.
#[utoipa::path(post, path = "/v1/providers/{name}/resume", tag = "providers", security(("key" = ["operate"])), params(("name" = String, Path), TenantQuery), request_body = Option<Resume>,
    responses((status = 200, description = "The provider. If it was neither paused nor held, nothing is changed", body = ShownProvider), ProblemResponses))]
pub async fn resume_provider(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(name): Id<String>,
    Body(what): Body<Resume>,
) -> Result<Json<ShownProvider>, Problem> {
    let store = caller.store_of_one(&app);
    let provider = workshop(&app, &store, &caller).find(caller.tenant(), &name).await?;
    match host_of(what.host.as_deref())? {
        Some(host) => drop(store.resume_host(provider.id, &host).await?),
        None => drop(store.resume_lane(provider.id).await?),
    }
    Ok(Json(shown(&app, &store, &caller, &name).await?))
}

/// The address and the text of a test message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderTest {
    /// The address of the receiver, in the form that the provider expects, e.g. +491701234567 for SMS or a URL for a
    /// webhook.
    #[schema(min_length = 1, max_length = 2048)]
    address: String,
    /// The text of the message.
    #[schema(max_length = 1000)]
    text: Option<String>,
    /// Further fields for the driver, as in `data` of a notification, without the name of the channel.
    #[schema(value_type = Option<Object>)]
    data: Option<Map<String, Value>>,
}

/// Sends a test message immediately, without the queue, and answers with the outcome. The test is written to the audit
/// log.
#[utoipa::path(post, path = "/v1/providers/{name}/test", tag = "providers", security(("key" = ["operate"])), params(("name" = String, Path), TenantQuery), request_body = ProviderTest,
    responses((status = 200, description = "The outcome of the test", body = TestResult), ProblemResponses))]
pub async fn test_provider(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(name): Id<String>,
    Body(test): Body<ProviderTest>,
) -> Result<Json<TestResult>, Problem> {
    let store = caller.store_of_one(&app);
    let provider = workshop(&app, &store, &caller).find(caller.tenant(), &name).await?;
    let (text, data) = (test.text.as_deref().unwrap_or(TEST_TEXT), test.data.map(Value::Object));
    let tenant = caller.tenant_name();
    Ok(Json(providers::test(&app.tools, &store, &provider, tenant, &test.address, text, data.as_ref()).await?))
}
