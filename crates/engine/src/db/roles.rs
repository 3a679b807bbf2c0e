//! The roles of an installation on PostgreSQL: creates them, grants their privileges, and separates them from the roles
//! of other installations.

use std::time::Duration;

use super::client::Transaction;
use super::installation::{Installation, SEPARATED};
use super::migrate::LOCK;
use super::postgres::{Postgres, is_deadlock, is_held, refused};
use super::{Db, DbError};

/// The privileges of the roles that `migrate --roles` creates.
const ROLES: &str = include_str!("../../migrations/postgres/roles.sql");
/// The row-level security, policies and grants of the tenants' role.
const ISOLATION: &str = include_str!("../../migrations/postgres/isolation.sql");
/// Revokes the privileges that roles of other installations have in this database.
const FOREIGN: &str = include_str!("../../migrations/postgres/foreign.sql");
/// Revokes PUBLIC's default privilege to call new functions.
pub(super) const PUBLIC: &str = include_str!("../../migrations/postgres/public.sql");
/// All scripts about roles.
pub(super) const SCRIPTS: [&str; 4] = [ROLES, ISOLATION, FOREIGN, PUBLIC];

/// Returns whether `migrate --roles` was run. That command makes an owner role the owner of the schema. The name of the
/// owner role ends with the OID of a database. Any OID is accepted, because the schema of a copied database can still
/// belong to the owner role of the original database.
const HAS_ROLES: &str = "SELECT EXISTS (SELECT FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
    WHERE n.nspname = 'postcommit' AND r.rolname ~ '^postcommit_owner_[0-9]+$')";

/// Finds roles of other installations that have rights in the schema as an owner, by a grant or by a policy.
pub(super) const FOREIGNERS: &str = "SELECT DISTINCT r.rolname::text FROM pg_shdepend d JOIN pg_roles r ON r.oid = d.refobjid
    WHERE d.refclassid = 'pg_authid'::regclass AND d.dbid = {oid}
      AND r.rolname ~ '^postcommit_(owner|producer|worker|reader|tenant)_[0-9]+$' AND r.rolname !~ '^postcommit_[a-z]+_{oid}$'
      AND ((d.classid = 'pg_namespace'::regclass AND d.objid = 'postcommit'::regnamespace)
        OR (d.classid = 'pg_class'::regclass AND d.objid IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace))
        OR (d.classid = 'pg_proc'::regclass AND d.objid IN (SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace))
        OR (d.classid = 'pg_policy'::regclass AND d.objid IN (SELECT p.oid FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
          WHERE c.relnamespace = 'postcommit'::regnamespace)))
    ORDER BY 1";

/// Finds members of the roles `$1` that are not yet members of our role of the same kind. Each comes with the GRANT
/// that would make it a member, and with whether the login owns the database. Only for the database's owner is it
/// certain that it should have access.
const MEMBERS: &str = "WITH former AS (
      SELECT r.oid, n.oid AS ours, n.rolname AS name
      FROM pg_roles r JOIN pg_roles n ON n.rolname = substring(r.rolname from '^postcommit_[a-z]+') || '_{oid}' WHERE r.rolname = ANY ($1))
    SELECT u.oid = (SELECT d.datdba FROM pg_database d WHERE d.oid = {oid}), format('GRANT %I TO %I', f.name, u.rolname) || CASE
        WHEN current_setting('server_version_num')::int < 160000 THEN CASE WHEN bool_or(m.admin_option) THEN ' WITH ADMIN OPTION' ELSE '' END
        WHEN f.name LIKE 'postcommit_tenant%' THEN ' WITH INHERIT FALSE, SET TRUE'
        ELSE format(' WITH %sINHERIT %s, SET %s', CASE WHEN bool_or(m.admin_option) THEN 'ADMIN TRUE, ' ELSE '' END,
          upper(bool_or((to_jsonb(m) ->> 'inherit_option')::boolean)::text), upper(bool_or((to_jsonb(m) ->> 'set_option')::boolean)::text)) END
    FROM former f JOIN pg_auth_members m ON m.roleid = f.oid JOIN pg_roles u ON u.oid = m.member
    WHERE NOT u.rolsuper AND u.rolname !~ '^postcommit_(owner|producer|worker|reader|tenant)_[0-9]+$'
      AND NOT EXISTS (SELECT FROM pg_auth_members o WHERE o.roleid = f.ours AND o.member = m.member)
    GROUP BY f.name, u.oid, u.rolname ORDER BY 2";

