-- The core: what an application enqueues, the live queue, the ledger of outcomes, the attempts.
-- The schema is a public contract; docs/sql.md describes it. Limits are constraints whose names say field and limit.

CREATE TABLE postcommit.tenant (
  id         int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text NOT NULL CONSTRAINT tenant_1_to_63_letters_digits_or_marks CHECK (name ~ '^[A-Za-z0-9_.-]{1,63}$'),
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT tenant_name UNIQUE (name)
);
INSERT INTO postcommit.tenant (name) VALUES ('default');

-- The intent: written once in the application's transaction, never changed.
-- Partitioned by id (UUIDv7: time comes first), so that purge is DROP and history costs the hot path nothing.
CREATE TABLE postcommit.notification (
  tenant          int NOT NULL,
  id              uuid NOT NULL,
  event_type      text NOT NULL
    CONSTRAINT event_type_1_to_255_characters CHECK (length(event_type) BETWEEN 1 AND 255)
    CONSTRAINT event_type_without_line_breaks CHECK (event_type !~ '[\r\n]'),
  entity          text
    CONSTRAINT entity_1_to_255_characters CHECK (length(entity) BETWEEN 1 AND 255)
    CONSTRAINT entity_without_line_breaks CHECK (entity !~ '[\r\n]'),
  topic           text
    CONSTRAINT topic_1_to_255_characters CHECK (length(topic) BETWEEN 1 AND 255)
    CONSTRAINT topic_without_line_breaks CHECK (topic !~ '[\r\n]'),
  schema_version  int,
  idempotency_key text NOT NULL
    CONSTRAINT idempotency_key_1_to_255_characters CHECK (length(idempotency_key) BETWEEN 1 AND 255)
    CONSTRAINT idempotency_key_without_line_breaks CHECK (idempotency_key !~ '[\r\n]'),
  payload         jsonb NOT NULL
    CONSTRAINT payload_at_most_262144_bytes CHECK (octet_length(payload::text) <= 262144)
    -- Counting brackets is cheap and rules out nearly everything before the path walks the tree.
    CONSTRAINT payload_at_most_32_levels_deep CHECK (
      length(payload::text) - length(translate(payload::text, '[{', '')) <= 32 OR NOT jsonb_path_exists(payload, '$.**{33}')),
  recipients      jsonb NOT NULL
    CONSTRAINT recipients_is_an_array_of_at_most_1000 CHECK (jsonb_typeof(recipients) = 'array' AND jsonb_array_length(recipients) <= 1000)
    CONSTRAINT recipients_at_most_2097152_bytes CHECK (octet_length(recipients::text) <= 2097152)
    CONSTRAINT recipients_at_most_32_levels_deep CHECK (NOT jsonb_path_exists(recipients, '$.**{33}')),
  channels        text[] NOT NULL
    CONSTRAINT channels_at_most_32 CHECK (cardinality(channels) <= 32)
    CONSTRAINT channels_is_a_plain_list CHECK (coalesce(array_ndims(channels), 1) = 1)
    CONSTRAINT channels_of_letters_digits_or_marks CHECK (array_to_string(channels, ',', ' ') ~ '^[A-Za-z0-9_.,-]*$'),
  title           text
    CONSTRAINT title_at_most_998_bytes CHECK (octet_length(title) <= 998)
    CONSTRAINT title_without_line_breaks CHECK (title !~ '[\r\n]'),
  body            text CONSTRAINT body_at_most_262144_bytes CHECK (octet_length(body) <= 262144),
  action_url      text
    CONSTRAINT action_url_at_most_2048_bytes CHECK (octet_length(action_url) <= 2048)
    CONSTRAINT action_url_is_http_https_mailto_or_tel CHECK (action_url ~* '^(https?://[^/?#@\s\\]+([/?#][^\s\\]*)?|mailto:[^\s\\]+|tel:[^\s\\]+)$'),
  data            jsonb
    CONSTRAINT data_is_an_object_by_channel CHECK (jsonb_typeof(data) = 'object')
    CONSTRAINT data_at_most_65536_bytes CHECK (octet_length(data::text) <= 65536)
    CONSTRAINT data_at_most_32_levels_deep CHECK (NOT jsonb_path_exists(data, '$.**{33}')),
  priority        smallint NOT NULL CONSTRAINT priority_0_to_9 CHECK (priority BETWEEN 0 AND 9),
  due_at          timestamptz NOT NULL,
  expires_at      timestamptz NOT NULL,
  source          jsonb
    CONSTRAINT source_is_an_object CHECK (jsonb_typeof(source) = 'object')
    CONSTRAINT source_at_most_4096_bytes CHECK (octet_length(source::text) <= 4096)
    CONSTRAINT source_at_most_32_levels_deep CHECK (NOT jsonb_path_exists(source, '$.**{33}')),
  correlation_id  text
    CONSTRAINT correlation_id_1_to_255_characters CHECK (length(correlation_id) BETWEEN 1 AND 255)
    CONSTRAINT correlation_id_without_line_breaks CHECK (correlation_id !~ '[\r\n]'),
  created_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, id),
  CONSTRAINT expires_at_after_due_at CHECK (expires_at > due_at)
) PARTITION BY RANGE (id);
CREATE INDEX notification_entity ON postcommit.notification (tenant, entity, id) WHERE entity IS NOT NULL;

