-- The tables on SQLite: the same words and meaning as on PostgreSQL, in the application's own file under the prefix postcommit_.
-- postgres/0001_baseline.sql says why a table is as it is; comments here are about SQLite. Triggers and views are in functions/
-- and views.sql, which `migrate` applies again when they change.
-- Differences from PostgreSQL: ids are text, because the triggers run in the application's own SQLite, which may be too old for
-- unhex(). Times are microseconds since 1970 as integers. There are no partitions. The idempotency table holds the key itself,
-- because SQL cannot hash here. {now} is the database's clock (db/sqlite.rs).
-- Needs SQLite 3.38 or newer in the application. Limits are constraints whose names say field and limit.

-- Tenants -------------------------------------------------------------------------------------------------------------

CREATE TABLE postcommit_tenant (
  id               INTEGER PRIMARY KEY,
  name             TEXT NOT NULL UNIQUE
    CONSTRAINT tenant_1_to_63_letters_digits_or_marks CHECK (
      length(name) BETWEEN 1 AND 63 AND name NOT GLOB '*[^A-Za-z0-9_.-]*'),
  created_at       INTEGER NOT NULL,
  suspended_at     INTEGER,
  suspended_reason TEXT
    CONSTRAINT suspended_reason_1_to_255_characters CHECK (length(suspended_reason) BETWEEN 1 AND 255),
  weight           INTEGER NOT NULL DEFAULT 1
    CONSTRAINT weight_1_to_100 CHECK (typeof(weight) = 'integer' AND weight BETWEEN 1 AND 100),
  changed          INTEGER NOT NULL DEFAULT 0  -- provider_version.version of the last change of weight or suspension
);
CREATE INDEX postcommit_tenant_suspended ON postcommit_tenant (id) WHERE suspended_at IS NOT NULL;
CREATE INDEX postcommit_tenant_changed ON postcommit_tenant (changed) WHERE changed > 0;
INSERT INTO postcommit_tenant (name, created_at) VALUES ('default', {now});

-- Notifications -------------------------------------------------------------------------------------------------------

