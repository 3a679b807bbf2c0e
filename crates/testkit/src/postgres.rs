//! PostgreSQL: a database per test on the shared cluster of the test run, and private clusters that a test can crash.

mod cluster;
mod template;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::runtime::Builder;
use tokio_postgres::{Client, NoTls};

pub use cluster::Cluster;

/// Creates a database on the shared cluster of the test run, like `Postgres::shared().database()`.
pub async fn database() -> TestDatabase {
    Postgres::shared().database().await
}

/// A running cluster in which tests create databases.
#[derive(Clone, Debug)]
pub struct Postgres {
    /// The URL of an existing database, for a role that may create databases.
    url: String,
}

impl Postgres {
    /// Returns the cluster that all tests of a run share. `scripts/test` starts it once and passes its URL in
    /// `TEST_DATABASE_URL`, because nextest runs every test in its own process.
    ///
    /// # Panics
    /// When the variable is not set.
    pub fn shared() -> Self {
        match std::env::var("TEST_DATABASE_URL") {
            Ok(url) => Self::at(url),
            Err(_) => panic!(
                "TEST_DATABASE_URL is not set: run `./scripts/test` (or `./scripts/test --fast` \
                 in the edit-test loop), or set it to the URL of a PostgreSQL 15 or later whose \
                 role may create databases, such as postgres://postgres@127.0.0.1:5432/postgres"
            ),
        }
    }

    /// Returns the cluster at a `postgres://` URL.
    pub fn at(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }

    /// Creates an empty database with a random name. Dropping the value drops the database.
    ///
    /// # Panics
    /// When the cluster cannot be reached or refuses.
    pub async fn database(&self) -> TestDatabase {
        // template0 is used, because CREATE DATABASE cannot copy a template with open sessions, and template1 may have
        // some.
        self.database_with("TEMPLATE template0 ENCODING 'UTF8'").await
    }

    /// Creates a database like [`Postgres::database`], with these options of CREATE DATABASE.
    ///
    /// # Panics
    /// When the cluster cannot be reached or refuses.
    pub async fn database_with(&self, options: &str) -> TestDatabase {
        let name = format!("postcommit_test_{:016x}", random());
        self.execute(&format!("CREATE DATABASE {name} {options}")).await;
        TestDatabase { url: UrlParts::of(&self.url).with_database(&name), name, cluster: self.url.clone() }
    }

    /// Creates a copy of a template database. Dropping the value drops the copy. If no template exists for this
    /// `fingerprint`, `prepare` creates it in an empty database whose URL it gets. The fingerprint must change when
    /// `prepare` changes.
    ///
    /// The names of the product's roles contain the OID of their database. The template has no such roles, so the copy
    /// must be migrated as well, which creates its own roles.
    ///
    /// # Panics
    /// When the cluster cannot be reached or refuses.
    pub async fn copy(&self, fingerprint: &str, prepare: impl AsyncFnOnce(String)) -> TestDatabase {
        let template = template::Template::of(self, fingerprint);
        if let Err(error) = template.make_if_missing(prepare).await {
            panic!("a template on the test cluster {}: {error:?}", self.url);
        }
        self.database_with(&template.options()).await
    }

    /// Creates a role with a random name that may log in and has these attributes. Dropping the value drops the role,
    /// so declare it before the databases in which it owns objects.
    ///
    /// # Panics
    /// When the cluster cannot be reached or refuses.
    pub async fn login(&self, attributes: &str) -> TestLogin {
        let name = format!("login_{:016x}", random());
        self.execute(&format!("CREATE ROLE {name} LOGIN {attributes}")).await;
        TestLogin { name, cluster: self.url.clone() }
    }

    /// Runs statements as the cluster's own role, in the database of the cluster's URL and not in a test's database.
    ///
    /// # Panics
    /// When the cluster cannot be reached or refuses.
    pub async fn execute(&self, sql: &str) {
        let client = connect(&self.url).await.unwrap_or_else(|error| {
            panic!("connect to the test cluster {}: {error:?}", self.url);
        });
        if let Err(error) = client.batch_execute(sql).await {
            panic!("{sql}: {error:?}");
        }
    }
}

/// A login role of one test. Dropping the value drops the role.
#[derive(Debug)]
pub struct TestLogin {
    name: String,
    cluster: String,
}

impl TestLogin {
    /// Returns the name: `login_` and 16 random hexadecimal digits.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestLogin {
    fn drop(&mut self) {
        drop_in_background(&self.name, drop_role(self.cluster.clone(), self.name.clone()));
    }
}

/// A database of one test. Dropping the value drops the database, even while sessions are open.
#[derive(Debug)]
pub struct TestDatabase {
    /// The `postgres://` URL of the database.
    pub url: String,
    name: String,
    cluster: String,
}

