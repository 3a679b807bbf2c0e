//! A private database on the given server. If the login may not create one, private schemas in the given database.

use postcommit_channel::secret::random;
use postcommit_engine::db::postgres::{CONNECT_TIMEOUT, Postgres};
use postcommit_engine::db::with_database;
use postcommit_server::output::Exit;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use crate::failure::Failure;

/// The prefix of the databases' names; a random number follows.
const PREFIX: &str = "postcommit_bench_";
/// The advisory lock that is held while leftovers are dropped and a database is created. It keeps other runs from
/// taking a new database without connections for a leftover.
const LOCK: i64 = 0x7063_6265_6e63_6800;
/// How often the drop of a schema is tried.
const DROPS: usize = 10;
/// The schemas that a run creates in a database.
const SCHEMAS: &str = "postcommit, postcommit_bench, postcommit_bench_history, postcommit_bench_backlog";

/// The PostgreSQL database of a run.
pub struct PostgresWorkspace {
    url: String,
    /// Connects to the database. Its pool keeps a connection open, so that no other run takes the database for a
    /// leftover.
    here: Postgres,
    /// The given database, and the name of the database that this run created.
    own: Option<(Postgres, String)>,
}

impl PostgresWorkspace {
    /// Creates a database, or checks that the given one can be used.
    pub async fn make(given_url: &str) -> Result<Self, Failure> {
        let given = Postgres::open(given_url, CONNECT_TIMEOUT).await?;
        let client = connect(&given).await?;
        client.execute("SELECT pg_advisory_lock($1)", &[&LOCK]).await?;
        drop_leftovers(&client).await?;
        let name = format!("{PREFIX}{:016x}", u64::from_be_bytes(random::<8>()));
        match client.batch_execute(&format!("CREATE DATABASE {name}")).await {
            Ok(()) => {
                let url = with_database(given_url, &name);
                match Postgres::open(&url, CONNECT_TIMEOUT).await {
                    Ok(here) => Ok(Self { url, here, own: Some((given, name)) }),
                    Err(failure) => {
                        client.batch_execute(&format!("DROP DATABASE {name}")).await?;
                        Err(failure.into())
                    }
                }
            }
            Err(e) if e.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                refuse_if_useless(&client).await?;
                Ok(Self { url: given_url.to_owned(), here: given, own: None })
            }
            Err(e) => Err(e.into()),
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether the whole database belongs to this run. Only then may peers use it.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// A separate connection, without the product's timeouts.
    pub async fn client(&self) -> Result<Client, Failure> {
        connect(&self.here).await
    }

    /// Drops the schema `postcommit`.
    pub async fn clear(&self) -> Result<(), Failure> {
        self.drop_and("").await
    }

    /// Renames the schema `postcommit` to `postcommit_bench_…`, to keep it while another one is measured.
    pub async fn put_aside(&self, name: &str) -> Result<(), Failure> {
        Ok(self
            .client()
            .await?
            .batch_execute(&format!("ALTER SCHEMA postcommit RENAME TO postcommit_bench_{name}"))
            .await?)
    }

    /// Replaces the schema `postcommit` by the one that was put aside. The renamed schema works, because all statements
    /// in it qualify their names.
    pub async fn bring_back(&self, name: &str) -> Result<(), Failure> {
        self.drop_and(&format!("ALTER SCHEMA postcommit_bench_{name} RENAME TO postcommit")).await
    }

    /// Drops the schema `postcommit` and runs another statement, in one transaction. A dispatcher that is stopping may
    /// still run a background duty and lock the tables in another order. PostgreSQL then aborts one of the two
    /// transactions, and the drop is repeated if it was aborted.
    async fn drop_and(&self, then: &str) -> Result<(), Failure> {
        let client = self.client().await?;
        for _ in 0..DROPS {
            match client.batch_execute(&format!("DROP SCHEMA IF EXISTS postcommit CASCADE; {then}")).await {
                Err(e) if e.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => {}
                done => return Ok(done?),
            }
        }
        Err(Failure::new(Exit::Failed, "the schema postcommit could not be dropped: its tables stay in use"))
    }

    /// Vacuums and analyzes every table, then runs a checkpoint, so that both sides of a comparison write the same
    /// number of full-page images.
    pub async fn quiesce(&self) -> Result<(), Failure> {
        let client = self.client().await?;
        let tables = "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
            WHERE c.relkind = 'r' AND n.nspname IN ('postcommit', 'postcommit_bench') AND pg_relation_size(c.oid) > 0";
        let tables: Vec<String> = client.query(tables, &[]).await?.iter().map(|row| row.get(0)).collect();
        if !tables.is_empty() {
            client.batch_execute(&format!("VACUUM (ANALYZE) {}", tables.join(", "))).await?;
        }
        match client.batch_execute("CHECKPOINT").await {
            // CHECKPOINT needs a privilege. Without it the ratios vary a little more.
            Err(e) if e.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(()),
            done => Ok(done?),
        }
    }

    pub async fn describe(&self) -> Result<String, Failure> {
        let sql = "\
            SELECT current_setting('server_version'), current_setting('shared_buffers'), current_setting('fsync'),
                current_setting('synchronous_commit')";
        let row = self.client().await?.query_one(sql, &[]).await?;
        let at = |column: usize| row.get::<_, String>(column);
        let version = at(0).split(' ').next().unwrap_or_default().to_owned();
        let place = if self.is_own() { "a database of its own" } else { "schemas of its own in the given database" };
        Ok(format!(
            "PostgreSQL {version} (shared_buffers {}, fsync {}, synchronous_commit {}), in {place}",
            at(1),
            at(2),
            at(3)
        ))
    }

    pub async fn remove(&self) -> Result<(), Failure> {
        let client = match &self.own {
            Some((given, name)) => {
                let client = connect(given).await?;
                client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
                client
            }
            None => {
                let client = self.client().await?;
                client.batch_execute(&format!("DROP SCHEMA IF EXISTS {SCHEMAS} CASCADE")).await?;
                client
            }
        };
        // The migration created this role if the login may create roles. If it belongs to another login, it stays.
        let _ = client.batch_execute(&format!("DROP ROLE IF EXISTS {}", self.here.role("tenant"))).await;
        Ok(())
    }
}

/// Drops the databases that killed runs left: databases with the prefix of the benchmark and without connections.
async fn drop_leftovers(client: &Client) -> Result<(), Failure> {
    let sql = "\
        SELECT datname::text, oid
        FROM pg_database d
        WHERE datname ~ $1 AND pg_get_userbyid(datdba) = current_user
          AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.datid = d.oid AND a.backend_type = 'client backend')";
    for row in client.query(sql, &[&format!("^{PREFIX}[0-9a-f]{{16}}$")]).await? {
        // The drop fails if another session has just connected or the privilege was revoked. The next run tries again.
        if client.batch_execute(&format!("DROP DATABASE IF EXISTS {}", row.get::<_, String>(0))).await.is_ok() {
            let _ =
                client.batch_execute(&format!("DROP ROLE IF EXISTS postcommit_tenant_{}", row.get::<_, u32>(1))).await;
        }
    }
    Ok(())
}