-- The intent: written once in the application's transaction, never changed.
CREATE TABLE postcommit_notification (
  seq             INTEGER PRIMARY KEY,
  tenant          INTEGER NOT NULL,
  id              TEXT NOT NULL,
  event_type      TEXT NOT NULL
    CONSTRAINT event_type_1_to_255_characters CHECK (
      length(event_type) BETWEEN 1 AND 255 AND typeof(event_type) IN ('text', 'null'))
    CONSTRAINT event_type_without_line_breaks CHECK (
      instr(event_type, char(10)) = 0 AND instr(event_type, char(13)) = 0 AND instr(event_type, char(0)) = 0),
  entity          TEXT
    CONSTRAINT entity_1_to_255_characters CHECK (length(entity) BETWEEN 1 AND 255 AND typeof(entity) IN ('text', 'null'))
    CONSTRAINT entity_without_line_breaks CHECK (
      instr(entity, char(10)) = 0 AND instr(entity, char(13)) = 0 AND instr(entity, char(0)) = 0),
  topic           TEXT
    CONSTRAINT topic_1_to_255_characters CHECK (length(topic) BETWEEN 1 AND 255 AND typeof(topic) IN ('text', 'null'))
    CONSTRAINT topic_without_line_breaks CHECK (
      instr(topic, char(10)) = 0 AND instr(topic, char(13)) = 0 AND instr(topic, char(0)) = 0),
  schema_version  INTEGER CONSTRAINT schema_version_is_a_32_bit_integer CHECK (schema_version BETWEEN -2147483648 AND 2147483647),
  idempotency_key TEXT NOT NULL
    CONSTRAINT idempotency_key_1_to_255_characters CHECK (
      length(idempotency_key) BETWEEN 1 AND 255 AND typeof(idempotency_key) IN ('text', 'null'))
    CONSTRAINT idempotency_key_without_line_breaks CHECK (
      instr(idempotency_key, char(10)) = 0 AND instr(idempotency_key, char(13)) = 0
      AND instr(idempotency_key, char(0)) = 0),
  payload         TEXT NOT NULL
    CONSTRAINT payload_is_json CHECK (json_valid(payload))
    CONSTRAINT payload_without_nul CHECK (instr(replace(payload, '\\', ''), '\u0000') = 0)
    CONSTRAINT payload_at_most_262144_bytes CHECK (length(CAST(payload AS BLOB)) <= 262144),
  recipients      TEXT NOT NULL
    CONSTRAINT recipients_is_an_array_of_at_most_1000 CHECK (
      json_valid(recipients) AND json_type(recipients) = 'array' AND json_array_length(recipients) <= 1000)
    CONSTRAINT recipients_at_most_2097152_bytes CHECK (length(CAST(recipients AS BLOB)) <= 2097152),
  channels        TEXT NOT NULL
    CONSTRAINT channels_is_an_array_of_at_most_32 CHECK (
      json_valid(channels) AND json_type(channels) = 'array' AND json_array_length(channels) <= 32)
    CONSTRAINT channels_of_letters_digits_or_marks CHECK (channels NOT GLOB '*[^]A-Za-z0-9_.,"[-]*'),
  title           TEXT
    CONSTRAINT title_at_most_998_bytes CHECK (length(CAST(title AS BLOB)) <= 998)
    CONSTRAINT title_without_line_breaks CHECK (
      instr(title, char(10)) = 0 AND instr(title, char(13)) = 0 AND instr(title, char(0)) = 0),
  body            TEXT
    CONSTRAINT body_at_most_262144_bytes CHECK (length(CAST(body AS BLOB)) <= 262144)
    CONSTRAINT body_is_text_without_nul CHECK (typeof(body) IN ('text', 'null') AND instr(body, char(0)) = 0),
  action_url      TEXT
    CONSTRAINT action_url_at_most_2048_bytes CHECK (length(CAST(action_url AS BLOB)) <= 2048)
    CONSTRAINT action_url_is_http_https_mailto_or_tel CHECK (
      (lower(action_url) GLOB 'http://?*' OR lower(action_url) GLOB 'https://?*' OR lower(action_url) GLOB 'mailto:?*'
        OR lower(action_url) GLOB 'tel:?*')
      AND action_url NOT GLOB '*[' || char(1) || '-' || char(32) || '\]*')
    CONSTRAINT action_url_without_user_name CHECK (
      lower(action_url) NOT GLOB 'http*' OR instr(substr(action_url, 9), '@') = 0
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
    CONSTRAINT correlation_id_1_to_255_characters CHECK (
      length(correlation_id) BETWEEN 1 AND 255 AND typeof(correlation_id) IN ('text', 'null'))
    CONSTRAINT correlation_id_without_line_breaks CHECK (
      instr(correlation_id, char(10)) = 0 AND instr(correlation_id, char(13)) = 0
      AND instr(correlation_id, char(0)) = 0),
  created_at      INTEGER NOT NULL,
  UNIQUE (tenant, id),
  CONSTRAINT expires_at_after_due_at CHECK (expires_at > due_at)
);
CREATE INDEX postcommit_notification_entity ON postcommit_notification (tenant, entity, id) WHERE entity IS NOT NULL;
-- Holds only notifications that name a site: an enqueue pays for this index only where it is used.
CREATE INDEX postcommit_notification_site ON postcommit_notification (tenant, source ->> 'site', id)
  WHERE source ->> 'site' IS NOT NULL;

-- Idempotency ---------------------------------------------------------------------------------------------------------

CREATE TABLE postcommit_idempotency (
  tenant          INTEGER NOT NULL,
  key             TEXT NOT NULL,
  notification_id TEXT NOT NULL,
  PRIMARY KEY (tenant, key)
) WITHOUT ROWID;

-- An enqueue that used a known key with other content: not sent, noted here.
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

-- The queue -----------------------------------------------------------------------------------------------------------

-- Live work only. n = 0 is the notification's own row until it is expanded. A lane above 0 is a provider's id; what is not
-- expanded or routed yet waits in its tenant's own lane, minus the tenant's id.
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
  lost_since      INTEGER,           -- when the expired lease began that the present claim took over
  losses          INTEGER NOT NULL DEFAULT 0,  -- leases that expired, in this round
  attempts        INTEGER NOT NULL DEFAULT 0,  -- in this round; an operator's retry begins a new one
  seq             INTEGER NOT NULL DEFAULT 0,  -- attempts ever made; numbers the rows of attempt
  first_try_at    INTEGER,                     -- when the provider may first have seen the key, in this round
  unclear         INTEGER NOT NULL DEFAULT 0,  -- an attempt of this round may have arrived without our knowing
  channel         TEXT,
  target          TEXT,
  provider        TEXT,                  -- the provider that the recipient named, if it named one
  template        TEXT,                  -- what the delivery is rendered by; NULL: the notification's own title and body
  template_version INTEGER,
  language        TEXT,
  code            TEXT,              -- of the last attempt, if it failed
  detail          TEXT,
  PRIMARY KEY (tenant, notification_id, n)
) WITHOUT ROWID;
CREATE INDEX postcommit_delivery_queue_claim ON postcommit_delivery_queue (lane, priority, due_at);