-- Live work only. n = 0 is the notification's own row until it is expanded; lane 0 is "not routed yet".
-- A claim writes lease columns alone, none of them indexed, so it stays a HOT update: hence the room on each page.
CREATE TABLE postcommit.delivery_queue (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,
  lane            int NOT NULL,
  priority        smallint NOT NULL,
  due_at          timestamptz NOT NULL,  -- the only clock: scheduled, ready and backing off differ in nothing else
  lease_token     uuid,                  -- random; fences intent, renewal and settle
  lease_until     timestamptz,
  intent          uuid,                  -- the token under which an at_most_once send was announced
  leased_at       timestamptz,           -- when the present lease began
  lost_since      timestamptz,           -- when the lease began that the present claim found run out
  losses          smallint NOT NULL DEFAULT 0,     -- leases that ran out, in this round
  attempts        smallint NOT NULL DEFAULT 0,     -- in this round; an operator's retry begins a new one
  seq             smallint NOT NULL DEFAULT 0,     -- attempts ever made; numbers the rows of attempt
  first_try_at    timestamptz,                     -- when the provider may first have seen the key, in this round
  unclear         boolean NOT NULL DEFAULT false,  -- some attempt of this round may have arrived without our knowing
  channel         text,
  target          text,
  code            text,                  -- of the last attempt, if it failed
  detail          text,
  PRIMARY KEY (tenant, notification_id, n)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- No id in here: a planner misled by statistics could otherwise serve lookups by id from this index.
CREATE INDEX delivery_queue_claim ON postcommit.delivery_queue (lane, priority, due_at);

-- Finished work. The key is the proof of one outcome: a delivery is in the queue or in here, never in both.
CREATE TABLE postcommit.delivery_ledger (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,
  lane            int NOT NULL,
  channel         text,
  target          text,
  state           text NOT NULL CONSTRAINT known_state CHECK (state IN ('sent', 'delivered', 'parked', 'discarded', 'cancelled', 'expired', 'skipped')),
  reason          text CONSTRAINT known_reason CHECK (reason IN ('rejected', 'exhausted', 'outcome_unknown', 'config')),
  code            text,
  detail          text,
  attempts        smallint NOT NULL,
  seq             smallint NOT NULL,
  unclear         boolean NOT NULL DEFAULT false,  -- it may have arrived without our knowing
  provider_ref    text,
  sent_at         timestamptz,
  finished_at     timestamptz NOT NULL,
  PRIMARY KEY (tenant, notification_id, n),
  CONSTRAINT parked_has_a_reason CHECK ((state = 'parked') <= (reason IS NOT NULL))
) PARTITION BY RANGE (notification_id);
CREATE INDEX delivery_ledger_parked ON postcommit.delivery_ledger (tenant, notification_id) WHERE state = 'parked';

-- Every try, append-only.
CREATE TABLE postcommit.attempt (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,
  seq             smallint NOT NULL,
  at              timestamptz NOT NULL,
  provider        text,
  outcome         text NOT NULL,
  code            text,
  detail          text,
  latency_ms      int NOT NULL,
  provider_ref    text,
  excerpt         text,
  token           uuid NOT NULL,
  PRIMARY KEY (tenant, notification_id, n, seq)
) PARTITION BY RANGE (notification_id);

-- Unpartitioned on purpose: uniqueness over all time. 128-bit hashes keep it a quarter of the size of the keys.
CREATE TABLE postcommit.idempotency (
  tenant          int NOT NULL,
  key_hash        uuid NOT NULL,
  notification_id uuid NOT NULL,
  content_hash    uuid NOT NULL,
  PRIMARY KEY (tenant, key_hash)
);

-- The same key with other content: not sent, noted here.
CREATE TABLE postcommit.key_conflict (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,  -- the one that holds the key
  event_type      text NOT NULL,  -- of the one that was not enqueued
  entity          text,
  source          jsonb,
  noted_at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX key_conflict_notification ON postcommit.key_conflict (tenant, notification_id);

-- A cancel that met a leased row cannot touch it (settle would wait for the application's commit): it leaves word here.
CREATE TABLE postcommit.cancel_request (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,  -- 0: it was not expanded yet, so all of it
  asked_at        timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, notification_id, n)
);

-- A result that came after its lease had gone to someone else. It changed nothing; it is evidence.
CREATE TABLE postcommit.stale_settle (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,
  token           uuid NOT NULL,
  outcome         text NOT NULL,
  code            text,
  provider_ref    text,
  at              timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A configured account of a driver on a channel. Its id is its lane.
CREATE TABLE postcommit.provider (
  tenant       int NOT NULL,
  id           int GENERATED ALWAYS AS IDENTITY,
  name         text NOT NULL,
  channel      text NOT NULL,             -- '*' serves every channel
  driver       text NOT NULL,
  settings     jsonb NOT NULL,            -- validated by the driver
  secrets      bytea,                     -- encrypted; see docs/decisions/0005
  guarantee    text NOT NULL CONSTRAINT known_guarantee CHECK (guarantee IN ('idempotent', 'at_most_once', 'at_least_once')),
  guarantee_since timestamptz NOT NULL DEFAULT '1970-01-01 00:00:00Z',  -- when it was last changed
  policy       jsonb NOT NULL,
  concurrency  int NOT NULL,
  timeout_ms   int NOT NULL,
  is_default   boolean NOT NULL,
  enabled      boolean NOT NULL DEFAULT true,
  paused       text,                      -- why, when the lane is paused
  not_before   timestamptz,               -- a provider's Retry-After holds the whole lane
  revision     int NOT NULL DEFAULT 1,
  created_at   timestamptz NOT NULL DEFAULT now(),
  updated_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, id),
  CONSTRAINT provider_name UNIQUE (tenant, name),
  CONSTRAINT provider_lane UNIQUE (id)
);
CREATE UNIQUE INDEX provider_default ON postcommit.provider (tenant, channel) WHERE is_default;

-- A dispatcher that found nothing says so here; enqueue rings the bell only when somebody would hear it.
CREATE UNLOGGED TABLE postcommit.idle (
  worker uuid PRIMARY KEY,
  until  timestamptz NOT NULL
) WITH (fillfactor = 50);

-- When each background duty last ran, so that many processes do it once.
CREATE TABLE postcommit.duty (
  name   text PRIMARY KEY,
  ran_at timestamptz NOT NULL
);

CREATE FUNCTION postcommit.new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
  -- UUIDv7: 48 bits of milliseconds over the random bits of a v4, whose version bits 0100 become 0111.
  SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;

CREATE FUNCTION postcommit.id_at(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

CREATE FUNCTION postcommit.hash(content text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT encode(substring(sha256(convert_to(content, 'UTF8')) FOR 16), 'hex')::uuid
$$;

-- What makes two enqueues the same: what is said and to whom. When, how urgent and from where may differ.
CREATE FUNCTION postcommit.content_hash(event_type text, payload jsonb, entity text, recipients jsonb, channels text[], title text,
    body text, action_url text, data jsonb, topic text, schema_version int) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT postcommit.hash(jsonb_build_array(event_type, payload, entity, recipients, channels, title, body, action_url, data, topic, schema_version)::text)
$$;

CREATE FUNCTION postcommit.tenant_id(tenant_name text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE found int;
BEGIN
  SELECT t.id INTO found FROM postcommit.tenant t WHERE t.name = tenant_name;
  IF found IS NULL THEN
    INSERT INTO postcommit.tenant AS t (name) VALUES (tenant_name) ON CONFLICT (name) DO NOTHING;
    SELECT t.id INTO found FROM postcommit.tenant t WHERE t.name = tenant_name;
  END IF;
  RETURN found;
END $$;

-- A key that stands already: returns the first id and notes other content, or raises under strict.
CREATE FUNCTION postcommit.settle_duplicate(of_tenant int, tenant_name text, key text, content uuid, is_strict boolean,
    new_event_type text, new_entity text, new_source jsonb) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE first record;
BEGIN
  SELECT i.notification_id, i.content_hash INTO first FROM postcommit.idempotency i WHERE i.tenant = of_tenant AND i.key_hash = postcommit.hash(key);
  IF first IS NULL THEN
    -- Taken by a transaction that this one's snapshot cannot see, or purged this instant.
    RAISE EXCEPTION 'postcommit: idempotency_key % is being enqueued by another transaction', quote_literal(key) USING ERRCODE = '40001', HINT = 'Repeat the transaction.';
  END IF;
  IF first.content_hash <> content THEN
    IF is_strict THEN
      RAISE EXCEPTION 'postcommit: idempotency_key % of tenant % was used with other content by notification %', quote_literal(key), quote_literal(tenant_name), first.notification_id
        USING ERRCODE = '23505', DETAIL = format('The key stands for notification %s', first.notification_id);
    END IF;
    INSERT INTO postcommit.key_conflict (tenant, notification_id, event_type, entity, source)
      VALUES (of_tenant, first.notification_id, new_event_type, new_entity, new_source);
  END IF;
  RETURN first.notification_id;
END $$;

CREATE FUNCTION postcommit.enqueue(
    event_type text, payload jsonb, idempotency_key text, tenant text DEFAULT 'default', entity text DEFAULT NULL, recipients jsonb DEFAULT '[]',
    channels text[] DEFAULT '{}', title text DEFAULT NULL, body text DEFAULT NULL, action_url text DEFAULT NULL, data jsonb DEFAULT NULL,
    priority int DEFAULT 5, due_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL, source jsonb DEFAULT NULL,
    correlation_id text DEFAULT NULL, topic text DEFAULT NULL, schema_version int DEFAULT NULL, strict boolean DEFAULT false)
  RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  -- Absent and NULL mean the same, whoever calls.
  payload_ jsonb := coalesce(payload, '{}');
  recipients_ jsonb := coalesce(recipients, '[]');
  channels_ text[] := coalesce(channels, '{}');
  due timestamptz := coalesce(due_at, now());
  of_tenant int := postcommit.tenant_id(coalesce(tenant, 'default'));
  new_id uuid := postcommit.new_id();
  content uuid := postcommit.content_hash(event_type, payload_, entity, recipients_, channels_, title, body, action_url, data, topic, schema_version);
BEGIN
  IF idempotency_key IS NULL THEN
    RAISE EXCEPTION 'postcommit: idempotency_key is missing; 1 to 255 characters are needed' USING ERRCODE = '23502';
  END IF;
  INSERT INTO postcommit.idempotency VALUES (of_tenant, postcommit.hash(idempotency_key), new_id, content) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN postcommit.settle_duplicate(of_tenant, coalesce(tenant, 'default'), idempotency_key, content, coalesce(strict, false), event_type, entity, source);
  END IF;
  INSERT INTO postcommit.notification AS fresh (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels,
      title, body, action_url, data, priority, due_at, expires_at, source, correlation_id)
    VALUES (of_tenant, new_id, event_type, entity, topic, schema_version, idempotency_key, payload_, recipients_, channels_,
      title, body, action_url, data, least(greatest(coalesce(priority, 5), -1), 10), due, coalesce(expires_at, due + interval '30 days'), source, correlation_id);
  INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at) VALUES (of_tenant, new_id, 0, 0, coalesce(priority, 5), due);
  PERFORM postcommit.ring(due);
  RETURN new_id;
END $$;

-- NOTIFY takes a lock that all commits share, so it is sent only when a dispatcher sleeps and the work is due.
CREATE FUNCTION postcommit.ring(due timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF due <= clock_timestamp() AND EXISTS (SELECT 1 FROM postcommit.idle i WHERE i.until > clock_timestamp()) THEN
    PERFORM pg_notify('postcommit_wake', '');
  END IF;
END $$;

-- The batch with a result per item: what the HTTP door needs. enqueue_many is the plain form.
CREATE FUNCTION postcommit.enqueue_batch(batch jsonb)
  RETURNS TABLE (place int, id uuid, duplicate boolean) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
#variable_conflict use_column
DECLARE
  unknown text;
  ids uuid[];
  fresh uuid[];
BEGIN
  IF jsonb_typeof(batch) IS DISTINCT FROM 'array' OR jsonb_array_length(batch) > 1000 THEN
    RAISE EXCEPTION 'postcommit: batch must be a JSON array of at most 1000 notifications' USING ERRCODE = '22023';
  END IF;
  IF EXISTS (SELECT 1 FROM jsonb_array_elements(batch) item WHERE jsonb_typeof(item) <> 'object') THEN
    RAISE EXCEPTION 'postcommit: every entry of the batch must be an object' USING ERRCODE = '22023';
  END IF;
  -- In one order for everybody: two batches that bring the same new tenants must not deadlock.
  PERFORM postcommit.tenant_id(t.name) FROM (SELECT DISTINCT coalesce(item ->> 'tenant', 'default') AS name FROM jsonb_array_elements(batch) item ORDER BY 1) t;
  SELECT key INTO unknown FROM jsonb_array_elements(batch) item, jsonb_object_keys(item) key WHERE key <> ALL (ARRAY['event_type', 'payload',
    'idempotency_key', 'tenant', 'entity', 'recipients', 'channels', 'title', 'body', 'action_url', 'data', 'priority', 'due_at', 'expires_at', 'source',
    'correlation_id', 'topic', 'schema_version', 'strict']) LIMIT 1;
  IF EXISTS (SELECT 1 FROM jsonb_array_elements(batch) item WHERE item ->> 'idempotency_key' IS NULL) THEN
    RAISE EXCEPTION 'postcommit: idempotency_key is missing in an entry of the batch; 1 to 255 characters are needed' USING ERRCODE = '23502';
  END IF;
  IF unknown IS NOT NULL THEN
    RAISE EXCEPTION 'postcommit: % is not a field of a notification', quote_literal(unknown) USING ERRCODE = '22023';
  END IF;

  WITH item AS MATERIALIZED (
    SELECT i.place::int, postcommit.new_id() AS id, postcommit.tenant_id(coalesce(i.tenant, 'default')) AS of_tenant, postcommit.hash(i.idempotency_key) AS key_hash,
      postcommit.content_hash(i.event_type, coalesce(i.payload, '{}'), i.entity, coalesce(i.recipients, '[]'), coalesce(i.channels, '{}'), i.title, i.body,
        i.action_url, i.data, i.topic, i.schema_version) AS content, coalesce(i.due_at, now()) AS due, i.event_type, i.payload, i.idempotency_key, i.entity,
      i.recipients, i.channels, i.title, i.body, i.action_url, i.data, least(greatest(coalesce(i.priority, 5), -1), 10)::smallint AS priority, i.expires_at, i.source, i.correlation_id, i.topic, i.schema_version
    FROM ROWS FROM (jsonb_to_recordset(batch) AS (event_type text, payload jsonb, idempotency_key text, tenant text, entity text, recipients jsonb,
      channels text[], title text, body text, action_url text, data jsonb, priority int, due_at timestamptz, expires_at timestamptz, source jsonb,
      correlation_id text, topic text, schema_version int, strict boolean)) WITH ORDINALITY
      AS i (event_type, payload, idempotency_key, tenant, entity, recipients, channels, title, body, action_url, data, priority, due_at, expires_at, source, correlation_id, topic, schema_version, strict, place)
  ), keyed AS (
    -- Sorted by key: two batches that share keys in another order must not deadlock.
    INSERT INTO postcommit.idempotency AS k (tenant, key_hash, notification_id, content_hash)
      SELECT DISTINCT ON (of_tenant, key_hash) of_tenant, key_hash, id, content FROM item ORDER BY of_tenant, key_hash, place
      ON CONFLICT DO NOTHING RETURNING k.notification_id
  ), noted AS (
    INSERT INTO postcommit.notification (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels,
        title, body, action_url, data, priority, due_at, expires_at, source, correlation_id)
      SELECT of_tenant, id, event_type, entity, topic, schema_version, idempotency_key, coalesce(payload, '{}'), coalesce(recipients, '[]'), coalesce(channels, '{}'),
        title, body, action_url, data, priority, due, coalesce(expires_at, due + interval '30 days'), source, correlation_id
      FROM item JOIN keyed ON notification_id = id ORDER BY id
  ), queued AS (
    INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at)
      SELECT of_tenant, id, 0, 0, priority, due FROM item JOIN keyed ON notification_id = id ORDER BY of_tenant, id
  ), rung AS MATERIALIZED (SELECT postcommit.ring(min(due)) FROM item)
  SELECT array_agg(item.id ORDER BY item.place), (SELECT array_agg(notification_id) FROM keyed) INTO ids, fresh FROM item, rung;

  IF cardinality(fresh) = cardinality(ids) THEN
    RETURN QUERY SELECT u.place::int, u.id, false FROM unnest(ids) WITH ORDINALITY u (id, place);
    RETURN;
  END IF;
  -- Some keys stood already. Only a new statement can see what the other transaction has committed meanwhile.
  RETURN QUERY SELECT u.place::int, coalesce(f.id, postcommit.settle_duplicate(postcommit.tenant_id(coalesce(i ->> 'tenant', 'default')), coalesce(i ->> 'tenant', 'default'),
      i ->> 'idempotency_key', c.content, coalesce((i ->> 'strict')::boolean, false), i ->> 'event_type', i ->> 'entity', i -> 'source')), f.id IS NULL
    FROM unnest(ids) WITH ORDINALITY u (id, place) LEFT JOIN unnest(fresh) f (id) USING (id)
    CROSS JOIN LATERAL (SELECT batch -> (u.place::int - 1) AS i) AS given
    CROSS JOIN LATERAL (SELECT postcommit.content_hash(r.event_type, coalesce(r.payload, '{}'), r.entity, coalesce(r.recipients, '[]'), coalesce(r.channels, '{}'), r.title,
        r.body, r.action_url, r.data, r.topic, r.schema_version) AS content FROM jsonb_to_record(i) AS r (event_type text, payload jsonb, entity text, recipients jsonb,
        channels text[], title text, body text, action_url text, data jsonb, topic text, schema_version int)) AS c
    ORDER BY u.place;
END $$;

CREATE FUNCTION postcommit.enqueue_many(batch jsonb) RETURNS TABLE (id uuid)
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
  SELECT b.id FROM postcommit.enqueue_batch(batch) b ORDER BY b.place
$$;

-- Takes back what is not yet sent for an entity. A delivery under way is too late; what remains of it is not retried.
CREATE FUNCTION postcommit.cancel(tenant text, entity text, event_type text DEFAULT NULL)
  RETURNS int LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  of_tenant int := (SELECT t.id FROM postcommit.tenant t WHERE t.name = cancel.tenant);
  taken int;
BEGIN
  WITH live AS MATERIALIZED (
    SELECT q.notification_id, q.n, q.lease_token FROM postcommit.notification note JOIN postcommit.delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = of_tenant AND note.entity = cancel.entity AND (cancel.event_type IS NULL OR note.event_type = cancel.event_type)
  ), taken_back AS (
    DELETE FROM postcommit.delivery_queue q USING live
      WHERE q.tenant = of_tenant AND q.notification_id = live.notification_id AND q.n = live.n AND q.lease_token IS NULL RETURNING q.*
  ), entered AS (
    INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, state, code, attempts, seq, unclear, finished_at)
      SELECT t.tenant, t.notification_id, t.n, t.lane, t.channel, t.target, 'cancelled', 'cancelled', t.attempts, t.seq, t.unclear, clock_timestamp() FROM taken_back t
      ORDER BY t.notification_id, t.n
  ), word_left AS (
    INSERT INTO postcommit.cancel_request (tenant, notification_id, n) SELECT of_tenant, live.notification_id, live.n FROM live ON CONFLICT DO NOTHING
  )
  SELECT count(*) INTO taken FROM taken_back;
  RETURN taken;
END $$;

-- Makes the monthly partitions of the three big tables, far ahead; takes out of the default partition what belongs in them.
CREATE FUNCTION postcommit.make_partitions(months_ahead int DEFAULT 24) RETURNS int LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
DECLARE
  month timestamp;
  parent text; child text; key text; low uuid; high uuid; made int := 0;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext('postcommit.make_partitions'));
  FOR month IN SELECT generate_series(date_trunc('month', now() AT TIME ZONE 'UTC'), now() AT TIME ZONE 'UTC' + make_interval(months => months_ahead), interval '1 month') LOOP
    low := postcommit.id_at(month AT TIME ZONE 'UTC');
    high := postcommit.id_at((month + interval '1 month') AT TIME ZONE 'UTC');
    FOREACH parent IN ARRAY ARRAY['notification', 'delivery_ledger', 'attempt'] LOOP
      child := format('%s_%s', parent, to_char(month, 'YYYY_MM'));
      CONTINUE WHEN to_regclass(format('postcommit.%I', child)) IS NOT NULL;
      key := CASE parent WHEN 'notification' THEN 'id' ELSE 'notification_id' END;
      EXECUTE format('CREATE TABLE postcommit.%I (LIKE postcommit.%I INCLUDING ALL)', child, parent);
      EXECUTE format('WITH moved AS (DELETE FROM postcommit.%I WHERE %I >= %L AND %I < %L RETURNING *) INSERT INTO postcommit.%I SELECT * FROM moved',
        parent || '_default', key, low, key, high, child);
      EXECUTE format('ALTER TABLE postcommit.%I ATTACH PARTITION postcommit.%I FOR VALUES FROM (%L) TO (%L)', parent, child, low, high);
      made := made + 1;
    END LOOP;
  END LOOP;
  RETURN made;
END $$;

CREATE TABLE postcommit.notification_default PARTITION OF postcommit.notification DEFAULT;
CREATE TABLE postcommit.delivery_ledger_default PARTITION OF postcommit.delivery_ledger DEFAULT;
CREATE TABLE postcommit.attempt_default PARTITION OF postcommit.attempt DEFAULT;
SELECT postcommit.make_partitions();

-- One row per delivery, live or finished, in the words of the documentation.
CREATE VIEW postcommit.delivery AS
  SELECT d.notification_id || '.' || d.n AS id, t.name AS tenant, d.notification_id, d.n, note.event_type, note.entity, note.idempotency_key,
    d.channel, p.name AS provider, d.target, d.state, d.reason, d.attempts, d.next_attempt_at, d.code AS error_code, d.detail AS last_error, d.provider_ref,
    note.created_at, d.sent_at, coalesce(d.finished_at, last.at, note.created_at) AS updated_at, note.priority, note.expires_at, d.unclear, d.tenant AS tenant_id
  FROM (
    SELECT q.tenant, q.notification_id, q.n, q.lane, q.channel, q.target,
      CASE WHEN q.lease_token IS NOT NULL THEN 'sending' WHEN q.attempts > 0 OR q.losses > 0 THEN 'retrying' ELSE 'pending' END AS state, NULL AS reason,
      q.attempts, q.seq, q.due_at AS next_attempt_at, q.code, q.detail, NULL AS provider_ref, NULL::timestamptz AS sent_at, NULL::timestamptz AS finished_at, q.unclear
    FROM postcommit.delivery_queue q
    UNION ALL
    SELECT l.tenant, l.notification_id, l.n, l.lane, l.channel, l.target, l.state, l.reason, l.attempts, l.seq, NULL, l.code, l.detail, l.provider_ref, l.sent_at, l.finished_at, l.unclear
    FROM postcommit.delivery_ledger l
  ) d
  JOIN postcommit.notification note ON note.tenant = d.tenant AND note.id = d.notification_id
  JOIN postcommit.tenant t ON t.id = d.tenant
  LEFT JOIN postcommit.provider p ON p.tenant = d.tenant AND p.id = d.lane
  LEFT JOIN LATERAL (SELECT a.at FROM postcommit.attempt a WHERE d.finished_at IS NULL AND d.seq > 0 AND a.tenant = d.tenant AND a.notification_id = d.notification_id AND a.n = d.n AND a.seq = d.seq) last ON true;

-- One row per notification: the least finished of its deliveries speaks for it.
CREATE VIEW postcommit.notification_status AS
  SELECT note.id, t.name AS tenant, note.event_type, note.entity, note.idempotency_key, note.payload, note.title, note.priority,
    coalesce(d.status, 'skipped') AS status, coalesce(d.attempts, 0) AS attempts, d.next_attempt_at, d.last_error, note.created_at, d.sent_at,
    coalesce(d.updated_at, note.created_at) AS updated_at, coalesce(d.deliveries, 0) AS deliveries, note.correlation_id, note.source, note.tenant AS tenant_id
  FROM postcommit.notification note
  JOIN postcommit.tenant t ON t.id = note.tenant
  LEFT JOIN LATERAL (
    SELECT (array_agg(x.state ORDER BY array_position(ARRAY['sending', 'retrying', 'pending', 'parked', 'sent', 'delivered', 'expired', 'cancelled', 'discarded', 'skipped'], x.state)))[1] AS status,
      sum(x.attempts)::int AS attempts, min(x.due_at) AS next_attempt_at, max(x.sent_at) AS sent_at, max(x.finished_at) AS updated_at, count(*) FILTER (WHERE x.n > 0)::int AS deliveries,
      (array_agg(concat_ws(': ', x.code, x.detail) ORDER BY x.finished_at DESC NULLS FIRST) FILTER (WHERE x.code IS NOT NULL))[1] AS last_error
    FROM (
      SELECT q.n, CASE WHEN q.lease_token IS NOT NULL THEN 'sending' WHEN q.attempts > 0 OR q.losses > 0 THEN 'retrying' ELSE 'pending' END AS state, q.attempts, q.due_at,
        NULL::timestamptz AS sent_at, NULL::timestamptz AS finished_at, q.code, q.detail
      FROM postcommit.delivery_queue q WHERE q.tenant = note.tenant AND q.notification_id = note.id
      UNION ALL
      SELECT l.n, l.state, l.attempts, NULL, l.sent_at, l.finished_at, l.code, l.detail
      FROM postcommit.delivery_ledger l WHERE l.tenant = note.tenant AND l.notification_id = note.id
    ) x
  ) d ON true;

-- Nobody may call or read anything until told so; migrate --roles grants.
REVOKE ALL ON SCHEMA postcommit FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postcommit FROM PUBLIC;