/// Finds the roles among `$1` that are no longer needed: nothing depends on them in any database, the database for
/// which they were created is gone, and all their members are members of our roles.
const USELESS: &str = "SELECT quote_ident(r.rolname) FROM pg_roles r WHERE r.rolname = ANY ($1)
    AND NOT EXISTS (SELECT FROM pg_database d WHERE r.rolname = 'postcommit_' || split_part(r.rolname, '_', 2) || '_' || d.oid)
    AND NOT EXISTS (SELECT FROM pg_shdepend d WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = r.oid AND d.classid <> 'pg_auth_members'::regclass)
    AND NOT EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles u ON u.oid = m.member
      WHERE m.roleid = r.oid AND NOT u.rolsuper AND u.rolname !~ '^postcommit_(owner|producer|worker|reader|tenant)_[0-9]+$'
        AND NOT EXISTS (SELECT FROM pg_auth_members o JOIN pg_roles n ON n.oid = o.roleid
          WHERE o.member = m.member AND n.rolname = substring(r.rolname from '^postcommit_[a-z]+') || '_{oid}'))
    ORDER BY r.rolname";

/// Returns the SQL that an administrator must run before this login can arrange the roles. It creates the missing roles
/// of the kinds `$1`, and makes this login and the worker's role members where needed. It never makes a worker's login
/// an owner.
const ASKED: &str = "WITH wanted (kind, place) AS (SELECT * FROM unnest($1::text[]) WITH ORDINALITY),
      named AS (SELECT kind, place, 'postcommit_' || kind || '_{oid}' AS name, current_setting('server_version_num')::int >= 160000 AS optional FROM wanted)
    SELECT string_agg(said, '; ' ORDER BY part, place) FROM (
      SELECT 1 AS part, place, format('CREATE ROLE %I NOLOGIN%s', name, CASE WHEN kind = 'worker' AND NOT optional THEN ' NOINHERIT' ELSE '' END) AS said
        FROM named WHERE name NOT IN (SELECT rolname FROM pg_roles)
      UNION ALL SELECT 2, place, format('GRANT %I TO %I%s', name, CASE part WHEN 1 THEN current_user ELSE 'postcommit_worker_{oid}' END,
          CASE WHEN kind = 'tenant' AND optional THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END)
        FROM named, (VALUES (1), (2)) parts (part)
        WHERE CASE part
          WHEN 1 THEN kind IN ('owner', 'tenant') AND ('worker' <> ALL ($1::text[])
            OR (SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace n WHERE n.nspname = 'postcommit'))
          ELSE kind = 'tenant' AND 'worker' = ANY ($1::text[]) END) script";

/// Lists the owner of the schema, and which logins may use which of this installation's roles. From PostgreSQL 16 on,
/// the creator of a role may grant it without being able to use it, so such memberships are left out.
const HELD: &str =
    "SELECT pg_get_userbyid(n.nspowner)::text, NULL::text FROM pg_namespace n WHERE n.nspname = 'postcommit'
    UNION SELECT g.rolname::text, u.rolname::text
    FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid JOIN pg_roles u ON u.oid = m.member
    WHERE g.rolname ~ '^postcommit_(owner|producer|worker|reader|tenant)_{oid}$'
      AND (coalesce((to_jsonb(m) ->> 'set_option')::boolean, true) OR (to_jsonb(m) ->> 'inherit_option')::boolean)
    ORDER BY 1, 2";

/// Lists the objects in the schema that do not belong to the owner's role of `migrate --roles`, with their owners.
const STRANGE: &str = "SELECT format('%s %s belongs to %I', thing.kind, thing.name, pg_get_userbyid(thing.owner))
    FROM (
      SELECT CASE c.relkind WHEN 'v' THEN 'the view' ELSE 'the table' END AS kind, c.oid::regclass::text AS name, c.relowner AS owner
      FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v')
      UNION ALL SELECT 'the function', p.oid::regprocedure::text, p.proowner
      FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace) thing
    WHERE thing.owner <> 'postcommit_owner_{oid}'::regrole ORDER BY 1";

