-- The second wall between tenants. Repeatable, and repeated after every migration, so that a table of a later one is behind it, too.
-- Whoever takes the role postcommit_tenant_{oid} sees and writes the rows of one tenant alone, the one that the setting postcommit.tenant names. For
-- everybody else the grants remain the gate: a policy that is constantly true is planned away. See docs/decisions/0021 and 0026.
-- {oid} is the OID of this database: a role belongs to one installation.
DO $$
DECLARE
  thing record;
  may text := CASE WHEN current_setting('server_version_num')::int >= 160000 THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END;
  tenant oid;
  owner oid := (SELECT nspowner FROM pg_namespace WHERE nspname = 'postcommit');
  member text;
BEGIN
  -- It was made before, unless this login may not make roles.
  tenant := (SELECT oid FROM pg_roles WHERE rolname = 'postcommit_tenant_{oid}');

  -- Who may take it: this login, unless it may take any; the workers; and the logins that own the schema, to whom it opens nothing.
  FOR member IN SELECT r.rolname FROM pg_roles r WHERE tenant IS NOT NULL AND NOT r.rolsuper
      AND (r.rolname IN (current_user, 'postcommit_worker_{oid}')
        OR (r.rolcanlogin AND (r.oid = owner OR EXISTS (SELECT FROM pg_auth_members m WHERE m.roleid = owner AND m.member = r.oid))))
      AND NOT EXISTS (SELECT FROM pg_auth_members m WHERE m.member = r.oid AND m.roleid = tenant
        -- Who makes a role on PostgreSQL 16 or newer may give it away, but not take it.
        AND coalesce((to_jsonb(m) ->> 'set_option')::boolean, true)) LOOP
    BEGIN
      -- A worker must not be a tenant without having taken the role: its policy would then be in the way of the hot path.
      IF may = '' AND member = 'postcommit_worker_{oid}' THEN
        ALTER ROLE postcommit_worker_{oid} NOINHERIT;
      END IF;
      EXECUTE format('GRANT postcommit_tenant_{oid} TO %I%s', member, may);
    -- Somebody else did at this moment (the catalogue says so by an internal error), or this login may not.
    EXCEPTION WHEN unique_violation OR internal_error OR insufficient_privilege THEN NULL;
    END;
  END LOOP;
  IF tenant IS NOT NULL THEN
    GRANT USAGE ON SCHEMA postcommit TO postcommit_tenant_{oid};
  END IF;

  -- Every table with a tenant in it; partitions are reached through their parents, and the role has no grant on them.
  FOR thing IN
    SELECT c.oid, c.oid::regclass AS name, c.relname, c.relowner, c.relrowsecurity AS walled, c.relforcerowsecurity AS forced, CASE c.relname WHEN 'tenant' THEN 'id' ELSE 'tenant' END AS key
    FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND (c.relname = 'tenant' OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped))
  LOOP
    -- The tenants' role owns nothing, and so always meets the wall.
    IF thing.relowner = tenant THEN
      EXECUTE format('ALTER TABLE %s OWNER TO %I', thing.name, pg_get_userbyid(owner));
    END IF;
    IF NOT thing.walled THEN
      EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', thing.name);
    END IF;
    -- The owner passes the wall: pg_dump insists on reading every row.
    IF thing.forced THEN
      EXECUTE format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY', thing.name);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = thing.oid AND p.polname = 'by_grant') THEN
      EXECUTE format('CREATE POLICY by_grant ON %s AS PERMISSIVE FOR ALL TO PUBLIC USING (true) WITH CHECK (true)', thing.name);
    END IF;
    CONTINUE WHEN tenant IS NULL;
    -- One for another installation's role came with a copy of its database, or is older than roles per installation.
    IF NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = thing.oid AND p.polname = 'of_one_tenant' AND p.polroles = ARRAY[tenant]) THEN
      EXECUTE format('DROP POLICY IF EXISTS of_one_tenant ON %s', thing.name);
      -- Both sides are asked once for a statement, not for a row. Before PostgreSQL 16 a login that may take the role has its policies at all times,
      -- and must go free until it does.
      EXECUTE format('CREATE POLICY of_one_tenant ON %s AS RESTRICTIVE FOR ALL TO postcommit_tenant_{oid}
        USING (%I = (SELECT nullif(current_setting(''postcommit.tenant'', true), '''')::int) OR (SELECT current_user <> ''postcommit_tenant_{oid}''))', thing.name, thing.key);
    END IF;
    EXECUTE format('GRANT %s ON %s TO postcommit_tenant_{oid}',
      CASE thing.relname WHEN 'tenant' THEN 'SELECT' WHEN 'audit' THEN 'SELECT, INSERT' ELSE 'SELECT, INSERT, UPDATE, DELETE' END, thing.name);
  END LOOP;

  -- A dump without privileges brings functions back as PostgreSQL makes them: PUBLIC may call them. A grant that somebody made stays.
  FOR thing IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proacl IS NULL LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', thing.name);
  END LOOP;

  -- What a view reads is read by whoever asks, so that the wall is met behind it.
  FOR thing IN SELECT c.oid::regclass AS name, c.reloptions FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind = 'v' LOOP
    IF NOT coalesce(thing.reloptions, '{}') @> ARRAY['security_invoker=true'] THEN
      EXECUTE format('ALTER VIEW %s SET (security_invoker = true)', thing.name);
    END IF;
    IF tenant IS NOT NULL THEN
      EXECUTE format('GRANT SELECT ON %s TO postcommit_tenant_{oid}', thing.name);
    END IF;
  END LOOP;
  IF tenant IS NOT NULL THEN
    IF to_regclass('postcommit.provider_version') IS NOT NULL THEN  -- schema 1 has none yet
      GRANT SELECT ON postcommit.provider_version TO postcommit_tenant_{oid};
    END IF;
    -- Those with their caller's rights: they meet the wall as well.
    FOR thing IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND NOT p.prosecdef LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO postcommit_tenant_{oid}', thing.name);
    END LOOP;
  END IF;
END $$;
