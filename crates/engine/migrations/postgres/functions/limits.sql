-- The limits of a notification's fields. enqueue refuses a notification with the name of the first limit that it exceeds.

-- Every string with a backslash is written E'…'. PostgreSQL reads a function's body under the settings of the session that
-- first calls it, and standard_conforming_strings = off changes the meaning of backslashes in other strings.
CREATE OR REPLACE FUNCTION postcommit.limit_exceeded(event_type text, payload jsonb, idempotency_key text, entity text,
    recipients jsonb, channels text[], title text, body text, action_url text, data jsonb, priority int, due_at timestamptz,
    expires_at timestamptz, source jsonb, correlation_id text, topic text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN CASE
    WHEN length(event_type) NOT BETWEEN 1 AND 255 THEN 'event_type_1_to_255_characters'
    WHEN event_type ~ E'[\r\n]' THEN 'event_type_without_line_breaks'
    WHEN length(idempotency_key) NOT BETWEEN 1 AND 255 THEN 'idempotency_key_1_to_255_characters'
    WHEN idempotency_key ~ E'[\r\n]' THEN 'idempotency_key_without_line_breaks'
    WHEN octet_length(payload::text) > 262144 THEN 'payload_at_most_262144_bytes'
    WHEN jsonb_path_exists(payload, '$.**{33}') THEN 'payload_at_most_32_levels_deep'
    WHEN jsonb_typeof(recipients) <> 'array' OR jsonb_array_length(recipients) > 1000
      THEN 'recipients_is_an_array_of_at_most_1000'
    WHEN octet_length(recipients::text) > 2097152 THEN 'recipients_at_most_2097152_bytes'
    WHEN jsonb_path_exists(recipients, '$.**{33}') THEN 'recipients_at_most_32_levels_deep'
    WHEN cardinality(channels) > 32 THEN 'channels_at_most_32'
    WHEN array_ndims(channels) <> 1 THEN 'channels_is_a_plain_list'
    WHEN cardinality(channels) > 0 AND array_to_string(channels, ',', ' ') !~ '^[A-Za-z0-9_.,-]*$'
      THEN 'channels_of_letters_digits_or_marks'
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
    WHEN action_url !~* E'^(https?://[^/?#@\\s\\\\]+([/?#][^\\s\\\\]*)?|mailto:[^\\s\\\\]+|tel:[^\\s\\\\]+)$'
      THEN 'action_url_is_http_https_mailto_or_tel'
    WHEN jsonb_typeof(data) <> 'object' THEN 'data_is_an_object_by_channel'
    WHEN octet_length(data::text) > 65536 THEN 'data_at_most_65536_bytes'
    WHEN jsonb_path_exists(data, '$.**{33}') THEN 'data_at_most_32_levels_deep'
    WHEN jsonb_typeof(source) <> 'object' THEN 'source_is_an_object'
    WHEN octet_length(source::text) > 4096 THEN 'source_at_most_4096_bytes'
    WHEN jsonb_path_exists(source, '$.**{33}') THEN 'source_at_most_32_levels_deep'
  END;
END $$;

-- Returns the short fields of a notification in one line, for plainly_kept. Together they may have 255 bytes there, so a field with a
-- lower limit must not be among them.
CREATE OR REPLACE FUNCTION postcommit.short_fields(event_type text, idempotency_key text, entity text, topic text,
    correlation_id text, title text, channels text[]) RETURNS text LANGUAGE sql STABLE
  RETURN concat_ws(E'\t', event_type, idempotency_key, entity, topic, correlation_id, title, channels);

-- Returns true for a notification that is far within every limit, as nearly every notification is. For others,
-- limit_exceeded checks each limit. PL/pgSQL prepares an expression again in every transaction, including functions that it
-- then does not call: limit_exceeded took 147,000 of the 591,000 instructions of one enqueue.
CREATE OR REPLACE FUNCTION postcommit.plainly_kept(short_fields text, content text, payload jsonb, recipients jsonb,
    channels text[], action_url text, data jsonb, priority int, due_at timestamptz, expires_at timestamptz, source jsonb)
  RETURNS boolean LANGUAGE sql IMMUTABLE
  RETURN action_url IS NULL AND data IS NULL AND source IS NULL
    -- No field is empty or has a line break. Channels are in lower case, so none of them is NULL.
    AND octet_length(short_fields) <= 255 AND short_fields ~ '^(?:[^\t\r\n]+\t)+\{[a-z0-9_.,-]*\}$'
    AND cardinality(channels) <= 32
    AND octet_length(content) <= 65536 AND NOT jsonb_path_exists(payload, '$.**{33}')
    AND jsonb_typeof(recipients) = 'array' AND jsonb_array_length(recipients) <= 1000
    AND NOT jsonb_path_exists(recipients, '$.**{33}')
    AND priority BETWEEN 0 AND 9 AND expires_at > due_at;

-- Raises the same error as a violated constraint of the table, but without the row in the error.
CREATE OR REPLACE FUNCTION postcommit.refuse(exceeded text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '23514',
    MESSAGE = format('new row for relation "notification" violates check constraint "%s"', exceeded),
    SCHEMA = 'postcommit', TABLE = 'notification', CONSTRAINT = exceeded;
END $$;
