//! PostgreSQL: a database per test on the run's shared cluster, and private clusters to crash.

mod cluster;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::runtime::Builder;
use tokio_postgres::{Client, NoTls};

pub use cluster::Cluster;

/// A fresh database on the run's shared cluster: `Postgres::shared().database()`.
pub async fn database() -> TestDatabase {
    Postgres::shared().database().await
}

/// A running cluster in which tests create databases.
#[derive(Clone, Debug)]
pub struct Postgres {
    /// The URL of a database that exists, for a role that may create others.
    url: String,
}

impl Postgres {
    /// The cluster shared by all tests of a run. `scripts/test` starts it once, because nextest
    /// gives every test a process of its own, and passes its URL in `TEST_DATABASE_URL`.
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

    /// The cluster behind a `postgres://` URL.
    pub fn at(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }

    /// Creates an empty database with a random name, dropped together with the value.
    ///
    /// # Panics
    /// When the cluster cannot be reached or refuses.
    pub async fn database(&self) -> TestDatabase {
        let name = format!("postcommit_test_{:016x}", random());
        let client = connect(&self.url).await.unwrap_or_else(|error| {
            panic!("connect to the test cluster {}: {error:?}", self.url);
        });
        // template0, because a template with a visitor cannot be copied and template1 may have one.
        let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'");
        if let Err(error) = client.batch_execute(&create).await {
            panic!("{create}: {error:?}");
        }
        TestDatabase { url: UrlParts::of(&self.url).with_database(&name), name, cluster: self.url.clone() }
    }
}

/// A database of one test. Dropping it drops the database, whoever is still connected.
#[derive(Debug)]
pub struct TestDatabase {
    /// The `postgres://` URL of the database.
    pub url: String,
    name: String,
    cluster: String,
}

impl TestDatabase {
    /// The name, `postcommit_test_` and 16 random hexadecimal digits.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of the server, as the target of a [`Proxy`](crate::Proxy).
    pub fn addr(&self) -> SocketAddr {
        let host = UrlParts::of(&self.url).host;
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:5432") };
        let mut found = host.to_socket_addrs().unwrap_or_else(|error| panic!("resolve {host}: {error}"));
        found.next().expect("the server has an address")
    }

    /// The URL of this database by way of `addr`, such as that of a [`Proxy`](crate::Proxy).
    pub fn url_via(&self, addr: SocketAddr) -> String {
        UrlParts::of(&self.url).with_host(&addr.to_string())
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (url, name) = (self.cluster.clone(), self.name.clone());
        // The test's own runtime, if it has one, cannot be blocked on from here.
        let dropper = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(drop_database(&url, &name))
        });
        // Best effort: the cluster may be gone, and is thrown away at the end of the run.
        match dropper.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("testkit: {} is not dropped: {error}", self.name),
            Err(_) => eprintln!("testkit: {} is not dropped", self.name),
        }
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn drop_database(url: &str, name: &str) -> Result<(), AnyError> {
    let client = connect(url).await?;
    let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    Ok(client.batch_execute(&statement).await?)
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A random number, from the seed the standard library keeps for its hash maps.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// `scheme://user:password@host:port/database?parameters`, cut where tests put something else.
struct UrlParts<'a> {
    /// Up to the host.
    before: &'a str,
    /// Host and port.
    host: &'a str,
    database: &'a str,
    /// From the question mark on, or empty.
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
        Self { before: &rest[..host], host: &rest[host..path], database: rest[path..].trim_start_matches('/'), parameters }
    }

    fn with_database(&self, database: &str) -> String {
        format!("{}{}/{database}{}", self.before, self.host, self.parameters)
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
        }
    }
}
