-- The core on SQLite: the same tables, words and meaning as on PostgreSQL, in the application's own file under the prefix postcommit_.
-- Differences, each for a reason: ids are text, because the triggers run in the application's own SQLite, which may be too old for unhex();
-- times are microseconds since 1970 as integers; no partitions; the idempotency table holds the key itself, because SQL cannot hash here.
-- Needs SQLite 3.38 or newer in the application. Limits are constraints whose names say field and limit.

CREATE TABLE postcommit_tenant (
  id         INTEGER PRIMARY KEY,
  name       TEXT NOT NULL UNIQUE CONSTRAINT tenant_1_to_63_letters_digits_or_marks CHECK (length(name) BETWEEN 1 AND 63 AND name NOT GLOB '*[^A-Za-z0-9_.-]*'),
  created_at INTEGER NOT NULL
);
INSERT INTO postcommit_tenant (name, created_at) VALUES ('default', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000);

-- The intent: written once in the application's transaction, never changed.
CREATE TABLE postcommit_notification (
  seq             INTEGER PRIMARY KEY,
  tenant          INTEGER NOT NULL,
  id              TEXT NOT NULL,
  event_type      TEXT NOT NULL
    CONSTRAINT event_type_1_to_255_characters CHECK (length(event_type) BETWEEN 1 AND 255 AND typeof(event_type) IN ('text', 'null'))
    CONSTRAINT event_type_without_line_breaks CHECK (instr(event_type, char(10)) = 0 AND instr(event_type, char(13)) = 0 AND instr(event_type, char(0)) = 0),
  entity          TEXT
    CONSTRAINT entity_1_to_255_characters CHECK (length(entity) BETWEEN 1 AND 255 AND typeof(entity) IN ('text', 'null'))
    CONSTRAINT entity_without_line_breaks CHECK (instr(entity, char(10)) = 0 AND instr(entity, char(13)) = 0 AND instr(entity, char(0)) = 0),
  topic           TEXT
    CONSTRAINT topic_1_to_255_characters CHECK (length(topic) BETWEEN 1 AND 255 AND typeof(topic) IN ('text', 'null'))
    CONSTRAINT topic_without_line_breaks CHECK (instr(topic, char(10)) = 0 AND instr(topic, char(13)) = 0 AND instr(topic, char(0)) = 0),
  schema_version  INTEGER CONSTRAINT schema_version_is_a_32_bit_integer CHECK (schema_version BETWEEN -2147483648 AND 2147483647),
  idempotency_key TEXT NOT NULL
    CONSTRAINT idempotency_key_1_to_255_characters CHECK (length(idempotency_key) BETWEEN 1 AND 255 AND typeof(idempotency_key) IN ('text', 'null'))
    CONSTRAINT idempotency_key_without_line_breaks CHECK (instr(idempotency_key, char(10)) = 0 AND instr(idempotency_key, char(13)) = 0 AND instr(idempotency_key, char(0)) = 0),
  payload         TEXT NOT NULL
    CONSTRAINT payload_is_json CHECK (json_valid(payload))
    CONSTRAINT payload_without_nul CHECK (instr(replace(payload, '\\', ''), '\u0000') = 0)
    CONSTRAINT payload_at_most_262144_bytes CHECK (length(CAST(payload AS BLOB)) <= 262144),
  recipients      TEXT NOT NULL
    CONSTRAINT recipients_is_an_array_of_at_most_1000 CHECK (json_valid(recipients) AND json_type(recipients) = 'array' AND json_array_length(recipients) <= 1000)
    CONSTRAINT recipients_at_most_2097152_bytes CHECK (length(CAST(recipients AS BLOB)) <= 2097152),
  channels        TEXT NOT NULL
    CONSTRAINT channels_is_an_array_of_at_most_32 CHECK (json_valid(channels) AND json_type(channels) = 'array' AND json_array_length(channels) <= 32)
    CONSTRAINT channels_of_letters_digits_or_marks CHECK (channels NOT GLOB '*[^]A-Za-z0-9_.,"[-]*'),
  title           TEXT
    CONSTRAINT title_at_most_998_bytes CHECK (length(CAST(title AS BLOB)) <= 998)
    CONSTRAINT title_without_line_breaks CHECK (instr(title, char(10)) = 0 AND instr(title, char(13)) = 0 AND instr(title, char(0)) = 0),
  body            TEXT
    CONSTRAINT body_at_most_262144_bytes CHECK (length(CAST(body AS BLOB)) <= 262144)
    CONSTRAINT body_is_text_without_nul CHECK (typeof(body) IN ('text', 'null') AND instr(body, char(0)) = 0),
  action_url      TEXT
    CONSTRAINT action_url_at_most_2048_bytes CHECK (length(CAST(action_url AS BLOB)) <= 2048)
    CONSTRAINT action_url_is_http_https_mailto_or_tel CHECK ((lower(action_url) GLOB 'http://?*' OR lower(action_url) GLOB 'https://?*' OR lower(action_url) GLOB 'mailto:?*'
      OR lower(action_url) GLOB 'tel:?*') AND action_url NOT GLOB '*[' || char(1) || '-' || char(32) || '\]*')
    CONSTRAINT action_url_without_user_name CHECK (lower(action_url) NOT GLOB 'http*' OR instr(substr(action_url, 9), '@') = 0
      OR (instr(substr(action_url, 9), '/') BETWEEN 1 AND instr(substr(action_url, 9), '@'))),
  data            TEXT
    CONSTRAINT data_is_an_object_by_channel CHECK (data IS NULL OR (json_valid(data) AND json_type(data) = 'object'))
    CONSTRAINT data_at_most_65536_bytes CHECK (length(CAST(data AS BLOB)) <= 65536),
  priority        INTEGER NOT NULL CONSTRAINT priority_0_to_9 CHECK (typeof(priority) = 'integer' AND priority BETWEEN 0 AND 9),
  due_at          INTEGER NOT NULL,
  expires_at      INTEGER NOT NULL,
  source          TEXT
    CONSTRAINT source_is_an_object CHECK (source IS NULL OR (json_valid(source) AND json_type(source) = 'object'))
    CONSTRAINT source_at_most_4096_bytes CHECK (length(CAST(source AS BLOB)) <= 4096),
  correlation_id  TEXT
    CONSTRAINT correlation_id_1_to_255_characters CHECK (length(correlation_id) BETWEEN 1 AND 255 AND typeof(correlation_id) IN ('text', 'null'))
    CONSTRAINT correlation_id_without_line_breaks CHECK (instr(correlation_id, char(10)) = 0 AND instr(correlation_id, char(13)) = 0 AND instr(correlation_id, char(0)) = 0),
  created_at      INTEGER NOT NULL,
  UNIQUE (tenant, id),
  CONSTRAINT expires_at_after_due_at CHECK (expires_at > due_at)
);
CREATE INDEX postcommit_notification_entity ON postcommit_notification (tenant, entity, id) WHERE entity IS NOT NULL;

