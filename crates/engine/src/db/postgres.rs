//! PostgreSQL: a small pool, statements prepared once per connection.

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
use super::trips::Counter;
use super::value::{Row, Value};
use super::{Address, DbError, Statement};

/// Connections one process holds at most, for lists, single rows and the API.
const POOL_SIZE: usize = 8;
/// And for the hot path: a claim, what it reads, the writers of results, renewals, announcements.
const HOT_POOL_SIZE: usize = 6;

/// What the planner may not do. Statistics of a queue whose rows are all dead, but not yet vacuumed, say that reading all of it costs next to nothing.
/// So a table is read whole only where there is no index at all, and then without compiling for it.
/// Nor are rows gathered from an index that are then sorted: a page is walked along one, and ends when it is full.
/// And they are walked along: whoever switched that off for other work has not done so for ours.
const PLANS: &str =
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_indexscan=on -c enable_indexonlyscan=on -c enable_nestloop=on -c jit=off";
/// On the hot path rows are reached one by one along an index, and a statement is planned once for a connection: planning what to read for every batch
/// took 2 µs a delivery. The statements do their part: `q.tenant = ANY (ARRAY[g.tenant])` is served by the primary key, but by no walk along it. With
/// such statistics settling 500 took 15 s instead of 6 ms; tests/it/planner.rs looks.
const HOT_PLANS: &str = "-c enable_hashjoin=off -c enable_mergejoin=off -c plan_cache_mode=force_generic_plan";

/// How long a lock is waited for. Somebody outside may hold one for as long as they like, and whoever waits has a connection that others need; what is settled
/// or claimed must not be given up as soon.
const WAITS: &str = "-c lock_timeout=5s";
const HOT_WAITS: &str = "-c lock_timeout=30s";

/// Two pools of connections: what is right for a list is a trap for the hot path.
#[derive(Clone)]
pub struct Postgres {
    pool: Pool,
    hot: Pool,
    config: Arc<Config>,
    tls: Option<MakeRustlsConnect>,
    pub(super) counter: Arc<Counter>,
    /// Which database this is: its roles are named after it.
    pub(super) installation: Installation,
    /// Whose rows alone [`super::Db::query`] and [`super::Db::execute`] reach, if not everybody's.
    tenant: Option<i32>,
    /// How long connections of either pool were waited for.
    waits: Arc<[Waits; 2]>,
}

/// How often a connection was taken, and how long that took in all.
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

/// How a pool of connections is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolReading {
    /// `plain`, or `hot` for the hot path's.
    pub name: &'static str,
    /// How often a connection was taken.
    pub taken: u64,
    /// How long that took in all.
    pub waited: Duration,
    /// Who waits for one now.
    pub waiting: usize,
}

/// Writes a shared statement for PostgreSQL. The volatile clock is right wherever no index is meant to be used.
pub(super) fn dialect(sql: &str) -> String {
    sql.replace("{now}", "clock_timestamp()")
}

impl Postgres {
    /// Opens the pool and tries one connection.
    ///
    /// # Errors
    /// When the URL is bad, nobody answers, or the database's encoding is not UTF8.
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

    /// A connection from the pool.
    ///
    /// # Errors
    /// When none can be had.
    pub async fn client(&self) -> Result<Client, DbError> {
        self.take(&self.pool).await
    }

    /// A connection for the hot path.
    ///
    /// # Errors
    /// When none can be had.
    pub async fn hot(&self) -> Result<Client, DbError> {
        self.take(&self.hot).await
    }

    async fn take(&self, pool: &Pool) -> Result<Client, DbError> {
        let asked = clock::monotonic();
        let object = pool.get().await.map_err(|e| DbError::Unreachable(format!("{}: {}", self.place(), root_cause(&e))))?;
        self.waits[usize::from(std::ptr::eq(pool, &self.hot))].note(asked.elapsed());
        Ok(Client::new(object, self.counter.clone()))
    }

    /// The same pools, for one tenant.
    pub(super) fn of_tenant(&self, tenant: i32) -> Self {
        Self { tenant: Some(tenant), ..self.clone() }
    }

    /// How the pools are doing.
    pub(super) fn pools(&self) -> Vec<PoolReading> {
        let read = |name, pool: &Pool, waits: &Waits| PoolReading {
            name,
            taken: waits.taken.load(Ordering::Relaxed),
            waited: Duration::from_micros(waits.micros.load(Ordering::Relaxed)),
            waiting: pool.status().waiting,
        };
        vec![read("plain", &self.pool, &self.waits[0]), read("hot", &self.hot, &self.waits[1])]
    }

