//! Installations in several databases of one cluster: none can access another, regardless of its logins and of how it
//! was created.

mod copied;
mod dumped;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use postcommit::Notification;
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::Store;
use postcommit_testkit::{Postgres, TestDatabase, TestLogin};
use serde_json::json;
use tokio_postgres::{Client, NoTls};

use crate::keys::draft;
use crate::world::{World, role};

/// Connects, or panics with the error.
pub async fn connect(url: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.unwrap_or_else(|problem| panic!("{url}: {problem}"));
    tokio::spawn(connection);
    client
}

/// The SQL for an administrator that a refusal quotes.
pub fn asked(said: &str) -> &str {
    let (_, script) = said.split_once("Run as a login that may create roles: ").expect(said);
    script.split_once("; then run").expect(said).0
}

/// An installation and its logins, which are dropped after their database.
pub struct Installation {
    pub store: Store,
    pub database: TestDatabase,
    /// The login that migrated and owns the database.
    pub owner: TestLogin,
    /// Members of the roles for producers, workers and readers, if there are such roles.
    pub members: Vec<TestLogin>,
}

impl Installation {
    /// Creates an installation with an ordinary login. An administrator creates the roles as the error texts ask,
    /// unless the login has CREATEROLE at first.
    pub async fn make(with_roles: bool, attributes: &str) -> Self {
        let postgres = Postgres::shared();
        let owner = postgres.login(attributes).await;
        let database =
            postgres.database_with(&format!("OWNER {} TEMPLATE template0 ENCODING 'UTF8'", owner.name())).await;
        let store = Store::open(&database.url_as(owner.name())).await.unwrap();
        let mut this = Self { store, database, owner, members: vec![] };
        this.migrate(with_roles).await;
        postgres.execute(&format!("ALTER ROLE {} NOCREATEROLE", this.owner.name())).await;
        if with_roles {
            for kind in ["producer", "worker", "reader"] {
                this.members.push(postgres.login(&format!("IN ROLE {}", role(&this.store, kind))).await);
            }
        }
        this.store.create_provider(1, &World::sqlite().await.draft("capture", "capture", json!({}))).await.unwrap();
        this.store.create_key(1, &draft("k", &["admin"])).await.unwrap();
        this
    }

    /// Migrates until row-level security is complete.
    pub async fn migrate(&self, with_roles: bool) {
        let (store, admin) = (&self.store, Postgres::shared());
        store.db().migrate().await.unwrap();
        if with_roles && let Err(refused) = store.db().make_roles().await {
            admin.execute(asked(&refused.to_string())).await;
            store.db().make_roles().await.unwrap();
        }
        if let Err(refused) = store.check_isolation().await {
            admin.execute(asked(&refused.to_string())).await;
            store.db().migrate().await.unwrap();
        }
        store.check_isolation().await.unwrap();
        if with_roles {
            assert_eq!(
                role_names(store).await,
                ["owner", "producer", "reader", "tenant", "worker"].map(|kind| role(store, kind))
            );
        }
    }

    pub async fn admin(&self) -> Client {
        connect(&self.database.url).await
    }

    /// The installation's own logins do their work: enqueue, deliver, and read as one tenant.
    pub async fn assert_works(&self) {
        let note: Notification =
            serde_json::from_value(json!({"event_type": "a", "recipients": [{"email": "a@example.com"}]})).unwrap();
        let id = match self.members.first() {
            None => self.store.enqueue(&note).await.unwrap(),
            Some(producer) => {
                let sql = "SELECT postcommit.enqueue('a', '{}', gen_random_uuid()::text, recipients => '[{\"email\": \"a@example.com\"}]')";
                connect(&self.database.url_as(producer.name())).await.query_one(sql, &[]).await.unwrap().get(0)
            }
        };
        let worker = match self.members.get(1) {
            None => self.store.clone(),
            Some(worker) => Store::open(&self.database.url_as(worker.name())).await.unwrap(),
        };
        worker.check_isolation().await.unwrap();
        let world = World::sqlite().await;
        Dispatcher::new(world.tools(worker.clone())).await.unwrap().pass(None).await.unwrap();
        assert_eq!(worker.of_tenant(1).notification_row(id).await.unwrap().unwrap().state, "sent");
        assert!(worker.of_tenant(99).notification_row(id).await.unwrap().is_none());
    }
}

