//! The test fixture: a migrated database, providers, and a dispatcher.

use std::path::Path;
use std::time::Duration;

use postcommit::{Notification, Timestamp};
use postcommit_channel::driver::{self, FailOn, Occasion};
use postcommit_channel::egress::{Egress, EgressSettings};
use postcommit_channel::model::{DeliveryId, DeliveryKey, Guarantee, ProviderChange, ProviderDraft};
use postcommit_channel::secret::KeySource;
use postcommit_engine::db::{Db, Row, Value, schema_hash};
use postcommit_engine::dispatch::{DispatchSettings, Dispatcher, Stop, Tools};
use postcommit_engine::metrics::Metrics;
use postcommit_engine::store::{AttemptRow, DeliveryFilter, DeliveryRow, KpiSettings, Store};
use postcommit_engine::trace::Tracer;
use postcommit_testkit::{Postgres, RefusedWrite};
use serde_json::json;
use tokio::sync::watch;
use uuid::Uuid;

/// Runs each test on PostgreSQL and on SQLite.
macro_rules! on_both {
    ($($(#[$meta:meta])* async fn $name:ident($world:ident) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn check($world: crate::world::World) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                check(crate::world::World::postgres().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                check(crate::world::World::sqlite().await).await;
            }
        }
    )*};
}

/// The name of the PostgreSQL role of this kind in the store's database.
pub fn role(store: &Store, kind: &str) -> String {
    let Db::Postgres(db) = store.db() else { panic!("SQLite has no roles") };
    db.role(kind)
}

/// Prepares the database that all others are copied from.
async fn migrate(url: String) {
    let store = Store::open(&url).await.unwrap();
    store.db().migrate().await.unwrap();
    store.db().settle_file();
}

/// How long a condition may take to become true. Less than the longest poll interval, so that a test of the wake-up
/// cannot pass by the poll.
const GUARD: Duration = Duration::from_secs(40);

/// A migrated database, and the settings to work on it.
pub struct World {
    pub url: String,
    pub store: Store,
    pub tenant: i32,
    pub fail_on: FailOn,
    pub public_url: String,
    pub settings: DispatchSettings,
    pub metrics: Metrics,
    pub tracer: Tracer,
    _database: Option<postcommit_testkit::TestDatabase>,
    _folder: tempfile::TempDir,
    pub keys: KeySource,
}

impl World {
    pub async fn postgres() -> Self {
        Self::on(Postgres::shared().copy(schema_hash(true), migrate).await).await
    }

    /// A world on a database that the test has prepared.
    pub async fn on(database: postcommit_testkit::TestDatabase) -> Self {
        Self::over(database.url.clone(), Some(database), tempfile::tempdir().unwrap()).await
    }

