//! A prepared database that tests copy, because preparing one takes longer than copying it.

use tokio_postgres::{Client, Error};

use super::{Postgres, UrlParts, connect};

/// A template from another day belongs to a schema that has changed since.
const OUTDATED: &str = "SELECT datname::text FROM pg_database
    WHERE datname ~ '^postcommit_template_' AND (pg_stat_file('base/' || oid || '/PG_VERSION')).modification < now() - interval '1 day'";

/// The database that is copied.
pub(super) struct Template<'a> {
    cluster: &'a Postgres,
    name: String,
}

impl<'a> Template<'a> {
    pub(super) fn of(cluster: &'a Postgres, fingerprint: &str) -> Self {
        Self { cluster, name: format!("postcommit_template_{fingerprint}") }
    }

    /// WAL_LOG: FILE_COPY asks for two checkpoints, which all tests of the cluster wait for.
    pub(super) fn options(&self) -> String {
        format!("TEMPLATE {} STRATEGY WAL_LOG", self.name)
    }

    /// Many processes start together: the first one makes the template, and the others wait for it. It has its name only when it is
    /// complete, so that a process that is killed leaves nothing that would be copied.
    pub(super) async fn make_if_missing(&self, prepare: impl AsyncFnOnce(String)) -> Result<(), Error> {
        let client = connect(&self.cluster.url).await?;
        if self.is_there(&client).await? {
            return Ok(());
        }
        // Held until this connection ends.
        client.execute("SELECT pg_advisory_lock(hashtext('postcommit_template'))", &[]).await?;
        if !self.is_there(&client).await? {
            for outdated in client.query(OUTDATED, &[]).await? {
                // Another process may copy it now.
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
        // Connections that were dropped may not have ended yet.
        client.batch_execute(&format!("ALTER DATABASE {draft} ALLOW_CONNECTIONS false")).await?;
        let end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1";
        client.execute(end, &[&draft]).await?;
        client.batch_execute(&format!("ALTER DATABASE {draft} ALLOW_CONNECTIONS true")).await?;
        client.batch_execute(&format!("ALTER DATABASE {draft} RENAME TO {}", self.name)).await
    }
}

/// Roles of the product's installation in the template would be strangers in a copy, to be parted from it each time.
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