/// The owner and the role members before the roles were changed.
pub(super) struct Holders(Vec<(String, Option<String>)>);

impl Holders {
    pub(super) async fn read(transaction: &Transaction<'_>, installation: Installation) -> Result<Self, DbError> {
        let rows = transaction.query(installation.script(HELD).as_str(), &[]).await.map_err(refused)?;
        Ok(Self(rows.iter().map(|row| (row.get(0), row.get(1))).collect()))
    }

    /// Returns sentences about the changes since `self` was read: a new owner of the schema, and new members of roles.
    pub(super) async fn granted(
        &self,
        transaction: &Transaction<'_>,
        installation: Installation,
    ) -> Result<Vec<String>, DbError> {
        let owner = |held: &Self| held.0.iter().find(|(_, member)| member.is_none()).map(|(owner, _)| owner.clone());
        let now = Self::read(transaction, installation).await?;
        let moved = match (owner(self), owner(&now)) {
            (Some(before), Some(after)) if before != after => {
                Some(format!("the schema postcommit now belongs to {after}; it belonged to {before} before"))
            }
            _ => None,
        };
        let is_new = |held: &&(String, Option<String>)| !self.0.contains(held);
        let members = now.0.iter().filter(is_new).filter_map(|(role, member)| {
            let keeps =
                if role.starts_with("postcommit_owner_") { ", so that this login keeps its privileges" } else { "" };
            Some(format!("{role} is granted to {}{keeps}", member.as_ref()?))
        });
        Ok(moved.into_iter().chain(members).collect())
    }
}

/// How often creating the roles is tried while other transactions hold locks on the tables.
const TRIES: usize = 10;
/// The wait between two tries.
const NEXT_TRY: Duration = Duration::from_millis(250);
/// Locks all tables and views first, in the order in which `enqueue` uses them, so that applications wait and no
/// deadlock ends one of their transactions. A login that may not lock them may not change them either, so that failure
/// is ignored.
const LOCK_ALL: &str = "DO $$
    DECLARE names text;
    BEGIN
      SELECT string_agg(c.oid::regclass::text, ', ' ORDER BY c.relkind = 'v',
          coalesce(array_position(ARRAY['idempotency', 'tenant', 'notification', 'delivery_queue'], c.relname::text), 100), c.oid)
        INTO names FROM pg_class c
        WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition;
      EXECUTE 'LOCK TABLE ' || names || ' IN ACCESS EXCLUSIVE MODE';
    EXCEPTION WHEN insufficient_privilege THEN NULL;
    END $$";
/// How long this transaction waits for the locks. Meanwhile, applications that need a table wait behind it, so it must
/// not wait for the end of a long foreign transaction.
const LOCK_WAIT: &str = "2s";

/// The result of [`Db::make_roles`].
#[derive(Debug, Clone)]
pub struct MadeRoles {
    /// The names of the roles for owner, producer, worker and reader.
    pub names: Vec<String>,
    /// Sentences that say which roles were granted to which logins. Empty if nothing was missing.
    pub granted: Vec<String>,
    /// Sentences about views, tables and functions in the schema that other logins have created. These objects and
    /// their owners are not changed.
    pub left_alone: Vec<String>,
    /// The GRANTs that an administrator must decide on, as in [`Migrated::grants`](super::Migrated::grants).
    pub grants: Vec<String>,
}

