-- When messages are sent: quiet hours, throttles, digests. ../postgres/0008_pacing.sql has the comments.
ALTER TABLE postcommit_event_type
  ADD COLUMN quiet_hours TEXT NOT NULL DEFAULT 'delay'
    CONSTRAINT known_quiet_hours CHECK (quiet_hours IN ('delay', 'skip', 'ignore'));

ALTER TABLE postcommit_template ADD COLUMN throttle TEXT;
ALTER TABLE postcommit_template ADD COLUMN digest TEXT;

CREATE TABLE postcommit_throttle (
  tenant   INTEGER NOT NULL,
  key_hash TEXT NOT NULL,
  until    INTEGER NOT NULL,
  sent     INTEGER NOT NULL,
  PRIMARY KEY (tenant, key_hash)
) WITHOUT ROWID;
CREATE INDEX postcommit_throttle_until ON postcommit_throttle (until);

CREATE TABLE postcommit_digest (
  tenant          INTEGER NOT NULL,
  key_hash        TEXT NOT NULL,
  notification_id TEXT NOT NULL,
  items           INTEGER NOT NULL,
  bytes           INTEGER NOT NULL,
  PRIMARY KEY (tenant, key_hash)
) WITHOUT ROWID;

CREATE TABLE postcommit_digest_item (
  tenant          INTEGER NOT NULL,
  digest_id       TEXT NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,
  PRIMARY KEY (tenant, digest_id, notification_id, n)
) WITHOUT ROWID;
