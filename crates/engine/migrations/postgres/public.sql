-- PostgreSQL lets PUBLIC call a new function, and so does a dump that was restored without privileges. Nobody may call one of
-- ours until it is granted. Repeatable. A function with privileges of its own is left alone: somebody granted them.
DO $$
DECLARE thing record;
BEGIN
  FOR thing IN SELECT p.oid::regprocedure AS name FROM pg_proc p
      WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proacl IS NULL LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', thing.name);
  END LOOP;
END $$;
