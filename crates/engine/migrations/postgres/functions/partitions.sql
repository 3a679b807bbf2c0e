-- Creates the monthly partitions of the three big tables far ahead, and moves rows from the default partition into their
-- partitions. USING heap: a partition must have the access method of its parent, regardless of default_table_access_method.
CREATE OR REPLACE FUNCTION postcommit.make_partitions(months_ahead int DEFAULT 24) RETURNS int
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
DECLARE
  month timestamp;
  parent text; child text; key text; columns text; low uuid; high uuid; made int := 0;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext('postcommit.make_partitions'));
  FOR month IN SELECT generate_series(date_trunc('month', now() AT TIME ZONE 'UTC'),
      now() AT TIME ZONE 'UTC' + make_interval(months => months_ahead), interval '1 month') LOOP
    low := postcommit.id_at(month AT TIME ZONE 'UTC');
    high := postcommit.id_at((month + interval '1 month') AT TIME ZONE 'UTC');
    FOREACH parent IN ARRAY ARRAY['notification', 'delivery_ledger', 'logged_attempt'] LOOP
      child := format('%s_%s', parent, to_char(month, 'YYYY_MM'));
      CONTINUE WHEN to_regclass(format('postcommit.%I', child)) IS NOT NULL;
      key := CASE parent WHEN 'notification' THEN 'id' ELSE 'notification_id' END;
      EXECUTE format('CREATE TABLE postcommit.%I (LIKE postcommit.%I INCLUDING ALL) USING heap', child, parent);
      -- A generated column is left out, because it accepts no value.
      SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) INTO columns FROM pg_attribute a
        WHERE a.attrelid = format('postcommit.%I', parent)::regclass AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attgenerated = '';
      EXECUTE format('WITH moved AS (DELETE FROM postcommit.%I WHERE %I >= %L AND %I < %L RETURNING *)
        INSERT INTO postcommit.%I (%s) SELECT %s FROM moved',
        parent || '_default', key, low, key, high, child, columns, columns);
      EXECUTE format('ALTER TABLE postcommit.%I ATTACH PARTITION postcommit.%I FOR VALUES FROM (%L) TO (%L)',
        parent, child, low, high);
      made := made + 1;
    END LOOP;
  END LOOP;
  RETURN made;
END $$;
