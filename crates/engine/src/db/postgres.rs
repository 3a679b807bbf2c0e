//! PostgreSQL: two small pools, and statements that are prepared once per connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use futures_util::future::join;
use postcommit_channel::clock;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::client::{Client, Transaction};
use super::installation::Installation;
use super::session::{pinned_options, settle_session};
use super::tls;
use super::trips::TripCounter;
use super::value::{Row, Value};
use super::{Address, DbError, Statement};

/// The most connections of one process for lists, single rows and the API.
const POOL_SIZE: usize = 8;
/// The most connections of one process for the hot path: claims, reads of notifications, settles, renewals,
/// announcements.
const HOT_POOL_SIZE: usize = 6;

/// Planner settings. Where all rows of the queue are dead but not yet vacuumed, the statistics say that a sequential
/// scan costs next to nothing. So a table is scanned whole only where there is no index, and never with JIT. A bitmap
/// scan would gather all matching rows and sort them, while a page of a list should walk an index and stop when it is
/// full. Index scans are switched on in case the server's settings switch them off.
const PLANS: &str = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_indexscan=on -c enable_indexonlyscan=on \
    -c enable_nestloop=on -c jit=off";
/// Planner settings of the hot path. Rows are reached one by one through an index, and a statement is planned once per
/// connection: planning a read for every batch took 2 µs per delivery. The statements are written for this: `q.tenant =
/// ANY (ARRAY[g.tenant])` can use the primary key for a lookup, but not for an ordered scan. With such statistics,
/// settling 500 deliveries took 15 s instead of 6 ms; tests/it/planner.rs checks the plans.
const HOT_PLANS: &str = "-c enable_hashjoin=off -c enable_mergejoin=off -c plan_cache_mode=force_generic_plan";

/// How long a statement waits for a lock. A foreign transaction may hold a lock for any time, and a waiting statement
/// occupies a connection. Claims and settles wait longer before they give up.
const WAITS: &str = "-c lock_timeout=5s";
const HOT_WAITS: &str = "-c lock_timeout=30s";

/// PostgreSQL with two pools: the planner settings that suit lists would ruin the hot path.
#[derive(Clone)]
pub struct Postgres {
    pool: Pool,
    hot: Pool,
    config: Arc<Config>,
    tls: Option<MakeRustlsConnect>,
    pub(super) counter: Arc<TripCounter>,
    /// Identifies the database. The names of its roles contain it.
    pub(super) installation: Installation,
    /// If set, [`super::Db::query`] and [`super::Db::execute`] reach only rows of this tenant.
    tenant: Option<i32>,
    /// Waits for a connection, by pool.
    waits: Arc<[Waits; 2]>,
}

/// How often a connection was taken, and the total wait.
#[derive(Debug, Default)]
struct Waits {
    taken: AtomicU64,
    micros: AtomicU64,
}

impl Waits {
    fn note(&self, took: Duration) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Measurements of a connection pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolReading {
    /// `plain`, or `hot` for the pool of the hot path.
    pub name: &'static str,
    /// How often a connection was taken.
    pub taken: u64,
    /// The total wait for connections.
    pub waited: Duration,
    /// How many callers wait for a connection now.
    pub waiting: usize,
}

/// Translates a shared statement for PostgreSQL. `clock_timestamp()` is volatile, so an index cannot be used for a
/// comparison with it.
pub(super) fn dialect(sql: &str) -> String {
    sql.replace("{now}", "clock_timestamp()")
}

impl Postgres {
    /// Opens the pools and one connection.
    ///
    /// # Errors
    /// When the URL is invalid, the server does not answer, or the encoding of the database is not UTF8.
    pub async fn open(url: &str) -> Result<Self, DbError> {
        let (config, tls) = configure(url)?;
        let mut hot = config.clone();
        hot.options(format!("{} {HOT_PLANS}", config.get_options().unwrap_or_default().replacen(WAITS, HOT_WAITS, 1)));
        let (pool, hot) = (pool(&config, &tls, POOL_SIZE)?, pool(&hot, &tls, HOT_POOL_SIZE)?);
        let mut db = Self {
            pool,
            hot,
            config: config.into(),
            tls,
            counter: Arc::default(),
            installation: Installation::UNKNOWN,
            tenant: None,
            waits: Arc::default(),
        };
        db.installation = Installation::read(&db.client().await?).await?;
        Ok(db)
    }