/// The roles named after this database.
async fn role_names(store: &Store) -> Vec<String> {
    let sql = "SELECT r.rolname::text FROM pg_roles r JOIN pg_database d ON r.rolname ~ ('^postcommit_[a-z]+_' || d.oid || '$')
        WHERE d.datname = current_database() ORDER BY 1";
    store.db().query(sql, vec![]).await.unwrap().iter().map(|row| row.get(0).unwrap()).collect()
}

async fn texts(client: &Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Statements against every table, view, function and role of an installation.
async fn attempts(admin: &Client) -> Vec<String> {
    let tables = "SELECT c.oid::regclass || ' ' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = 1
        WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v')";
    let mut all = Vec::new();
    for table in texts(admin, tables).await {
        let (table, column) = table.split_once(' ').unwrap();
        all.push(format!("SELECT * FROM {table}"));
        all.push(format!("SELECT {column} FROM {table}"));
        all.push(format!("INSERT INTO {table} DEFAULT VALUES"));
        all.push(format!("UPDATE {table} SET {column} = {column}"));
        all.push(format!("DELETE FROM {table}"));
        all.push(format!("TRUNCATE {table}"));
    }
    assert!(all.len() > 6 * 40, "{all:?}");
    let functions =
        "SELECT format('SELECT %s(%s)', p.oid::regproc, (SELECT string_agg('NULL::' || format_type(t, NULL), ', ' ORDER BY place)
          FROM unnest(p.proargtypes) WITH ORDINALITY given (t, place)))
        FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND p.prorettype <> 'trigger'::regtype";
    all.extend(texts(admin, functions).await);
    let roles = "SELECT format('SET ROLE %I', r.rolname) FROM pg_roles r JOIN pg_database d ON r.rolname LIKE 'postcommit\\_%\\_' || d.oid
        WHERE d.datname = current_database()";
    all.extend(texts(admin, roles).await);
    all.extend(
        ["DROP SCHEMA postcommit CASCADE", "CREATE TABLE postcommit.mine ()", "ALTER SCHEMA postcommit RENAME TO mine"]
            .map(str::to_owned),
    );
    all
}

