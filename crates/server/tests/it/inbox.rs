//! Inboxes over HTTP, as applications and browsers use them; on both databases.

mod browser;
mod misconfigured;
mod stream;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use postcommit_channel::model::Scopes;
use postcommit_engine::store::{KeyDraft, Store};
use postcommit_testkit::{Child, GUARD, HttpClient, HttpResponse, TestDatabase, forged};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A migrated database, and keys to it.
pub struct Place {
    store: Store,
    url: String,
    folder: TempDir,
    _database: Option<TestDatabase>,
}

/// A running server.
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Place {
    pub async fn postgres() -> Self {
        let database = crate::installation::copied().await;
        Self::over(database.url.clone(), Some(database)).await
    }

    pub async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("app.db").display());
        Self { folder, ..Self::over(url, None).await }
    }

    async fn over(url: String, database: Option<TestDatabase>) -> Self {
        let store = Store::open(&url).await.unwrap();
        store.db().migrate().await.unwrap();
        Self { store, url, folder: tempfile::tempdir().unwrap(), _database: database }
    }

    async fn key(&self, tenant: &str, scopes: &[&str]) -> String {
        let tenant = self.store.tenant_or_new(tenant).await.unwrap();
        let scopes = Scopes::from_names(&scopes.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>()).unwrap();
        let made =
            self.store.create_key(tenant, &KeyDraft { name: "test".into(), scopes, expires_at: None }).await.unwrap();
        made.token.reveal().to_owned()
    }

    fn serve(&self, role: &str, settings: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postcommit"));
        command.args(["--database-url", &self.url]).args(settings.iter().flat_map(|setting| ["--setting", setting]));
        command
            .args(["serve", "--role", role, "--listen", "127.0.0.1:0"])
            .current_dir(self.folder.path())
            .env_remove("POSTCOMMIT_DATABASE_URL");
        let child = Child::spawn(command);
        let line = child.wait_for_line("http://127.0.0.1:");
        let address =
            line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).and_then(|at| at.trim().parse().ok());
        Server { child, address: address.unwrap_or_else(|| panic!("no address in {line:?}")) }
    }

    /// The token of a new sign-in link.
    fn login_token(&self) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postcommit"));
        command.args(["--database-url", &self.url, "keys", "login-link"]).current_dir(self.folder.path());
        let output = command.env_remove("POSTCOMMIT_DATABASE_URL").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let token = said.split("token=").nth(1).unwrap_or_else(|| panic!("no link: {said}"));
        token.split_whitespace().next().unwrap().to_owned()
    }

    /// Enqueues by plain SQL.
    async fn enqueue(&self, user: &str, title: &str, action_url: &str) {
        let key = uuid::Uuid::new_v4();
        let columns = "event_type, payload, idempotency_key, recipients, title, body, action_url";
        let values = format!(
            "'demo.said', '{{}}', '{key}', '[{{\"user\": \"{user}\"}}]', '{title}', 'What it is about.', '{action_url}'"
        );
        let sql = match self.store.db().kind() {
            "postgres" => {
                let named: Vec<String> = columns
                    .split(", ")
                    .zip(values.split(", "))
                    .map(|(name, value)| format!("{name} => {value}"))
                    .collect();
                format!("SELECT postcommit.enqueue({})", named.join(", "))
            }
            _ => format!("INSERT INTO postcommit_enqueue ({columns}) VALUES ({values})"),
        };
        self.store.db().execute_one(&sql, vec![]).await.unwrap();
    }
}

impl Server {
    fn client(&self) -> HttpClient {
        HttpClient::new(self.address)
    }

    fn with(&self, token: &str) -> HttpClient {
        self.client().key(token)
    }

    fn token(&self, key: &str, user: &str) -> String {
        let answer = self.with(key).send("POST", &format!("/v1/inbox/{user}/token"), None).expect(200).json();
        answer["token"].as_str().unwrap().to_owned()
    }

    /// Polls until the inbox holds `count` messages.
    async fn holds(&self, token: &str, user: &str, count: usize) -> Value {
        let deadline = Instant::now() + GUARD;
        loop {
            assert!(Instant::now() < deadline, "{user} never had {count} messages");
            let page = self.with(token).get(&format!("/v1/inbox/{user}")).expect(200).json();
            if page["items"].as_array().unwrap().len() >= count {
                return page;
            }
            tokio::task::yield_now().await;
        }
    }
}

