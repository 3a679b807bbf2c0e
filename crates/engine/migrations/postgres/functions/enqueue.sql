-- The functions with which an application enqueues, one notification or a batch. docs/decisions/0018 has the cost of one
-- enqueue.

-- The content that makes two enqueues equal, as one string. Strings are quoted, NULL is not, and JSON and arrays mark their
-- own end, so two different contents never give the same string. The arguments are sorted by type, because format looks up
-- the output function of a type only when the type changes.
CREATE OR REPLACE FUNCTION postcommit.content(event_type text, payload jsonb, entity text, recipients jsonb, channels text[],
    title text, body text, action_url text, data jsonb, topic text, schema_version int) RETURNS text LANGUAGE sql STABLE
  RETURN format('%L %L %L %L %L %L %s %s %s %s %s',
    event_type, entity, title, body, action_url, topic, payload, recipients, data, channels, schema_version);

-- A hash of the content, 128 bits.
CREATE OR REPLACE FUNCTION postcommit.fingerprint(content text) RETURNS uuid LANGUAGE sql IMMUTABLE
  RETURN encode(int8send(hashtextextended(content, 0)) || int8send(hashtextextended(content, 1)), 'hex')::uuid;

-- The fingerprint of a notification that is given as JSON, as an item of a batch.
CREATE OR REPLACE FUNCTION postcommit.fingerprint_of(item jsonb) RETURNS uuid LANGUAGE sql STABLE
  RETURN (SELECT postcommit.fingerprint(postcommit.content(r.event_type, coalesce(r.payload, '{}'), r.entity,
      coalesce(r.recipients, '[]'), array_replace(coalesce(r.channels, '{}'), 'in-app', 'in_app'), r.title, r.body,
      r.action_url, r.data, r.topic, r.schema_version))
    FROM jsonb_to_record(item) AS r (event_type text, payload jsonb, entity text, recipients jsonb, channels text[], title text,
      body text, action_url text, data jsonb, topic text, schema_version int));

-- Handles a key that was used before: returns the first id and records different content, or raises an error under strict.
CREATE OR REPLACE FUNCTION postcommit.settle_duplicate(of_tenant int, tenant_name text, key text, new_content uuid,
    is_strict boolean, new_event_type text, new_entity text, new_source jsonb) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE first record;
BEGIN
  SELECT i.notification_id, i.content_hash INTO first
    FROM postcommit.idempotency i WHERE i.tenant = of_tenant AND i.key_hash = postcommit.hash(key);
  IF first IS NULL THEN
    -- Another transaction, which this transaction's snapshot cannot see, holds the key. Or the key was purged just now.
    RAISE EXCEPTION 'postcommit: idempotency_key % is being enqueued by another transaction', quote_literal(key)
      USING ERRCODE = '40001', HINT = 'Repeat the transaction.';
  END IF;
  IF first.content_hash <> new_content THEN
    IF is_strict THEN
      RAISE EXCEPTION 'postcommit: idempotency_key % of tenant % was used with other content by notification %',
        quote_literal(key), quote_literal(tenant_name), first.notification_id
        USING ERRCODE = '23505', DETAIL = format('The key stands for notification %s', first.notification_id);
    END IF;
    INSERT INTO postcommit.key_conflict (tenant, notification_id, event_type, entity, source)
      VALUES (of_tenant, first.notification_id, new_event_type, new_entity, new_source);
  END IF;
  RETURN first.notification_id;
END $$;

