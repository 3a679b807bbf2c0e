//! The roles of an installation on PostgreSQL: made, granted, and parted from those of other installations.

use super::client::Transaction;
use super::installation::{Installation, SEPARATED};
use super::migrate::LOCK;
use super::postgres::{Postgres, refused};
use super::{Db, DbError};

/// Who may do what in the schema, for `migrate --roles`.
const ROLES: &str = include_str!("../../migrations/postgres/roles.sql");
/// Walls, policies and grants of the tenants' role.
const ISOLATION: &str = include_str!("../../migrations/postgres/isolation.sql");
/// What roles of other installations lose here.
const FOREIGN: &str = include_str!("../../migrations/postgres/foreign.sql");
/// Nobody may call a new function.
pub(super) const PUBLIC: &str = include_str!("../../migrations/postgres/public.sql");
/// All of them.
pub(super) const SCRIPTS: [&str; 4] = [ROLES, ISOLATION, FOREIGN, PUBLIC];

/// Whether `migrate --roles` was run: then the schema belongs to an owner's role, be it that of the database this one was copied from.
const HAS_ROLES: &str = "SELECT EXISTS (SELECT FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
    WHERE n.nspname = 'postcommit' AND r.rolname ~ '^postcommit_owner_[0-9]+$')";

/// Roles of other installations that hold something of our schema: as its owner, by a grant or by a policy.
pub(super) const FOREIGNERS: &str = "SELECT DISTINCT r.rolname::text FROM pg_shdepend d JOIN pg_roles r ON r.oid = d.refobjid
    WHERE d.refclassid = 'pg_authid'::regclass AND d.dbid = {oid}
      AND r.rolname ~ '^postcommit_(owner|producer|worker|reader|tenant)_[0-9]+$' AND r.rolname !~ '^postcommit_[a-z]+_{oid}$'
      AND ((d.classid = 'pg_namespace'::regclass AND d.objid = 'postcommit'::regnamespace)
        OR (d.classid = 'pg_class'::regclass AND d.objid IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace))
        OR (d.classid = 'pg_proc'::regclass AND d.objid IN (SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace))
        OR (d.classid = 'pg_policy'::regclass AND d.objid IN (SELECT p.oid FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
          WHERE c.relnamespace = 'postcommit'::regnamespace)))
    ORDER BY 1";

/// Members of these roles ($1) that are not yet members of ours of the same kind, the GRANT that would make them, and whether it may be
/// done: only the login that owns the database is certainly meant to use it.
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

/// Of these roles ($1) those that are no longer of use: nothing depends on them anywhere, the database they were made for is gone, and all of their members
/// are members of ours.
const USELESS: &str = "SELECT quote_ident(r.rolname) FROM pg_roles r WHERE r.rolname = ANY ($1)
    AND NOT EXISTS (SELECT FROM pg_database d WHERE r.rolname = 'postcommit_' || split_part(r.rolname, '_', 2) || '_' || d.oid)
    AND NOT EXISTS (SELECT FROM pg_shdepend d WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = r.oid AND d.classid <> 'pg_auth_members'::regclass)
    AND NOT EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles u ON u.oid = m.member
      WHERE m.roleid = r.oid AND NOT u.rolsuper AND u.rolname !~ '^postcommit_(owner|producer|worker|reader|tenant)_[0-9]+$'
        AND NOT EXISTS (SELECT FROM pg_auth_members o JOIN pg_roles n ON n.oid = o.roleid
          WHERE o.member = m.member AND n.rolname = substring(r.rolname from '^postcommit_[a-z]+') || '_{oid}'))
    ORDER BY r.rolname";

/// What an administrator says so that this login can do the rest: the roles of these kinds ($1) that are missing, and what it and the workers must be members
/// of. A worker's login is not made an owner by that.
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

impl Db {
    /// Makes the PostgreSQL roles and their grants. Repeatable. Returns their names, and the GRANTs that are left to somebody else, as
    /// [`Migrated::grants`](super::Migrated::grants).
    ///
    /// # Errors
    /// When the login may not make them: the message says what an administrator has to say. On SQLite, which has no roles.
    pub async fn make_roles(&self) -> Result<(Vec<String>, Vec<String>), DbError> {
        let Self::Postgres(db) = self else {
            return Err(DbError::Refused {
                code: "roles".into(),
                message: "SQLite has no roles; --roles is for PostgreSQL".into(),
            });
        };
        let mut client = db.client().await?;
        let transaction = client.transaction().await.map_err(refused)?;
        take_lock(&transaction).await?;
        let foreigners = foreigners(&transaction, db.installation).await?;
        separate(&transaction, db.installation).await?;
        let grants = arrange(&transaction, db.installation, &foreigners).await?;
        transaction.commit().await.map_err(refused)?;
        Ok((SEPARATED.map(|kind| db.installation.role(kind)).to_vec(), grants))
    }

    /// What an administrator says so that this login can make do with the tenants' role, and with those of `migrate --roles` where they are in use.
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

/// Others that migrate wait; they do not fail. A migration may take its time. It may run as an administrator: names that it does not qualify are
/// PostgreSQL's own, never those of whoever may make functions here.
pub(super) async fn take_lock(transaction: &Transaction<'_>) -> Result<(), DbError> {
    let sql = format!(
        "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({LOCK})"
    );
    transaction.batch_execute(&sql).await.map_err(refused)
}

/// Whether this login could put the roles in order: it owns the schema, or is a member of its owner.
pub(super) const MAY_ARRANGE: &str =
    "SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace n WHERE n.nspname = 'postcommit'";

/// Whether this schema has roles of `migrate --roles`.
pub(super) async fn has_roles(transaction: &Transaction<'_>) -> Result<bool, DbError> {
    Ok(transaction.query_one(HAS_ROLES, &[]).await.map_err(refused)?.get(0))
}

/// Makes the roles of `migrate --roles` and their grants.
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
                "this login may not make roles, and nothing was changed. As a login that may: {asked}; then run `postcommit migrate --roles` again"
            ),
        });
    }
    // First: a grant on a new function would make PUBLIC's privilege look like one that somebody granted.
    transaction.batch_execute(PUBLIC).await.map_err(refused)?;
    transaction.batch_execute(&installation.script(ROLES)).await.map_err(refused)
}

/// Roles of other installations that hold something here; before anything is taken from them.
pub(super) async fn foreigners(
    transaction: &Transaction<'_>,
    installation: Installation,
) -> Result<Vec<String>, DbError> {
    let rows = transaction.query(installation.script(FOREIGNERS).as_str(), &[]).await.map_err(refused)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The roles in order, after the last step: those of `migrate --roles` if there are any, the wall between tenants, and nothing left to the
/// roles of other installations. Returns the GRANTs that somebody else must decide on.
pub(super) async fn arrange(
    transaction: &Transaction<'_>,
    installation: Installation,
    foreigners: &[String],
) -> Result<Vec<String>, DbError> {
    if has_roles(transaction).await? {
        separate(transaction, installation).await?;
    }
    transaction.batch_execute(PUBLIC).await.map_err(refused)?;
    // A login that may not make it is told so by the self-check.
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

/// Members of the original's roles become members of ours, where that is certainly meant. Returns the GRANTs that were not made.
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

/// Whether the database did it. If not, the transaction goes on as if it had not been asked.
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

/// Makes a role if it is missing and this login may.
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
