-- When messages are sent: quiet hours, throttles, digests. docs/decisions/0034 says how they lose nothing.

-- What an event type does with messages that fall into the quiet hours of a user (user_profile.quiet_hours).
ALTER TABLE postcommit.event_type
  ADD COLUMN quiet_hours text NOT NULL DEFAULT 'delay'
    CONSTRAINT known_quiet_hours CHECK (quiet_hours IN ('delay', 'skip', 'ignore'));

ALTER TABLE postcommit.template
  ADD COLUMN throttle jsonb,             -- max, per_s, then
  ADD COLUMN digest jsonb;               -- window_s, key

-- How much a recipient has had of a throttled template in the present period, which began with its first message.
CREATE TABLE postcommit.throttle (
  tenant   int NOT NULL,
  key_hash uuid NOT NULL,                -- of template and recipient
  until    timestamptz NOT NULL,         -- the end of the period
  sent     int NOT NULL,
  PRIMARY KEY (tenant, key_hash)
);
CREATE INDEX throttle_until ON postcommit.throttle (until);

-- The newest digest of a template, recipient and key. It takes items while its own notification waits to be expanded: while row
-- n = 0 is in the queue.
CREATE TABLE postcommit.digest (
  tenant          int NOT NULL,
  key_hash        uuid NOT NULL,         -- of template, recipient and key
  notification_id uuid NOT NULL,         -- the digest's own notification
  items           int NOT NULL,
  bytes           bigint NOT NULL,       -- of the payloads
  PRIMARY KEY (tenant, key_hash)
);

-- The events of a digest. Their payloads are in their notifications, which do not change.
CREATE TABLE postcommit.digest_item (
  tenant          int NOT NULL,
  digest_id       uuid NOT NULL,         -- the digest's own notification
  notification_id uuid NOT NULL,
  n               int NOT NULL,          -- the delivery that was skipped as digested
  PRIMARY KEY (tenant, digest_id, notification_id, n)
);