-- Wakes idle dispatchers. NOTIFY takes a lock that all commits share, so it is sent only when a dispatcher is idle and the
-- notification is due. A transaction that has sent NOTIFY cannot be prepared for a two-phase commit. With SET
-- postcommit.doorbell = off, an enqueue sends no NOTIFY, and dispatchers find the notification by polling. The setting is
-- read last, because most enqueues find no idle dispatcher.
CREATE OR REPLACE FUNCTION postcommit.ring(due timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF due <= clock_timestamp() AND EXISTS (SELECT FROM postcommit.asleep)
      AND coalesce(lower(current_setting('postcommit.doorbell', true)), '') NOT IN ('off', 'false', '0', 'no') THEN
    PERFORM pg_notify('postcommit_wake', '');
  END IF;
END $$;

CREATE OR REPLACE FUNCTION postcommit.enqueue(
    event_type text, payload jsonb, idempotency_key text, tenant text DEFAULT 'default', entity text DEFAULT NULL,
    recipients jsonb DEFAULT '[]', channels text[] DEFAULT '{}', title text DEFAULT NULL, body text DEFAULT NULL,
    action_url text DEFAULT NULL, data jsonb DEFAULT NULL, priority int DEFAULT 5, due_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, source jsonb DEFAULT NULL, correlation_id text DEFAULT NULL, topic text DEFAULT NULL,
    schema_version int DEFAULT NULL, strict boolean DEFAULT false)
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
  -- A missing value and NULL mean the same for every caller, and so do in-app and in_app.
  IF payload IS NULL OR tenant IS NULL OR recipients IS NULL OR channels IS NULL OR priority IS NULL
      OR 'in-app' = ANY (channels) THEN
    payload := coalesce(payload, '{}');
    tenant := coalesce(tenant, 'default');
    recipients := coalesce(recipients, '[]');
    channels := array_replace(coalesce(channels, '{}'), 'in-app', 'in_app');
    priority := coalesce(priority, 5);
  END IF;
  due_at := coalesce(due_at, now());
  -- 720 hours instead of 30 days, because days can be longer or shorter in the session's time zone.
  expires_at := coalesce(expires_at, due_at + interval '720 hours');
  content := postcommit.content(event_type, payload, entity, recipients, channels, title, body, action_url, data, topic,
    schema_version);

  INSERT INTO postcommit.idempotency AS k
    SELECT t.id, postcommit.hash(idempotency_key), new_id, postcommit.fingerprint(content)
    FROM postcommit.tenant t WHERE t.name = tenant
    ON CONFLICT DO NOTHING RETURNING k.tenant INTO of_tenant;
  IF of_tenant IS NULL THEN
    -- The key was used before, or the tenant is new.
    of_tenant := postcommit.tenant_id(tenant);
    INSERT INTO postcommit.idempotency
      VALUES (of_tenant, postcommit.hash(idempotency_key), new_id, postcommit.fingerprint(content)) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RETURN postcommit.settle_duplicate(of_tenant, tenant, idempotency_key, postcommit.fingerprint(content),
        coalesce(strict, false), event_type, entity, source);
    END IF;
  END IF;

  short_fields := postcommit.short_fields(event_type, idempotency_key, entity, topic, correlation_id, title, channels);
  IF postcommit.plainly_kept(short_fields, content, payload, recipients, channels, action_url, data, priority, due_at, expires_at,
      source) IS NOT TRUE THEN
    exceeded := postcommit.limit_exceeded(event_type, payload, idempotency_key, entity, recipients, channels, title, body,
      action_url, data, priority, due_at, expires_at, source, correlation_id, topic);
    IF exceeded IS NOT NULL THEN
      PERFORM postcommit.refuse(exceeded);
    END IF;
  END IF;
  INSERT INTO postcommit.notification (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload,
      recipients, channels, title, body, action_url, data, priority, due_at, expires_at, source, correlation_id)
    VALUES (of_tenant, new_id, event_type, entity, topic, schema_version, idempotency_key, payload,
      recipients, channels, title, body, action_url, data, priority, due_at, expires_at, source, correlation_id);
  -- Idle dispatchers are read in the same statement that writes the row. Calling ring for every row took 28,000
  -- instructions.
  INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at, first_due_at)
    VALUES (of_tenant, new_id, 0, -of_tenant, priority, due_at, greatest(due_at, now()))
    RETURNING EXISTS (SELECT FROM postcommit.asleep) INTO heard;
  IF heard THEN
    PERFORM postcommit.ring(due_at);
  END IF;
  RETURN new_id;
END $$;