-- Live work only. n = 0 is the notification's own row until it is expanded; lane 0 is "not routed yet".
CREATE TABLE postcommit_delivery_queue (
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,
  lane            INTEGER NOT NULL,
  priority        INTEGER NOT NULL,
  due_at          INTEGER NOT NULL,  -- the only clock: scheduled, ready and backing off differ in nothing else
  lease_token     TEXT,              -- random; fences intent, renewal and settle
  lease_until     INTEGER,
  intent          TEXT,              -- the token under which an at_most_once send was announced
  leased_at       INTEGER,           -- when the present lease began
  lost_since      INTEGER,           -- when the lease began that the present claim found run out
  losses          INTEGER NOT NULL DEFAULT 0,  -- leases that ran out, in this round
  attempts        INTEGER NOT NULL DEFAULT 0,  -- in this round; an operator's retry begins a new one
  seq             INTEGER NOT NULL DEFAULT 0,  -- attempts ever made; numbers the rows of attempt
  first_try_at    INTEGER,                     -- when the provider may first have seen the key, in this round
  unclear         INTEGER NOT NULL DEFAULT 0,  -- some attempt of this round may have arrived without our knowing
  channel         TEXT,
  target          TEXT,
  code            TEXT,              -- of the last attempt, if it failed
  detail          TEXT,
  PRIMARY KEY (tenant, notification_id, n)
) WITHOUT ROWID;
CREATE INDEX postcommit_delivery_queue_claim ON postcommit_delivery_queue (lane, priority, due_at);

