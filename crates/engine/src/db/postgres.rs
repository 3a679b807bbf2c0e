//! PostgreSQL: two small connection pools, and statements that are prepared once per connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType};
use futures_util::future::join;
use postcommit_channel::clock;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::client::{Client, Transaction};
use super::installation::Installation;
use super::session::{Sessions, lacks_replication_role, pinned_options};
use super::tls;
use super::trips::TripCounter;
use super::value::{Row, Value};
use super::{Address, DbError, Statement};

/// How long a new connection may take until its first response, unless the caller or the URL sets another time.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that a URL may set with `connect_timeout=SECONDS`.
const LONGEST_CONNECT: Duration = Duration::from_secs(60);

/// The connection limit of one process for lists, single rows and the API.
const POOL_SIZE: usize = 8;
/// The connection limit of one process for the hot path: claims, announcements, reads of notifications, settling and
/// lease renewals.
const HOT_POOL_SIZE: usize = 6;

/// Planner settings for lists and the API. If all rows of the queue are dead but not yet vacuumed, the statistics make
/// a sequential scan look nearly free. So a sequential scan is used only where there is no index, and JIT is off.
/// Bitmap scans are off, because they collect and sort all matching rows, while a page of a list should read an index
/// in order and stop when it is full. Index scans are switched on in case the server has them off.
const PLANS: &str = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_indexscan=on -c enable_indexonlyscan=on \
    -c enable_nestloop=on -c jit=off";
/// Planner settings for the hot path. Rows are found one by one through an index, and a statement is planned once per
/// connection, because planning a read for every batch took 2 µs per delivery. The statements are written for these
/// settings: for `q.tenant = ANY (ARRAY[g.tenant])` the primary key can serve a lookup, but not an ordered scan. With
/// misleading statistics, settling 500 deliveries took 15 s instead of 6 ms. tests/it/planner.rs checks the plans.
const HOT_PLANS: &str = "-c enable_hashjoin=off -c enable_mergejoin=off -c plan_cache_mode=force_generic_plan";

/// How long a statement waits for a lock. Another application's transaction may hold a lock for any time, and a waiting
/// statement occupies a connection. Statements of the hot path wait longer before they fail.
const WAITS: &str = "-c lock_timeout=5s";
const HOT_WAITS: &str = "-c lock_timeout=30s";

/// A PostgreSQL database with two pools, because the planner settings for lists would make the hot path slow.
#[derive(Clone)]
pub struct Postgres {
    pool: Pool,
    hot: Pool,
    config: Arc<Config>,
    tls: Option<MakeRustlsConnect>,
    pub(super) counter: Arc<TripCounter>,
    /// Identifies the database. The names of its roles contain this identity.
    pub(super) installation: Installation,
    /// If set, [`super::Db::query`] and [`super::Db::execute`] see only rows of this tenant.
    tenant: Option<i32>,
    /// How long callers waited for a connection, for each pool.
    waits: Arc<[Waits; 2]>,
    /// How long a new connection may take until its first response. Later calls have no such deadline in this program.
    connect_timeout: Duration,
}

/// How many times a connection was taken from a pool, and the total time that callers waited.
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
    /// How many times a connection was taken from the pool since the process started.
    pub taken: u64,
    /// The total time that callers waited for connections.
    pub waited: Duration,
    /// How many callers wait for a connection now.
    pub waiting: usize,
}

/// Translates a statement that is written for both databases into PostgreSQL's dialect. `clock_timestamp()` is
/// volatile, so no index can serve a comparison with it.
pub(super) fn dialect(sql: &str) -> String {
    sql.replace("{now}", "clock_timestamp()")
}

impl Postgres {
    /// Opens the pools and one connection. A new connection may take `connect_timeout` until its first response, now
    /// and later. A `connect_timeout` in the URL takes precedence.
    ///
    /// # Errors
    /// Fails if the URL is invalid, the server does not respond, or the database's encoding is not UTF8.
    pub async fn open(url: &str, connect_timeout: Duration) -> Result<Self, DbError> {
        let (config, tls, connect_timeout) = configure(url, connect_timeout)?;
        let mut hot = config.clone();
        hot.options(format!("{} {HOT_PLANS}", config.get_options().unwrap_or_default().replacen(WAITS, HOT_WAITS, 1)));
        let pools =
            (pool(&config, &tls, POOL_SIZE, connect_timeout)?, pool(&hot, &tls, HOT_POOL_SIZE, connect_timeout)?);
        let (pool, hot) = pools;
        let mut db = Self {
            pool,
            hot,
            config: config.into(),
            tls,
            counter: Arc::default(),
            installation: Installation::UNKNOWN,
            tenant: None,
            waits: Arc::default(),
            connect_timeout,
        };
        db.installation = Installation::read(&db.client().await?).await?;
        Ok(db)
    }