    /// A connection from the pool for lists and the API.
    pub async fn client(&self) -> Result<Client, DbError> {
        self.take(&self.pool).await
    }

    /// A connection from the pool of the hot path.
    pub async fn hot(&self) -> Result<Client, DbError> {
        self.take(&self.hot).await
    }

    async fn take(&self, pool: &Pool) -> Result<Client, DbError> {
        let asked = clock::monotonic();
        let object =
            pool.get().await.map_err(|e| DbError::Unreachable(format!("{}: {}", self.place(), root_cause(&e))))?;
        self.waits[usize::from(std::ptr::eq(pool, &self.hot))].note(asked.elapsed());
        Ok(Client::new(object, self.counter.clone()))
    }

    /// The same pools, restricted to rows of one tenant.
    pub(super) fn of_tenant(&self, tenant: i32) -> Self {
        Self { tenant: Some(tenant), ..self.clone() }
    }

    pub(super) fn pools(&self) -> Vec<PoolReading> {
        let read = |name, pool: &Pool, waits: &Waits| PoolReading {
            name,
            taken: waits.taken.load(Ordering::Relaxed),
            waited: Duration::from_micros(waits.micros.load(Ordering::Relaxed)),
            waiting: pool.status().waiting,
        };
        vec![read("plain", &self.pool, &self.waits[0]), read("hot", &self.hot, &self.waits[1])]
    }

    /// Host and port, for error texts.
    fn place(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".into(),
        };
        format!("{host} port {}", self.config.get_ports().first().copied().unwrap_or(5432))
    }

    /// The configuration for a connection outside the pools, for example to listen.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The TLS connector for a connection outside the pools, if the URL asks for TLS.
    #[must_use]
    pub fn tls(&self) -> Option<MakeRustlsConnect> {
        self.tls.clone()
    }

    pub(super) async fn query(&self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, DbError> {
        let mut client = self.client().await?;
        let statement = client.prepare_cached(sql).await.map_err(refused)?;
        let rows = match self.tenant {
            None => client.query(&statement, &borrow(parameters)).await.map_err(refused)?,
            Some(tenant) => {
                let transaction = client.transaction().await.map_err(refused)?;
                let (prologue, parameters) = (self.as_tenant(tenant), borrow(parameters));
                // Both are sent in this order without waiting. If the first fails, the transaction is aborted and the
                // second does not run.
                let (became, rows) =
                    join(transaction.batch_execute(&prologue), transaction.query(&statement, &parameters)).await;
                became.map_err(refused)?;
                let rows = rows.map_err(refused)?;
                transaction.commit().await.map_err(refused)?;
                rows
            }
        };
        rows.iter().map(Row::from_postgres).collect()
    }

    /// As [`Postgres::query`], but the statement is not kept prepared.
    pub(super) async fn query_once(&self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, DbError> {
        let mut client = self.client().await?;
        let transaction = self.begin(&mut client).await?;
        let rows = transaction.query(sql, &borrow(parameters)).await.map_err(refused)?;
        transaction.commit().await.map_err(refused)?;
        rows.iter().map(Row::from_postgres).collect()
    }

    /// Begins a transaction, restricted to the tenant if one is set.
    pub(crate) async fn begin<'a>(&self, client: &'a mut Client) -> Result<Transaction<'a>, DbError> {
        let transaction = client.transaction().await.map_err(refused)?;
        if let Some(tenant) = self.tenant {
            transaction.batch_execute(&self.as_tenant(tenant)).await.map_err(refused)?;
        }
        Ok(transaction)
    }

    /// Restricts a transaction to one tenant. The policies are in migrations/postgres/isolation.sql.
    fn as_tenant(&self, tenant: i32) -> String {
        format!(
            "SET LOCAL ROLE {}; SELECT set_config('postcommit.tenant', '{tenant}', true)",
            self.installation.role("tenant")
        )
    }

    /// The name of this database's role of a kind: `owner`, `producer`, `worker`, `reader` or `tenant`. The role need
    /// not exist.
    #[must_use]
    pub fn role(&self, kind: &str) -> String {
        self.installation.role(kind)
    }

    /// If the statement at index `deciding` touches no row, the statements after it are skipped.
    pub(super) async fn execute(&self, statements: &[Statement], deciding: usize) -> Result<Vec<u64>, DbError> {
        let mut client = self.client().await?;
        let transaction = self.begin(&mut client).await?;
        let mut touched = Vec::with_capacity(statements.len());
        for (place, statement) in statements.iter().enumerate() {
            let rows = run(&transaction, statement).await?;
            touched.push(rows);
            if place == deciding && rows == 0 {
                break;
            }
        }
        transaction.commit().await.map_err(refused)?;
        Ok(touched)
    }
}

