-- Jobs: what an operator does to many deliveries at once; lists of one site; a batch that tells conflicts.

-- Retry, discard or cancel by filter, in slices, in the background.
CREATE TABLE postcommit.job (
  tenant      int NOT NULL,          -- 0: every tenant, asked for by operations
  id          uuid NOT NULL,
  kind        text NOT NULL CONSTRAINT known_kind CHECK (kind IN ('retry', 'discard', 'cancel')),
  filter      jsonb NOT NULL,
  asked_by    text NOT NULL,
  asked_at    timestamptz NOT NULL,  -- also the bound: what is parked, or enqueued, from then on is left alone
  total       bigint NOT NULL,       -- how many it was then; at least so many, where counting was given up
  is_exact    boolean NOT NULL,
  done        bigint NOT NULL DEFAULT 0,
  skipped     bigint NOT NULL DEFAULT 0,  -- somebody else had moved them
  pace        int NOT NULL CONSTRAINT pace_1_to_10000_a_second CHECK (pace BETWEEN 1 AND 10000),
  state       text NOT NULL DEFAULT 'queued' CONSTRAINT known_job_state CHECK (state IN ('queued', 'running', 'done', 'cancelled', 'failed')),
  position    text,                  -- where the next slice begins; moves in the transaction of the slice
  lease_token uuid,                  -- one process at a time
  lease_until timestamptz,
  next_at     timestamptz NOT NULL,  -- the pace: not before this
  failures    int NOT NULL DEFAULT 0,  -- in a row
  last_error  text,
  finished_at timestamptz,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX job_open ON postcommit.job (next_at) WHERE state IN ('queued', 'running');

-- Only what names a site is in here: enqueue pays for it where it is used.
CREATE INDEX notification_site ON postcommit.notification (tenant, (source ->> 'site'), id) WHERE source ->> 'site' IS NOT NULL;

-- enqueue_batch, and for a key that stands already whether it stands for other content. What the HTTP door calls, for many requests at once.
CREATE FUNCTION postcommit.accept(batch jsonb)
  RETURNS TABLE (place int, id uuid, duplicate boolean, conflict boolean) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
#variable_conflict use_column
DECLARE
  ids uuid[];
  repeated boolean[];
BEGIN
  SELECT array_agg(b.id ORDER BY b.place), array_agg(b.duplicate ORDER BY b.place) INTO ids, repeated FROM postcommit.enqueue_batch(batch) b;
  IF true <> ALL (repeated) THEN
    RETURN QUERY SELECT u.place::int, u.id, false, false FROM unnest(ids) WITH ORDINALITY u (id, place);
    RETURN;
  END IF;
  -- A new statement: it sees what the one above has written, and what it waited for.
  RETURN QUERY SELECT u.place::int, u.id, u.duplicate, u.duplicate AND NOT (SELECT k.content_hash = ANY (c.contents) FROM postcommit.idempotency k
      JOIN postcommit.tenant t ON t.id = k.tenant WHERE t.name = coalesce(i ->> 'tenant', 'default') AND k.key_hash = postcommit.hash(i ->> 'idempotency_key'))
    FROM unnest(ids, repeated) WITH ORDINALITY u (id, duplicate, place)
    CROSS JOIN LATERAL (SELECT batch -> (u.place::int - 1) AS i) AS given
    CROSS JOIN LATERAL (SELECT postcommit.fingerprints_of(r.event_type, coalesce(r.payload, '{}'), r.entity, coalesce(r.recipients, '[]'), coalesce(r.channels, '{}'), r.title, r.body,
        r.action_url, r.data, r.topic, r.schema_version) AS contents FROM jsonb_to_record(i) AS r (event_type text, payload jsonb, entity text, recipients jsonb,
        channels text[], title text, body text, action_url text, data jsonb, topic text, schema_version int)) AS c
    ORDER BY u.place;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postcommit FROM PUBLIC;