    /// Takes a connection from the pool for lists and the API.
    pub async fn client(&self) -> Result<Client, DbError> {
        self.take(&self.pool).await
    }

    /// Takes a connection from the pool of the hot path.
    pub async fn hot(&self) -> Result<Client, DbError> {
        self.take(&self.hot).await
    }

    async fn take(&self, pool: &Pool) -> Result<Client, DbError> {
        let asked = clock::monotonic();
        let object = pool.get().await.map_err(|problem| self.unreachable(&problem))?;
        self.waits[usize::from(std::ptr::eq(pool, &self.hot))].note(asked.elapsed());
        Ok(Client::new(object, self.counter.clone()))
    }

    /// Returns a handle to the same pools that is restricted to one tenant's rows.
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

    fn unreachable(&self, problem: &PoolError) -> DbError {
        let why = match problem {
            PoolError::Timeout(TimeoutType::Create) => format!(
                "the server did not answer a new connection within {} s (database.connect_timeout_s); {LOOK_AT}",
                self.connect_timeout.as_secs()
            ),
            PoolError::Backend(error) if lacks_replication_role(error) => REPLICATION_ROLE.into(),
            PoolError::Backend(error) if is_timed_out(error) => format!(
                "no connection within {:.1} s for each address (a third of database.connect_timeout_s); {LOOK_AT}",
                self.config.get_connect_timeout().copied().unwrap_or_default().as_secs_f64()
            ),
            other => root_cause(other),
        };
        DbError::Unreachable(format!("{}: {why}", self.place()))
    }

    /// Returns the hosts and ports for error texts.
    fn place(&self) -> String {
        let ports = self.config.get_ports();
        let place = |(n, host): (usize, &Host)| {
            let host = match host {
                Host::Tcp(name) => name.clone(),
                Host::Unix(path) => path.display().to_string(),
            };
            format!("{host} port {}", ports.get(n).or(ports.first()).copied().unwrap_or(5432))
        };
        self.config.get_hosts().iter().enumerate().map(place).collect::<Vec<_>>().join(", ")
    }

    /// Returns the configuration for a connection outside the pools, for example for LISTEN.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the TLS connector for a connection outside the pools, if the URL asks for TLS.
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
                // Both statements are sent in this order without waiting in between. If the first fails, the
                // transaction is aborted and the second does not run.
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

    /// Runs a query like [`Postgres::query`], but does not keep the statement prepared.
    pub(super) async fn query_once(&self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, DbError> {
        let mut client = self.client().await?;
        let transaction = self.begin(&mut client).await?;
        let rows = transaction.query(sql, &borrow(parameters)).await.map_err(refused)?;
        transaction.commit().await.map_err(refused)?;
        rows.iter().map(Row::from_postgres).collect()
    }

    /// Begins a transaction. If a tenant is set, the transaction is restricted to it.
    pub(crate) async fn begin<'a>(&self, client: &'a mut Client) -> Result<Transaction<'a>, DbError> {
        let transaction = client.transaction().await.map_err(refused)?;
        if let Some(tenant) = self.tenant {
            transaction.batch_execute(&self.as_tenant(tenant)).await.map_err(refused)?;
        }
        Ok(transaction)
    }

    /// Returns the statements that restrict a transaction to one tenant. The policies are in
    /// migrations/postgres/isolation.sql.
    fn as_tenant(&self, tenant: i32) -> String {
        format!(
            "SET LOCAL ROLE {}; SELECT set_config('postcommit.tenant', '{tenant}', true)",
            self.installation.role("tenant")
        )
    }

    /// Returns the name of this database's role of one kind: `owner`, `producer`, `worker`, `reader` or `tenant`. The
    /// role need not exist.
    #[must_use]
    pub fn role(&self, kind: &str) -> String {
        self.installation.role(kind)
    }

    /// Runs statements in one transaction and returns how many rows each changed. If the statement at index `deciding`
    /// changes no row, the statements after it are skipped.
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

/// Runs one statement in a transaction. The statement is written once for both databases.
pub(crate) async fn run(transaction: &Transaction<'_>, (sql, parameters): &Statement) -> Result<u64, DbError> {
    let statement = transaction.prepare_cached(&dialect(sql)).await.map_err(refused)?;
    transaction.execute(&statement, &borrow(parameters)).await.map_err(refused)
}

/// Runs one statement that returns rows, in a transaction. The statement is written once for both databases.
pub(crate) async fn query(transaction: &Transaction<'_>, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, DbError> {
    let statement = transaction.prepare_cached(&dialect(sql)).await.map_err(refused)?;
    let rows = transaction.query(&statement, &borrow(parameters)).await.map_err(refused)?;
    rows.iter().map(Row::from_postgres).collect()
}