-- Finished work. The key is the proof of one outcome: a delivery is in the queue or in here, never in both.
CREATE TABLE postcommit_delivery_ledger (
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,
  lane            INTEGER NOT NULL,
  channel         TEXT,
  target          TEXT,
  state           TEXT NOT NULL CONSTRAINT known_state CHECK (state IN ('sent', 'delivered', 'parked', 'discarded', 'cancelled', 'expired', 'skipped')),
  reason          TEXT CONSTRAINT known_reason CHECK (reason IN ('rejected', 'exhausted', 'outcome_unknown', 'config')),
  code            TEXT,
  detail          TEXT,
  attempts        INTEGER NOT NULL,
  seq             INTEGER NOT NULL,
  unclear         INTEGER NOT NULL DEFAULT 0,  -- it may have arrived without our knowing
  provider_ref    TEXT,
  sent_at         INTEGER,
  finished_at     INTEGER NOT NULL,
  PRIMARY KEY (tenant, notification_id, n),
  CONSTRAINT parked_has_a_reason CHECK ((state = 'parked') <= (reason IS NOT NULL))
) WITHOUT ROWID;
CREATE INDEX postcommit_delivery_ledger_parked ON postcommit_delivery_ledger (tenant, notification_id) WHERE state = 'parked';

-- Every try, append-only.
CREATE TABLE postcommit_attempt (
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,
  seq             INTEGER NOT NULL,
  at              INTEGER NOT NULL,
  provider        TEXT,
  outcome         TEXT NOT NULL,
  code            TEXT,
  detail          TEXT,
  latency_ms      INTEGER NOT NULL,
  provider_ref    TEXT,
  excerpt         TEXT,
  token           TEXT NOT NULL,
  PRIMARY KEY (tenant, notification_id, n, seq)
) WITHOUT ROWID;

CREATE TABLE postcommit_idempotency (
  tenant          INTEGER NOT NULL,
  key             TEXT NOT NULL,
  notification_id TEXT NOT NULL,
  PRIMARY KEY (tenant, key)
) WITHOUT ROWID;

-- The same key with other content: not sent, noted here.
CREATE TABLE postcommit_key_conflict (
  id              INTEGER PRIMARY KEY,
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,  -- the one that holds the key
  event_type      TEXT NOT NULL,  -- of the one that was not enqueued
  entity          TEXT,
  source          TEXT,
  noted_at        INTEGER NOT NULL
);
CREATE INDEX postcommit_key_conflict_notification ON postcommit_key_conflict (tenant, notification_id);

-- A cancel that met a leased row leaves word here.
CREATE TABLE postcommit_cancel_request (
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,  -- 0: it was not expanded yet, so all of it
  asked_at        INTEGER NOT NULL,
  PRIMARY KEY (tenant, notification_id, n)
) WITHOUT ROWID;

-- A result that came after its lease had gone to someone else. It changed nothing; it is evidence.
CREATE TABLE postcommit_stale_settle (
  id              INTEGER PRIMARY KEY,
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,
  token           TEXT NOT NULL,
  outcome         TEXT NOT NULL,
  code            TEXT,
  provider_ref    TEXT,
  at              INTEGER NOT NULL
);

