//! The second protection between tenants, on PostgreSQL: row-level security for the tenants' role. The first protection
//! is the tenant condition in every WHERE clause. SQLite has only the first.

use super::migrate::first;
use super::postgres::Postgres;
use super::roles::{FOREIGNERS, MAY_ARRANGE};
use super::{Db, DbError, Value};

/// Finds tables with a tenant column that lack row-level security, and views that do not run with the caller's
/// privileges. The catalog is searched, so that no list must be maintained. `$1` is the tenants' role. This role owns
/// nothing, so row-level security need not be forced on owners.
const UNWALLED: &str = "SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND (c.relname = 'tenant' OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped))
      AND NOT (c.relrowsecurity
        AND EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'by_grant')
        AND EXISTS (SELECT FROM pg_policy p JOIN pg_roles r ON r.oid = ANY (p.polroles)
          WHERE p.polrelid = c.oid AND r.rolname = $1 AND NOT p.polpermissive AND p.polcmd = '*'))
    UNION ALL SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind = 'v' AND NOT coalesce(c.reloptions, '{}') @> ARRAY['security_invoker=true']";

/// Returns whether this login may switch to the role. Before PostgreSQL 16 every member of a role may switch to it.
const MAY_TAKE: &str = "SELECT pg_has_role($1::name, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)";

/// Returns the GRANT that lets this login switch to the role. From PostgreSQL 16 on, a login can switch to the role
/// without inheriting its policies.
const GRANT: &str = "SELECT format('GRANT %I TO %I', $1::text, current_user)
    || CASE WHEN current_setting('server_version_num')::int >= 160000 THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END";

/// Finds functions that still have PostgreSQL's default privileges, which let PUBLIC call them.
const CALLABLE: &str = "SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proacl IS NULL ORDER BY 1";

/// Finds logins that own the schema or have the worker's role `$2`, but may not switch to the tenants' role `$1`. Each
/// comes with the GRANT that would allow it.
const SHUT_OUT: &str = "SELECT r.rolname::text, format('GRANT %I TO %I', $1::text, r.rolname)
      || CASE WHEN current_setting('server_version_num')::int >= 160000 THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END
    FROM pg_roles r
    WHERE r.rolcanlogin AND NOT r.rolsuper
      AND EXISTS (SELECT FROM pg_roles o
        WHERE (o.oid = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'postcommit') OR o.rolname = $2)
          AND pg_has_role(r.oid, o.oid, 'USAGE'))
      AND NOT pg_has_role(r.oid, $1::name,
        CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)
    ORDER BY 1";

impl Db {
    /// Returns a handle to the same database that is restricted to one tenant. On PostgreSQL, [`Db::query`] and
    /// [`Db::execute`] then run in transactions under the tenants' role. On SQLite nothing changes. The hot path uses
    /// other connections and works for all tenants.
    pub fn of_tenant(&self, tenant: i32) -> Self {
        match self {
            Self::Postgres(db) => Self::Postgres(db.of_tenant(tenant)),
            Self::Sqlite(db) => Self::Sqlite(db.clone()),
        }
    }

    /// Returns whether the protection between tenants has a gap that this login may repair.
    pub(super) async fn is_wall_to_mend(&self) -> Result<bool, DbError> {
        Ok(first::<bool>(&self.query(MAY_ARRANGE, vec![]).await?)? && self.wall_problem().await?.is_some())
    }

    /// Checks the protection between tenants. A server calls this when it starts. On SQLite there is nothing to check.
    pub async fn check_isolation(&self) -> Result<(), DbError> {
        let Self::Postgres(_) = self else { return Ok(()) };
        match self.wall_problem().await? {
            None => Ok(()),
            Some(problem) => Err(DbError::Refused {
                code: "isolation".into(),
                message: format!("tenants are not isolated from each other: {problem}"),
            }),
        }
    }

