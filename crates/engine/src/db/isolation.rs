//! The second wall between tenants, on PostgreSQL: row-level security for whoever takes the tenants' role. The first is the tenant in every
//! WHERE; SQLite has no other.

use super::migrate::first;
use super::roles::{FOREIGNERS, MAY_ARRANGE};
use super::{Db, DbError, Value};

/// Tables with a tenant in them that are not behind the wall: by a rule, not by a list that somebody must remember. $1 is the tenants'
/// role: it owns nothing, so the wall need not be forced on owners.
const UNWALLED: &str = "SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND (c.relname = 'tenant' OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped))
      AND NOT (c.relrowsecurity
        AND EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'by_grant')
        AND EXISTS (SELECT FROM pg_policy p JOIN pg_roles r ON r.oid = ANY (p.polroles)
          WHERE p.polrelid = c.oid AND r.rolname = $1 AND NOT p.polpermissive AND p.polcmd = '*'))
    UNION ALL SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind = 'v' AND NOT coalesce(c.reloptions, '{}') @> ARRAY['security_invoker=true']";

/// Whether this login may take the role. Before PostgreSQL 16 every member may.
const MAY_TAKE: &str = "SELECT pg_has_role($1::name, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)";

/// How it would be allowed to. From 16 on the role can be taken without its policies being there all the time.
const GRANT: &str = "SELECT format('GRANT %I TO %I', $1::text, current_user)
    || CASE WHEN current_setting('server_version_num')::int >= 160000 THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END";

/// Functions with the privileges that PostgreSQL gives to new ones.
const CALLABLE: &str = "SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proacl IS NULL ORDER BY 1";

impl Db {
    /// A view of the same database that [`Db::query`] and [`Db::execute`] show of one tenant alone: on PostgreSQL each of them runs in a transaction of
    /// the tenants' role. On SQLite nothing changes. The hot path has connections of its own, and is everybody's.
    #[must_use]
    pub fn of_tenant(&self, tenant: i32) -> Self {
        match self {
            Self::Postgres(db) => Self::Postgres(db.of_tenant(tenant)),
            Self::Sqlite(db) => Self::Sqlite(db.clone()),
        }
    }

    /// Whether something is missing of the wall, and this login could mend it.
    pub(super) async fn is_wall_to_mend(&self) -> Result<bool, DbError> {
        Ok(first::<bool>(&self.query(MAY_ARRANGE, vec![]).await?)? && self.wall_problem().await?.is_some())
    }

    /// Whether the wall between tenants stands: for the start of a server that serves more than one. Nothing to check on SQLite.
    ///
    /// # Errors
    /// What is missing, and the SQL that mends it.
    pub async fn check_isolation(&self) -> Result<(), DbError> {
        let Self::Postgres(_) = self else { return Ok(()) };
        match self.wall_problem().await? {
            None => Ok(()),
            Some(problem) => Err(DbError::Refused {
                code: "isolation".into(),
                message: format!("tenants are not walled off: {problem}"),
            }),
        }
    }

    async fn wall_problem(&self) -> Result<Option<String>, DbError> {
        let Self::Postgres(db) = self else { return Ok(None) };
        let tenant = db.installation.role("tenant");
        let role = self
            .query("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = $1", vec![tenant.as_str().into()])
            .await?;
        let Some(role) = role.first() else {
            let asked = self.asked_of_an_administrator(db).await?;
            return Ok(Some(format!(
                "the role {tenant} is missing. As a login that may make roles: {asked}; then run `postcommit migrate` as the owner of the schema"
            )));
        };
        if role.get(0)? {
            return Ok(Some(format!(
                "the role {tenant} bypasses row-level security. As a superuser: ALTER ROLE {tenant} NOSUPERUSER NOBYPASSRLS"
            )));
        }
        if !first::<bool>(&self.query(MAY_TAKE, vec![tenant.as_str().into()]).await?)? {
            let grant: String = first(&self.query(GRANT, vec![tenant.as_str().into()]).await?)?;
            return Ok(Some(format!("this login may not take the role {tenant}. As an administrator: {grant}")));
        }
        let open = self.names(UNWALLED, vec![tenant.as_str().into()]).await?;
        if !open.is_empty() {
            return Ok(Some(format!(
                "{} without its policies. Run `postcommit migrate` as the owner of the schema, which for a table says: ALTER TABLE postcommit.{} ENABLE ROW \
                 LEVEL SECURITY, and CREATE POLICY by_grant and of_one_tenant on it",
                open.join(", "),
                open[0]
            )));
        }
        let callable = self.names(CALLABLE, vec![]).await?;
        if !callable.is_empty() {
            return Ok(Some(format!(
                "PUBLIC may call functions of the schema: {}. They were restored without their privileges. Run `postcommit migrate` as the owner of the schema, which \
                 takes that away",
                callable.join(", ")
            )));
        }
        let foreign = self.names(&db.installation.script(FOREIGNERS), vec![]).await?;
        if !foreign.is_empty() {
            return Ok(Some(format!(
                "roles of another installation hold privileges here: {}. This database is a copy. Run `postcommit migrate` as \
                 the owner of the schema or as a superuser, which takes them away",
                foreign.join(", ")
            )));
        }
        self.problem_within(&tenant).await
    }

    /// As the role itself sees it.
    async fn problem_within(&self, tenant: &str) -> Result<Option<String>, DbError> {
        let sql = "SELECT c.relname FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
            WHERE c.relnamespace = 'postcommit'::regnamespace AND p.polname = 'of_one_tenant' AND NOT row_security_active(c.oid)";
        let open = self.of_tenant(0).names(sql, vec![]).await?;
        Ok((!open.is_empty()).then(|| {
            format!(
                "row-level security is not active for {tenant} on {}. It must own nothing and be a member of nobody who does. As a superuser: ALTER ROLE {tenant} \
                 NOSUPERUSER NOBYPASSRLS, and ALTER TABLE … OWNER TO the owner of the schema",
                open.join(", ")
            )
        }))
    }

    async fn names(&self, sql: &str, parameters: Vec<Value>) -> Result<Vec<String>, DbError> {
        self.query(sql, parameters).await?.iter().map(|row| row.get(0)).collect()
    }
}
