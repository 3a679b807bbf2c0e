-- Four roles without login, for those who want to separate them: GRANT one to the login that needs it. (A fifth, postcommit_tenant, is for isolation.sql.)
-- Repeatable. They have been made before. postcommit_owner owns the schema; the producer can call two functions and read nothing.
DO $$
DECLARE
  thing record;
BEGIN
  BEGIN
    EXECUTE format('GRANT postcommit_owner TO %I', current_user);
  -- Another database of the cluster did at this moment: before PostgreSQL 16 the catalogue says so by an internal error.
  EXCEPTION WHEN unique_violation OR internal_error THEN NULL;
  END;
  EXECUTE format('GRANT CREATE ON DATABASE %I TO postcommit_owner', current_database());
  ALTER SCHEMA postcommit OWNER TO postcommit_owner;
  FOR thing IN SELECT c.oid::regclass AS name, c.relkind FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v') LOOP
    EXECUTE format('ALTER %s %s OWNER TO postcommit_owner', CASE thing.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, thing.name);
  END LOOP;
  FOR thing IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace LOOP
    EXECUTE format('ALTER FUNCTION %s OWNER TO postcommit_owner', thing.name);
  END LOOP;
END $$;

GRANT USAGE ON SCHEMA postcommit TO postcommit_producer, postcommit_worker, postcommit_reader;
DO $$
DECLARE thing record;
BEGIN
  FOR thing IN SELECT p.oid::regprocedure AS name, p.proname FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace LOOP
    IF thing.proname IN ('enqueue', 'enqueue_many', 'cancel') THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO postcommit_producer', thing.name);
    END IF;
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO postcommit_worker', thing.name);
  END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA postcommit TO postcommit_worker;
GRANT SELECT ON ALL TABLES IN SCHEMA postcommit TO postcommit_reader;
REVOKE SELECT (secrets) ON postcommit.provider FROM postcommit_reader;
REVOKE SELECT ON postcommit.provider FROM postcommit_reader;
GRANT SELECT (tenant, id, name, channel, driver, guarantee, policy, concurrency, timeout_ms, is_default, enabled, paused, not_before, revision, created_at, updated_at) ON postcommit.provider TO postcommit_reader;
-- With it anybody could sign a user token. Asked for, because this file also runs between older migrations.
DO $$
BEGIN
  IF to_regclass('postcommit.inbox_token_key') IS NOT NULL THEN
    REVOKE ALL ON postcommit.inbox_token_key FROM postcommit_reader;
  END IF;
END $$;
-- Hashes of keys and sessions are nobody's reading, and the audit log is nobody's writing. Not there yet while older schemas are brought up to date.
DO $$
BEGIN
  IF to_regclass('postcommit.api_key') IS NOT NULL THEN
    REVOKE SELECT ON postcommit.api_key, postcommit.login_link, postcommit.session FROM postcommit_reader;
    GRANT SELECT (tenant, id, name, scopes, created_at, created_by, expires_at, last_used_at, revoked_at) ON postcommit.api_key TO postcommit_reader;
    REVOKE UPDATE, DELETE ON postcommit.audit FROM postcommit_worker;
  END IF;
END $$;
DO $$
BEGIN
  -- Roles are renewed after each step of a migration: those before have no such columns.
  IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'postcommit.provider'::regclass AND attname = 'rate_per_s') THEN
    GRANT SELECT (rate_per_s, burst) ON postcommit.provider TO postcommit_reader;
  END IF;
END $$;
-- Partitions made later: the views and functions run as their owner, the worker goes through the parents.
