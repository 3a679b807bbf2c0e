//! The second wall between tenants, on PostgreSQL: row-level security for whoever takes the role `postcommit_tenant`. The first is the tenant in every
//! WHERE; SQLite has no other.

use super::migrate::{LOCK, first, make_role};
use super::{Db, DbError, postgres};

/// The role under which a tenant's statements run.
pub(super) const TENANT_ROLE: &str = "postcommit_tenant";

/// Walls, policies and grants. Repeatable.
const ISOLATION: &str = include_str!("../../migrations/postgres/isolation.sql");

/// Tables with a tenant in them that are not behind the wall: by a rule, not by a list that somebody must remember.
const UNWALLED: &str = "SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND (c.relname = 'tenant' OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped))
      AND NOT (c.relrowsecurity AND c.relforcerowsecurity
        AND EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'by_grant')
        AND EXISTS (SELECT FROM pg_policy p JOIN pg_roles r ON r.oid = ANY (p.polroles)
          WHERE p.polrelid = c.oid AND r.rolname = 'postcommit_tenant' AND NOT p.polpermissive AND p.polcmd = '*'))
    UNION ALL SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind = 'v' AND NOT coalesce(c.reloptions, '{}') @> ARRAY['security_invoker=true']";

/// What this login could mend of it.
const MAY_MEND: &str = "SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace n WHERE n.nspname = 'postcommit'";

/// Whether this login may take the role. Before PostgreSQL 16 every member may.
const MAY_TAKE: &str =
    "SELECT pg_has_role('postcommit_tenant', CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)";

/// How it would be allowed to. From 16 on the role can be taken without its policies being there all the time.
const GRANT: &str = "SELECT format('GRANT postcommit_tenant TO %I', current_user)
    || CASE WHEN current_setting('server_version_num')::int >= 160000 THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END";

impl Db {
    /// A view of the same database that [`Db::query`] and [`Db::execute`] show of one tenant alone: on PostgreSQL each of them runs in a transaction of
    /// the role `postcommit_tenant`. On SQLite nothing changes. The hot path has connections of its own, and is everybody's.
    #[must_use]
    pub fn of_tenant(&self, tenant: i32) -> Self {
        match self {
            Self::Postgres(db) => Self::Postgres(db.of_tenant(tenant)),
            Self::Sqlite(db) => Self::Sqlite(db.clone()),
        }
    }

    /// Makes the role, if this login may, and puts every table with a tenant in it behind the wall. A login that does not own the schema leaves it alone.
    pub(super) async fn isolate_tenants(&self, changed: bool) -> Result<(), DbError> {
        let Self::Postgres(db) = self else { return Ok(()) };
        // Looking first: with nothing to do, no lock is taken.
        if !first::<bool>(&self.query(MAY_MEND, vec![]).await?)? || !(changed || self.wall_problem().await?.is_some()) {
            return Ok(());
        }
        let mut client = db.client().await?;
        // A login that may not make it is told so by the self-check.
        client.batch_execute(&make_role(TENANT_ROLE, " OR insufficient_privilege")).await.map_err(postgres::refused)?;
        let transaction = client.transaction().await.map_err(postgres::refused)?;
        let prepare = format!("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({LOCK})");
        transaction.batch_execute(&prepare).await.map_err(postgres::refused)?;
        transaction.batch_execute(ISOLATION).await.map_err(postgres::refused)?;
        transaction.commit().await.map_err(postgres::refused)
    }

    /// Whether the wall between tenants stands: for the start of a server that serves more than one. Nothing to check on SQLite.
    ///
    /// # Errors
    /// What is missing, and the SQL that mends it.
    pub async fn check_isolation(&self) -> Result<(), DbError> {
        let Self::Postgres(_) = self else { return Ok(()) };
        match self.wall_problem().await? {
            None => Ok(()),
            Some(problem) => Err(DbError::Refused { code: "isolation".into(), message: format!("tenants are not walled off: {problem}") }),
        }
    }

    async fn wall_problem(&self) -> Result<Option<String>, DbError> {
        let grant: String = first(&self.query(GRANT, vec![]).await?)?;
        let role = self.query("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = 'postcommit_tenant'", vec![]).await?;
        let Some(role) = role.first() else {
            return Ok(Some(format!(
                "the role {TENANT_ROLE} is missing. As a login that may make roles: CREATE ROLE {TENANT_ROLE} NOLOGIN; {grant}; \
                 then run `postcommit migrate` as the owner of the schema"
            )));
        };
        if role.get(0)? {
            return Ok(Some(format!(
                "the role {TENANT_ROLE} bypasses row-level security. As a superuser: ALTER ROLE {TENANT_ROLE} NOSUPERUSER NOBYPASSRLS"
            )));
        }
        if !first::<bool>(&self.query(MAY_TAKE, vec![]).await?)? {
            return Ok(Some(format!("this login may not take the role {TENANT_ROLE}. As a superuser: {grant}")));
        }
        let open = self.names(UNWALLED).await?;
        if !open.is_empty() {
            return Ok(Some(format!(
                "{} without its policies. Run `postcommit migrate` as the owner of the schema, which for a table says: ALTER TABLE postcommit.{} ENABLE ROW \
                 LEVEL SECURITY, FORCE ROW LEVEL SECURITY, and CREATE POLICY by_grant and of_one_tenant on it",
                open.join(", "),
                open[0]
            )));
        }
        self.problem_within().await
    }

    /// As the role itself sees it.
    async fn problem_within(&self) -> Result<Option<String>, DbError> {
        let sql = "SELECT c.relname FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
            WHERE c.relnamespace = 'postcommit'::regnamespace AND p.polname = 'of_one_tenant' AND NOT row_security_active(c.oid)";
        let open = self.of_tenant(0).names(sql).await?;
        Ok((!open.is_empty()).then(|| {
            format!("row-level security is not active for {TENANT_ROLE} on {}. As a superuser: ALTER ROLE {TENANT_ROLE} NOSUPERUSER NOBYPASSRLS", open.join(", "))
        }))
    }

    async fn names(&self, sql: &str) -> Result<Vec<String>, DbError> {
        self.query(sql, vec![]).await?.iter().map(|row| row.get(0)).collect()
    }
}