    pub async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.db");
        let prepare = async |path: &Path| migrate(format!("sqlite:{}", path.display())).await;
        postcommit_testkit::sqlite::copy(schema_hash(false), &path, prepare).await;
        Self::over(format!("sqlite:{}", path.display()), None, folder).await
    }

    async fn over(url: String, database: Option<postcommit_testkit::TestDatabase>, folder: tempfile::TempDir) -> Self {
        let store = Store::open(&url).await.unwrap();
        store.db().migrate().await.unwrap();
        let tenant = store.tenant("default").await.unwrap().unwrap();
        let keys = KeySource::File(folder.path().join("secret.key"));
        let settings = DispatchSettings { interval_ms: 50, ..DispatchSettings::default() };
        Self {
            url,
            store,
            tenant,
            fail_on: FailOn::default(),
            public_url: String::new(),
            settings,
            metrics: Metrics::default(),
            tracer: Tracer::default(),
            _database: database,
            _folder: folder,
            keys,
        }
    }

    pub fn is_postgres(&self) -> bool {
        self.store.db().kind() == "postgres"
    }

    /// The name of the PostgreSQL role of this kind in this database.
    pub fn role(&self, kind: &str) -> String {
        role(&self.store, kind)
    }

    /// A store with connections of its own, like that of a second process.
    pub async fn another_store(&self) -> Store {
        Store::open(&self.url).await.unwrap()
    }

    pub fn draft(&self, name: &str, driver: &str, settings: serde_json::Value) -> ProviderDraft {
        ProviderDraft {
            channel: if driver == "webhook" { "webhook" } else { "*" }.into(),
            driver: driver.into(),
            settings,
            guarantee: Guarantee::Idempotent,
            concurrency: 8,
            timeout_ms: 5000,
            is_default: true,
            ..driver::kind("capture").unwrap().draft(name)
        }
    }

    /// Updates the provider of this name from its current version.
    pub async fn update(&self, draft: &ProviderDraft) {
        assert!(self.store.update_provider(&self.change(draft).await).await.unwrap());
    }

    /// The change from the provider's current version to this draft.
    pub async fn change(&self, draft: &ProviderDraft) -> ProviderChange {
        let from = self.store.provider(self.tenant, &draft.name).await.unwrap().unwrap();
        ProviderChange { from, to: draft.clone(), secrets: vec![] }
    }

    pub async fn provider(&self, draft: ProviderDraft) -> i32 {
        assert!(self.store.create_provider(self.tenant, &draft).await.unwrap());
        self.store.provider(self.tenant, &draft.name).await.unwrap().unwrap().id
    }

    /// Creates the provider of the inboxes, like the expander.
    pub async fn make_in_app(&self) {
        for draft in driver::ready_made(Occasion::FirstUse) {
            self.store.create_missing_provider(self.tenant, &draft).await.unwrap();
        }
    }

    pub async fn capture(&self, settings: serde_json::Value) -> i32 {
        self.provider(self.draft("capture", "capture", settings)).await
    }

    /// Enqueues a notification of this event type to one mail address, with additional fields.
    pub async fn enqueue(&self, event_type: &str, more: serde_json::Value) -> Uuid {
        let mut document = json!({"event_type": event_type, "recipients": [{"email": "guest@example.com"}]});
        for (name, value) in more.as_object().cloned().unwrap_or_default() {
            document[name] = value;
        }
        let note: Notification = serde_json::from_value(document).unwrap();
        self.store.enqueue(&note).await.unwrap()
    }

    /// Enqueues by plain SQL, without the SDK's checks.
    pub async fn enqueue_by_sql(&self, event_type: &str, recipients: &str) -> Uuid {
        let sql = match self.is_postgres() {
            true => {
                format!("SELECT postcommit.enqueue('{event_type}', '{{}}', 'by-sql', recipients => '{recipients}')")
            }
            false => format!(
                "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, recipients) \
                    VALUES ('{event_type}', '{{}}', 'by-sql', '{recipients}')"
            ),
        };
        self.execute(&sql, vec![]).await;
        self.sql("SELECT id FROM postcommit.notification WHERE idempotency_key = 'by-sql'", vec![]).await[0]
            .get(0)
            .unwrap()
    }

    /// Enqueues a payload that serde_json would not preserve unchanged.
    pub async fn enqueue_raw(&self, event_type: &str, payload: &str) -> Uuid {
        let key = Uuid::new_v4();
        let to = "[{\"email\": \"guest@example.com\"}]";
        let sql = match self.is_postgres() {
            true => format!("SELECT postcommit.enqueue('{event_type}', '{payload}', '{key}', recipients => '{to}')"),
            false => format!(
                "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, recipients) \
                    VALUES ('{event_type}', '{payload}', '{key}', '{to}')"
            ),
        };
        self.execute(&sql, vec![]).await;
        self.sql("SELECT id FROM postcommit.notification WHERE idempotency_key = $1", vec![key.to_string().into()])
            .await[0]
            .get(0)
            .unwrap()
    }

    pub fn tools(&self, store: Store) -> Tools {
        let egress =
            Egress::new(&EgressSettings { allow: vec!["127.0.0.0/8".parse().unwrap()], ..EgressSettings::default() })
                .unwrap();
        Tools {
            store,
            egress,
            keys: self.keys.clone(),
            capture_fail_on: self.fail_on.clone(),
            public_url: self.public_url.clone(),
            settings: self.settings.clone(),
            kpi: KpiSettings::default(),
            metrics: self.metrics.clone(),
            tracer: self.tracer.clone(),
        }
    }

    /// Runs one pass over everything that is due.
    pub async fn pass(&self) {
        Dispatcher::new(self.tools(self.store.clone())).await.unwrap().pass(None).await.unwrap();
    }

    /// Starts a dispatcher that runs until the returned handle is dropped or stopped.
    pub async fn run(&self) -> Running {
        let store = self.another_store().await;
        self.run_on(store).await
    }

    /// Starts a dispatcher on the given store.
    pub async fn run_on(&self, store: Store) -> Running {
        let dispatcher = Dispatcher::new(self.tools(store)).await.unwrap();
        let (stop, told) = watch::channel(Stop::No);
        Running { task: tokio::spawn(dispatcher.run(told)), stop }
    }

    pub async fn deliveries(&self, notification: Uuid) -> Vec<DeliveryRow> {
        self.store.delivery_rows(&DeliveryFilter::of_notification(notification)).await.unwrap().rows
    }

    pub async fn delivery(&self, notification: Uuid) -> DeliveryRow {
        let rows = self.deliveries(notification).await;
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.into_iter().next().unwrap()
    }

    pub async fn attempts(&self, notification: Uuid) -> Vec<AttemptRow> {
        self.store.attempts(self.tenant, notification).await.unwrap()
    }

    pub fn key(&self, notification: Uuid, n: i32) -> DeliveryKey {
        DeliveryKey { tenant: self.tenant, notification, n }
    }

    pub async fn sql(&self, sql: &str, parameters: Vec<Value>) -> Vec<Row> {
        self.store.db().query(sql, parameters).await.unwrap()
    }

    pub async fn execute(&self, sql: &str, parameters: Vec<Value>) -> u64 {
        self.store.db().execute_one(sql, parameters).await.unwrap()
    }

    pub async fn count(&self, table: &str) -> i64 {
        self.sql(&format!("SELECT count(*) FROM postcommit.{table}"), vec![]).await[0].get(0).unwrap()
    }

    /// Makes all waiting deliveries due.
    pub async fn make_due(&self) {
        self.execute("UPDATE postcommit.delivery_queue SET due_at = {now} WHERE due_at > {now}", vec![]).await;
    }

    /// Lets all leases run out.
    pub async fn expire_leases(&self) {
        let past: Timestamp = Timestamp::from_micros(1_000_000);
        self.execute(
            "UPDATE postcommit.delivery_queue SET lease_until = $1 WHERE lease_token IS NOT NULL",
            vec![past.into()],
        )
        .await;
    }

    /// Makes the database refuse this kind of write.
    pub async fn refuse(&self, refusal: RefusedWrite) {
        for sql in refusal.begin(self.is_postgres()) {
            self.change_schema(&sql).await;
        }
    }

    /// Ends a refusal.
    pub async fn heal(&self, refusal: RefusedWrite) {
        self.change_schema(&refusal.end(self.is_postgres())).await;
    }

    /// Runs a statement that locks tables. It tries again when PostgreSQL ends it because a dispatcher uses those tables in another order.
    async fn change_schema(&self, sql: &str) {
        for _ in 0..20 {
            match self.store.db().execute_one(sql, vec![]).await {
                Err(error) if error.to_string().contains("40P01") => {}
                done => {
                    done.unwrap();
                    return;
                }
            }
        }
        panic!("deadlocked 20 times: {sql}");
    }

    /// Waits until the queue is empty.
    pub async fn drained(&self) {
        self.until("the queue is empty", async || self.count("delivery_queue").await == 0).await;
    }

    /// Waits for a condition that the running dispatcher fulfils.
    pub async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        let waiting = async {
            while !condition().await {
                look.tick().await;
            }
        };
        tokio::time::timeout(GUARD, waiting).await.unwrap_or_else(|_| panic!("not within {GUARD:?}: {what}"));
    }
}

/// A running dispatcher.
pub struct Running {
    task: tokio::task::JoinHandle<()>,
    stop: watch::Sender<Stop>,
}

impl Running {
    pub async fn finish(self) {
        self.ask_to_finish();
        self.task.await.unwrap();
    }

    pub fn ask_to_finish(&self) {
        // The dispatcher may have stopped already, and then no receiver is left.
        self.stop.send_replace(Stop::Finish);
    }
}

pub fn id_of(row: &DeliveryRow) -> DeliveryId {
    row.id.parse().unwrap()
}