/// Checks that every statement of the login is denied, and that it has no privilege that USAGE on the schema would
/// open.
pub async fn is_shut_out(from: &TestDatabase, login: &str) {
    let (admin, stranger) = (connect(&from.url).await, connect(&from.url_as(login)).await);
    for sql in attempts(&admin).await {
        let answer = stranger.batch_execute(&sql).await;
        let said = answer.expect_err(&format!("{login} may not: {sql}"));
        let code = said.code().unwrap_or_else(|| panic!("{sql}: {said}")).code();
        assert_eq!(code, "42501", "{sql}: {said:?}");
    }
    let held = format!(
        "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v')
           AND (has_any_column_privilege('{login}', c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')
             OR has_table_privilege('{login}', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'))
         UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND has_function_privilege('{login}', p.oid, 'EXECUTE')
         UNION ALL SELECT n.nspname::text FROM pg_namespace n WHERE n.nspname = 'postcommit' AND has_schema_privilege('{login}', n.oid, 'USAGE, CREATE')
         UNION ALL SELECT r.rolname::text FROM pg_roles r JOIN pg_database d ON r.rolname LIKE 'postcommit\\_%\\_' || d.oid
           WHERE d.datname = current_database() AND pg_has_role('{login}', r.oid, 'MEMBER')"
    );
    assert_eq!(texts(&admin, &held).await, Vec::<String>::new(), "{login}");
}

/// Checks two installations of the same kind. No login of one may do anything in the other.
async fn two_installations(with_roles: bool, attributes: &str) {
    let (a, b) = (Installation::make(with_roles, attributes).await, Installation::make(with_roles, attributes).await);
    for (home, other) in [(&a, &b), (&b, &a)] {
        for login in home.members.iter().chain([&home.owner]) {
            is_shut_out(&other.database, login.name()).await;
        }
    }
    // Another migration of either installation grants nothing in the other.
    for one in [&a, &b] {
        one.store.db().migrate().await.unwrap();
        one.assert_works().await;
    }
    is_shut_out(&a.database, b.owner.name()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_installation_is_open_to_the_login_of_another() {
    two_installations(false, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_installation_with_roles_is_open_to_the_logins_of_another() {
    two_installations(true, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_open_where_the_logins_created_their_roles_themselves() {
    two_installations(false, "CREATEROLE").await;
    two_installations(true, "CREATEROLE").await;
}

/// One installation with roles, and one without, in the same cluster.
#[tokio::test(flavor = "multi_thread")]
async fn roles_of_one_open_nothing_of_another_that_has_none() {
    let (a, b) = (Installation::make(true, "").await, Installation::make(false, "CREATEROLE").await);
    for login in a.members.iter().chain([&a.owner]) {
        is_shut_out(&b.database, login.name()).await;
    }
    is_shut_out(&a.database, b.owner.name()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_returns_the_names_of_roles_and_they_survive_a_renamed_database() {
    let world = World::postgres().await;
    for kind in ["owner", "producer", "worker", "reader", "tenant"] {
        let told: String = world.sql("SELECT postcommit.role_name($1)", vec![kind.into()]).await[0].get(0).unwrap();
        assert_eq!(told, world.role(kind));
    }
    let unknown: Option<String> = world.sql("SELECT postcommit.role_name('postgres')", vec![]).await[0].get(0).unwrap();
    assert_eq!(unknown, None);
}

/// Privileges of other logins of the cluster are reported, with the statements that revoke them.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_connect_and_grants_to_other_logins_are_reported() {
    let installation = Installation::make(false, "").await;
    let stranger = Postgres::shared().login("").await;
    let (database, name, admin) = (installation.database.name(), stranger.name(), installation.admin().await);
    let notes = async || installation.store.access().await.unwrap().unwrap().notes();
    let access = installation.store.access().await.unwrap().unwrap();
    assert!(access.strangers_in_all > 0 && access.holders.is_empty(), "{access:?}");
    let closing = format!(
        "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC; GRANT CONNECT ON DATABASE {database} TO the logins that need it"
    );
    let said = notes().await;
    assert!(said.len() == 1 && said[0].ends_with(&closing), "{said:?}");

    admin.batch_execute(&format!("GRANT SELECT (id) ON postcommit.notification TO {name}")).await.unwrap();
    let held =
        format!("{name} holds privileges of its own on postcommit.notification. If that is not intended, REVOKE them");
    assert_eq!(notes().await.last(), Some(&held));
    admin.batch_execute(&format!("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC")).await.unwrap();
    assert_eq!(notes().await, [held]);
    admin.batch_execute(&format!("REVOKE ALL ON postcommit.notification FROM {name}")).await.unwrap();
    assert_eq!(notes().await, Vec::<String>::new());
    admin.batch_execute("GRANT EXECUTE ON FUNCTION postcommit.role_name TO PUBLIC").await.unwrap();
    assert!(notes().await[0].starts_with("PUBLIC holds privileges of its own on postcommit.role_name(text)"));
    assert_eq!(World::sqlite().await.store.access().await.unwrap(), None);
}

/// The application enqueues as `login`, in its own transaction.
async fn enqueues_as(database: &TestDatabase, login: &str) {
    let sql = "BEGIN; CREATE TEMP TABLE booking (id int); INSERT INTO booking VALUES (1);
        SELECT postcommit.enqueue('a', '{}', gen_random_uuid()::text); COMMIT";
    connect(&database.url_as(login)).await.batch_execute(sql).await.unwrap();
}

/// Creates a database whose schema was migrated by `owner`. `schema` says which login creates the schema itself.
async fn migrated_by(owner: &TestLogin, schema: &str) -> TestDatabase {
    let postgres = Postgres::shared();
    let database = postgres.database_with(&format!("OWNER {} TEMPLATE template0 ENCODING 'UTF8'", owner.name())).await;
    Postgres::at(database.url.clone()).execute(schema).await;
    Store::open(&database.url_as(owner.name())).await.unwrap().db().migrate().await.unwrap();
    database
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_made_by_a_superuser_take_nothing_from_the_login_that_owned_the_schema() {
    let owner = Postgres::shared().login("").await;
    let name = owner.name().to_owned();
    for schema in ["SELECT 1".to_owned(), format!("CREATE SCHEMA postcommit; GRANT ALL ON SCHEMA postcommit TO {name}")]
    {
        let database = migrated_by(&owner, &schema).await;
        enqueues_as(&database, &name).await;
        let admin = Store::open(&database.url).await.unwrap();
        let made = admin.db().make_roles().await.unwrap();
        let granted =
            format!("{} is granted to {name}, so that this login keeps its privileges", role(&admin, "owner"));
        assert!(made.granted.contains(&granted), "{made:?}");
        assert!(made.granted[0].starts_with("the schema postcommit now belongs to postcommit_owner_"), "{made:?}");
        enqueues_as(&database, &name).await;
        let again = admin.db().make_roles().await.unwrap();
        assert!(again.granted.is_empty() && again.names == made.names, "{again:?}");
        // The owner still migrates and serves.
        let store = Store::open(&database.url_as(&name)).await.unwrap();
        store.db().migrate().await.unwrap();
        store.check_isolation().await.unwrap();
        store.providers().await.unwrap();
    }
}

/// Another login may have created its own objects in the schema. They do not make it an owner of postcommit's objects.
#[tokio::test(flavor = "multi_thread")]
async fn roles_give_the_owner_of_a_foreign_view_nothing() {
    let (owner, stranger) = (Postgres::shared().login("").await, Postgres::shared().login("").await);
    let (name, guest) = (owner.name(), stranger.name());
    let database = migrated_by(&owner, "SELECT 1").await;
    let admin = connect(&database.url).await;
    let made = format!(
        "GRANT USAGE, CREATE ON SCHEMA postcommit TO {guest}; GRANT SELECT (id, name) ON postcommit.tenant TO {guest};
         SET ROLE {guest};
         CREATE VIEW postcommit.names AS SELECT name FROM postcommit.tenant;
         CREATE TABLE postcommit.notes (id int);
         CREATE FUNCTION postcommit.enqueue(who int) RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT count(*) FROM postcommit.notification'"
    );
    admin.batch_execute(&made).await.unwrap();
    let store = Store::open(&database.url).await.unwrap();
    let made = store.db().make_roles().await.unwrap();
    assert_eq!(made.left_alone.len(), 3, "{made:?}");
    let told = format!(
        "the view postcommit.names belongs to {guest} and is not part of postcommit; it was not changed, and its owner got no privileges"
    );
    assert!(made.left_alone.contains(&told), "{made:?}");
    let of_guest = |said: &&String| said.contains(guest);
    assert!(made.granted.iter().find(of_guest).is_none(), "{made:?}");
    assert!(made.granted.iter().any(|said| said.contains(&format!("is granted to {name}"))), "{made:?}");
    // The login is a member of none of our roles, still owns its objects, and has the same privileges as before.
    let member = format!(
        "SELECT r.rolname::text FROM pg_roles r WHERE r.rolname LIKE 'postcommit\\_%' AND pg_has_role('{guest}', r.oid, 'MEMBER')"
    );
    let admin = connect(&database.url).await;
    assert_eq!(texts(&admin, &member).await, Vec::<String>::new());
    let own = format!(
        "SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'v') AND pg_get_userbyid(c.relowner) = '{guest}' ORDER BY 1"
    );
    assert_eq!(texts(&admin, &own).await, ["names", "notes"]);
    let guest = connect(&database.url_as(guest)).await;
    guest.batch_execute("SELECT name FROM postcommit.names").await.unwrap();
    for sql in
        ["SELECT * FROM postcommit.notification", "SELECT postcommit.enqueue(1)", "DELETE FROM postcommit.tenant"]
    {
        let said = guest.batch_execute(sql).await.expect_err(sql);
        assert_eq!(said.code().unwrap().code(), "42501", "{sql}: {said:?}");
    }
    enqueues_as(&database, name).await;
}

/// The schema may belong to pg_database_owner, which stands for the owner of the database and cannot be granted anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_pg_database_owner_becomes_the_owner_s_role_s() {
    let owner = Postgres::shared().login("").await;
    let database = migrated_by(&owner, "SELECT 1").await;
    let admin = connect(&database.url).await;
    admin.batch_execute("ALTER SCHEMA postcommit OWNER TO pg_database_owner").await.unwrap();
    let store = Store::open(&database.url).await.unwrap();
    let made = store.db().make_roles().await.unwrap();
    let granted =
        format!("{} is granted to {}, so that this login keeps its privileges", role(&store, "owner"), owner.name());
    assert!(made.granted.contains(&granted) && made.left_alone.is_empty(), "{made:?}");
    enqueues_as(&database, owner.name()).await;
    let store = Store::open(&database.url_as(owner.name())).await.unwrap();
    store.db().migrate().await.unwrap();
    store.check_isolation().await.unwrap();
}

/// Before PostgreSQL 16 a login with NOINHERIT gets no privileges by a membership. From PostgreSQL 16 on, each
/// membership decides this.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_inherits_nothing_does_not_lose_the_schema() {
    let owner = Postgres::shared().login("NOINHERIT").await;
    let database = migrated_by(&owner, "SELECT 1").await;
    let admin = Store::open(&database.url).await.unwrap();
    let version = admin.db().query("SELECT current_setting('server_version_num')::int", vec![]).await.unwrap();
    let made = admin.db().make_roles().await;
    if version[0].get::<i32>(0).unwrap() < 160_000 {
        let said = made.unwrap_err().to_string();
        let remedy = format!("As an administrator: ALTER ROLE {} INHERIT", owner.name());
        assert!(said.contains("nothing was changed") && said.contains(&remedy), "{said}");
    }
    enqueues_as(&database, owner.name()).await;
    Postgres::shared().execute(&format!("ALTER ROLE {} INHERIT", owner.name())).await;
    admin.db().make_roles().await.unwrap();
    enqueues_as(&database, owner.name()).await;
}

/// Applications go on while an administrator creates the roles: none of their transactions is ended by a deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_are_made_while_applications_enqueue() {
    let world = World::postgres().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut applications = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (url, is_over) = (world.url.clone(), is_over.clone());
        applications.spawn(async move {
            let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let enqueue = "SELECT postcommit.enqueue('a', '{}', gen_random_uuid()::text)";
            while !is_over.load(Ordering::Relaxed) {
                let transaction = client.transaction().await.unwrap();
                for _ in 0..3 {
                    transaction.execute(enqueue, &[]).await.unwrap();
                }
                transaction.commit().await.unwrap();
            }
        });
    }
    let running = world.run().await;
    for _ in 0..3 {
        world.store.db().make_roles().await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    while let Some(application) = applications.join_next().await {
        application.unwrap();
    }
    running.finish().await;
}