-- A configured account of a driver on a channel. Its id is its lane.
CREATE TABLE postcommit_provider (
  tenant       INTEGER NOT NULL,
  id           INTEGER PRIMARY KEY AUTOINCREMENT,  -- a lane's number is never used again
  name         TEXT NOT NULL,
  channel      TEXT NOT NULL,             -- '*' serves every channel
  driver       TEXT NOT NULL,
  settings     TEXT NOT NULL,             -- validated by the driver
  secrets      BLOB,                      -- encrypted
  guarantee    TEXT NOT NULL CONSTRAINT known_guarantee CHECK (guarantee IN ('idempotent', 'at_most_once', 'at_least_once')),
  guarantee_since INTEGER NOT NULL DEFAULT 0,  -- when it was last changed
  policy       TEXT NOT NULL,
  concurrency  INTEGER NOT NULL,
  timeout_ms   INTEGER NOT NULL,
  is_default   INTEGER NOT NULL,
  enabled      INTEGER NOT NULL DEFAULT 1,
  paused       TEXT,                      -- why, when the lane is paused
  not_before   INTEGER,                   -- a provider's Retry-After holds the whole lane
  revision     INTEGER NOT NULL DEFAULT 1,
  created_at   INTEGER NOT NULL,
  updated_at   INTEGER NOT NULL,
  CONSTRAINT provider_name UNIQUE (tenant, name)
);
CREATE UNIQUE INDEX postcommit_provider_default ON postcommit_provider (tenant, channel) WHERE is_default;

