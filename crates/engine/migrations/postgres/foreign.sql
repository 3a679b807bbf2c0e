-- Revokes the privileges that roles of another installation have in this database. Such roles remain when a database is
-- copied. Repeatable. roles.sql and isolation.sql have run before, so the schema has its owner and this installation's roles
-- have their grants. {oid} is the OID of this database.
DO $$
DECLARE
  foreigner record;
  thing record;
  owner text := (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'postcommit');
BEGIN
  FOR foreigner IN
    SELECT DISTINCT r.oid, r.rolname FROM pg_roles r JOIN pg_shdepend d ON d.refclassid = 'pg_authid'::regclass AND d.refobjid = r.oid
    WHERE r.rolname ~ '^postcommit_(owner|producer|worker|reader|tenant)_[0-9]+$' AND r.rolname !~ '^postcommit_[a-z]+_{oid}$'
      AND (d.dbid = {oid} OR (d.dbid = 0 AND d.classid = 'pg_database'::regclass AND d.objid = {oid}))
  LOOP
    FOR thing IN
      SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind, c.oid::regclass::text AS name FROM pg_class c
        WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND c.relowner = foreigner.oid
      UNION ALL SELECT 'FUNCTION', p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proowner = foreigner.oid
    LOOP
      EXECUTE format('ALTER %s %s OWNER TO %I', thing.kind, thing.name, owner);
    END LOOP;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA postcommit FROM %1$I CASCADE; REVOKE ALL ON ALL SEQUENCES IN SCHEMA postcommit FROM %1$I CASCADE;
      REVOKE ALL ON ALL ROUTINES IN SCHEMA postcommit FROM %1$I CASCADE; REVOKE ALL ON SCHEMA postcommit FROM %1$I CASCADE', foreigner.rolname);
    FOR thing IN SELECT p.polname, p.polrelid::regclass AS name FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
        WHERE c.relnamespace = 'postcommit'::regnamespace AND foreigner.oid = ANY (p.polroles) LOOP
      EXECUTE format('DROP POLICY %I ON %s', thing.polname, thing.name);
    END LOOP;
    BEGIN
      -- roles.sql had granted CREATE. CONNECT, if it was granted, stays: logins may depend on it, and it gives no access to
      -- this schema.
      EXECUTE format('REVOKE CREATE ON DATABASE %I FROM %I', current_database(), foreigner.rolname);
    -- Only the database's owner can revoke this privilege.
    EXCEPTION WHEN insufficient_privilege THEN NULL;
    END;
  END LOOP;
END $$;