    /// Checks whether `migrate` could create the tenants' role in a database that is not migrated yet. On SQLite there
    /// is nothing to check.
    ///
    /// # Errors
    /// Fails if the role is missing and this login may not create it. The message has the SQL for an administrator.
    pub async fn check_roles(&self) -> Result<(), DbError> {
        let Self::Postgres(db) = self else { return Ok(()) };
        let sql = "SELECT EXISTS (SELECT FROM pg_roles r
            WHERE r.rolname = $1 OR (r.rolname = current_user AND (r.rolsuper OR r.rolcreaterole)))";
        if first(&self.query(sql, vec![db.installation.role("tenant").into()]).await?)? {
            return Ok(());
        }
        Err(DbError::Refused { code: "isolation".into(), message: self.missing_role(db).await? })
    }

    /// Returns the logins with which `serve` would refuse to start because they may not switch to the tenants' role.
    /// Each comes with the GRANT that would allow it. The current login is not among them if [`Db::check_isolation`]
    /// succeeds.
    pub async fn shut_out(&self) -> Result<Vec<(String, String)>, DbError> {
        let Self::Postgres(db) = self else { return Ok(vec![]) };
        let roles = vec![db.installation.role("tenant").into(), db.installation.role("worker").into()];
        self.query(SHUT_OUT, roles).await?.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    async fn missing_role(&self, db: &Postgres) -> Result<String, DbError> {
        let (tenant, asked) = (db.installation.role("tenant"), self.asked_of_an_administrator(db).await?);
        Ok(format!(
            "the role {tenant} is missing. Run as a login that may create roles: {asked}; then run `postcommit \
             migrate` as the owner of the schema"
        ))
    }

    async fn wall_problem(&self) -> Result<Option<String>, DbError> {
        let Self::Postgres(db) = self else { return Ok(None) };
        let tenant = db.installation.role("tenant");
        let role = self
            .query("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = $1", vec![tenant.as_str().into()])
            .await?;
        let Some(role) = role.first() else {
            return Ok(Some(self.missing_role(db).await?));
        };
        if role.get(0)? {
            return Ok(Some(format!(
                "the role {tenant} bypasses row-level security. Run as a superuser: ALTER ROLE {tenant} NOSUPERUSER \
                 NOBYPASSRLS"
            )));
        }
        if !first::<bool>(&self.query(MAY_TAKE, vec![tenant.as_str().into()]).await?)? {
            let grant: String = first(&self.query(GRANT, vec![tenant.as_str().into()]).await?)?;
            return Ok(Some(format!(
                "this login may not switch to the role {tenant}. Run as an administrator: {grant}"
            )));
        }
        let open = self.names(UNWALLED, vec![tenant.as_str().into()]).await?;
        if !open.is_empty() {
            return Ok(Some(format!(
                "the protection between tenants is missing on {}. Run `postcommit migrate` as the owner of the \
                 schema. For a table it runs: ALTER TABLE postcommit.{} ENABLE ROW LEVEL SECURITY, and CREATE POLICY \
                 by_grant and of_one_tenant on it",
                open.join(", "),
                open[0]
            )));
        }
        let callable = self.names(CALLABLE, vec![]).await?;
        if !callable.is_empty() {
            return Ok(Some(format!(
                "PUBLIC may call functions of the schema postcommit: {}. They were restored without their privileges. \
                 Run `postcommit migrate` as the owner of the schema to revoke that",
                callable.join(", ")
            )));
        }
        let foreign = self.names(&db.installation.script(FOREIGNERS), vec![]).await?;
        if !foreign.is_empty() {
            return Ok(Some(format!(
                "roles of another Postcommit installation hold privileges in this database: {}. This database is a \
                 copy. Run `postcommit migrate` as the owner of the schema or as a superuser to revoke them",
                foreign.join(", ")
            )));
        }
        self.problem_within(&tenant).await
    }

    /// Finds tables on which row-level security is not active for the tenants' role, by checking under that role.
    async fn problem_within(&self, tenant: &str) -> Result<Option<String>, DbError> {
        let sql = "SELECT c.relname FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
            WHERE c.relnamespace = 'postcommit'::regnamespace AND p.polname = 'of_one_tenant' AND NOT row_security_active(c.oid)";
        let open = self.of_tenant(0).names(sql, vec![]).await?;
        Ok((!open.is_empty()).then(|| {
            format!(
                "row-level security is not active for {tenant} on {}. The role must not own the tables, nor be a \
                 member of their owner. Run as a superuser: ALTER ROLE {tenant} NOSUPERUSER NOBYPASSRLS, and ALTER \
                 TABLE … OWNER TO the owner of the schema",
                open.join(", ")
            )
        }))
    }

    async fn names(&self, sql: &str, parameters: Vec<Value>) -> Result<Vec<String>, DbError> {
        self.query(sql, parameters).await?.iter().map(|row| row.get(0)).collect()
    }
}
