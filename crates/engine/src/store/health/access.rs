//! Finds logins and roles outside this installation that can access it, on PostgreSQL. `doctor` and the start of a
//! server report them.

use crate::db::{Db, DbError, Row};
use crate::store::Store;

/// How many logins or database objects a note names. The others are only counted.
const NAMED: usize = 5;

/// The access that other logins of the cluster have to this database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The quoted name of the database.
    pub database: String,
    /// Logins that may connect only because CONNECT is granted to PUBLIC. At most 5.
    pub strangers: Vec<String>,
    /// The total number of such logins.
    pub strangers_in_all: i64,
    /// Logins of this installation, which would need CONNECT granted to them if PUBLIC loses it.
    pub ours: Vec<String>,
    /// Other roles with privileges on the schema `postcommit` or its objects. Each role comes with these objects,
    /// separated by `; `.
    pub holders: Vec<(String, String)>,
}

/// The CTEs that every query of this file uses: `ours` contains the roles of this installation and the owner of the
/// schema, and `here` is this database.
const OURS: &str = "ours AS (SELECT n.nspowner AS oid
      FROM pg_namespace n
      WHERE n.nspname = 'postcommit'
      UNION SELECT r.oid
      FROM pg_roles r, unnest('{owner,producer,worker,reader,tenant}'::text[]) kind
      WHERE r.rolname = postcommit.role_name(kind)),
    here AS (SELECT d.datname, d.datdba, coalesce(d.datacl, acldefault('d', d.datdba)) AS acl
      FROM pg_database d
      WHERE d.datname = current_database())";

/// Finds logins that can connect only because PUBLIC has CONNECT.
const STRANGERS: &str = "SELECT quote_ident(r.rolname), count(*) OVER ()
    FROM pg_roles r, here
    WHERE r.rolcanlogin AND NOT r.rolsuper AND r.rolname <> current_user
      AND NOT pg_has_role(r.oid, here.datdba, 'MEMBER')
      AND NOT EXISTS (SELECT FROM ours WHERE pg_has_role(r.oid, ours.oid, 'MEMBER'))
      AND EXISTS (SELECT FROM aclexplode(here.acl) a WHERE a.grantee = 0 AND a.privilege_type = 'CONNECT')
      AND NOT EXISTS (SELECT FROM aclexplode(here.acl) a
        WHERE a.grantee <> 0 AND a.privilege_type = 'CONNECT' AND pg_has_role(r.oid, a.grantee, 'USAGE'))
    ORDER BY 1";

/// Finds the logins of this installation, which must be able to connect.
const MEMBERS: &str = "SELECT quote_ident(r.rolname)
    FROM pg_roles r, here
    WHERE r.rolcanlogin AND NOT r.rolsuper AND r.oid <> here.datdba
      AND (r.rolname = current_user OR EXISTS (SELECT FROM ours WHERE pg_has_role(r.oid, ours.oid, 'MEMBER')))
    ORDER BY 1";

/// Finds other roles that have privileges on the schema `postcommit` or its objects. Grantee 0 is PUBLIC.
const HOLDERS: &str = "SELECT coalesce(quote_ident(r.rolname), 'PUBLIC') AS role,
      string_agg(DISTINCT granted.name, '; ' ORDER BY granted.name)
    FROM (SELECT 'schema postcommit' AS name, a.grantee
      FROM pg_namespace n, aclexplode(n.nspacl) a
      WHERE n.nspname = 'postcommit'
      UNION ALL SELECT c.oid::regclass::text, a.grantee
      FROM pg_class c, aclexplode(c.relacl) a
      WHERE c.relnamespace = 'postcommit'::regnamespace
      UNION ALL SELECT c.oid::regclass::text, a.grantee
      FROM pg_class c
      JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) a
      WHERE c.relnamespace = 'postcommit'::regnamespace
      UNION ALL SELECT p.oid::regprocedure::text, a.grantee
      FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
      WHERE p.pronamespace = 'postcommit'::regnamespace) granted
    LEFT JOIN pg_roles r ON r.oid = granted.grantee
    WHERE NOT coalesce(r.rolsuper, false)
      AND (granted.grantee = 0 OR NOT EXISTS (SELECT FROM ours WHERE pg_has_role(granted.grantee, ours.oid, 'MEMBER')))
    GROUP BY 1
    ORDER BY 1";

impl Store {
    /// Reads which other logins can access this database. `None` on SQLite, where the file's mode decides.
    pub async fn access(&self) -> Result<Option<Access>, DbError> {
        let Db::Postgres(_) = self.db else { return Ok(None) };
        let ask = async |sql: &str| self.db.query_once(&format!("WITH {OURS} {sql}"), vec![]).await;
        let strangers = ask(&format!("{STRANGERS} LIMIT {NAMED}")).await?;
        let names = |rows: &[Row]| rows.iter().map(|row| row.get(0)).collect::<Result<Vec<String>, DbError>>();
        let database = ask("SELECT quote_ident(datname) FROM here").await?;
        Ok(Some(Access {
            database: names(&database)?.remove(0),
            strangers_in_all: strangers.first().map_or(Ok(0), |row| row.get(1))?,
            strangers: names(&strangers)?,
            ours: names(&ask(MEMBERS).await?)?,
            holders: ask(HOLDERS)
                .await?
                .iter()
                .map(|row| Ok((row.get(0)?, row.get(1)?)))
                .collect::<Result<_, DbError>>()?,
        }))
    }
}

impl Access {
    /// Returns notes for the operator. Empty if no other login can access the database.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.strangers.is_empty() {
            let database = &self.database;
            let more = self.strangers_in_all - i64::try_from(self.strangers.len()).unwrap_or(i64::MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let needed = if self.ours.is_empty() { "the logins that need it".to_owned() } else { self.ours.join(", ") };
            notes.push(format!(
                "CONNECT on the database {database} is open to PUBLIC, so other logins of this cluster may connect: \
                 {}{more}. This alone gives them no privileges on the schema postcommit. To forbid it: REVOKE CONNECT \
                 ON DATABASE {database} FROM PUBLIC; GRANT CONNECT ON DATABASE {database} TO {needed}",
                self.strangers.join(", ")
            ));
        }
        notes.extend(self.holders.iter().map(|(role, things)| {
            let named: Vec<&str> = things.split("; ").take(NAMED).collect();
            let more = things.split("; ").count() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!(
                "{role} holds privileges of its own on {}{more}. If that is not intended, REVOKE them",
                named.join(", ")
            )
        }));
        notes
    }
}
