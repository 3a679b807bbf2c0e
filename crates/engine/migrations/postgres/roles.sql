-- Four roles without login, for those who want to separate them: GRANT one to the login that needs it.
-- Repeatable. postcommit_owner owns the schema; the producer can call two functions and read nothing.
DO $$
DECLARE
  role text;
  thing record;
BEGIN
  FOREACH role IN ARRAY ARRAY['postcommit_owner', 'postcommit_producer', 'postcommit_worker', 'postcommit_reader'] LOOP
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = role) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', role);
    END IF;
  END LOOP;
  EXECUTE format('GRANT postcommit_owner TO %I', current_user);
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
DO $$
BEGIN
  -- Roles are renewed after each step of a migration: those before have no such columns.
  IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'postcommit.provider'::regclass AND attname = 'rate_per_s') THEN
    GRANT SELECT (rate_per_s, burst) ON postcommit.provider TO postcommit_reader;
  END IF;
END $$;
-- Partitions made later: the views and functions run as their owner, the worker goes through the parents.