-- A cancel leaves a request here for a row that is leased.
CREATE TABLE postcommit_cancel_request (
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,  -- 0: it was not expanded yet, so all of its deliveries
  asked_at        INTEGER NOT NULL,
  PRIMARY KEY (tenant, notification_id, n)
) WITHOUT ROWID;

-- The ledger ----------------------------------------------------------------------------------------------------------

-- Finished work. The key is the proof of one outcome: a delivery is in the queue or in the ledger, never in both.
CREATE TABLE postcommit_delivery_ledger (
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,
  lane            INTEGER NOT NULL,
  channel         TEXT,
  target          TEXT,
  provider        TEXT,  -- as in the queue, and so are the next three
  template        TEXT,
  template_version INTEGER,
  language        TEXT,
  state           TEXT NOT NULL CONSTRAINT known_state CHECK (
    state IN ('sent', 'delivered', 'parked', 'discarded', 'cancelled', 'expired', 'skipped')),
  reason          TEXT CONSTRAINT known_reason CHECK (reason IN ('rejected', 'exhausted', 'outcome_unknown', 'config')),
  code            TEXT,
  detail          TEXT,
  attempts        INTEGER NOT NULL,
  seq             INTEGER NOT NULL,
  unclear         INTEGER NOT NULL DEFAULT 0,  -- it may have arrived without our knowing
  provider_ref    TEXT,
  sent_at         INTEGER,
  finished_at     INTEGER NOT NULL,
  -- Where the delivery came from: the first 64 characters of source ->> 'site', or ''. A transaction that sets it has counted
  -- the row in rollup_fresh itself, as settle does for a whole batch. NULL: the trigger of functions/rollups.sql counts the row.
  site            TEXT,
  PRIMARY KEY (tenant, notification_id, n),
  CONSTRAINT parked_has_a_reason CHECK ((state = 'parked') <= (reason IS NOT NULL))
) WITHOUT ROWID;
CREATE INDEX postcommit_delivery_ledger_parked ON postcommit_delivery_ledger (tenant, notification_id) WHERE state = 'parked';

-- A result that came after its lease had gone to another worker. It changed nothing and is kept as evidence.
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

-- Attempts ------------------------------------------------------------------------------------------------------------

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

-- Providers -----------------------------------------------------------------------------------------------------------