-- Enqueues a whole batch, with a result for each item. The string of the content is built once for each item. The exact
-- limits are checked only for items that are not plainly within them.
CREATE OR REPLACE FUNCTION postcommit.enqueue_batch(batch jsonb) RETURNS TABLE (place int, id uuid, duplicate boolean)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
#variable_conflict use_column
DECLARE
  known CONSTANT text[] := ARRAY['event_type', 'payload', 'idempotency_key', 'tenant', 'entity', 'recipients', 'channels',
    'title', 'body', 'action_url', 'data', 'priority', 'due_at', 'expires_at', 'source', 'correlation_id', 'topic',
    'schema_version', 'strict'];
  unknown text;
  bad text;
  ids uuid[];
  fresh uuid[];
BEGIN
  IF jsonb_typeof(batch) IS DISTINCT FROM 'array' OR jsonb_array_length(batch) > 1000 THEN
    RAISE EXCEPTION 'postcommit: batch must be a JSON array of at most 1000 notifications' USING ERRCODE = '22023';
  END IF;
  SELECT CASE WHEN jsonb_typeof(item) <> 'object' THEN 'object' WHEN item ->> 'idempotency_key' IS NULL THEN 'key'
      ELSE 'field' END INTO bad
    FROM jsonb_array_elements(batch) item
    WHERE jsonb_typeof(item) <> 'object' OR item ->> 'idempotency_key' IS NULL OR item - known <> '{}'
    ORDER BY 1 DESC LIMIT 1;
  IF bad = 'object' THEN
    RAISE EXCEPTION 'postcommit: every entry of the batch must be an object' USING ERRCODE = '22023';
  ELSIF bad = 'key' THEN
    RAISE EXCEPTION 'postcommit: idempotency_key is missing in an entry of the batch; 1 to 255 characters are needed'
      USING ERRCODE = '23502';
  ELSIF bad = 'field' THEN
    SELECT key INTO unknown FROM jsonb_array_elements(batch) item, jsonb_object_keys(item) key
      WHERE key <> ALL (known) LIMIT 1;
    RAISE EXCEPTION 'postcommit: % is not a field of a notification', quote_literal(unknown) USING ERRCODE = '22023';
  END IF;

  WITH of_tenant AS MATERIALIZED (
    -- The order is the same for every caller, so that two batches with the same new tenants do not deadlock.
    SELECT t.name, postcommit.tenant_id(t.name) AS tenant
    FROM (SELECT DISTINCT coalesce(item ->> 'tenant', 'default') AS name FROM jsonb_array_elements(batch) item ORDER BY 1) t
  ), given AS MATERIALIZED (
    -- The subquery reads the clock once for all rows.
    SELECT i.place::int, t.tenant, postcommit.hash(i.idempotency_key) AS key_hash, i.event_type,
      postcommit.new_id_in_batch((SELECT (date_part('epoch', clock_timestamp()) * 256000)::bigint) + i.place) AS id,
      coalesce(i.payload, '{}') AS payload, i.idempotency_key, i.entity, coalesce(i.recipients, '[]') AS recipients,
      c.channels, i.title, i.body, i.action_url, i.data, coalesce(i.priority, 5) AS priority,
      coalesce(i.due_at, now()) AS due,
      coalesce(i.expires_at, coalesce(i.due_at, now()) + interval '720 hours') AS expires,
      i.source, i.correlation_id, i.topic, i.schema_version,
      postcommit.content(i.event_type, coalesce(i.payload, '{}'), i.entity, coalesce(i.recipients, '[]'),
        c.channels, i.title, i.body, i.action_url, i.data, i.topic, i.schema_version) AS content,
      postcommit.short_fields(i.event_type, i.idempotency_key, i.entity, i.topic, i.correlation_id, i.title,
        c.channels) AS short_fields
    FROM ROWS FROM (jsonb_to_recordset(batch) AS (event_type text, payload jsonb, idempotency_key text, tenant text, entity text,
      recipients jsonb, channels text[], title text, body text, action_url text, data jsonb, priority int, due_at timestamptz,
      expires_at timestamptz, source jsonb, correlation_id text, topic text, schema_version int, strict boolean))
      WITH ORDINALITY AS i (event_type, payload, idempotency_key, tenant, entity, recipients, channels, title, body, action_url,
        data, priority, due_at, expires_at, source, correlation_id, topic, schema_version, strict, place)
    CROSS JOIN LATERAL (SELECT array_replace(coalesce(i.channels, '{}'), 'in-app', 'in_app') AS channels) c
    JOIN of_tenant t ON t.name = coalesce(i.tenant, 'default')
  ), keyed AS (
    -- The rows are sorted by key, so that two batches with common keys do not deadlock.
    INSERT INTO postcommit.idempotency AS k (tenant, key_hash, notification_id, content_hash)
      SELECT DISTINCT ON (tenant, key_hash) tenant, key_hash, id, postcommit.fingerprint(content)
      FROM given ORDER BY tenant, key_hash, place
      ON CONFLICT DO NOTHING RETURNING k.notification_id
  ), beyond AS MATERIALIZED (
    SELECT g.place, g.id, postcommit.limit_exceeded(event_type, payload, idempotency_key, entity, recipients, channels, title,
      body, action_url, data, priority, due, expires, source, correlation_id, topic) AS exceeded
    FROM given g JOIN keyed ON notification_id = g.id
    WHERE postcommit.plainly_kept(short_fields, content, payload, recipients, channels, action_url, data, priority, due, expires,
      source) IS NOT TRUE
  ), noted AS (
    INSERT INTO postcommit.notification AS n (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload,
        recipients, channels, title, body, action_url, data, priority, due_at, expires_at, source, correlation_id)
      SELECT tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload,
        recipients, channels, title, body, action_url, data, priority, due, expires, source, correlation_id
      FROM given JOIN keyed ON notification_id = id
      WHERE NOT EXISTS (SELECT FROM beyond WHERE exceeded IS NOT NULL)
      RETURNING n.tenant, n.id, n.priority, n.due_at
  ), queued AS (
    INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at, first_due_at)
      SELECT tenant, id, 0, -tenant, priority, due_at, greatest(due_at, now()) FROM noted
  ), rung AS MATERIALIZED (SELECT postcommit.ring(min(due)) FROM given)
  SELECT array_agg(given.id ORDER BY given.place), (SELECT array_agg(notification_id) FROM keyed),
      (SELECT exceeded FROM beyond WHERE exceeded IS NOT NULL ORDER BY place LIMIT 1)
    INTO ids, fresh, bad FROM given, rung;
  IF bad IS NOT NULL THEN
    PERFORM postcommit.refuse(bad);
  END IF;

  IF cardinality(fresh) = cardinality(ids) THEN
    RETURN QUERY SELECT u.place::int, u.id, false FROM unnest(ids) WITH ORDINALITY u (id, place);
    RETURN;
  END IF;
  -- Some keys were used before. Only a new statement sees the rows that concurrent transactions have committed
  -- meanwhile.
  RETURN QUERY
    SELECT u.place::int, coalesce(f.id, postcommit.settle_duplicate(
        postcommit.tenant_id(coalesce(i ->> 'tenant', 'default')), coalesce(i ->> 'tenant', 'default'),
        i ->> 'idempotency_key', postcommit.fingerprint_of(i), coalesce((i ->> 'strict')::boolean, false), i ->> 'event_type',
        i ->> 'entity', i -> 'source')), f.id IS NULL
    FROM unnest(ids) WITH ORDINALITY u (id, place) LEFT JOIN unnest(fresh) f (id) USING (id)
    CROSS JOIN LATERAL (SELECT batch -> (u.place::int - 1) AS i) AS given
    ORDER BY u.place;
END $$;

-- Enqueues a batch and returns only the ids.
CREATE OR REPLACE FUNCTION postcommit.enqueue_many(batch jsonb) RETURNS TABLE (id uuid)
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
  SELECT b.id FROM postcommit.enqueue_batch(batch) b ORDER BY b.place
$$;
