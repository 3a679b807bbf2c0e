-- Four roles without login, for installations that separate them: GRANT one to the login that needs it. (A fifth role,
-- postcommit_tenant_{oid}, is for isolation.sql.) Repeatable; db/roles.rs has created the roles before. The owner owns the
-- schema; a producer can call three functions and read nothing. {oid} is the OID of this database, because a role belongs to
-- one installation.
DO $$
DECLARE
  thing record;
  owner oid := 'postcommit_owner_{oid}'::regrole;
  has_options boolean := current_setting('server_version_num')::int >= 160000;
  taking text := CASE WHEN has_options THEN 'SET' ELSE 'MEMBER' END;
  options text := CASE WHEN has_options THEN ' WITH INHERIT TRUE, SET TRUE' ELSE '' END;
  member record;
  -- The logins that own the schema: its owner, and the owner of its first table. pg_database_owner cannot be a member of a
  -- role; it stands for the owner of the database.
  keepers oid[] := ARRAY(
    SELECT CASE WHEN held.oid = 'pg_database_owner'::regrole THEN d.datdba ELSE held.oid END
    FROM (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'postcommit'
      UNION SELECT c.relowner FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relname = 'tenant') held (oid),
      pg_database d
    WHERE d.datname = current_database());
  -- The owners whose objects in the schema belong to postcommit: those logins, the login that runs this script, members of
  -- them, superusers, and roles of this and other installations. They are read before any ownership changes.
  ours oid[] := ARRAY(
    SELECT r.oid FROM pg_roles r
    WHERE r.rolsuper OR r.rolname IN (current_user, 'pg_database_owner') OR r.rolname ~ '^postcommit_(owner|producer|worker|reader|tenant)_[0-9]+$'
      OR EXISTS (SELECT FROM unnest(keepers) k (oid) WHERE pg_has_role(r.oid, k.oid, 'MEMBER')));
BEGIN
  -- The login that runs this script, and every login that owns the schema or an object of postcommit in it, become members
  -- of the owner's role, so that they keep their privileges. Roles of another installation do not (foreign.sql). Neither
  -- does another login that has created its own view, table or function in the schema, because it would get all privileges.
  FOR member IN
    WITH former (oid) AS (SELECT f.oid FROM unnest(keepers) f (oid)
      UNION SELECT c.relowner FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v')
      UNION SELECT p.proowner FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace)
    SELECT r.oid, r.rolname AS name, r.rolinherit AS inherits, r.oid IN (SELECT f.oid FROM former f) AS owned
    FROM pg_roles r
    WHERE (r.rolname = current_user OR r.oid IN (SELECT f.oid FROM former f)) AND NOT r.rolsuper
      AND r.rolname !~ '^postcommit_(owner|producer|worker|reader|tenant)_[0-9]+$' AND r.rolname <> 'pg_database_owner'
      AND (r.rolname = current_user OR EXISTS (SELECT FROM unnest(keepers) k (oid) WHERE pg_has_role(r.oid, k.oid, 'MEMBER')))
      AND NOT (pg_has_role(r.oid, owner, 'USAGE') AND pg_has_role(r.oid, owner, taking))
  LOOP
    BEGIN
      EXECUTE format('GRANT postcommit_owner_{oid} TO %I%s', member.name, options);
    -- Another process has granted the role concurrently (before PostgreSQL 16 that is an internal error), or only an
    -- administrator may grant it.
    EXCEPTION WHEN unique_violation OR internal_error OR insufficient_privilege THEN NULL;
    END;
    IF member.owned AND NOT pg_has_role(member.oid, owner, 'USAGE') THEN
      RAISE EXCEPTION 'the role % owns the schema postcommit or something in it, and would lose what it can do there; nothing was changed. As an administrator: %; then run `postcommit migrate --roles` again',
        member.name, CASE WHEN member.inherits OR has_options THEN format('GRANT postcommit_owner_{oid} TO %I%s', member.name, options)
          ELSE format('ALTER ROLE %I INHERIT', member.name) END
        USING ERRCODE = '42501';
    END IF;
  END LOOP;
  IF NOT has_database_privilege(owner, current_database(), 'CREATE') THEN
    EXECUTE format('GRANT CREATE ON DATABASE %I TO postcommit_owner_{oid}', current_database());
  END IF;
  IF (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'postcommit') <> owner THEN
    ALTER SCHEMA postcommit OWNER TO postcommit_owner_{oid};
  END IF;
  FOR thing IN SELECT c.oid::regclass AS name, c.relkind FROM pg_class c
      WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND c.relowner <> owner
        AND c.relowner = ANY (ours) LOOP
    EXECUTE format('ALTER %s %s OWNER TO postcommit_owner_{oid}', CASE thing.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, thing.name);
  END LOOP;
  FOR thing IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proowner <> owner
      AND p.proowner = ANY (ours) LOOP
    EXECUTE format('ALTER FUNCTION %s OWNER TO postcommit_owner_{oid}', thing.name);
  END LOOP;
END $$;

GRANT USAGE ON SCHEMA postcommit TO postcommit_producer_{oid}, postcommit_worker_{oid}, postcommit_reader_{oid};
-- The objects that belong to the owner's role, which are the objects of postcommit.
DO $$
DECLARE
  thing record;
  owner oid := 'postcommit_owner_{oid}'::regrole;
BEGIN
  FOR thing IN SELECT p.oid::regprocedure AS name, p.proname FROM pg_proc p
      WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proowner = owner LOOP
    IF thing.proname IN ('enqueue', 'enqueue_many', 'cancel') THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO postcommit_producer_{oid}', thing.name);
    END IF;
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO postcommit_worker_{oid}', thing.name);
  END LOOP;
  FOR thing IN SELECT c.oid::regclass AS name FROM pg_class c
      WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND c.relowner = owner LOOP
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO postcommit_worker_{oid}', thing.name);
    EXECUTE format('GRANT SELECT ON %s TO postcommit_reader_{oid}', thing.name);
  END LOOP;
END $$;
REVOKE SELECT (secrets) ON postcommit.provider FROM postcommit_reader_{oid};
REVOKE SELECT ON postcommit.provider FROM postcommit_reader_{oid};
GRANT SELECT (tenant, id, name, channel, driver, guarantee, policy, concurrency, timeout_ms, is_default, enabled, paused,
    held_until, revision, created_at, updated_at, rate_per_s, burst, breaker_failures, breaker_cool_down_s, trips,
    hold_reason, failover, failover_after_s) ON postcommit.provider TO postcommit_reader_{oid};
-- With the key of user tokens, a reader could sign such tokens.
REVOKE ALL ON postcommit.inbox_token_key FROM postcommit_reader_{oid};
-- With the fingerprint of the secrets key, a reader could check guesses at that key.
REVOKE ALL ON postcommit.secret_key FROM postcommit_reader_{oid};
-- Readers do not read hashes of keys and sessions, and workers do not change the audit log.
REVOKE SELECT ON postcommit.api_key, postcommit.login_link, postcommit.session FROM postcommit_reader_{oid};
GRANT SELECT (tenant, id, name, scopes, created_at, created_by, expires_at, last_used_at, revoked_at) ON postcommit.api_key
  TO postcommit_reader_{oid};
-- With the token of a callback URL, a reader could send false receipts.
REVOKE ALL ON postcommit.callback_token FROM postcommit_reader_{oid};
REVOKE UPDATE, DELETE ON postcommit.audit FROM postcommit_worker_{oid};
-- Partitions that are created later need no grants: views and functions run as their owner, and workers access partitions
-- through their parents.
