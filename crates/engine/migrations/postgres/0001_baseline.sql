-- The tables. Functions, triggers and views are in functions/ and views.sql, which `migrate` applies again when they change.
-- The schema is a public contract; docs/sql.md describes it. Limits are constraints whose names say field and limit.

-- Tenants -------------------------------------------------------------------------------------------------------------

CREATE TABLE postcommit.tenant (
  id               int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name             text NOT NULL
    CONSTRAINT tenant_1_to_63_letters_digits_or_marks CHECK (name ~ '^[A-Za-z0-9_.-]{1,63}$')
    -- HTTP clients remove a path segment `.` or `..` from a URL.
    CONSTRAINT tenant_other_than_dot_and_dot_dot CHECK (name NOT IN ('.', '..')),
  created_at       timestamptz NOT NULL DEFAULT now(),
  -- The lanes of a suspended tenant are closed: its deliveries stay in the queue, and the application may go on enqueueing.
  suspended_at     timestamptz,
  suspended_reason text CONSTRAINT suspended_reason_1_to_255_characters CHECK (length(suspended_reason) BETWEEN 1 AND 255),
  -- When several tenants have something due, each is given slots in proportion to its weight.
  weight           int NOT NULL DEFAULT 1 CONSTRAINT weight_1_to_100 CHECK (weight BETWEEN 1 AND 100),
  changed          bigint NOT NULL DEFAULT 0,  -- provider_version.version of the last change of weight or suspension
  CONSTRAINT tenant_name UNIQUE (name),
  CONSTRAINT suspended_for_a_reason CHECK ((suspended_at IS NULL) = (suspended_reason IS NULL))
);
-- Every claim reads the suspended tenants; usually there are none.
CREATE INDEX tenant_suspended ON postcommit.tenant (id) WHERE suspended_at IS NOT NULL;
CREATE INDEX tenant_changed ON postcommit.tenant (changed) WHERE changed > 0;
INSERT INTO postcommit.tenant (name) VALUES ('default');

-- Notifications -------------------------------------------------------------------------------------------------------

-- The intent: written once in the application's transaction, never changed.
-- Partitioned by id (a UUIDv7 begins with its time), so that a purge is a DROP and history costs the hot path nothing.
-- The limits of its fields are in functions/limits.sql: as constraints of this table PostgreSQL read them from the catalogue
-- for every INSERT, which took 74 of its 123 µs.
CREATE TABLE postcommit.notification (
  tenant          int NOT NULL,
  id              uuid NOT NULL,
  event_type      text NOT NULL,
  entity          text,
  topic           text,
  schema_version  int,
  idempotency_key text NOT NULL,
  payload         jsonb NOT NULL,
  recipients      jsonb NOT NULL,
  channels        text[] NOT NULL,
  title           text,
  body            text,
  action_url      text,
  data            jsonb,
  priority        smallint NOT NULL,
  due_at          timestamptz NOT NULL,
  expires_at      timestamptz NOT NULL,
  source          jsonb,
  correlation_id  text,
  created_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, id)
) PARTITION BY RANGE (id);
CREATE INDEX notification_entity ON postcommit.notification (tenant, entity, id) WHERE entity IS NOT NULL;
-- Holds only notifications that name a site: an enqueue pays for this index only where it is used.
CREATE INDEX notification_site ON postcommit.notification (tenant, (source ->> 'site'), id) WHERE source ->> 'site' IS NOT NULL;
CREATE TABLE postcommit.notification_default PARTITION OF postcommit.notification DEFAULT;

-- Idempotency ---------------------------------------------------------------------------------------------------------

-- Not partitioned, because a key is unique over all time. Hashes of 128 bits need a quarter of the room of the keys.
CREATE TABLE postcommit.idempotency (
  tenant          int NOT NULL,
  key_hash        uuid NOT NULL,
  notification_id uuid NOT NULL,
  content_hash    uuid NOT NULL,
  PRIMARY KEY (tenant, key_hash)
);

-- An enqueue that used a known key with other content: not sent, noted here.
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

-- The queue -----------------------------------------------------------------------------------------------------------

