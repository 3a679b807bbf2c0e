-- Enqueues a batch like enqueue_batch. For a key that was used before, it also returns whether the content differs. The HTTP
-- API calls it once for many concurrent requests.
CREATE OR REPLACE FUNCTION postcommit.accept(batch jsonb)
  RETURNS TABLE (place int, id uuid, duplicate boolean, conflict boolean)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
#variable_conflict use_column
DECLARE
  ids uuid[];
  repeated boolean[];
BEGIN
  SELECT array_agg(b.id ORDER BY b.place), array_agg(b.duplicate ORDER BY b.place) INTO ids, repeated
    FROM postcommit.enqueue_batch(batch) b;
  IF true <> ALL (repeated) THEN
    RETURN QUERY SELECT u.place::int, u.id, false, false FROM unnest(ids) WITH ORDINALITY u (id, place);
    RETURN;
  END IF;
  -- This is a new statement, so it sees the rows of the statement above, and the commits for which that statement waited.
  RETURN QUERY
    SELECT u.place::int, u.id, u.duplicate, u.duplicate AND NOT (
        SELECT k.content_hash = postcommit.fingerprint_of(i)
        FROM postcommit.idempotency k JOIN postcommit.tenant t ON t.id = k.tenant
        WHERE t.name = coalesce(i ->> 'tenant', 'default') AND k.key_hash = postcommit.hash(i ->> 'idempotency_key'))
    FROM unnest(ids, repeated) WITH ORDINALITY u (id, duplicate, place)
    CROSS JOIN LATERAL (SELECT batch -> (u.place::int - 1) AS i) AS given
    ORDER BY u.place;
END $$;