-- A configured account of a driver on a channel. Its id is its lane.
CREATE TABLE postcommit_provider (
  tenant          INTEGER NOT NULL,
  id              INTEGER PRIMARY KEY AUTOINCREMENT,  -- the number of a deleted lane is never used again
  name            TEXT NOT NULL,
  channel         TEXT NOT NULL,             -- '*' serves every channel
  driver          TEXT NOT NULL,
  settings        TEXT NOT NULL,             -- validated by the driver
  secrets         BLOB,                      -- encrypted
  guarantee       TEXT NOT NULL
    CONSTRAINT known_guarantee CHECK (guarantee IN ('idempotent', 'at_most_once', 'at_least_once')),
  guarantee_since INTEGER NOT NULL DEFAULT 0,  -- when it was last changed
  policy          TEXT NOT NULL,
  concurrency     INTEGER NOT NULL,
  timeout_ms      INTEGER NOT NULL,
  is_default      INTEGER NOT NULL,
  enabled         INTEGER NOT NULL DEFAULT 1,
  paused          TEXT,                      -- the reason, when the lane is paused
  not_before      INTEGER,                   -- a provider's Retry-After holds the whole lane
  revision        INTEGER NOT NULL DEFAULT 1,
  created_at      INTEGER NOT NULL,
  updated_at      INTEGER NOT NULL,
  -- How many sends a second the provider may be given, by all processes together. NULL: no limit.
  rate_per_s      REAL CONSTRAINT rate_per_s_0_001_to_10000 CHECK (rate_per_s BETWEEN 0.001 AND 10000),
  burst           INTEGER CONSTRAINT burst_1_to_10000 CHECK (burst BETWEEN 1 AND 10000),  -- NULL: what fits one second
  changed         INTEGER NOT NULL DEFAULT 0,  -- provider_version.version of the last change
  CONSTRAINT provider_name UNIQUE (tenant, name)
);
CREATE UNIQUE INDEX postcommit_provider_default ON postcommit_provider (tenant, channel) WHERE is_default;
CREATE INDEX postcommit_provider_changed ON postcommit_provider (changed);

-- Counts the changes of all providers, hosts and tenants. A claim reads it along, so that a dispatcher keeps the providers in
-- memory and sees every change with its next claim.
CREATE TABLE postcommit_provider_version (
  version     INTEGER NOT NULL,
  rerouted_at INTEGER NOT NULL  -- the last change that could have sent a delivery to another provider
);
INSERT INTO postcommit_provider_version VALUES (1, 0);

-- Providers that were deleted.
CREATE TABLE postcommit_provider_gone (
  changed INTEGER PRIMARY KEY,
  id      INTEGER NOT NULL
);

-- Lanes, hosts and rates ----------------------------------------------------------------------------------------------

-- A host that asked to wait, or refused, closes only itself where a lane serves many hosts (docs/decisions/0028).
CREATE TABLE postcommit_lane_host (
  tenant     INTEGER NOT NULL,
  lane       INTEGER NOT NULL,            -- the provider's id
  host       TEXT NOT NULL                -- name and port: example.com:443
    CONSTRAINT host_1_to_300_characters CHECK (typeof(host) = 'text' AND length(host) BETWEEN 1 AND 300),
  held_until INTEGER,                     -- NULL: not held
  paused     TEXT,                        -- the reason; NULL: not paused
  updated_at INTEGER NOT NULL,
  changed    INTEGER NOT NULL DEFAULT 0,  -- provider_version.version of the last change
  PRIMARY KEY (tenant, lane, host)
) WITHOUT ROWID;
CREATE INDEX postcommit_lane_host_changed ON postcommit_lane_host (changed);

-- The permits of a lane that were used, as of a time; they come back as time passes.
CREATE TABLE postcommit_lane_rate (
  lane  INTEGER PRIMARY KEY,
  used  REAL NOT NULL DEFAULT 0,
  as_of INTEGER NOT NULL
);

-- People --------------------------------------------------------------------------------------------------------------