-- Live work only. n = 0 is the notification's own row until it is expanded. A lane above 0 is a provider's id; what is not
-- expanded or routed yet waits in its tenant's own lane, minus the tenant's id.
-- A claim writes only lease columns, none of them indexed, so that it stays a HOT update. A claimed row is half as long again
-- as an unclaimed one: with a fillfactor of 50 every third claim found no room on its page and wrote both indexes again.
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
  lost_since      timestamptz,           -- when the expired lease began that the present claim took over
  losses          int NOT NULL DEFAULT 0,          -- leases that expired, in this round
  attempts        int NOT NULL DEFAULT 0,          -- in this round; an operator's retry begins a new one
  seq             int NOT NULL DEFAULT 0,          -- attempts ever made; numbers the rows of attempt
  first_try_at    timestamptz,                     -- when the provider may first have seen the key, in this round
  unclear         boolean NOT NULL DEFAULT false,  -- an attempt of this round may have arrived without our knowing
  channel         text,
  target          text,
  provider        text,                  -- the provider that the recipient named, if it named one
  template        text,                  -- what the delivery is rendered by; NULL: the notification's own title and body
  template_version int,
  language        text,
  code            text,                  -- of the last attempt, if it failed
  detail          text,
  PRIMARY KEY (tenant, notification_id, n)
) WITH (fillfactor = 35, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_cost_delay = 0);
-- Without the id: misled by statistics, the planner could otherwise serve lookups by id from this index.
CREATE INDEX delivery_queue_claim ON postcommit.delivery_queue (lane, priority, due_at);

-- A cancel cannot touch a leased row, because settle would wait for the application's commit. It leaves a request here.
CREATE TABLE postcommit.cancel_request (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,  -- 0: it was not expanded yet, so all of its deliveries
  asked_at        timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, notification_id, n)
);

-- The ledger ----------------------------------------------------------------------------------------------------------

-- Finished work. The key is the proof of one outcome: a delivery is in the queue or in the ledger, never in both.
CREATE TABLE postcommit.delivery_ledger (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,
  lane            int NOT NULL,
  channel         text,
  target          text,
  provider        text,  -- as in the queue, and so are the next three
  template        text,
  template_version int,
  language        text,
  state           text NOT NULL CONSTRAINT known_state CHECK (
    state IN ('sent', 'delivered', 'parked', 'discarded', 'cancelled', 'expired', 'skipped')),
  reason          text CONSTRAINT known_reason CHECK (reason IN ('rejected', 'exhausted', 'outcome_unknown', 'config')),
  code            text,
  detail          text,
  attempts        int NOT NULL,
  seq             int NOT NULL,
  unclear         boolean NOT NULL DEFAULT false,  -- it may have arrived without our knowing
  provider_ref    text,
  sent_at         timestamptz,
  finished_at     timestamptz NOT NULL,
  -- Where the delivery came from: the first 64 characters of source ->> 'site', or ''. A statement that sets it has counted
  -- the row in rollup_fresh itself, as settle does for a whole batch: a trigger for each row, or a transition table, would
  -- cost every delivery 2 µs and more. NULL: the trigger of functions/rollups.sql counts the row.
  site            text,
  PRIMARY KEY (tenant, notification_id, n),
  CONSTRAINT parked_has_a_reason CHECK ((state = 'parked') <= (reason IS NOT NULL))
) PARTITION BY RANGE (notification_id);
CREATE INDEX delivery_ledger_parked ON postcommit.delivery_ledger (tenant, notification_id) WHERE state = 'parked';
CREATE TABLE postcommit.delivery_ledger_default PARTITION OF postcommit.delivery_ledger DEFAULT;

-- A result that came after its lease had gone to another worker. It changed nothing and is kept as evidence.
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

-- Attempts ------------------------------------------------------------------------------------------------------------