    /// Where it is, for people.
    fn place(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".into(),
        };
        format!("{host} port {}", self.config.get_ports().first().copied().unwrap_or(5432))
    }

    /// How to open a connection outside the pool, e.g. to listen.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// With what such a connection is encrypted, if it is.
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
                // Sent together, in this order. Where the first fails, the second is not run: its transaction is over.
                let (became, rows) = join(transaction.batch_execute(&prologue), transaction.query(&statement, &parameters)).await;
                became.map_err(refused)?;
                let rows = rows.map_err(refused)?;
                transaction.commit().await.map_err(refused)?;
                rows
            }
        };
        rows.iter().map(Row::from_postgres).collect()
    }

    /// For what is said once: it is not kept prepared.
    pub(super) async fn query_once(&self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, DbError> {
        let mut client = self.client().await?;
        let transaction = self.begin(&mut client).await?;
        let rows = transaction.query(sql, &borrow(parameters)).await.map_err(refused)?;
        transaction.commit().await.map_err(refused)?;
        rows.iter().map(Row::from_postgres).collect()
    }

    /// Begins a transaction: of one tenant, if this is its.
    pub(crate) async fn begin<'a>(&self, client: &'a mut Client) -> Result<Transaction<'a>, DbError> {
        let transaction = client.transaction().await.map_err(refused)?;
        if let Some(tenant) = self.tenant {
            transaction.batch_execute(&self.as_tenant(tenant)).await.map_err(refused)?;
        }
        Ok(transaction)
    }

    /// Makes a transaction one tenant's: migrations/postgres/isolation.sql has the policies that go by it.
    fn as_tenant(&self, tenant: i32) -> String {
        format!("SET LOCAL ROLE {}; SELECT set_config('postcommit.tenant', '{tenant}', true)", self.installation.role("tenant"))
    }

    /// The name of this database's role of that kind: `owner`, `producer`, `worker`, `reader` or `tenant`. It need not exist.
    #[must_use]
    pub fn role(&self, kind: &str) -> String {
        self.installation.role(kind)
    }

    /// If the deciding statement touches nothing, it is the last.
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

/// One statement of a transaction, written for both databases.
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
    let pool = Pool::builder(manager).max_size(size).runtime(Runtime::Tokio1).wait_timeout(Some(Duration::from_secs(30)));
    pool.post_create(settle_session()).build().map_err(|e| DbError::Unreachable(e.to_string()))
}

fn configure(url: &str) -> Result<(Config, Option<MakeRustlsConnect>), DbError> {
    let Address::Postgres(url) = Address::parse(url)? else {
        return Err(DbError::Url("not a PostgreSQL URL".into()));
    };
    let (url, root_certificates) = tls::split_root_certificates(&url);
    let mut config: Config = url.parse().map_err(|_| DbError::Url("is not a valid PostgreSQL URL".into()))?;
    config.application_name("postcommit").connect_timeout(Duration::from_secs(10)).keepalives_idle(Duration::from_secs(30));
    // No call is ever cancelled from our side, so the server must not let one hang for ever.
    let guards = "-c statement_timeout=60s -c idle_in_transaction_session_timeout=60s";
    let ours = format!("{guards} {WAITS} {PLANS}");
    // The last one counts: what the URL says goes before what it may not change.
    let options = format!("{ours} {} {}", config.get_options().unwrap_or_default(), pinned_options());
    config.options(options).tcp_user_timeout(Duration::from_secs(30));
    let tls = (config.get_ssl_mode() == SslMode::Require).then(|| tls::connector(root_certificates.as_deref())).transpose()?;
    Ok((config, tls))
}

fn borrow(parameters: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    parameters.iter().map(|p| p as _).collect()
}

/// SQLSTATEs that say nothing about the statement: the same one may succeed later. The connection (08), resources such as a full disk (53), an
/// operator or the server going away (57), the system (58), a lock or a conflict with somebody else (55P03, 40), a server that is read-only now (25006).
fn is_passing(code: &str) -> bool {
    ["08", "53", "57", "58", "40"].iter().any(|class| code.starts_with(class)) || ["55P03", "25006"].contains(&code)
}

/// Whether a lock was waited for in vain.
pub(crate) fn is_held(error: &DbError) -> bool {
    matches!(error, DbError::Unreachable(said) if said.ends_with("(55P03)"))
}

/// Tells what will pass from a refused statement.
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

/// The end of a chain of errors: what happened, without who passed it on.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// A moment or none, as an element of a `timestamptz[]` parameter.
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
