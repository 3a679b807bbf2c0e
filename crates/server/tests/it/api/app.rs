//! A running server and its keys.

use std::net::SocketAddr;

use postcommit_testkit::{Child, HttpClient, HttpResponse};
use serde_json::{Value, json};

use crate::installation::{Guarantee, Hooks, Installation, Kind, wait_until};

/// The real binary on a database of its own, with the provider `hooks` (webhook) in the tenant `default`.
///
/// Its first key may do everything ([`App::ops`]) and makes tenants and further keys over the API. Nothing here sleeps
/// for a fixed time: [`App::wait_for_state`] polls.
pub struct App {
    pub installation: Installation,
    pub server: Child,
    address: SocketAddr,
    first_key: String,
    settings: Vec<(String, String)>,
}

/// A created key.
pub struct Key {
    pub id: String,
    pub token: String,
}

impl App {
    /// Starts a server that serves and delivers.
    pub fn start(kind: Kind) -> Self {
        Self::with(kind, "all", &[])
    }

    /// Starts a server that delivers only on `POST /v1/dispatch`.
    pub fn at_rest(kind: Kind) -> Self {
        Self::with(kind, "api", &[])
    }

    /// Starts a server in this role, with additional settings (`API_BURST`).
    pub fn with(kind: Kind, role: &str, settings: &[(&str, &str)]) -> Self {
        let installation = Installation::new(kind, Hooks::of(Guarantee::Idempotent));
        let settings: Vec<(String, String)> =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let server = spawn(&installation, role, &settings);
        let line = server.wait_for_line("  key  ");
        let first_key = line.split_whitespace().nth(1).unwrap().to_owned();
        Self { address: address(&server), first_key, server, installation, settings }
    }

    /// Ends the server and starts another one on the same database, in another role.
    pub fn serve_as(&mut self, role: &str) {
        self.server.kill9();
        self.server = spawn(&self.installation, role, &self.settings);
        self.address = address(&self.server);
    }

    /// The key that the first start printed.
    pub fn first_key(&self) -> &str {
        &self.first_key
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client without a key.
    pub fn nobody(&self) -> HttpClient {
        HttpClient::new(self.address)
    }

    /// A client with the first key, which may do everything.
    pub fn ops(&self) -> HttpClient {
        self.nobody().key(&self.first_key)
    }

    pub fn create_tenant(&self, name: &str) {
        let _ = self.ops().post("/v1/tenants", &json!({"name": name})).expect(201);
    }

    pub fn create_key(&self, tenant: &str, scopes: &[&str]) -> Key {
        self.create_key_as(tenant, &json!({"name": format!("{tenant} {scopes:?}"), "scopes": scopes}))
    }

    pub fn create_key_as(&self, tenant: &str, draft: &Value) -> Key {
        let made = self.ops().post(&format!("/v1/keys?tenant={tenant}"), draft).expect(201).json();
        Key { id: text(&made, "id"), token: text(&made, "token") }
    }

    /// A client with a new key of this tenant with these scopes.
    pub fn client(&self, tenant: &str, scopes: &[&str]) -> HttpClient {
        self.nobody().key(&self.create_key(tenant, scopes).token)
    }

    /// Creates a provider for every channel that sends nothing, and rejects what `refused` names: an event type, or a
    /// key.
    pub fn create_capture(&self, tenant: &str, name: &str, refused: &str) {
        let settings = json!({"fail_on": format!("permanent={refused}")});
        let draft = json!({"name": name, "driver": "capture", "channel": "*", "settings": settings});
        let _ = self.ops().post(&format!("/v1/providers?tenant={tenant}"), &draft).expect(201);
    }

    /// Enqueues a new notification and returns its id.
    pub fn enqueue(&self, client: &HttpClient, notification: &Value) -> String {
        text(&client.post("/v1/notifications", notification).expect(202).json(), "id")
    }

    /// Runs one pass over everything that is due.
    pub fn pass(&self) -> Value {
        self.ops().post("/v1/dispatch", &json!({})).expect(200).json()
    }

    pub fn status(&self, id: &str) -> Value {
        self.ops().get(&format!("/v1/notifications/{id}/status")).expect(200).json()
    }

    pub fn story(&self, id: &str) -> Value {
        self.ops().get(&format!("/v1/notifications/{id}")).expect(200).json()
    }

    pub fn wait_for_state(&self, id: &str, state: &str) {
        wait_until(&format!("{id} to be {state}"), || self.status(id)["state"] == state);
    }
}

fn spawn(installation: &Installation, role: &str, settings: &[(String, String)]) -> Child {
    let mut command = installation.command(&["serve", "--role", role]);
    command.envs(settings.iter().map(|(name, value)| (format!("POSTCOMMIT_{name}"), value)));
    Child::spawn(command)
}

/// The address of a server, from its log line about health.
pub fn address(server: &Child) -> SocketAddr {
    let line = server.wait_for_line("/healthz");
    line.split("http://").nth(1).unwrap().strip_suffix("/healthz").unwrap().parse().unwrap()
}

/// The text of a required field.
pub fn text(json: &Value, field: &str) -> String {
    json[field].as_str().unwrap_or_else(|| panic!("{field} is missing: {json}")).to_owned()
}

/// The rows of a list.
pub fn items(answer: HttpResponse) -> Vec<Value> {
    answer.expect(200).json()["items"].as_array().unwrap().clone()
}

/// Asserts a refusal: its status, its form, and the field that it names.
pub fn refused(answer: HttpResponse, status: u16, field: Option<&str>) -> Value {
    let answer = answer.expect(status);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{}", answer.text());
    let problem = answer.json();
    assert_eq!((problem["status"].as_u64(), problem["field"].as_str()), (Some(status.into()), field), "{problem}");
    assert!(
        text(&problem, "type").starts_with("urn:postcommit:problem:") && !text(&problem, "detail").is_empty(),
        "{problem}"
    );
    problem
}