impl Db {
    /// Creates the PostgreSQL roles and their grants. It can be repeated. A login that owned the schema becomes a
    /// member of the owner's role.
    ///
    /// # Errors
    /// Fails if the login may not create the roles, and the message has the SQL for an administrator. Also fails on
    /// SQLite, which has no roles.
    pub async fn make_roles(&self) -> Result<MadeRoles, DbError> {
        let Self::Postgres(db) = self else {
            return Err(DbError::Refused {
                code: "roles".into(),
                message: "SQLite has no roles; --roles is for PostgreSQL".into(),
            });
        };
        for _ in 1..TRIES {
            match try_roles(db).await {
                Err(problem) if is_deadlock(&problem) || is_held(&problem) => tokio::time::sleep(NEXT_TRY).await,
                done => return done,
            }
        }
        try_roles(db).await.map_err(|problem| match is_held(&problem) {
            true => DbError::Refused {
                code: "roles".into(),
                message: "another transaction keeps the tables in use, and nothing was changed; end it \
                    (pg_stat_activity names it) or wait for its end, then run `postcommit migrate --roles` again"
                    .into(),
            },
            false => problem,
        })
    }

    /// Returns the SQL that an administrator must run so that this login can use the tenants' role. If the roles of
    /// `migrate --roles` are in use, the SQL covers them as well.
    pub(super) async fn asked_of_an_administrator(&self, db: &Postgres) -> Result<String, DbError> {
        let mut client = db.client().await?;
        let transaction = client.transaction().await.map_err(refused)?;
        let kinds: &[&str] = if has_roles(&transaction).await? {
            &["tenant", "owner", "producer", "worker", "reader"]
        } else {
            &["tenant"]
        };
        asked(&transaction, db.installation, kinds).await
    }
}

/// Creates the roles in one transaction.
async fn try_roles(db: &Postgres) -> Result<MadeRoles, DbError> {
    let mut client = db.client().await?;
    let transaction = client.transaction().await.map_err(refused)?;
    take_lock(&transaction).await?;
    let locks = format!("SET LOCAL lock_timeout = '{LOCK_WAIT}'; {LOCK_ALL}; SET LOCAL lock_timeout = 0");
    transaction.batch_execute(&locks).await.map_err(refused)?;
    let before = Holders::read(&transaction, db.installation).await?;
    let foreigners = foreigners(&transaction, db.installation).await?;
    separate(&transaction, db.installation).await?;
    let grants = arrange(&transaction, db.installation, &foreigners).await?;
    let granted = before.granted(&transaction, db.installation).await?;
    let left_alone = left_alone(&transaction, db.installation).await?;
    transaction.commit().await.map_err(refused)?;
    Ok(MadeRoles { names: SEPARATED.map(|kind| db.installation.role(kind)).to_vec(), granted, left_alone, grants })
}

/// Takes the migration lock. Other processes that migrate wait for it without a timeout. A migration may run as an
/// administrator, so the search path is set: an unqualified name then always means PostgreSQL's own object, and never a
/// function that another user created.
pub(super) async fn take_lock(transaction: &Transaction<'_>) -> Result<(), DbError> {
    let sql = format!(
        "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({LOCK})"
    );
    transaction.batch_execute(&sql).await.map_err(refused)
}

/// Returns whether this login may arrange the roles, because it owns the schema or is a member of its owner.
pub(super) const MAY_ARRANGE: &str =
    "SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace n WHERE n.nspname = 'postcommit'";

/// Returns whether the roles of `migrate --roles` are in use for this schema.
pub(super) async fn has_roles(transaction: &Transaction<'_>) -> Result<bool, DbError> {
    Ok(transaction.query_one(HAS_ROLES, &[]).await.map_err(refused)?.get(0))
}

/// Creates the roles of `migrate --roles` and their grants.
pub(super) async fn separate(transaction: &Transaction<'_>, installation: Installation) -> Result<(), DbError> {
    for kind in SEPARATED {
        transaction.batch_execute(&make_role(&installation.role(kind))).await.map_err(refused)?;
    }
    let names: Vec<String> = SEPARATED.map(|kind| installation.role(kind)).to_vec();
    let made = transaction
        .query_one("SELECT count(*) FROM pg_roles WHERE rolname = ANY ($1)", &[&names])
        .await
        .map_err(refused)?;
    if made.get::<_, i64>(0) < SEPARATED.len() as i64 {
        let asked = asked(transaction, installation, &["tenant", "owner", "producer", "worker", "reader"]).await?;
        return Err(DbError::Refused {
            code: "roles".into(),
            message: format!(
                "this login may not create roles, so no role and no grant was made; the schema itself is up to date. Run as a \
                 login that may create roles: \
                 {asked}; then run `postcommit migrate --roles` again"
            ),
        });
    }
    // PUBLIC's default privilege is revoked first. After a grant on a new function it would look like a deliberate
    // grant.
    transaction.batch_execute(PUBLIC).await.map_err(refused)?;
    transaction.batch_execute(&installation.script(ROLES)).await.map_err(refused)
}

