//! A temporary PostgreSQL database for a demonstration. If its process is killed, the next demonstration drops it.

use postcommit_channel::secret::random;
use tokio_postgres::error::SqlState;

use super::postgres::{CONNECT_TIMEOUT, Postgres};
use super::{Db, DbError, Row};

/// The prefix of the databases' names. A random number follows.
const PREFIX: &str = "postcommit_demo_";

/// A temporary database.
pub struct Scratch {
    /// The existing database of the given URL. The statements that create and drop the temporary one run in it.
    server: Db,
    name: String,
    /// The URL of the new database.
    pub url: String,
}

impl Scratch {
    /// Creates a temporary database on the server of this URL. Drops earlier ones to which no client is connected.
    pub async fn make(url: &str) -> Result<Self, DbError> {
        let server = Db::Postgres(Postgres::open(url, CONNECT_TIMEOUT).await?);
        drop_leftovers(&server).await?;
        let name = format!("{PREFIX}{:016x}", u64::from_be_bytes(random::<8>()));
        let made = server.query(&format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'"), vec![]).await;
        match made {
            Ok(_) => Ok(Self { server, url: with_database(url, &name), name }),
            Err(DbError::Refused { code, message }) if code == SqlState::INSUFFICIENT_PRIVILEGE.code() => {
                Err(DbError::Refused {
                    code,
                    message: format!("{message}: the demonstration creates a database, so the login needs CREATEDB"),
                })
            }
            Err(problem) => Err(problem),
        }
    }

    /// Drops the database, even if clients are still connected to it.
    pub async fn remove(self) -> Result<(), DbError> {
        remove(&self.server, &self.name).await
    }
}

/// Drops a database and the role that its migration created.
async fn remove(server: &Db, name: &str) -> Result<(), DbError> {
    let oid = "SELECT CAST(oid AS bigint) FROM pg_database WHERE datname = $1";
    let found = server.query(oid, vec![name.into()]).await?;
    server.query(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"), vec![]).await?;
    if let Some(Ok(oid)) = found.first().map(|row: &Row| row.get::<i64>(0)) {
        // This may fail if the login may not manage roles. Then its migration created no role either.
        let _ = server.query(&format!("DROP ROLE IF EXISTS postcommit_tenant_{oid}"), vec![]).await;
    }
    Ok(())
}

async fn drop_leftovers(server: &Db) -> Result<(), DbError> {
    let unused = "SELECT CAST(datname AS text) FROM pg_database d
        WHERE datname ~ $1 AND pg_get_userbyid(datdba) = current_user
          AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.datid = d.oid AND a.backend_type = 'client backend')";
    for row in server.query(unused, vec![format!("^{PREFIX}[0-9a-f]{{16}}$").as_str().into()]).await? {
        // A failure, for example because a session has just connected, is left to the next demonstration.
        if let Err(problem) = remove(server, &row.get::<String>(0)?).await {
            tracing::debug!(%problem, "could not drop the database of a killed demonstration; the next demonstration tries again");
        }
    }
    Ok(())
}

/// Returns the URL of another database on the same server.
pub fn with_database(url: &str, database: &str) -> String {
    let (rest, parameters) = url.split_at(url.find('?').unwrap_or(url.len()));
    let start = rest.find("://").map_or(0, |at| at + 3);
    let path = rest[start..].find('/').map_or(rest.len(), |at| start + at);
    format!("{}/{database}{parameters}", &rest[..path])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_a_url_is_replaced_and_nothing_else() {
        for (url, expected) in [
            ("postgres://u@h:1/d", "postgres://u@h:1/x"),
            ("postgres://h", "postgres://h/x"),
            (
                "postgres://u:p%2F@h/d?sslmode=require&sslrootcert=/a/b",
                "postgres://u:p%2F@h/x?sslmode=require&sslrootcert=/a/b",
            ),
        ] {
            assert_eq!(with_database(url, "x"), expected);
        }
    }
}