CREATE TABLE postcommit_duty (
  name   TEXT PRIMARY KEY,
  ran_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Which notification holds a key: how an application learns the id of what it has just inserted.
CREATE VIEW postcommit_key AS
  SELECT t.name AS tenant, i.key AS idempotency_key, i.notification_id AS id FROM postcommit_idempotency i JOIN postcommit_tenant t ON t.id = i.tenant;

-- INSERT INTO postcommit_enqueue (…) enqueues, in the application's own transaction. Times are RFC 3339 text or unix seconds; lists and objects are JSON text.
CREATE VIEW postcommit_enqueue AS
  SELECT event_type, payload, idempotency_key, '' AS tenant, entity, recipients, channels, title, body, action_url, data, priority, due_at, expires_at,
    source, correlation_id, topic, schema_version, 0 AS strict FROM postcommit_notification WHERE 0;

CREATE TRIGGER postcommit_enqueue_insert INSTEAD OF INSERT ON postcommit_enqueue BEGIN
  INSERT OR IGNORE INTO postcommit_tenant (name, created_at) SELECT coalesce(NEW.tenant, 'default'), CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
    WHERE NOT EXISTS (SELECT 1 FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'));
  SELECT RAISE(ABORT, 'postcommit: idempotency_key is missing; 1 to 255 characters are needed') WHERE NEW.idempotency_key IS NULL;
  SELECT RAISE(ABORT, 'postcommit: tenant must be 1 to 63 letters, digits, ''_'', ''-'' or ''.''') WHERE (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) IS NULL;
  SELECT RAISE(ABORT, 'postcommit: due_at is not a time; write RFC 3339 as text or unix seconds as a number') WHERE CASE typeof(NEW.due_at) WHEN 'null' THEN 0 WHEN 'text' THEN NEW.due_at NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][T ]*' OR julianday(NEW.due_at) IS NULL OR date(substr(NEW.due_at, 1, 10), '+0 days') <> substr(NEW.due_at, 1, 10) WHEN 'blob' THEN 1 ELSE NEW.due_at NOT BETWEEN 0 AND 253402300799 END;
  SELECT RAISE(ABORT, 'postcommit: expires_at is not a time; write RFC 3339 as text or unix seconds as a number') WHERE CASE typeof(NEW.expires_at) WHEN 'null' THEN 0 WHEN 'text' THEN NEW.expires_at NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][T ]*' OR julianday(NEW.expires_at) IS NULL OR date(substr(NEW.expires_at, 1, 10), '+0 days') <> substr(NEW.expires_at, 1, 10) WHEN 'blob' THEN 1 ELSE NEW.expires_at NOT BETWEEN 0 AND 253402300799 END;
  -- A key that stands already: the first notification remains the only one.
  SELECT RAISE(ABORT, 'postcommit: idempotency_key was used with other content; nothing was enqueued (strict)') WHERE lower(CAST(NEW.strict AS TEXT)) IN ('1', 'true', 't', 'yes', 'on') AND EXISTS (SELECT 1 FROM postcommit_idempotency i JOIN postcommit_notification n ON n.tenant = i.tenant AND n.id = i.notification_id
      WHERE i.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND i.key = NEW.idempotency_key AND (n.event_type IS NOT NEW.event_type OR n.entity IS NOT NEW.entity OR n.title IS NOT NEW.title
        OR n.body IS NOT NEW.body OR n.action_url IS NOT NEW.action_url OR n.topic IS NOT NEW.topic OR n.schema_version IS NOT CAST(NEW.schema_version AS INTEGER)
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.payload) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.payload))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.recipients) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.recipients))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.channels) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.channels, '[]'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.channels, '[]')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.channels))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null')) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null')) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null')))));
  INSERT INTO postcommit_key_conflict (tenant, notification_id, event_type, entity, source, noted_at)
    SELECT i.tenant, i.notification_id, coalesce(NEW.event_type, ''), NEW.entity, NEW.source, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 FROM postcommit_idempotency i
    WHERE i.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND i.key = NEW.idempotency_key AND EXISTS (SELECT 1 FROM postcommit_idempotency i JOIN postcommit_notification n ON n.tenant = i.tenant AND n.id = i.notification_id
      WHERE i.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND i.key = NEW.idempotency_key AND (n.event_type IS NOT NEW.event_type OR n.entity IS NOT NEW.entity OR n.title IS NOT NEW.title
        OR n.body IS NOT NEW.body OR n.action_url IS NOT NEW.action_url OR n.topic IS NOT NEW.topic OR n.schema_version IS NOT CAST(NEW.schema_version AS INTEGER)
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.payload) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.payload))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.recipients) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.recipients))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.channels) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.channels, '[]'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.channels, '[]')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.channels))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null')) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null')) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null')))));
  INSERT INTO postcommit_notification (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels, title, body, action_url,
      data, priority, due_at, expires_at, source, correlation_id, created_at)
    SELECT (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')), lower(printf('%08x-%04x-7%s-%s%s-%s', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) / 65536, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) % 65536, substr(hex(randomblob(2)), 2), substr('89ab', 1 + abs(random()) % 4, 1), substr(hex(randomblob(2)), 2), hex(randomblob(6)))),
      NEW.event_type, NEW.entity, NEW.topic, CAST(NEW.schema_version AS INTEGER), NEW.idempotency_key, CASE WHEN json_valid(coalesce(NEW.payload, '{}')) THEN json(coalesce(NEW.payload, '{}')) ELSE coalesce(NEW.payload, '{}') END,
      CASE WHEN json_valid(coalesce(NEW.recipients, '[]')) THEN json(coalesce(NEW.recipients, '[]')) ELSE coalesce(NEW.recipients, '[]') END, CASE WHEN json_valid(coalesce(NEW.channels, '[]')) THEN json(coalesce(NEW.channels, '[]')) ELSE coalesce(NEW.channels, '[]') END,
      NEW.title, NEW.body, NEW.action_url, CASE WHEN json_valid(NEW.data) THEN json(NEW.data) ELSE NEW.data END,
      -- What is no digit becomes -1, and the constraint names the field.
      CASE WHEN NEW.priority IS NULL THEN 5 WHEN typeof(NEW.priority) = 'integer' THEN NEW.priority WHEN NEW.priority GLOB '[0-9]' THEN CAST(NEW.priority AS INTEGER) ELSE -1 END,
      coalesce(CASE typeof(NEW.due_at) WHEN 'null' THEN NULL WHEN 'text' THEN CAST(round((julianday(NEW.due_at) - 2440587.5) * 86400000) AS INTEGER) * 1000 ELSE CAST(NEW.due_at * 1000000 AS INTEGER) END, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000),
      coalesce(CASE typeof(NEW.expires_at) WHEN 'null' THEN NULL WHEN 'text' THEN CAST(round((julianday(NEW.expires_at) - 2440587.5) * 86400000) AS INTEGER) * 1000 ELSE CAST(NEW.expires_at * 1000000 AS INTEGER) END, coalesce(CASE typeof(NEW.due_at) WHEN 'null' THEN NULL WHEN 'text' THEN CAST(round((julianday(NEW.due_at) - 2440587.5) * 86400000) AS INTEGER) * 1000 ELSE CAST(NEW.due_at * 1000000 AS INTEGER) END, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) + 2592000000000),
      CASE WHEN json_valid(NEW.source) THEN json(NEW.source) ELSE NEW.source END, NEW.correlation_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
    WHERE NOT EXISTS (SELECT 1 FROM postcommit_idempotency WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND key = NEW.idempotency_key);
  -- The row above, if it was inserted. The key is asked for as well: under INSERT OR IGNORE a refused row is skipped in silence, and
  -- last_insert_rowid() then belongs to some other table.
  INSERT INTO postcommit_delivery_queue (tenant, notification_id, n, lane, priority, due_at)
    SELECT tenant, id, 0, 0, priority, due_at FROM postcommit_notification
    WHERE seq = last_insert_rowid() AND tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND idempotency_key = NEW.idempotency_key AND NOT EXISTS (SELECT 1 FROM postcommit_idempotency WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND key = NEW.idempotency_key);
  INSERT INTO postcommit_idempotency (tenant, key, notification_id)
    SELECT tenant, idempotency_key, id FROM postcommit_notification
    WHERE seq = last_insert_rowid() AND tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND idempotency_key = NEW.idempotency_key AND NOT EXISTS (SELECT 1 FROM postcommit_idempotency WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND key = NEW.idempotency_key);
  -- RAISE speaks even where the caller's OR IGNORE would swallow a constraint: nothing is lost in silence.
  SELECT RAISE(ABORT, 'postcommit: a field is beyond its limit; nothing was enqueued (a plain INSERT names it)') WHERE NOT EXISTS (SELECT 1 FROM postcommit_idempotency WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND key = NEW.idempotency_key);
END;

-- What a cancel would reach now.
CREATE VIEW postcommit_cancellable AS
  SELECT t.name AS tenant, note.entity, note.event_type, q.tenant AS of_tenant, q.notification_id, q.n
  FROM postcommit_notification note JOIN postcommit_tenant t ON t.id = note.tenant
  JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id WHERE q.lease_token IS NULL AND note.entity IS NOT NULL;

-- INSERT INTO postcommit_cancel (tenant, entity[, event_type]) takes back what is not yet sent for an entity.
CREATE VIEW postcommit_cancel AS SELECT '' AS tenant, entity, event_type FROM postcommit_notification WHERE 0;

CREATE TRIGGER postcommit_cancel_insert INSTEAD OF INSERT ON postcommit_cancel BEGIN
  INSERT OR IGNORE INTO postcommit_cancel_request (tenant, notification_id, n, asked_at)
    SELECT q.tenant, q.notification_id, q.n, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 FROM postcommit_notification note JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type);
  INSERT INTO postcommit_delivery_ledger (tenant, notification_id, n, lane, channel, target, state, code, attempts, seq, unclear, finished_at)
    SELECT q.tenant, q.notification_id, q.n, q.lane, q.channel, q.target, 'cancelled', 'cancelled', q.attempts, q.seq, q.unclear, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
    FROM postcommit_notification note JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type) AND q.lease_token IS NULL;
  DELETE FROM postcommit_delivery_queue WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND lease_token IS NULL AND notification_id IN (SELECT id FROM postcommit_notification note
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type));
END;