/// Creates a pool. The deadline applies to opening a connection and its first response. Later calls are never
/// cancelled.
fn pool(
    config: &Config,
    tls: &Option<MakeRustlsConnect>,
    size: usize,
    connect_timeout: Duration,
) -> Result<Pool, DbError> {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = match tls {
        Some(tls) => Manager::from_connect(config.clone(), Sessions(tls.clone()), recycling),
        None => Manager::from_connect(config.clone(), Sessions(NoTls), recycling),
    };
    let pool =
        Pool::builder(manager).max_size(size).runtime(Runtime::Tokio1).wait_timeout(Some(Duration::from_secs(30)));
    pool.create_timeout(Some(connect_timeout)).build().map_err(|e| DbError::Unreachable(e.to_string()))
}

type Configured = (Config, Option<MakeRustlsConnect>, Duration);

fn configure(url: &str, connect_timeout: Duration) -> Result<Configured, DbError> {
    let Address::Postgres(url) = Address::parse(url)? else {
        return Err(DbError::Url("is not a PostgreSQL URL".into()));
    };
    let (url, root_certificates) = tls::split_root_certificates(&url);
    let mut config: Config = url.parse().map_err(|_| DbError::Url("is not a valid PostgreSQL URL".into()))?;
    let connect_timeout = config.get_connect_timeout().copied().unwrap_or(connect_timeout).min(LONGEST_CONNECT);
    // A host name may have several addresses, and the first may not respond. A third of the time per address leaves
    // time for the others.
    let of_one_address = (connect_timeout / 3).max(Duration::from_secs(1));
    config.application_name("postcommit").connect_timeout(of_one_address).keepalives_idle(Duration::from_secs(30));
    // This program never cancels a call, so the server must end a call that hangs.
    let guards = "-c statement_timeout=60s -c idle_in_transaction_session_timeout=60s";
    let ours = format!("{guards} {WAITS} {PLANS}");
    // The last value of an option takes effect. So the URL may override the guards, but not the pinned settings.
    let options = format!("{ours} {} {}", config.get_options().unwrap_or_default(), pinned_options());
    config.options(options).tcp_user_timeout(Duration::from_secs(30));
    let tls = (config.get_ssl_mode() == SslMode::Require)
        .then(|| tls::connector(root_certificates.as_deref()))
        .transpose()?;
    Ok((config, tls, connect_timeout))
}

fn borrow(parameters: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    parameters.iter().map(|p| p as _).collect()
}

/// Returns whether the same statement may succeed later, by its SQLSTATE: connection failures (08), resources such as a
/// full disk (53), operator intervention or shutdown (57), system errors (58), serialization failures and deadlocks
/// (40), lock not available (55P03), and a read-only server (25006).
fn is_passing(code: &str) -> bool {
    ["08", "53", "57", "58", "40"].iter().any(|class| code.starts_with(class)) || ["55P03", "25006"].contains(&code)
}

/// Returns whether the error is a deadlock, which ended this transaction and not the other.
pub(crate) fn is_deadlock(error: &DbError) -> bool {
    matches!(error, DbError::Unreachable(said) if said.ends_with("(40P01)"))
}

/// Returns whether the error is a lock timeout.
pub(crate) fn is_held(error: &DbError) -> bool {
    matches!(error, DbError::Unreachable(said) if said.ends_with("(55P03)"))
}

/// Converts an error, and distinguishes a temporary failure from a refused statement.
pub(crate) fn refused(error: tokio_postgres::Error) -> DbError {
    let Some(db) = error.as_db_error() else { return DbError::Unreachable(root_cause(&error)) };
    let code = db.code().code();
    if is_passing(code) {
        return DbError::Unreachable(format!("{} ({code})", db.message()));
    }
    let constraint = db.constraint().map(|name| format!(" ({name})")).unwrap_or_default();
    let hint = if code == "42501" {
        "; the login must be a member of the worker's role of this database (`postcommit migrate --roles` prints its \
         name); to migrate, it must own the schema"
    } else {
        ""
    };
    DbError::Refused { code: code.to_owned(), message: format!("{}{constraint}{hint}", db.message()) }
}

/// Advice for an error message when the server does not respond.
const LOOK_AT: &str = "check the host and the port, that PostgreSQL runs there and is neither stopped nor overloaded, and \
    that no firewall or proxy in between blocks the connection";

const REPLICATION_ROLE: &str = "session_replication_role is not `origin` for this login, so no trigger would run, and the \
    login may not change it. Run as a superuser: ALTER DATABASE … RESET session_replication_role, or ALTER ROLE … RESET \
    session_replication_role";

fn is_timed_out(error: &tokio_postgres::Error) -> bool {
    let io = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::TimedOut)
}

/// Returns the innermost error of the chain.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// An optional time as a `timestamptz` parameter or as an element of a `timestamptz[]` parameter.
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