/// Without a private database, the benchmark runs only where its schemas do not exist yet and where it may create them.
async fn refuse_if_useless(client: &Client) -> Result<(), Failure> {
    let refused = |problem: String| {
        Err(Failure::new(Exit::Refused, format!("this login may not create databases, and {problem}")))
    };
    let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname = ANY (string_to_array($1, ', ')) ORDER BY 1";
    let taken: Vec<String> = client.query(sql, &[&SCHEMAS]).await?.iter().map(|row| row.get(0)).collect();
    if let Some(first) = taken.first() {
        let left = taken.iter().any(|name| name.starts_with("postcommit_bench"));
        let hint = format!(
            "; a killed run may have left it: if it holds none of your data, DROP SCHEMA {} CASCADE",
            taken.join(", ")
        );
        return refused(format!(
            "the given database has a schema {first} already, which the benchmark would remove; give it an empty \
             database, or a login with CREATEDB{}",
            if left { hint.as_str() } else { "" }
        ));
    }
    let sql = "\
        SELECT has_database_privilege(current_database(), 'CREATE'), quote_ident(current_database()),
            quote_ident(current_user)";
    let row = client.query_one(sql, &[]).await?;
    match row.get(0) {
        true => Ok(()),
        false => {
            let (database, login): (String, String) = (row.get(1), row.get(2));
            refused(format!(
                "no schemas in the given database; GRANT CREATE ON DATABASE {database} TO {login}, or give it a login \
                 with CREATEDB"
            ))
        }
    }
}

async fn connect(db: &Postgres) -> Result<Client, Failure> {
    let client = match db.tls() {
        Some(tls) => {
            let (client, connection) = db.config().connect(tls).await?;
            tokio::spawn(connection);
            client
        }
        None => {
            let (client, connection) = db.config().connect(NoTls).await?;
            tokio::spawn(connection);
            client
        }
    };
    client
        .batch_execute("SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        .await?;
    Ok(client)
}
