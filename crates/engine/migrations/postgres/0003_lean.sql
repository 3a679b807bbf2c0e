-- Lean: what one enqueue costs the application's transaction.

-- The small functions below are single expressions (RETURN …): PostgreSQL puts them into the statement or expression that names them, so calling them costs nothing,
-- and their operators are bound here, whatever the caller's search_path. STABLE where what they call is no more than that: otherwise they would be called after all.

CREATE OR REPLACE FUNCTION postcommit.new_id() RETURNS uuid LANGUAGE sql VOLATILE
  -- UUIDv7: 48 bits of milliseconds over the random bits of a v4, whose version bits 0100 become 0111.
  RETURN encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
    PLACING substring(int8send((date_part('epoch', clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid;

CREATE OR REPLACE FUNCTION postcommit.hash(content text) RETURNS uuid LANGUAGE sql STABLE
  RETURN encode(substring(sha256(convert_to(content, 'UTF8')) FOR 16), 'hex')::uuid;

-- What makes two enqueues the same: what is said and to whom, digit for digit. Texts are quoted, NULL is not, JSON and arrays
-- tell their own end: no two contents give the same. Sorted by type, because format looks up how to print one only when it changes.
CREATE FUNCTION postcommit.content(event_type text, payload jsonb, entity text, recipients jsonb, channels text[], title text, body text, action_url text, data jsonb,
    topic text, schema_version int) RETURNS text LANGUAGE sql STABLE
  RETURN format('%L %L %L %L %L %L %s %s %s %s %s', event_type, entity, title, body, action_url, topic, payload, recipients, data, channels, schema_version);

-- 128 bits of it. Keys from before are recognised by what they were given then (postcommit.fingerprints_of).
CREATE FUNCTION postcommit.fingerprint(content text) RETURNS uuid LANGUAGE sql IMMUTABLE
  RETURN encode(int8send(hashtextextended(content, 0)) || int8send(hashtextextended(content, 1)), 'hex')::uuid;

-- Every fingerprint that this content may stand under: of now, of schema 2, of schema 1.
CREATE FUNCTION postcommit.fingerprints_of(event_type text, payload jsonb, entity text, recipients jsonb, channels text[], title text, body text, action_url text, data jsonb,
    topic text, schema_version int) RETURNS uuid[] LANGUAGE sql STABLE
  RETURN ARRAY[
    postcommit.fingerprint(postcommit.content(event_type, payload, entity, recipients, channels, title, body, action_url, data, topic, schema_version)),
    postcommit.fingerprint(ROW(event_type, payload::text, entity, recipients::text, channels, title, body, action_url, data::text, topic, schema_version)),
    postcommit.content_hash(event_type, payload, entity, recipients, channels, title, body, action_url, data, topic, schema_version)];

-- The short fields in one line, for plainly_kept.
CREATE FUNCTION postcommit.short_fields(event_type text, idempotency_key text, entity text, topic text, correlation_id text, title text, channels text[]) RETURNS text LANGUAGE sql STABLE
  RETURN concat_ws(E'\t', event_type, idempotency_key, entity, topic, correlation_id, title, channels);

-- True for what is far within every limit, which is nearly everything; otherwise limit_exceeded has to look closely. PL/pgSQL prepares an expression anew in every
-- transaction, all functions named in it, reached or not: limit_exceeded made 147,000 of the 591,000 instructions of one enqueue.
CREATE FUNCTION postcommit.plainly_kept(short_fields text, content text, payload jsonb, recipients jsonb, channels text[], action_url text, data jsonb, priority int,
    due_at timestamptz, expires_at timestamptz, source jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE
  RETURN action_url IS NULL AND data IS NULL AND source IS NULL
    -- None is empty or has a line break; channels are lower case, so that no NULL is among them.
    AND octet_length(short_fields) <= 255 AND short_fields ~ '^(?:[^\t\r\n]+\t)+\{[a-z0-9_.,-]*\}$' AND cardinality(channels) <= 32
    AND octet_length(content) <= 65536 AND NOT jsonb_path_exists(payload, '$.**{33}')
    AND jsonb_typeof(recipients) = 'array' AND jsonb_array_length(recipients) <= 1000 AND NOT jsonb_path_exists(recipients, '$.**{33}')
    AND priority BETWEEN 0 AND 9 AND expires_at > due_at;

-- Dispatchers that would hear the bell. Read by enqueue along with a row it writes anyway: calling ring for it took 28,000 instructions.
CREATE VIEW postcommit.asleep AS SELECT worker FROM postcommit.idle WHERE until > clock_timestamp();

CREATE OR REPLACE FUNCTION postcommit.ring(due timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF due <= clock_timestamp() AND EXISTS (SELECT FROM postcommit.asleep) THEN
    PERFORM pg_notify('postcommit_wake', '');
  END IF;
END $$;

CREATE OR REPLACE FUNCTION postcommit.enqueue(
    event_type text, payload jsonb, idempotency_key text, tenant text DEFAULT 'default', entity text DEFAULT NULL, recipients jsonb DEFAULT '[]',
    channels text[] DEFAULT '{}', title text DEFAULT NULL, body text DEFAULT NULL, action_url text DEFAULT NULL, data jsonb DEFAULT NULL,
    priority int DEFAULT 5, due_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL, source jsonb DEFAULT NULL,
    correlation_id text DEFAULT NULL, topic text DEFAULT NULL, schema_version int DEFAULT NULL, strict boolean DEFAULT false)
  RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  new_id uuid := postcommit.new_id();
  of_tenant int;
  content text;
  short_fields text;
  exceeded text;
  heard boolean;
BEGIN
  IF idempotency_key IS NULL THEN
    RAISE EXCEPTION 'postcommit: idempotency_key is missing; 1 to 255 characters are needed' USING ERRCODE = '23502';
  END IF;
  -- Absent and NULL mean the same, whoever calls.
  IF payload IS NULL OR tenant IS NULL OR recipients IS NULL OR channels IS NULL OR priority IS NULL THEN
    payload := coalesce(payload, '{}');
    tenant := coalesce(tenant, 'default');
    recipients := coalesce(recipients, '[]');
    channels := coalesce(channels, '{}');
    priority := coalesce(priority, 5);
  END IF;
  due_at := coalesce(due_at, now());
  expires_at := coalesce(expires_at, due_at + interval '30 days');
  content := postcommit.content(event_type, payload, entity, recipients, channels, title, body, action_url, data, topic, schema_version);

  INSERT INTO postcommit.idempotency AS k SELECT t.id, postcommit.hash(idempotency_key), new_id, postcommit.fingerprint(content)
    FROM postcommit.tenant t WHERE t.name = tenant ON CONFLICT DO NOTHING RETURNING k.tenant INTO of_tenant;
  IF of_tenant IS NULL THEN
    -- The key stands already, or the tenant is new.
    of_tenant := postcommit.tenant_id(tenant);
    INSERT INTO postcommit.idempotency VALUES (of_tenant, postcommit.hash(idempotency_key), new_id, postcommit.fingerprint(content)) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RETURN postcommit.settle_duplicate(of_tenant, tenant, idempotency_key, postcommit.fingerprints_of(event_type, payload, entity, recipients, channels, title, body,
        action_url, data, topic, schema_version), coalesce(strict, false), event_type, entity, source);
    END IF;
  END IF;

  short_fields := postcommit.short_fields(event_type, idempotency_key, entity, topic, correlation_id, title, channels);
  IF postcommit.plainly_kept(short_fields, content, payload, recipients, channels, action_url, data, priority, due_at, expires_at, source) IS NOT TRUE THEN
    exceeded := postcommit.limit_exceeded(event_type, payload, idempotency_key, entity, recipients, channels, title, body, action_url, data, priority, due_at, expires_at,
      source, correlation_id, topic);
    IF exceeded IS NOT NULL THEN
      PERFORM postcommit.refuse(exceeded);
    END IF;
  END IF;
  INSERT INTO postcommit.notification (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels,
      title, body, action_url, data, priority, due_at, expires_at, source, correlation_id)
    VALUES (of_tenant, new_id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels,
      title, body, action_url, data, priority, due_at, expires_at, source, correlation_id);
  INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at) VALUES (of_tenant, new_id, 0, 0, priority, due_at)
    RETURNING EXISTS (SELECT FROM postcommit.asleep) INTO heard;
  IF heard THEN
    PERFORM postcommit.ring(due_at);
  END IF;
  RETURN new_id;
END $$;

-- The same in sets: texts are made once for each, limits are looked at closely only where they are not plainly kept.
CREATE OR REPLACE FUNCTION postcommit.enqueue_batch(batch jsonb)
  RETURNS TABLE (place int, id uuid, duplicate boolean) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
#variable_conflict use_column
DECLARE
  known CONSTANT text[] := ARRAY['event_type', 'payload', 'idempotency_key', 'tenant', 'entity', 'recipients', 'channels', 'title', 'body', 'action_url', 'data', 'priority',
    'due_at', 'expires_at', 'source', 'correlation_id', 'topic', 'schema_version', 'strict'];
  unknown text;
  bad text;
  ids uuid[];
  fresh uuid[];
BEGIN
  IF jsonb_typeof(batch) IS DISTINCT FROM 'array' OR jsonb_array_length(batch) > 1000 THEN
    RAISE EXCEPTION 'postcommit: batch must be a JSON array of at most 1000 notifications' USING ERRCODE = '22023';
  END IF;
  SELECT CASE WHEN jsonb_typeof(item) <> 'object' THEN 'object' WHEN item ->> 'idempotency_key' IS NULL THEN 'key' ELSE 'field' END INTO bad FROM jsonb_array_elements(batch) item
    WHERE jsonb_typeof(item) <> 'object' OR item ->> 'idempotency_key' IS NULL OR item - known <> '{}' ORDER BY 1 DESC LIMIT 1;
  IF bad = 'object' THEN
    RAISE EXCEPTION 'postcommit: every entry of the batch must be an object' USING ERRCODE = '22023';
  ELSIF bad = 'key' THEN
    RAISE EXCEPTION 'postcommit: idempotency_key is missing in an entry of the batch; 1 to 255 characters are needed' USING ERRCODE = '23502';
  ELSIF bad = 'field' THEN
    SELECT key INTO unknown FROM jsonb_array_elements(batch) item, jsonb_object_keys(item) key WHERE key <> ALL (known) LIMIT 1;
    RAISE EXCEPTION 'postcommit: % is not a field of a notification', quote_literal(unknown) USING ERRCODE = '22023';
  END IF;

  WITH of_tenant AS MATERIALIZED (
    -- In one order for everybody: two batches that bring the same new tenants must not deadlock.
    SELECT t.name, postcommit.tenant_id(t.name) AS tenant FROM (SELECT DISTINCT coalesce(item ->> 'tenant', 'default') AS name FROM jsonb_array_elements(batch) item ORDER BY 1) t
  ), given AS MATERIALIZED (
    SELECT i.place::int, postcommit.new_id() AS id, t.tenant, postcommit.hash(i.idempotency_key) AS key_hash, i.event_type, coalesce(i.payload, '{}') AS payload, i.idempotency_key, i.entity,
      coalesce(i.recipients, '[]') AS recipients, coalesce(i.channels, '{}') AS channels, i.title, i.body, i.action_url, i.data, coalesce(i.priority, 5) AS priority,
      coalesce(i.due_at, now()) AS due, coalesce(i.expires_at, coalesce(i.due_at, now()) + interval '30 days') AS expires, i.source, i.correlation_id, i.topic, i.schema_version,
      postcommit.content(i.event_type, coalesce(i.payload, '{}'), i.entity, coalesce(i.recipients, '[]'), coalesce(i.channels, '{}'), i.title, i.body, i.action_url, i.data, i.topic,
        i.schema_version) AS content,
      postcommit.short_fields(i.event_type, i.idempotency_key, i.entity, i.topic, i.correlation_id, i.title, coalesce(i.channels, '{}')) AS short_fields
    FROM ROWS FROM (jsonb_to_recordset(batch) AS (event_type text, payload jsonb, idempotency_key text, tenant text, entity text, recipients jsonb,
      channels text[], title text, body text, action_url text, data jsonb, priority int, due_at timestamptz, expires_at timestamptz, source jsonb,
      correlation_id text, topic text, schema_version int, strict boolean)) WITH ORDINALITY
      AS i (event_type, payload, idempotency_key, tenant, entity, recipients, channels, title, body, action_url, data, priority, due_at, expires_at, source, correlation_id, topic, schema_version, strict, place)
    JOIN of_tenant t ON t.name = coalesce(i.tenant, 'default')
  ), keyed AS (
    -- Sorted by key: two batches that share keys in another order must not deadlock.
    INSERT INTO postcommit.idempotency AS k (tenant, key_hash, notification_id, content_hash)
      SELECT DISTINCT ON (tenant, key_hash) tenant, key_hash, id, postcommit.fingerprint(content) FROM given ORDER BY tenant, key_hash, place
      ON CONFLICT DO NOTHING RETURNING k.notification_id
  ), beyond AS MATERIALIZED (
    SELECT g.place, g.id, postcommit.limit_exceeded(event_type, payload, idempotency_key, entity, recipients, channels, title, body, action_url, data, priority, due, expires, source,
      correlation_id, topic) AS exceeded FROM given g JOIN keyed ON notification_id = g.id
    WHERE postcommit.plainly_kept(short_fields, content, payload, recipients, channels, action_url, data, priority, due, expires, source) IS NOT TRUE
  ), noted AS (
    INSERT INTO postcommit.notification AS n (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels,
        title, body, action_url, data, priority, due_at, expires_at, source, correlation_id)
      SELECT tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels,
        title, body, action_url, data, priority, due, expires, source, correlation_id FROM given JOIN keyed ON notification_id = id
      WHERE NOT EXISTS (SELECT FROM beyond WHERE exceeded IS NOT NULL) RETURNING n.tenant, n.id, n.priority, n.due_at
  ), queued AS (
    INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at) SELECT tenant, id, 0, 0, priority, due_at FROM noted
  ), rung AS MATERIALIZED (SELECT postcommit.ring(min(due)) FROM given)
  SELECT array_agg(given.id ORDER BY given.place), (SELECT array_agg(notification_id) FROM keyed), (SELECT exceeded FROM beyond WHERE exceeded IS NOT NULL ORDER BY place LIMIT 1)
    INTO ids, fresh, bad FROM given, rung;
  IF bad IS NOT NULL THEN
    PERFORM postcommit.refuse(bad);
  END IF;

  IF cardinality(fresh) = cardinality(ids) THEN
    RETURN QUERY SELECT u.place::int, u.id, false FROM unnest(ids) WITH ORDINALITY u (id, place);
    RETURN;
  END IF;
  -- Some keys stood already. Only a new statement can see what the other transaction has committed meanwhile.
  RETURN QUERY SELECT u.place::int, coalesce(f.id, postcommit.settle_duplicate(postcommit.tenant_id(coalesce(i ->> 'tenant', 'default')), coalesce(i ->> 'tenant', 'default'),
      i ->> 'idempotency_key', c.contents, coalesce((i ->> 'strict')::boolean, false), i ->> 'event_type', i ->> 'entity', i -> 'source')), f.id IS NULL
    FROM unnest(ids) WITH ORDINALITY u (id, place) LEFT JOIN unnest(fresh) f (id) USING (id)
    CROSS JOIN LATERAL (SELECT batch -> (u.place::int - 1) AS i) AS given
    CROSS JOIN LATERAL (SELECT postcommit.fingerprints_of(r.event_type, coalesce(r.payload, '{}'), r.entity, coalesce(r.recipients, '[]'), coalesce(r.channels, '{}'), r.title, r.body,
        r.action_url, r.data, r.topic, r.schema_version) AS contents FROM jsonb_to_record(i) AS r (event_type text, payload jsonb, entity text, recipients jsonb,
        channels text[], title text, body text, action_url text, data jsonb, topic text, schema_version int)) AS c
    ORDER BY u.place;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postcommit FROM PUBLIC;
