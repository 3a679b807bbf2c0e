-- Receipts: what providers report of messages after they took them. ../postgres/0009_receipts.sql has the comments.
CREATE TABLE postcommit_callback_token (
  tenant     INTEGER NOT NULL,
  hash       BLOB NOT NULL UNIQUE,
  provider   INTEGER NOT NULL,
  token      TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER,
  PRIMARY KEY (tenant, hash)
) WITHOUT ROWID;
CREATE UNIQUE INDEX postcommit_callback_token_current ON postcommit_callback_token (tenant, provider) WHERE expires_at IS NULL;

CREATE TABLE postcommit_receipt (
  id              INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant          INTEGER NOT NULL,
  provider        INTEGER NOT NULL,
  event_id        TEXT NOT NULL
    CONSTRAINT event_id_1_to_255_characters CHECK (length(event_id) BETWEEN 1 AND 255),
  notification_id TEXT,
  n               INTEGER,
  provider_ref    TEXT,
  happened        TEXT NOT NULL
    CONSTRAINT known_event CHECK (happened IN ('sent', 'delivered', 'failed', 'bounced', 'complained')),
  happened_at     INTEGER,
  received_at     INTEGER NOT NULL,
  code            TEXT,
  error_class     TEXT,
  detail          TEXT,
  fate            TEXT NOT NULL DEFAULT 'waiting'
    CONSTRAINT known_fate CHECK (fate IN ('waiting', 'applied', 'ignored')),
  reason          TEXT,
  applied_at      INTEGER,
  looks           INTEGER NOT NULL DEFAULT 0,
  look_at         INTEGER NOT NULL,
  CONSTRAINT receipt_event UNIQUE (tenant, provider, event_id),
  CONSTRAINT receipt_of_a_whole_delivery CHECK ((notification_id IS NULL) = (n IS NULL))
);
CREATE INDEX postcommit_receipt_delivery ON postcommit_receipt (tenant, notification_id, n) WHERE notification_id IS NOT NULL;
CREATE INDEX postcommit_receipt_waiting ON postcommit_receipt (look_at) WHERE fate = 'waiting';
CREATE INDEX postcommit_delivery_ledger_provider_ref ON postcommit_delivery_ledger (tenant, provider_ref)
  WHERE provider_ref IS NOT NULL;
