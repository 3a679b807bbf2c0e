-- Speed: what the hot path needs to know without asking twice.

-- Counts the changes of all providers. A claim reads it along, so that a dispatcher keeps the providers in memory and still sees every change at once.
CREATE TABLE postcommit.provider_version (
  version    bigint NOT NULL,
  rerouted_at timestamptz NOT NULL  -- when something may last have been sent by another provider than it would be now
) WITH (fillfactor = 50);
INSERT INTO postcommit.provider_version VALUES (1, '1970-01-01 00:00:00Z');

CREATE FUNCTION postcommit.count_provider_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  UPDATE postcommit.provider_version SET version = version + 1;
  RETURN NULL;
END $$;
CREATE TRIGGER provider_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON postcommit.provider FOR EACH STATEMENT EXECUTE FUNCTION postcommit.count_provider_change();

CREATE FUNCTION postcommit.note_rerouting() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  -- Before the first provider of a tenant there was none to send by.
  IF TG_OP <> 'INSERT' OR EXISTS (SELECT 1 FROM postcommit.provider p WHERE p.tenant = NEW.tenant AND p.id <> NEW.id) THEN
    UPDATE postcommit.provider_version SET rerouted_at = clock_timestamp();
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER provider_came_or_went AFTER INSERT OR DELETE ON postcommit.provider FOR EACH ROW EXECUTE FUNCTION postcommit.note_rerouting();
CREATE TRIGGER provider_rerouted AFTER UPDATE ON postcommit.provider FOR EACH ROW
  WHEN ((OLD.name, OLD.channel, OLD.is_default, OLD.enabled) IS DISTINCT FROM (NEW.name, NEW.channel, NEW.is_default, NEW.enabled)) EXECUTE FUNCTION postcommit.note_rerouting();

-- A claimed row is half as long again as an unclaimed one: at 50 every third claim found no room on its page and wrote both indexes again.
ALTER TABLE postcommit.delivery_queue SET (fillfactor = 35);

-- Limits. As constraints of the table they were read anew from the catalogue by every single INSERT: 74 of its 123 µs. So they are one function now, which
-- enqueue calls: it returns the name of the first limit that is not kept. Their names and the error are the same as before.
DO $$
DECLARE held text;
BEGIN
  FOR held IN SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = 'postcommit.notification'::regclass LOOP
    EXECUTE format('ALTER TABLE postcommit.notification DROP CONSTRAINT %I', held);
  END LOOP;
END $$;