-- pc_<id>_<secret>: the id is public; of the secret's 32 bytes only the hash is kept.
CREATE TABLE postcommit_api_key (
  tenant       INTEGER NOT NULL,
  id           TEXT NOT NULL UNIQUE,
  name         TEXT NOT NULL CONSTRAINT key_name_1_to_255_characters CHECK (length(name) BETWEEN 1 AND 255),
  scopes       TEXT NOT NULL CONSTRAINT known_scopes CHECK (json_array_length(scopes) > 0),  -- a JSON array
  secret_hash  BLOB NOT NULL,             -- SHA-256
  created_at   INTEGER NOT NULL,
  created_by   TEXT NOT NULL,
  expires_at   INTEGER,
  last_used_at INTEGER,                   -- to the minute
  revoked_at   INTEGER,
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

-- A link that signs a person in, once.
CREATE TABLE postcommit_login_link (
  tenant     INTEGER NOT NULL,
  hash       BLOB NOT NULL UNIQUE,        -- SHA-256 of what the link holds
  key_id     TEXT,                        -- the key it was made for; the link is void without it
  actor      TEXT NOT NULL,
  scopes     TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at    INTEGER,
  PRIMARY KEY (tenant, hash)
) WITHOUT ROWID;

-- A person who is signed in.
CREATE TABLE postcommit_session (
  tenant       INTEGER NOT NULL,
  hash         BLOB NOT NULL UNIQUE,      -- SHA-256 of what the cookie holds
  csrf_hash    BLOB NOT NULL,             -- SHA-256 of what forms send along
  key_id       TEXT,                      -- the key behind it; the session ends with it
  actor        TEXT NOT NULL,
  scopes       TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  last_seen_at INTEGER NOT NULL,          -- to the minute
  expires_at   INTEGER NOT NULL,
  PRIMARY KEY (tenant, hash)
) WITHOUT ROWID;

-- Audit ---------------------------------------------------------------------------------------------------------------

-- Who changed what: written in the transaction of the change, never changed itself.
CREATE TABLE postcommit_audit (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant     INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  actor      TEXT NOT NULL,               -- key:<id>, cli:<user>, system, …
  action     TEXT NOT NULL,               -- noun.verb
  subject    TEXT NOT NULL,               -- the object of the action
  details    TEXT,                        -- more about it, such as the filter, as JSON
  count      INTEGER NOT NULL,            -- how many objects
  request_id TEXT
);
CREATE INDEX postcommit_audit_of_tenant ON postcommit_audit (tenant, id);
CREATE INDEX postcommit_audit_subject ON postcommit_audit (tenant, subject);

-- Inbox ---------------------------------------------------------------------------------------------------------------

-- One row per user who has ever got a message of the channel in_app; it numbers the changes. There is one writer, so changes
-- become visible in the order of their positions. Open pages hear of a change by the file's version.
CREATE TABLE postcommit_inbox (
  tenant   INTEGER NOT NULL,
  user_id  TEXT NOT NULL
    CONSTRAINT user_id_1_to_255_characters CHECK (length(user_id) BETWEEN 1 AND 255)
    CONSTRAINT user_id_without_line_breaks CHECK (
      instr(user_id, char(10)) = 0 AND instr(user_id, char(13)) = 0 AND instr(user_id, char(0)) = 0),
  position INTEGER NOT NULL,  -- of the last change
  PRIMARY KEY (tenant, user_id)
) WITHOUT ROWID;

-- The key is the delivery's: repeating a delivery writes nothing new.
CREATE TABLE postcommit_inbox_message (
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,
  user_id         TEXT NOT NULL,
  position        INTEGER NOT NULL,  -- of its arrival, among the user's changes
  changed         INTEGER NOT NULL,  -- of its last change: it arrived, was read, was archived
  event_type      TEXT NOT NULL,
  entity          TEXT,
  title           TEXT,
  body            TEXT,
  action_url      TEXT,
  data            TEXT,              -- what the notification's data holds for in_app
  created_at      INTEGER NOT NULL,
  expires_at      INTEGER NOT NULL,  -- the notification's; an expired message is not listed
  read_at         INTEGER,
  archived_at     INTEGER,
  PRIMARY KEY (tenant, notification_id, n)
);
CREATE INDEX postcommit_inbox_message_newest ON postcommit_inbox_message (tenant, user_id, position);
CREATE INDEX postcommit_inbox_message_changed ON postcommit_inbox_message (tenant, user_id, changed);
-- Counts unread messages without visiting those that were read, however many they are.
CREATE INDEX postcommit_inbox_message_unread ON postcommit_inbox_message (tenant, user_id, expires_at)
  WHERE read_at IS NULL AND archived_at IS NULL;

-- The key that signs a tenant's user tokens. Deleting the row revokes them all.
CREATE TABLE postcommit_inbox_token_key (
  tenant     INTEGER PRIMARY KEY,
  key        BLOB NOT NULL CONSTRAINT key_of_32_bytes CHECK (length(key) = 32),
  created_at INTEGER NOT NULL
);

-- Jobs ----------------------------------------------------------------------------------------------------------------

-- Retry, discard or cancel by filter, in slices, in the background.
CREATE TABLE postcommit_job (
  tenant      INTEGER NOT NULL,      -- 0: every tenant, requested by operations
  id          TEXT NOT NULL,
  kind        TEXT NOT NULL CONSTRAINT known_kind CHECK (kind IN ('retry', 'discard', 'cancel')),
  filter      TEXT NOT NULL,
  asked_by    TEXT NOT NULL,
  asked_at    INTEGER NOT NULL,      -- also the bound: what is parked, or enqueued, later is left alone
  total       INTEGER NOT NULL,      -- how many matched then; a lower bound where counting was given up
  is_exact    INTEGER NOT NULL,
  done        INTEGER NOT NULL DEFAULT 0,
  skipped     INTEGER NOT NULL DEFAULT 0,  -- another process or person had moved them
  pace        INTEGER NOT NULL CONSTRAINT pace_1_to_10000_a_second CHECK (pace BETWEEN 1 AND 10000),
  state       TEXT NOT NULL DEFAULT 'queued'
    CONSTRAINT known_job_state CHECK (state IN ('queued', 'running', 'done', 'cancelled', 'failed')),
  position    TEXT,                  -- where the next slice begins; moves in the transaction of the slice
  lease_token TEXT,                  -- one process at a time
  lease_until INTEGER,
  next_at     INTEGER NOT NULL,      -- the next slice is not done before this time: the pace
  failures    INTEGER NOT NULL DEFAULT 0,  -- in a row
  last_error  TEXT,
  finished_at INTEGER,
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX postcommit_job_open ON postcommit_job (next_at) WHERE state IN ('queued', 'running');

-- Rollups -------------------------------------------------------------------------------------------------------------

-- How many deliveries entered which state, by minute and by hour. They are counted in the transaction that changes the ledger,
-- so the sums are exact, and reading them does not read history.

-- Counts that are not folded yet.
CREATE TABLE postcommit_rollup_fresh (
  tenant  INTEGER NOT NULL,
  slot    INTEGER NOT NULL,  -- the minute's start
  site    TEXT NOT NULL,
  channel TEXT NOT NULL,     -- '' before it was expanded
  state   TEXT NOT NULL,     -- a state of the ledger, or confirmed: sent before, and known to have arrived now
  count   INTEGER NOT NULL
);

-- Folded counts: one row for each minute, and for each hour, in which something happened. A count enters both in one
-- transaction.
CREATE TABLE postcommit_rollup_minute (
  tenant  INTEGER NOT NULL,
  slot    INTEGER NOT NULL,
  state   TEXT NOT NULL,
  channel TEXT NOT NULL,
  site    TEXT NOT NULL,
  count   INTEGER NOT NULL,
  PRIMARY KEY (tenant, slot, state, channel, site)
) WITHOUT ROWID;
CREATE TABLE postcommit_rollup_hour (
  tenant  INTEGER NOT NULL,
  slot    INTEGER NOT NULL,
  state   TEXT NOT NULL,
  channel TEXT NOT NULL,
  site    TEXT NOT NULL,
  count   INTEGER NOT NULL,
  PRIMARY KEY (tenant, slot, state, channel, site)
) WITHOUT ROWID;

-- The sites and channels of a tenant that are counted separately, up to a limit; later ones are folded into 'other'.
CREATE TABLE postcommit_rollup_label (
  tenant INTEGER NOT NULL,
  kind   TEXT NOT NULL,
  label  TEXT NOT NULL,
  PRIMARY KEY (tenant, kind, label)
) WITHOUT ROWID;

-- Workers and duties --------------------------------------------------------------------------------------------------

-- When each background duty last ran, so that many processes do it once.
CREATE TABLE postcommit_duty (
  name   TEXT PRIMARY KEY,
  ran_at INTEGER NOT NULL
) WITHOUT ROWID;