fn titles(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|message| message["title"].as_str().unwrap()).collect()
}

fn problem(answer: HttpResponse) -> (u16, String) {
    let status = answer.status;
    (status, answer.json()["type"].as_str().unwrap().trim_start_matches("urn:postcommit:problem:").to_owned())
}

/// Runs a check on PostgreSQL and on SQLite.
macro_rules! on_both {
    ($($check:ident),* $(,)?) => {$(
        mod $check {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                super::check::$check(crate::inbox::Place::postgres().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                super::check::$check(crate::inbox::Place::sqlite().await).await;
            }
        }
    )*};
}
pub(crate) use on_both;

on_both!(
    b15_a_browser_lists_and_marks_with_its_user_s_token,
    a_token_opens_its_user_s_inbox_and_nothing_else,
    keys_need_the_scope_of_the_route,
    other_origins_are_allowed_only_when_configured,
);

mod check {
    use super::*;

    pub async fn b15_a_browser_lists_and_marks_with_its_user_s_token(place: Place) {
        let server = place.serve("all", &[]);
        let key = place.key("default", &["operate"]).await;
        let token = server.token(&key, "alice");
        for title in ["one", "two", "three"] {
            place.enqueue("alice", title, "https://example.com/x").await;
            server.holds(&token, "alice", 1).await;
        }
        let page = server.holds(&token, "alice", 3).await;
        let browser = server.with(&token);
        assert_eq!((titles(&page), &page["unread"]), (vec!["three", "two", "one"], &json!(3)));
        assert_eq!(page["items"][0]["action_url"], "https://example.com/x");

        let first = browser.get("/v1/inbox/alice?limit=2").expect(200).json();
        let second = browser
            .get(&format!("/v1/inbox/alice?limit=2&cursor={}", first["next"].as_str().unwrap()))
            .expect(200)
            .json();
        assert_eq!((titles(&first), titles(&second), second.get("next")), (vec!["three", "two"], vec!["one"], None));

        let act = |id: &Value, mark: &str| {
            browser.send("POST", &format!("/v1/inbox/alice/{}/{mark}", id.as_str().unwrap()), None)
        };
        let ids: Vec<Value> = page["items"].as_array().unwrap().iter().map(|message| message["id"].clone()).collect();
        assert_eq!(act(&ids[0], "read").expect(200).json(), json!({"id": ids[0], "unread": 2}));
        assert_eq!(act(&ids[0], "read").expect(200).json()["unread"], 2, "once more changes nothing");
        assert_eq!(act(&ids[1], "archive").expect(200).json()["unread"], 1);
        assert_eq!(titles(&browser.get("/v1/inbox/alice?folder=unread").expect(200).json()), ["one"]);
        assert_eq!(titles(&browser.get("/v1/inbox/alice?folder=archived").expect(200).json()), ["two"]);
        assert_eq!(act(&ids[1], "unarchive").expect(200).json()["unread"], 2);
        assert_eq!(act(&ids[0], "unread").expect(200).json()["unread"], 3);
        let swept = browser
            .post("/v1/inbox/alice/read-all", &json!({"up_to": page["items"][1]["position"]}))
            .expect(200)
            .json();
        assert_eq!(swept, json!({"read": 2, "unread": 1}));
        assert_eq!(browser.get("/v1/inbox/alice/unread-count").expect(200).json(), json!({"unread": 1}));

        assert_eq!(problem(act(&json!("nonsense"), "read")).0, 404);
        assert_eq!(problem(act(&json!("0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e.1"), "read")).0, 404);
        assert_eq!(problem(browser.post("/v1/inbox/alice/read-all", &json!({}))), (422, "invalid".into()));
        assert_eq!(problem(browser.get("/v1/inbox/alice?limit=0")), (422, "invalid".into()));
    }

