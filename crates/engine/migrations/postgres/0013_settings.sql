-- Settings of a session: what a producer's own session says must not change what is stored. Our own connections hold theirs by themselves (db/session.rs).

-- The bell is NOTIFY, and a transaction that has notified cannot be prepared. SET postcommit.doorbell = off in the session enqueues without it; the poll finds what
-- was enqueued. Asked last: most enqueues find nobody asleep.
CREATE OR REPLACE FUNCTION postcommit.ring(due timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF due <= clock_timestamp() AND EXISTS (SELECT FROM postcommit.asleep)
      AND coalesce(lower(current_setting('postcommit.doorbell', true)), '') NOT IN ('off', 'false', '0', 'no') THEN
    PERFORM pg_notify('postcommit_wake', '');
  END IF;
END $$;

-- As before, with every backslash in an E'…' text: a function's text is read under the settings of the session that first calls it, and with
-- standard_conforming_strings = off the check of action_url was another one. Texts without a backslash mean the same under every setting.
CREATE OR REPLACE FUNCTION postcommit.limit_exceeded(event_type text, payload jsonb, idempotency_key text, entity text, recipients jsonb, channels text[], title text, body text,
    action_url text, data jsonb, priority int, due_at timestamptz, expires_at timestamptz, source jsonb, correlation_id text, topic text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN CASE
    WHEN length(event_type) NOT BETWEEN 1 AND 255 THEN 'event_type_1_to_255_characters'
    WHEN event_type ~ E'[\r\n]' THEN 'event_type_without_line_breaks'
    WHEN length(idempotency_key) NOT BETWEEN 1 AND 255 THEN 'idempotency_key_1_to_255_characters'
    WHEN idempotency_key ~ E'[\r\n]' THEN 'idempotency_key_without_line_breaks'
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
    WHEN entity ~ E'[\r\n]' THEN 'entity_without_line_breaks'
    WHEN length(topic) NOT BETWEEN 1 AND 255 THEN 'topic_1_to_255_characters'
    WHEN topic ~ E'[\r\n]' THEN 'topic_without_line_breaks'
    WHEN length(correlation_id) NOT BETWEEN 1 AND 255 THEN 'correlation_id_1_to_255_characters'
    WHEN correlation_id ~ E'[\r\n]' THEN 'correlation_id_without_line_breaks'
    WHEN octet_length(title) > 998 THEN 'title_at_most_998_bytes'
    WHEN title ~ E'[\r\n]' THEN 'title_without_line_breaks'
    WHEN octet_length(body) > 262144 THEN 'body_at_most_262144_bytes'
    WHEN octet_length(action_url) > 2048 THEN 'action_url_at_most_2048_bytes'
    WHEN action_url !~* E'^(https?://[^/?#@\\s\\\\]+([/?#][^\\s\\\\]*)?|mailto:[^\\s\\\\]+|tel:[^\\s\\\\]+)$' THEN 'action_url_is_http_https_mailto_or_tel'
    WHEN jsonb_typeof(data) <> 'object' THEN 'data_is_an_object_by_channel'
    WHEN octet_length(data::text) > 65536 THEN 'data_at_most_65536_bytes'
    WHEN jsonb_path_exists(data, '$.**{33}') THEN 'data_at_most_32_levels_deep'
    WHEN jsonb_typeof(source) <> 'object' THEN 'source_is_an_object'
    WHEN octet_length(source::text) > 4096 THEN 'source_at_most_4096_bytes'
    WHEN jsonb_path_exists(source, '$.**{33}') THEN 'source_at_most_32_levels_deep'
  END;
END $$;

-- 30 days are 720 hours in every time zone. As days they are an hour more or less wherever the producer's clock is changed in between, and the same enqueue
-- expired at another time than on SQLite. Partitions are made of the same kind of table as their parents, whatever default_table_access_method says.
-- Applied to the functions as the steps before have left them.
DO $do$
DECLARE
  made text;
BEGIN
  FOR made IN SELECT pg_get_functiondef(p.oid) FROM pg_proc p
      WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proname IN ('enqueue', 'enqueue_batch', 'make_partitions') LOOP
    EXECUTE replace(replace(made, $$interval '30 days'$$, $$interval '720 hours'$$), 'INCLUDING ALL)''', 'INCLUDING ALL) USING heap''');
  END LOOP;
END $do$;

-- Any login of the cluster that may connect may LISTEN. What the bell of the inboxes says is a hash with a key that only owner and workers can read, so that whoever
-- listens can neither read nor guess tenant and user. The key is the row of tenant 0 in inbox_token_key, made by the first process that watches; without it the bell
-- says nothing, which means anybody.
CREATE OR REPLACE FUNCTION postcommit.inbox_moved() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
DECLARE
  secret bytea;
BEGIN
  IF EXISTS (SELECT FROM postcommit.inbox_watch WHERE until > clock_timestamp()) THEN
    SELECT k.key INTO secret FROM postcommit.inbox_token_key k WHERE k.tenant = 0;
    PERFORM pg_notify('postcommit_inbox',
      coalesce(left(encode(sha256(secret || sha256(secret || convert_to(NEW.tenant || ':' || NEW.user_id, 'UTF8'))), 'hex'), 32), ''));
  END IF;
  RETURN NULL;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postcommit FROM PUBLIC;