-- One row per delivery, live or finished, in the words of the documentation.
CREATE VIEW postcommit_delivery AS
  SELECT d.notification_id || '.' || d.n AS id, t.name AS tenant, d.notification_id, d.n, note.event_type, note.entity, note.idempotency_key,
    d.channel, p.name AS provider, d.target, d.state, d.reason, d.attempts, strftime('%Y-%m-%dT%H:%M:%fZ', d.next_attempt_at / 1000000.0, 'unixepoch') AS next_attempt_at, d.code AS error_code, d.detail AS last_error, d.provider_ref,
    strftime('%Y-%m-%dT%H:%M:%fZ', note.created_at / 1000000.0, 'unixepoch') AS created_at, strftime('%Y-%m-%dT%H:%M:%fZ', d.sent_at / 1000000.0, 'unixepoch') AS sent_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(d.finished_at, (SELECT a.at FROM postcommit_attempt a WHERE a.tenant = d.tenant AND a.notification_id = d.notification_id AND a.n = d.n AND a.seq = d.seq), note.created_at) / 1000000.0, 'unixepoch') AS updated_at,
    note.priority, strftime('%Y-%m-%dT%H:%M:%fZ', note.expires_at / 1000000.0, 'unixepoch') AS expires_at, d.unclear, d.tenant AS tenant_id
  FROM (
    SELECT q.tenant, q.notification_id, q.n, q.lane, q.channel, q.target,
      CASE WHEN q.lease_token IS NOT NULL THEN 'sending' WHEN q.attempts > 0 OR q.losses > 0 THEN 'retrying' ELSE 'pending' END AS state, NULL AS reason,
      q.attempts, q.seq, q.due_at AS next_attempt_at, q.code, q.detail, NULL AS provider_ref, NULL AS sent_at, NULL AS finished_at, q.unclear
    FROM postcommit_delivery_queue q
    UNION ALL
    SELECT l.tenant, l.notification_id, l.n, l.lane, l.channel, l.target, l.state, l.reason, l.attempts, l.seq, NULL, l.code, l.detail, l.provider_ref, l.sent_at, l.finished_at, l.unclear
    FROM postcommit_delivery_ledger l
  ) d
  JOIN postcommit_notification note ON note.tenant = d.tenant AND note.id = d.notification_id
  JOIN postcommit_tenant t ON t.id = d.tenant
  LEFT JOIN postcommit_provider p ON p.id = d.lane;