CREATE FUNCTION postcommit.limit_exceeded(event_type text, payload jsonb, idempotency_key text, entity text, recipients jsonb, channels text[], title text, body text,
    action_url text, data jsonb, priority int, due_at timestamptz, expires_at timestamptz, source jsonb, correlation_id text, topic text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN CASE
    WHEN length(event_type) NOT BETWEEN 1 AND 255 THEN 'event_type_1_to_255_characters'
    WHEN event_type ~ '[\r\n]' THEN 'event_type_without_line_breaks'
    WHEN length(idempotency_key) NOT BETWEEN 1 AND 255 THEN 'idempotency_key_1_to_255_characters'
    WHEN idempotency_key ~ '[\r\n]' THEN 'idempotency_key_without_line_breaks'
    WHEN octet_length(payload::text) > 262144 THEN 'payload_at_most_262144_bytes'
    WHEN jsonb_path_exists(payload, '$.**{33}') THEN 'payload_at_most_32_levels_deep'
    WHEN jsonb_typeof(recipients) <> 'array' OR jsonb_array_length(recipients) > 1000 THEN 'recipients_is_an_array_of_at_most_1000'
    WHEN octet_length(recipients::text) > 2097152 THEN 'recipients_at_most_2097152_bytes'
    WHEN jsonb_path_exists(recipients, '$.**{33}') THEN 'recipients_at_most_32_levels_deep'
    WHEN cardinality(channels) > 32 THEN 'channels_at_most_32'
    WHEN array_ndims(channels) <> 1 THEN 'channels_is_a_plain_list'
    WHEN cardinality(channels) > 0 AND array_to_string(channels, ',', ' ') !~ '^[A-Za-z0-9_.,-]*$' THEN 'channels_of_letters_digits_or_marks'
    WHEN priority NOT BETWEEN 0 AND 9 THEN 'priority_0_to_9'
    WHEN expires_at <= due_at THEN 'expires_at_after_due_at'
    WHEN length(entity) NOT BETWEEN 1 AND 255 THEN 'entity_1_to_255_characters'
    WHEN entity ~ '[\r\n]' THEN 'entity_without_line_breaks'
    WHEN length(topic) NOT BETWEEN 1 AND 255 THEN 'topic_1_to_255_characters'
    WHEN topic ~ '[\r\n]' THEN 'topic_without_line_breaks'
    WHEN length(correlation_id) NOT BETWEEN 1 AND 255 THEN 'correlation_id_1_to_255_characters'
    WHEN correlation_id ~ '[\r\n]' THEN 'correlation_id_without_line_breaks'
    WHEN octet_length(title) > 998 THEN 'title_at_most_998_bytes'
    WHEN title ~ '[\r\n]' THEN 'title_without_line_breaks'
    WHEN octet_length(body) > 262144 THEN 'body_at_most_262144_bytes'
    WHEN octet_length(action_url) > 2048 THEN 'action_url_at_most_2048_bytes'
    WHEN action_url !~* '^(https?://[^/?#@\s\\]+([/?#][^\s\\]*)?|mailto:[^\s\\]+|tel:[^\s\\]+)$' THEN 'action_url_is_http_https_mailto_or_tel'
    WHEN jsonb_typeof(data) <> 'object' THEN 'data_is_an_object_by_channel'
    WHEN octet_length(data::text) > 65536 THEN 'data_at_most_65536_bytes'
    WHEN jsonb_path_exists(data, '$.**{33}') THEN 'data_at_most_32_levels_deep'
    WHEN jsonb_typeof(source) <> 'object' THEN 'source_is_an_object'
    WHEN octet_length(source::text) > 4096 THEN 'source_at_most_4096_bytes'
    WHEN jsonb_path_exists(source, '$.**{33}') THEN 'source_at_most_32_levels_deep'
  END;
END $$;

-- What a violated constraint of the table would say; the row itself stays out of the error.
CREATE FUNCTION postcommit.refuse(exceeded text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = format('new row for relation "notification" violates check constraint "%s"', exceeded),
    SCHEMA = 'postcommit', TABLE = 'notification', CONSTRAINT = exceeded;
END $$;

-- What makes two enqueues the same: what is said and to whom, digit for digit, hashed to 128 bits. Before, it was a SHA-256 over all of it as one JSON text, which cost
-- 20 µs; keys from then are recognised by it (postcommit.content_hash).
CREATE FUNCTION postcommit.fingerprint(said record) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN encode(int8send(hash_record_extended(said, 0)) || int8send(hash_record_extended(said, 1)), 'hex')::uuid;
END $$;

-- A key that stands already: returns the first id and notes other content, or raises under strict.
DROP FUNCTION postcommit.settle_duplicate(int, text, text, uuid, boolean, text, text, jsonb);
CREATE FUNCTION postcommit.settle_duplicate(of_tenant int, tenant_name text, key text, contents uuid[], is_strict boolean,
    new_event_type text, new_entity text, new_source jsonb) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE first record;
BEGIN
  SELECT i.notification_id, i.content_hash INTO first FROM postcommit.idempotency i WHERE i.tenant = of_tenant AND i.key_hash = postcommit.hash(key);
  IF first IS NULL THEN
    -- Taken by a transaction that this one's snapshot cannot see, or purged this instant.
    RAISE EXCEPTION 'postcommit: idempotency_key % is being enqueued by another transaction', quote_literal(key) USING ERRCODE = '40001', HINT = 'Repeat the transaction.';
  END IF;
  IF first.content_hash <> ALL (contents) THEN
    IF is_strict THEN
      RAISE EXCEPTION 'postcommit: idempotency_key % of tenant % was used with other content by notification %', quote_literal(key), quote_literal(tenant_name), first.notification_id
        USING ERRCODE = '23505', DETAIL = format('The key stands for notification %s', first.notification_id);
    END IF;
    INSERT INTO postcommit.key_conflict (tenant, notification_id, event_type, entity, source)
      VALUES (of_tenant, first.notification_id, new_event_type, new_entity, new_source);
  END IF;
  RETURN first.notification_id;
END $$;

-- The same steps as before, with the limits checked and the content hashed as above.
CREATE OR REPLACE FUNCTION postcommit.enqueue(
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
  priority_ int := coalesce(priority, 5);
  due timestamptz := coalesce(due_at, now());
  expires timestamptz := coalesce(expires_at, due + interval '30 days');
  of_tenant int := postcommit.tenant_id(coalesce(tenant, 'default'));
  new_id uuid := postcommit.new_id();
  content uuid := postcommit.fingerprint(ROW(event_type, payload_::text, entity, recipients_::text, channels_, title, body, action_url, data::text, topic, schema_version));
  exceeded text := postcommit.limit_exceeded(event_type, payload_, idempotency_key, entity, recipients_, channels_, title, body, action_url, data, priority_, due, expires,
    source, correlation_id, topic);
BEGIN
  IF idempotency_key IS NULL THEN
    RAISE EXCEPTION 'postcommit: idempotency_key is missing; 1 to 255 characters are needed' USING ERRCODE = '23502';
  END IF;
  INSERT INTO postcommit.idempotency VALUES (of_tenant, encode(substring(sha256(convert_to(idempotency_key, 'UTF8')) FOR 16), 'hex')::uuid, new_id, content) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN postcommit.settle_duplicate(of_tenant, coalesce(tenant, 'default'), idempotency_key, ARRAY[content, postcommit.content_hash(event_type, payload_, entity, recipients_,
      channels_, title, body, action_url, data, topic, schema_version)], coalesce(strict, false), event_type, entity, source);
  END IF;
  IF exceeded IS NOT NULL THEN
    PERFORM postcommit.refuse(exceeded);
  END IF;
  INSERT INTO postcommit.notification (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels,
      title, body, action_url, data, priority, due_at, expires_at, source, correlation_id)
    VALUES (of_tenant, new_id, event_type, entity, topic, schema_version, idempotency_key, payload_, recipients_, channels_,
      title, body, action_url, data, priority_, due, expires, source, correlation_id);
  INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at) VALUES (of_tenant, new_id, 0, 0, priority_, due);
  PERFORM postcommit.ring(due);
  RETURN new_id;
END $$;

CREATE OR REPLACE FUNCTION postcommit.new_id() RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  -- UUIDv7: 48 bits of milliseconds over the random bits of a v4, whose version bits 0100 become 0111.
  RETURN encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid;
END $$;

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
  ), item AS MATERIALIZED (
    SELECT i.place::int, postcommit.new_id() AS id, of_tenant.tenant, encode(substring(sha256(convert_to(i.idempotency_key, 'UTF8')) FOR 16), 'hex')::uuid AS key_hash,
      i.event_type, coalesce(i.payload, '{}') AS payload, i.idempotency_key, i.entity, coalesce(i.recipients, '[]') AS recipients, coalesce(i.channels, '{}') AS channels, i.title, i.body,
      i.action_url, i.data, coalesce(i.priority, 5) AS priority, coalesce(i.due_at, now()) AS due, coalesce(i.expires_at, coalesce(i.due_at, now()) + interval '30 days') AS expires,
      i.source, i.correlation_id, i.topic, i.schema_version
    FROM ROWS FROM (jsonb_to_recordset(batch) AS (event_type text, payload jsonb, idempotency_key text, tenant text, entity text, recipients jsonb,
      channels text[], title text, body text, action_url text, data jsonb, priority int, due_at timestamptz, expires_at timestamptz, source jsonb,
      correlation_id text, topic text, schema_version int, strict boolean)) WITH ORDINALITY
      AS i (event_type, payload, idempotency_key, tenant, entity, recipients, channels, title, body, action_url, data, priority, due_at, expires_at, source, correlation_id, topic, schema_version, strict, place)
    JOIN of_tenant ON of_tenant.name = coalesce(i.tenant, 'default')
  ), keyed AS (
    -- Sorted by key: two batches that share keys in another order must not deadlock.
    INSERT INTO postcommit.idempotency AS k (tenant, key_hash, notification_id, content_hash)
      SELECT DISTINCT ON (tenant, key_hash) tenant, key_hash, id, postcommit.fingerprint(ROW(event_type, payload::text, entity, recipients::text, channels, title, body, action_url, data::text, topic, schema_version))
      FROM item ORDER BY tenant, key_hash, place
      ON CONFLICT DO NOTHING RETURNING k.notification_id
  ), new_item AS MATERIALIZED (
    SELECT item.*, postcommit.limit_exceeded(event_type, payload, idempotency_key, entity, recipients, channels, title, body, action_url, data, priority, due, expires, source,
      correlation_id, topic) AS exceeded FROM item JOIN keyed ON notification_id = id
  ), noted AS (
    INSERT INTO postcommit.notification (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels,
        title, body, action_url, data, priority, due_at, expires_at, source, correlation_id)
      SELECT tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels,
        title, body, action_url, data, priority, due, expires, source, correlation_id FROM new_item WHERE exceeded IS NULL
  ), queued AS (
    INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at) SELECT tenant, id, 0, 0, priority, due FROM new_item WHERE exceeded IS NULL
  ), rung AS MATERIALIZED (SELECT postcommit.ring(min(due)) FROM item)
  SELECT array_agg(item.id ORDER BY item.place), (SELECT array_agg(id) FROM new_item), (SELECT exceeded FROM new_item WHERE exceeded IS NOT NULL ORDER BY new_item.place LIMIT 1)
    INTO ids, fresh, bad FROM item, rung;
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
    CROSS JOIN LATERAL (SELECT ARRAY[
        postcommit.fingerprint(ROW(r.event_type, coalesce(r.payload, '{}')::text, r.entity, coalesce(r.recipients, '[]')::text, coalesce(r.channels, '{}'), r.title, r.body, r.action_url, r.data::text, r.topic, r.schema_version)),
        postcommit.content_hash(r.event_type, coalesce(r.payload, '{}'), r.entity, coalesce(r.recipients, '[]'), coalesce(r.channels, '{}'), r.title, r.body, r.action_url, r.data, r.topic, r.schema_version)
      ] AS contents FROM jsonb_to_record(i) AS r (event_type text, payload jsonb, entity text, recipients jsonb,
        channels text[], title text, body text, action_url text, data jsonb, topic text, schema_version int)) AS c
    ORDER BY u.place;
END $$;
-- As before, but what was given back after a lease had run out may have arrived.
CREATE OR REPLACE FUNCTION postcommit.cancel(tenant text, entity text, event_type text DEFAULT NULL)
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
      SELECT t.tenant, t.notification_id, t.n, t.lane, t.channel, t.target, 'cancelled', 'cancelled', t.attempts, t.seq, t.unclear OR t.lost_since IS NOT NULL, clock_timestamp() FROM taken_back t
      ORDER BY t.notification_id, t.n
  ), word_left AS (
    INSERT INTO postcommit.cancel_request (tenant, notification_id, n) SELECT of_tenant, live.notification_id, live.n FROM live ON CONFLICT DO NOTHING
  )
  SELECT count(*) INTO taken FROM taken_back;
  RETURN taken;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postcommit FROM PUBLIC;