-- Every try, append-only.
CREATE TABLE postcommit.attempt (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,
  seq             int NOT NULL,
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
CREATE TABLE postcommit.attempt_default PARTITION OF postcommit.attempt DEFAULT;

-- Providers -----------------------------------------------------------------------------------------------------------

-- A configured account of a driver on a channel. Its id is its lane.
CREATE TABLE postcommit.provider (
  tenant          int NOT NULL,
  id              int GENERATED ALWAYS AS IDENTITY,
  name            text NOT NULL,
  channel         text NOT NULL,             -- '*' serves every channel
  driver          text NOT NULL,
  settings        jsonb NOT NULL,            -- validated by the driver
  secrets         bytea,                     -- encrypted; see docs/decisions/0005
  guarantee       text NOT NULL
    CONSTRAINT known_guarantee CHECK (guarantee IN ('idempotent', 'at_most_once', 'at_least_once')),
  guarantee_since timestamptz NOT NULL DEFAULT '1970-01-01 00:00:00Z',  -- when it was last changed
  policy          jsonb NOT NULL,
  concurrency     int NOT NULL,
  timeout_ms      int NOT NULL,
  is_default      boolean NOT NULL,
  enabled         boolean NOT NULL DEFAULT true,
  paused          text,                      -- the reason, when the lane is paused
  not_before      timestamptz,               -- a provider's Retry-After holds the whole lane
  revision        int NOT NULL DEFAULT 1,
  created_at      timestamptz NOT NULL DEFAULT now(),
  updated_at      timestamptz NOT NULL DEFAULT now(),
  -- How many sends a second the provider may be given, by all processes together. NULL: no limit.
  rate_per_s      double precision CONSTRAINT rate_per_s_0_001_to_10000 CHECK (rate_per_s BETWEEN 0.001 AND 10000),
  burst           int CONSTRAINT burst_1_to_10000 CHECK (burst BETWEEN 1 AND 10000),  -- NULL: what fits one second
  changed         bigint NOT NULL DEFAULT 0,  -- provider_version.version of the last change
  PRIMARY KEY (tenant, id),
  CONSTRAINT provider_name UNIQUE (tenant, name),
  CONSTRAINT provider_lane UNIQUE (id)
);
CREATE UNIQUE INDEX provider_default ON postcommit.provider (tenant, channel) WHERE is_default;
CREATE INDEX provider_changed ON postcommit.provider (changed);

-- Counts the changes of all providers, hosts and tenants. A claim reads it along, so that a dispatcher keeps the providers in
-- memory and sees every change with its next claim. The row is locked until a change commits: numbers are given in the order
-- of commits, and a process that has read one has seen every change before it.
-- The key lets a publication of all tables (change data capture) replicate updates.
CREATE TABLE postcommit.provider_version (
  version     bigint NOT NULL,
  rerouted_at timestamptz NOT NULL,  -- the last change that could have sent a delivery to another provider
  one         boolean NOT NULL DEFAULT true PRIMARY KEY CONSTRAINT provider_version_is_one_row CHECK (one)
) WITH (fillfactor = 50);
INSERT INTO postcommit.provider_version (version, rerouted_at) VALUES (1, '1970-01-01 00:00:00Z');

-- Providers that were deleted.
CREATE TABLE postcommit.provider_gone (
  changed bigint PRIMARY KEY,
  id      int NOT NULL
);

-- Lanes, hosts and rates ----------------------------------------------------------------------------------------------

-- A host that asked to wait, or refused, closes only itself where a lane serves many hosts (docs/decisions/0028).
CREATE TABLE postcommit.lane_host (
  tenant     int NOT NULL,
  lane       int NOT NULL,               -- the provider's id
  host       text NOT NULL               -- name and port: example.com:443
    CONSTRAINT host_1_to_300_characters CHECK (length(host) BETWEEN 1 AND 300),
  held_until timestamptz,                -- NULL: not held
  paused     text,                       -- the reason; NULL: not paused
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  changed    bigint NOT NULL DEFAULT 0,  -- provider_version.version of the last change
  PRIMARY KEY (tenant, lane, host)
);
CREATE INDEX lane_host_changed ON postcommit.lane_host (changed);

-- The permits of a lane that were used, as of a time; they come back as time passes. Not in the provider's row, because every
-- process reads a changed provider again.
CREATE TABLE postcommit.lane_rate (
  lane  int PRIMARY KEY,
  used  double precision NOT NULL DEFAULT 0,
  as_of timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- People --------------------------------------------------------------------------------------------------------------

-- pc_<id>_<secret>: the id is public; of the secret's 32 bytes only the hash is kept.
CREATE TABLE postcommit.api_key (
  tenant       int NOT NULL,
  id           text NOT NULL,
  name         text NOT NULL CONSTRAINT key_name_1_to_255_characters CHECK (length(name) BETWEEN 1 AND 255),
  scopes       text[] NOT NULL CONSTRAINT known_scopes CHECK (
    cardinality(scopes) > 0 AND scopes <@ ARRAY['enqueue', 'read', 'operate', 'edit', 'admin', 'ops', 'site']),
  secret_hash  bytea NOT NULL,            -- SHA-256
  created_at   timestamptz NOT NULL,
  created_by   text NOT NULL,
  expires_at   timestamptz,
  last_used_at timestamptz,               -- to the minute
  revoked_at   timestamptz,
  PRIMARY KEY (tenant, id),
  CONSTRAINT api_key_id UNIQUE (id)
);

-- A link that signs a person in, once.
CREATE TABLE postcommit.login_link (
  tenant     int NOT NULL,
  hash       bytea NOT NULL,              -- SHA-256 of what the link holds
  key_id     text,                        -- the key it was made for; the link is void without it
  actor      text NOT NULL,
  scopes     text[] NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  used_at    timestamptz,
  PRIMARY KEY (tenant, hash),
  CONSTRAINT login_link_hash UNIQUE (hash)
);

-- A person who is signed in.
CREATE TABLE postcommit.session (
  tenant       int NOT NULL,
  hash         bytea NOT NULL,            -- SHA-256 of what the cookie holds
  csrf_hash    bytea NOT NULL,            -- SHA-256 of what forms send along
  key_id       text,                      -- the key behind it; the session ends with it
  actor        text NOT NULL,
  scopes       text[] NOT NULL,
  created_at   timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,      -- to the minute
  expires_at   timestamptz NOT NULL,
  PRIMARY KEY (tenant, hash),
  CONSTRAINT session_hash UNIQUE (hash)
);

-- Audit ---------------------------------------------------------------------------------------------------------------

-- Who changed what: written in the transaction of the change, never changed itself.
CREATE TABLE postcommit.audit (
  tenant     int NOT NULL,
  id         bigint GENERATED ALWAYS AS IDENTITY,
  at         timestamptz NOT NULL,
  actor      text NOT NULL,               -- key:<id>, cli:<user>, system, …
  action     text NOT NULL,               -- noun.verb
  subject    text NOT NULL,               -- the object of the action
  details    jsonb,                       -- more about it, such as the filter
  count      bigint NOT NULL,             -- how many objects
  request_id text,
  PRIMARY KEY (tenant, id),
  CONSTRAINT audit_id UNIQUE (id)
);
CREATE INDEX audit_subject ON postcommit.audit (tenant, subject);

-- Inbox ---------------------------------------------------------------------------------------------------------------

-- One row per user who has ever got a message of the channel in_app. A change in an inbox first takes the next position here
-- and locks this row until it commits: the changes of one user become visible in the order of their positions, and a reader
-- that has seen one has seen every change before it.
CREATE TABLE postcommit.inbox (
  tenant   int NOT NULL,
  user_id  text NOT NULL
    CONSTRAINT user_id_1_to_255_characters CHECK (length(user_id) BETWEEN 1 AND 255)
    CONSTRAINT user_id_without_line_breaks CHECK (user_id !~ '[\r\n]'),
  position bigint NOT NULL,  -- of the last change
  PRIMARY KEY (tenant, user_id)
) WITH (fillfactor = 50);

-- The key is the delivery's: repeating a delivery writes nothing new.
CREATE TABLE postcommit.inbox_message (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,
  user_id         text NOT NULL,
  position        bigint NOT NULL,  -- of its arrival, among the user's changes
  changed         bigint NOT NULL,  -- of its last change: it arrived, was read, was archived
  event_type      text NOT NULL,
  entity          text,
  title           text,
  body            text,
  action_url      text,
  data            jsonb,            -- what the notification's data holds for in_app
  created_at      timestamptz NOT NULL,
  expires_at      timestamptz NOT NULL,  -- the notification's; an expired message is not listed
  read_at         timestamptz,
  archived_at     timestamptz,
  PRIMARY KEY (tenant, notification_id, n)
);
CREATE INDEX inbox_message_newest ON postcommit.inbox_message (tenant, user_id, position);
CREATE INDEX inbox_message_changed ON postcommit.inbox_message (tenant, user_id, changed);
-- Counts unread messages without visiting those that were read, however many they are.
CREATE INDEX inbox_message_unread ON postcommit.inbox_message (tenant, user_id, expires_at)
  WHERE read_at IS NULL AND archived_at IS NULL;

-- A process with open pages is listed here; a change notifies only when a process would hear it.
CREATE UNLOGGED TABLE postcommit.inbox_watch (
  watcher uuid PRIMARY KEY,
  until   timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The key that signs a tenant's user tokens. Deleting the row revokes them all.
CREATE TABLE postcommit.inbox_token_key (
  tenant     int PRIMARY KEY,
  key        bytea NOT NULL CONSTRAINT key_of_32_bytes CHECK (octet_length(key) = 32),
  created_at timestamptz NOT NULL
);

-- Jobs ----------------------------------------------------------------------------------------------------------------

-- Retry, discard or cancel by filter, in slices, in the background.
CREATE TABLE postcommit.job (
  tenant      int NOT NULL,          -- 0: every tenant, requested by operations
  id          uuid NOT NULL,
  kind        text NOT NULL CONSTRAINT known_kind CHECK (kind IN ('retry', 'discard', 'cancel')),
  filter      jsonb NOT NULL,
  asked_by    text NOT NULL,
  asked_at    timestamptz NOT NULL,  -- also the bound: what is parked, or enqueued, later is left alone
  total       bigint NOT NULL,       -- how many matched then; a lower bound where counting was given up
  is_exact    boolean NOT NULL,
  done        bigint NOT NULL DEFAULT 0,
  skipped     bigint NOT NULL DEFAULT 0,  -- another process or person had moved them
  pace        int NOT NULL CONSTRAINT pace_1_to_10000_a_second CHECK (pace BETWEEN 1 AND 10000),
  state       text NOT NULL DEFAULT 'queued'
    CONSTRAINT known_job_state CHECK (state IN ('queued', 'running', 'done', 'cancelled', 'failed')),
  position    text,                  -- where the next slice begins; moves in the transaction of the slice
  lease_token uuid,                  -- one process at a time
  lease_until timestamptz,
  next_at     timestamptz NOT NULL,  -- the next slice is not done before this time: the pace
  failures    int NOT NULL DEFAULT 0,  -- in a row
  last_error  text,
  finished_at timestamptz,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX job_open ON postcommit.job (next_at) WHERE state IN ('queued', 'running');

-- Rollups -------------------------------------------------------------------------------------------------------------

-- How many deliveries entered which state, by minute and by hour. They are counted in the transaction that changes the ledger,
-- so the sums are exact, and reading them does not read history.

-- Counts that are not folded yet. Append-only: no transaction waits for a row of another, not even for an application's open
-- transaction that cancels something. Without an index, because it is emptied every minute and always read whole.
CREATE TABLE postcommit.rollup_fresh (
  tenant  int NOT NULL,
  slot    timestamptz NOT NULL,  -- the minute's start
  site    text NOT NULL,
  channel text NOT NULL,         -- '' before it was expanded
  state   text NOT NULL,         -- a state of the ledger, or confirmed: sent before, and known to have arrived now
  count   bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- A publication of all tables needs to tell rows apart. A key would be an index to write for every outcome; whole rows are
-- short, and under wal_level = logical only the fold pays for them.
ALTER TABLE postcommit.rollup_fresh REPLICA IDENTITY FULL;

-- Folded counts: one row for each minute, and for each hour, in which something happened. A count enters both in one statement.
CREATE TABLE postcommit.rollup_minute (
  tenant  int NOT NULL,
  slot    timestamptz NOT NULL,
  state   text NOT NULL,
  channel text NOT NULL,
  site    text NOT NULL,
  count   bigint NOT NULL,
  PRIMARY KEY (tenant, slot, state, channel, site)
);
CREATE TABLE postcommit.rollup_hour (
  tenant  int NOT NULL,
  slot    timestamptz NOT NULL,
  state   text NOT NULL,
  channel text NOT NULL,
  site    text NOT NULL,
  count   bigint NOT NULL,
  PRIMARY KEY (tenant, slot, state, channel, site)
);

-- The sites and channels of a tenant that are counted separately, up to a limit; later ones are folded into 'other'.
CREATE TABLE postcommit.rollup_label (
  tenant int NOT NULL,
  kind   text NOT NULL,
  label  text NOT NULL,
  PRIMARY KEY (tenant, kind, label)
);

-- Workers and duties --------------------------------------------------------------------------------------------------

-- A dispatcher that found nothing to do is listed here; an enqueue notifies only when a dispatcher would hear it.
CREATE UNLOGGED TABLE postcommit.idle (
  worker uuid PRIMARY KEY,
  until  timestamptz NOT NULL
) WITH (fillfactor = 50);

-- When each background duty last ran, so that many processes do it once.
CREATE TABLE postcommit.duty (
  name   text PRIMARY KEY,
  ran_at timestamptz NOT NULL
);

-- Nobody may use the schema until `migrate --roles` or an administrator grants it.
REVOKE ALL ON SCHEMA postcommit FROM PUBLIC;