-- One row per notification: the least finished of its deliveries speaks for it.
CREATE VIEW postcommit_notification_status AS
  SELECT note.id, t.name AS tenant, note.event_type, note.entity, note.idempotency_key, note.payload, note.title, note.priority,
    coalesce((SELECT x.state FROM postcommit_delivery x WHERE x.tenant_id = note.tenant AND x.notification_id = note.id
      ORDER BY instr('sending retrying pending parked sent delivered expired cancelled discarded skipped', x.state) LIMIT 1), 'skipped') AS status,
    coalesce((SELECT sum(x.attempts) FROM postcommit_delivery x WHERE x.tenant_id = note.tenant AND x.notification_id = note.id), 0) AS attempts,
    (SELECT min(x.next_attempt_at) FROM postcommit_delivery x WHERE x.tenant_id = note.tenant AND x.notification_id = note.id) AS next_attempt_at,
    (SELECT x.error_code || coalesce(': ' || x.last_error, '') FROM postcommit_delivery x WHERE x.tenant_id = note.tenant AND x.notification_id = note.id AND x.error_code IS NOT NULL ORDER BY x.updated_at DESC LIMIT 1) AS last_error,
    strftime('%Y-%m-%dT%H:%M:%fZ', note.created_at / 1000000.0, 'unixepoch') AS created_at,
    (SELECT max(x.sent_at) FROM postcommit_delivery x WHERE x.tenant_id = note.tenant AND x.notification_id = note.id) AS sent_at,
    coalesce((SELECT max(x.updated_at) FROM postcommit_delivery x WHERE x.tenant_id = note.tenant AND x.notification_id = note.id), strftime('%Y-%m-%dT%H:%M:%fZ', note.created_at / 1000000.0, 'unixepoch')) AS updated_at,
    (SELECT count(*) FROM postcommit_delivery x WHERE x.tenant_id = note.tenant AND x.notification_id = note.id AND x.n > 0) AS deliveries, note.correlation_id, note.source, note.tenant AS tenant_id
  FROM postcommit_notification note JOIN postcommit_tenant t ON t.id = note.tenant;