    pub async fn a_token_opens_its_user_s_inbox_and_nothing_else(place: Place) {
        let server = place.serve("all", &["log.level=debug"]);
        let key = place.key("default", &["admin"]).await;
        let token = server.token(&key, "alice");
        assert_eq!(server.with(&token).get("/v1/inbox/alice").expect(200).json()["unread"], 0);
        assert_eq!(problem(server.with(&token).get("/v1/inbox/bob")), (403, "forbidden".into()));
        assert_eq!(
            problem(server.with(&token).send("POST", "/v1/inbox/alice/token", None)),
            (401, "unauthenticated".into())
        );
        assert_eq!(problem(server.with(&token).get("/v1/notifications")), (401, "unauthenticated".into()));
        assert_eq!(
            problem(server.client().get(&format!("/v1/inbox/alice?token={token}"))).0,
            401,
            "in the query only for the stream"
        );
        assert_eq!(problem(server.client().get("/v1/inbox/alice")), (401, "unauthenticated".into()));
        let forged = forged(&token);
        assert_eq!(problem(server.with(&forged).get("/v1/inbox/alice")), (401, "unauthenticated".into()));
        // A user of the same name in another tenant is another user.
        let theirs = server.token(&place.key("other", &["operate"]).await, "alice");
        place.enqueue("alice", "ours", "https://example.com").await;
        server.holds(&token, "alice", 1).await;
        assert_eq!(server.with(&theirs).get("/v1/inbox/alice").expect(200).json()["items"], json!([]));
        let other = place.store.tenant_or_new("other").await.unwrap();
        place.store.suspend_tenant(other, "unpaid").await.unwrap();
        assert_eq!(problem(server.with(&theirs).get("/v1/inbox/alice")), (403, "suspended".into()));
        let long = "x".repeat(256);
        assert_eq!(problem(server.with(&key).get(&format!("/v1/inbox/{long}"))), (422, "invalid".into()));
        assert_eq!(
            problem(server.with(&key).send("POST", "/v1/inbox/alice/token?ttl_s=86401", None)),
            (422, "invalid".into())
        );
        let logged = server.child.output().join("\n");
        assert!(logged.contains("/v1/inbox/{user}") && !logged.contains("pcu_"), "{logged}");
    }

    pub async fn keys_need_the_scope_of_the_route(place: Place) {
        let server = place.serve("all", &[]);
        let routes = [
            ("GET", "", "read"),
            ("GET", "/unread-count", "read"),
            ("POST", "/read-all", "operate"),
            ("POST", "/x/read", "operate"),
            ("POST", "/token", "operate"),
        ];
        for (scope, lacking) in [("read", ["operate", "enqueue"]), ("enqueue", ["read", "operate"])] {
            let client = server.with(&place.key("default", &[scope]).await);
            for (method, path, needed) in routes {
                let body = (method == "POST" && path == "/read-all").then_some(&b"{\"up_to\": 0}"[..]);
                let status = client.send(method, &format!("/v1/inbox/alice{path}"), body).status;
                assert_eq!(status == 403, lacking.contains(&needed), "{scope}: {method} {path} answers {status}");
            }
        }
    }

    pub async fn other_origins_are_allowed_only_when_configured(place: Place) {
        let (none, named) = (place.serve("all", &[]), place.serve("all", &["inbox.origins=https://app.example.com"]));
        let ask = |server: &Server, origin: &str, path: &str| {
            let client = server.client().with("Origin", origin).with("Access-Control-Request-Method", "GET");
            client.send("OPTIONS", path, None)
        };
        let allowed = ask(&named, "https://app.example.com", "/v1/inbox/alice/stream");
        assert_eq!(
            (allowed.status, allowed.header("access-control-allow-origin")),
            (204, Some("https://app.example.com"))
        );
        assert!(allowed.header("access-control-allow-headers").unwrap().contains("Authorization"));
        for (server, origin, path) in [
            (&named, "https://evil.example.com", "/v1/inbox/alice/stream"),
            (&none, "https://app.example.com", "/v1/inbox/alice/stream"),
            (&named, "https://app.example.com", "/v1/notifications"),
        ] {
            assert_eq!(ask(server, origin, path).header("access-control-allow-origin"), None, "{origin} {path}");
        }
        // A page of another origin can read the refusal too, because it must learn that its token has expired.
        let refused = named.client().with("Origin", "https://app.example.com").get("/v1/inbox/alice");
        assert_eq!(
            (refused.status, refused.header("access-control-allow-origin")),
            (401, Some("https://app.example.com"))
        );
        assert_eq!(refused.header("access-control-allow-credentials"), None, "cookies are never asked for");
        let script = named.client().get("/inbox.js").expect(200);
        assert_eq!(script.header("access-control-allow-origin"), Some("*"));
    }
}