async fn left_alone(transaction: &Transaction<'_>, installation: Installation) -> Result<Vec<String>, DbError> {
    let rows = transaction.query(installation.script(STRANGE).as_str(), &[]).await.map_err(refused)?;
    let told = |thing: String| {
        format!("{thing} and is not part of postcommit; it was not changed, and its owner got no privileges")
    };
    Ok(rows.iter().map(|row| told(row.get(0))).collect())
}

/// Returns the roles of other installations that have rights here. Call it before anything is revoked from them.
pub(super) async fn foreigners(
    transaction: &Transaction<'_>,
    installation: Installation,
) -> Result<Vec<String>, DbError> {
    let rows = transaction.query(installation.script(FOREIGNERS).as_str(), &[]).await.map_err(refused)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Arranges the roles after the last migration step: the roles of `migrate --roles` if they are in use, the protection
/// between tenants, and the removal of rights of other installations' roles. Returns the GRANTs that an administrator
/// must decide on.
pub(super) async fn arrange(
    transaction: &Transaction<'_>,
    installation: Installation,
    foreigners: &[String],
) -> Result<Vec<String>, DbError> {
    if has_roles(transaction).await? {
        separate(transaction, installation).await?;
    }
    transaction.batch_execute(PUBLIC).await.map_err(refused)?;
    // If this login may not create the role, the check of the isolation reports it.
    transaction.batch_execute(&make_role(&installation.role("tenant"))).await.map_err(refused)?;
    transaction.batch_execute(&installation.script(ISOLATION)).await.map_err(refused)?;
    if foreigners.is_empty() {
        return Ok(vec![]);
    }
    let grants = carry_over(transaction, installation, foreigners).await?;
    transaction.batch_execute(&installation.script(FOREIGN)).await.map_err(refused)?;
    for useless in transaction.query(installation.script(USELESS).as_str(), &[&foreigners]).await.map_err(refused)? {
        tried(transaction, &format!("DROP ROLE {}", useless.get::<_, String>(0))).await?;
    }
    Ok(grants)
}

/// Makes members of the original's roles members of our roles, if they own the database. Returns the GRANTs that were
/// not executed.
async fn carry_over(
    transaction: &Transaction<'_>,
    installation: Installation,
    former: &[String],
) -> Result<Vec<String>, DbError> {
    let mut left = Vec::new();
    for row in transaction.query(installation.script(MEMBERS).as_str(), &[&former]).await.map_err(refused)? {
        let (owns, grant): (bool, String) = (row.get(0), row.get(1));
        if !owns || !tried(transaction, &grant).await? {
            left.push(grant);
        }
    }
    Ok(left)
}

/// Tries a statement and returns whether it succeeded. If it failed, it is rolled back and the transaction continues.
pub(super) async fn tried(transaction: &Transaction<'_>, sql: &str) -> Result<bool, DbError> {
    transaction.batch_execute("SAVEPOINT tried").await.map_err(refused)?;
    let done = transaction.batch_execute(sql).await.is_ok();
    let end = if done { "RELEASE tried" } else { "ROLLBACK TO tried; RELEASE tried" };
    transaction.batch_execute(end).await.map_err(refused)?;
    Ok(done)
}

async fn asked(transaction: &Transaction<'_>, installation: Installation, kinds: &[&str]) -> Result<String, DbError> {
    Ok(transaction.query_one(installation.script(ASKED).as_str(), &[&kinds]).await.map_err(refused)?.get(0))
}

/// Returns the SQL that creates a role if it is missing and this login may create it.
fn make_role(name: &str) -> String {
    format!(
        "DO $$ BEGIN
           IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN
             CREATE ROLE {name} NOLOGIN;
           END IF;
         -- An administrator makes it at this moment, or this login may not.
         EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
         END $$"
    )
}