/// Runs one statement in a transaction. It is written for both databases.
pub(crate) async fn run(transaction: &Transaction<'_>, (sql, parameters): &Statement) -> Result<u64, DbError> {
    let statement = transaction.prepare_cached(&dialect(sql)).await.map_err(refused)?;
    transaction.execute(&statement, &borrow(parameters)).await.map_err(refused)
}

fn pool(config: &Config, tls: &Option<MakeRustlsConnect>, size: usize) -> Result<Pool, DbError> {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = match tls {
        Some(tls) => Manager::from_config(config.clone(), tls.clone(), recycling),
        None => Manager::from_config(config.clone(), NoTls, recycling),
    };
    let pool =
        Pool::builder(manager).max_size(size).runtime(Runtime::Tokio1).wait_timeout(Some(Duration::from_secs(30)));
    pool.post_create(settle_session()).build().map_err(|e| DbError::Unreachable(e.to_string()))
}

fn configure(url: &str) -> Result<(Config, Option<MakeRustlsConnect>), DbError> {
    let Address::Postgres(url) = Address::parse(url)? else {
        return Err(DbError::Url("not a PostgreSQL URL".into()));
    };
    let (url, root_certificates) = tls::split_root_certificates(&url);
    let mut config: Config = url.parse().map_err(|_| DbError::Url("is not a valid PostgreSQL URL".into()))?;
    config
        .application_name("postcommit")
        .connect_timeout(Duration::from_secs(10))
        .keepalives_idle(Duration::from_secs(30));
    // This program never cancels a call, so the server must end one that hangs.
    let guards = "-c statement_timeout=60s -c idle_in_transaction_session_timeout=60s";
    let ours = format!("{guards} {WAITS} {PLANS}");
    // The last value of an option counts. The URL may override the guards, but not the pinned settings.
    let options = format!("{ours} {} {}", config.get_options().unwrap_or_default(), pinned_options());
    config.options(options).tcp_user_timeout(Duration::from_secs(30));
    let tls = (config.get_ssl_mode() == SslMode::Require)
        .then(|| tls::connector(root_certificates.as_deref()))
        .transpose()?;
    Ok((config, tls))
}

fn borrow(parameters: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    parameters.iter().map(|p| p as _).collect()
}

/// SQLSTATEs after which the same statement may succeed later: connection (08), resources such as a full disk (53),
/// operator intervention or shutdown (57), system (58), serialization failure or deadlock (40), lock not available
/// (55P03), a read-only server (25006).
fn is_passing(code: &str) -> bool {
    ["08", "53", "57", "58", "40"].iter().any(|class| code.starts_with(class)) || ["55P03", "25006"].contains(&code)
}

/// Whether the error is a lock timeout.
pub(crate) fn is_held(error: &DbError) -> bool {
    matches!(error, DbError::Unreachable(said) if said.ends_with("(55P03)"))
}

/// Tells a temporary error from a refused statement.
pub(crate) fn refused(error: tokio_postgres::Error) -> DbError {
    let Some(db) = error.as_db_error() else { return DbError::Unreachable(root_cause(&error)) };
    let code = db.code().code();
    if is_passing(code) {
        return DbError::Unreachable(format!("{} ({code})", db.message()));
    }
    let constraint = db.constraint().map(|name| format!(" ({name})")).unwrap_or_default();
    let hint = if code == "42501" {
        "; the login needs the worker's role of this database (`postcommit migrate --roles` prints its name), or to own the schema"
    } else {
        ""
    };
    DbError::Refused { code: code.to_owned(), message: format!("{}{constraint}{hint}", db.message()) }
}

/// The innermost error of the chain.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// An optional time, as an element of a `timestamptz[]` parameter.
#[derive(Debug, Default)]
pub(crate) struct Time(pub(crate) Option<postcommit::Timestamp>);

impl ToSql for Time {
    fn to_sql(
        &self,
        ty: &tokio_postgres::types::Type,
        out: &mut bytes::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        Value::from(self.0).to_sql(ty, out)
    }

    fn accepts(ty: &tokio_postgres::types::Type) -> bool {
        *ty == tokio_postgres::types::Type::TIMESTAMPTZ
    }

    tokio_postgres::types::to_sql_checked!();
}
