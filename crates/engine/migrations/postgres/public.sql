-- PostgreSQL lets PUBLIC call a new function. The same holds for functions of a dump that was restored without privileges.
-- This script revokes that privilege, so that each function needs a grant. Repeatable. A function that already has explicit
-- privileges is not changed, because they were granted on purpose.
DO $$
DECLARE thing record;
BEGIN
  FOR thing IN SELECT p.oid::regprocedure AS name FROM pg_proc p
      WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proacl IS NULL LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', thing.name);
  END LOOP;
END $$;
