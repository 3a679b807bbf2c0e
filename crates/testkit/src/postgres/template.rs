//! A prepared database that tests copy, because copying it is faster than preparing a new one.

use tokio_postgres::{Client, Error};

use super::{Postgres, UrlParts, connect};

/// Finds templates older than a day. Most likely the schema has changed since, and no test uses them any more.
const OUTDATED: &str = "SELECT datname::text FROM pg_database
    WHERE datname ~ '^postcommit_template_' AND (pg_stat_file('base/' || oid || '/PG_VERSION')).modification < now() - interval '1 day'";

/// A prepared database that tests copy.
pub(super) struct Template<'a> {
    cluster: &'a Postgres,
    name: String,
}

impl<'a> Template<'a> {
    pub(super) fn of(cluster: &'a Postgres, fingerprint: &str) -> Self {
        Self { cluster, name: format!("postcommit_template_{fingerprint}") }
    }

    /// Returns the options of CREATE DATABASE. The strategy is WAL_LOG because FILE_COPY needs two checkpoints, and all
    /// tests of the cluster would wait for them.
    pub(super) fn options(&self) -> String {
        format!("TEMPLATE {} STRATEGY WAL_LOG", self.name)
    }

    /// Creates the template unless it exists. When many processes start together, the first one creates it and the
    /// others wait. The template gets its name only when it is complete, so that a killed process leaves no partial
    /// template.
    pub(super) async fn make_if_missing(&self, prepare: impl AsyncFnOnce(String)) -> Result<(), Error> {
        let client = connect(&self.cluster.url).await?;
        if self.is_there(&client).await? {
            return Ok(());
        }
        // The lock is held until this connection ends.
        client.execute("SELECT pg_advisory_lock(hashtext('postcommit_template'))", &[]).await?;
        if !self.is_there(&client).await? {
            for outdated in client.query(OUTDATED, &[]).await? {
                // The drop fails if another process is copying the template now. That failure is ignored.
                let _ = client.batch_execute(&format!("DROP DATABASE {}", outdated.get::<_, String>(0))).await;
            }
            self.make(&client, prepare).await?;
        }
        Ok(())
    }

    async fn is_there(&self, client: &Client) -> Result<bool, Error> {
        Ok(client.query_opt("SELECT FROM pg_database WHERE datname = $1", &[&self.name]).await?.is_some())
    }

    async fn make(&self, client: &Client, prepare: impl AsyncFnOnce(String)) -> Result<(), Error> {
        let draft = format!("{}_draft", self.name);
        client.batch_execute(&format!("DROP DATABASE IF EXISTS {draft} WITH (FORCE)")).await?;
        client.batch_execute(&format!("CREATE DATABASE {draft} TEMPLATE template0 ENCODING 'UTF8'")).await?;
        let url = UrlParts::of(&self.cluster.url).with_database(&draft);
        prepare(url.clone()).await;
        drop_roles(&url).await?;
        // Connections of `prepare` that were dropped may not have ended yet.
        client.batch_execute(&format!("ALTER DATABASE {draft} ALLOW_CONNECTIONS false")).await?;
        let end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1";
        client.execute(end, &[&draft]).await?;
        client.batch_execute(&format!("ALTER DATABASE {draft} ALLOW_CONNECTIONS true")).await?;
        client.batch_execute(&format!("ALTER DATABASE {draft} RENAME TO {}", self.name)).await
    }
}

/// Drops the product's roles of the template. Their names contain the template's OID, so a copy cannot use them.
async fn drop_roles(url: &str) -> Result<(), Error> {
    let client = connect(url).await?;
    let roles = "SELECT r.rolname::text FROM pg_roles r JOIN pg_database d ON r.rolname ~ ('^postcommit_[a-z]+_' || d.oid || '$')
        WHERE d.datname = current_database()";
    for role in client.query(roles, &[]).await? {
        let role: String = role.get(0);
        client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
    }
    Ok(())
}
