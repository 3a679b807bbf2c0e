-- The second protection between tenants: row-level security. Repeatable, and repeated after every migration, so that it
-- covers the tables of a later migration as well. A session that switches to the role postcommit_tenant_{oid} sees and
-- writes only the rows of the tenant that the setting postcommit.tenant names. For all other roles only the grants apply: a
-- policy that is always true is removed by the planner. See docs/decisions/0021 and 0026. {oid} is the OID of this database,
-- because a role belongs to one installation.
DO $$
DECLARE
  thing record;
  may text := CASE WHEN current_setting('server_version_num')::int >= 160000 THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END;
  tenant oid;
  owner oid := (SELECT nspowner FROM pg_namespace WHERE nspname = 'postcommit');
  member text;
BEGIN
  -- db/roles.rs has created the role, unless this login may not create roles.
  tenant := (SELECT oid FROM pg_roles WHERE rolname = 'postcommit_tenant_{oid}');

  -- These logins may switch to the role: this login, unless it is a superuser; the workers; and the logins that own the
  -- schema, which get no additional privileges by it.
  FOR member IN SELECT r.rolname FROM pg_roles r WHERE tenant IS NOT NULL AND NOT r.rolsuper
      AND (r.rolname IN (current_user, 'postcommit_worker_{oid}')
        OR (r.rolcanlogin AND (r.oid = owner OR EXISTS (SELECT FROM pg_auth_members m WHERE m.roleid = owner AND m.member = r.oid))))
      AND NOT EXISTS (SELECT FROM pg_auth_members m WHERE m.member = r.oid AND m.roleid = tenant
        -- From PostgreSQL 16 on, the creator of a role may grant it, but may not switch to it.
        AND coalesce((to_jsonb(m) ->> 'set_option')::boolean, true)) LOOP
    BEGIN
      -- A worker must not inherit the role without switching to it, because the role's policy would then slow the hot path.
      IF may = '' AND member = 'postcommit_worker_{oid}' THEN
        ALTER ROLE postcommit_worker_{oid} NOINHERIT;
      END IF;
      EXECUTE format('GRANT postcommit_tenant_{oid} TO %I%s', member, may);
    -- Another process has granted the role concurrently (before PostgreSQL 16 that is an internal error), or this login may
    -- not grant it.
    EXCEPTION WHEN unique_violation OR internal_error OR insufficient_privilege THEN NULL;
    END;
  END LOOP;
  IF tenant IS NOT NULL THEN
    GRANT USAGE ON SCHEMA postcommit TO postcommit_tenant_{oid};
  END IF;

  -- Every table with a tenant column. Partitions are accessed through their parents, and the role has no grant on them.
  FOR thing IN
    SELECT c.oid, c.oid::regclass AS name, c.relname, c.relowner, c.relrowsecurity AS walled,
      CASE c.relname WHEN 'tenant' THEN 'id' ELSE 'tenant' END AS key
    FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND (c.relname = 'tenant' OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped))
  LOOP
    -- The tenants' role must own no table, because row-level security does not apply to owners.
    IF thing.relowner = tenant THEN
      EXECUTE format('ALTER TABLE %s OWNER TO %I', thing.name, pg_get_userbyid(owner));
    END IF;
    -- Row-level security is not forced on the owner, because pg_dump must be able to read every row.
    IF NOT thing.walled THEN
      EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', thing.name);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = thing.oid AND p.polname = 'by_grant') THEN
      EXECUTE format('CREATE POLICY by_grant ON %s AS PERMISSIVE FOR ALL TO PUBLIC USING (true) WITH CHECK (true)', thing.name);
    END IF;
    CONTINUE WHEN tenant IS NULL;
    -- A policy for another installation's role is left from the database of which this one is a copy.
    IF NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = thing.oid AND p.polname = 'of_one_tenant' AND p.polroles = ARRAY[tenant]) THEN
      EXECUTE format('DROP POLICY IF EXISTS of_one_tenant ON %s', thing.name);
      -- Both sides are evaluated once per statement, not per row. Before PostgreSQL 16 the policy applies to every member of
      -- the role at all times. The second side exempts a member that has not switched to the role.
      EXECUTE format('CREATE POLICY of_one_tenant ON %s AS RESTRICTIVE FOR ALL TO postcommit_tenant_{oid}
        USING (%I = (SELECT nullif(current_setting(''postcommit.tenant'', true), '''')::int) OR (SELECT current_user <> ''postcommit_tenant_{oid}''))', thing.name, thing.key);
    END IF;
    EXECUTE format('GRANT %s ON %s TO postcommit_tenant_{oid}',
      CASE thing.relname WHEN 'tenant' THEN 'SELECT' WHEN 'audit' THEN 'SELECT, INSERT' ELSE 'SELECT, INSERT, UPDATE, DELETE' END, thing.name);
  END LOOP;

  -- A view reads its tables with the privileges of its reader, so that row-level security applies to it.
  FOR thing IN SELECT c.oid::regclass AS name, c.reloptions FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind = 'v' LOOP
    IF NOT coalesce(thing.reloptions, '{}') @> ARRAY['security_invoker=true'] THEN
      EXECUTE format('ALTER VIEW %s SET (security_invoker = true)', thing.name);
    END IF;
    IF tenant IS NOT NULL THEN
      EXECUTE format('GRANT SELECT ON %s TO postcommit_tenant_{oid}', thing.name);
    END IF;
  END LOOP;
  IF tenant IS NOT NULL THEN
    -- Heartbeats show whether any worker can decrypt a provider's secrets.
    GRANT SELECT ON postcommit.provider_version, postcommit.duty TO postcommit_tenant_{oid};
    -- Functions that run with their caller's privileges. Row-level security applies to them as well.
    FOR thing IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND NOT p.prosecdef LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO postcommit_tenant_{oid}', thing.name);
    END LOOP;
  END IF;
END $$;