impl TestDatabase {
    /// Returns the name: `postcommit_test_` and 16 random hexadecimal digits.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address of the server, for example as the target of a [`Proxy`](crate::Proxy).
    pub fn addr(&self) -> SocketAddr {
        let host = UrlParts::of(&self.url).host;
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:5432") };
        let mut found = host.to_socket_addrs().unwrap_or_else(|error| panic!("resolve {host}: {error}"));
        found.next().expect("the server has an address")
    }

    /// Returns the URL of this database for another login, without a password.
    pub fn url_as(&self, login: &str) -> String {
        UrlParts::of(&self.url).with_user(login)
    }

    /// Returns the URL of this database at another address, such as the address of a [`Proxy`](crate::Proxy).
    pub fn url_via(&self, addr: SocketAddr) -> String {
        UrlParts::of(&self.url).with_host(&addr.to_string())
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        drop_in_background(&self.name, drop_database(self.cluster.clone(), self.name.clone()));
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Drops a database or role on another thread, and waits for it. A failure is only printed, because the cluster may
/// have stopped. The cluster is deleted at the end of the run anyway.
fn drop_in_background(name: &str, work: impl Future<Output = Result<(), AnyError>> + Send + 'static) {
    // The drop runs on its own thread and runtime, because the test's runtime cannot be blocked on here.
    let dropper = std::thread::spawn(move || Builder::new_current_thread().enable_all().build()?.block_on(work));
    match dropper.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("testkit: {name} is not dropped: {error}"),
        Err(_) => eprintln!("testkit: {name} is not dropped"),
    }
}

async fn drop_database(url: String, name: String) -> Result<(), AnyError> {
    let client = connect(&url).await?;
    // The names of the product's roles in this database contain its OID.
    let roles = "\
        SELECT r.rolname::text
        FROM pg_roles r
        JOIN pg_database d ON r.rolname ~ ('^postcommit_[a-z]+_' || d.oid || '$')
        WHERE d.datname = $1";
    let roles = client.query(roles, &[&name]).await?;
    client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
    for role in roles {
        client.batch_execute(&format!("DROP ROLE IF EXISTS {}", role.get::<_, String>(0))).await?;
    }
    Ok(())
}

async fn drop_role(url: String, name: String) -> Result<(), AnyError> {
    Ok(connect(&url).await?.batch_execute(&format!("DROP ROLE IF EXISTS {name}")).await?)
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Returns a random number, taken from the random seed of the standard library's hash maps.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// `scheme://user:password@host:port/database?parameters`, split at the parts that tests replace.
struct UrlParts<'a> {
    scheme: &'a str,
    /// The part of the URL before the host.
    before: &'a str,
    /// The host and the port.
    host: &'a str,
    database: &'a str,
    /// The part from the question mark on, or empty.
    parameters: &'a str,
}

impl<'a> UrlParts<'a> {
    fn of(url: &'a str) -> Self {
        let start = match url.find("://") {
            Some(at) => at + 3,
            None => panic!("{url:?} is not a postgres:// URL"),
        };
        let (rest, parameters) = url.split_at(url.find('?').unwrap_or(url.len()));
        let path = rest[start..].find('/').map_or(rest.len(), |at| start + at);
        let host = rest[start..path].rfind('@').map_or(start, |at| start + at + 1);
        Self {
            scheme: &rest[..start],
            before: &rest[..host],
            host: &rest[host..path],
            database: rest[path..].trim_start_matches('/'),
            parameters,
        }
    }

    fn with_database(&self, database: &str) -> String {
        format!("{}{}/{database}{}", self.before, self.host, self.parameters)
    }

    fn with_user(&self, user: &str) -> String {
        format!("{}{user}@{}/{}{}", self.scheme, self.host, self.database, self.parameters)
    }

    fn with_host(&self, host: &str) -> String {
        format!("{}{host}/{}{}", self.before, self.database, self.parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart_at_its_host_and_database() {
        for (url, database, host) in [
            ("postgres://u@h:1/d", "postgres://u@h:1/x", "postgres://u@a:2/d"),
            ("postgres://h", "postgres://h/x", "postgres://a:2/"),
            ("postgres://u:p%40@h/d?a=/b", "postgres://u:p%40@h/x?a=/b", "postgres://u:p%40@a:2/d?a=/b"),
        ] {
            let parts = UrlParts::of(url);
            assert_eq!(parts.with_database("x"), database);
            assert_eq!(parts.with_host("a:2"), host);
            assert!(parts.with_user("w").starts_with("postgres://w@h"));
        }
    }
}
