-- Receipts: what providers report of messages after they took them. docs/decisions/0039 says how they are applied.

-- The unguessable part of a provider's callback URL. It is kept in full, because operators look the URL up again.
CREATE TABLE postcommit.callback_token (
  tenant     int NOT NULL,
  hash       bytea NOT NULL,             -- SHA-256 of the token, by which a callback finds it
  provider   int NOT NULL,               -- the provider's id
  token      text NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz,                -- NULL: the current one
  PRIMARY KEY (tenant, hash),
  CONSTRAINT callback_token_hash UNIQUE (hash)
);
CREATE UNIQUE INDEX callback_token_current ON postcommit.callback_token (tenant, provider) WHERE expires_at IS NULL;

-- One row per event, written once. Afterwards only the last columns change, from waiting to what became of it.
CREATE TABLE postcommit.receipt (
  tenant          int NOT NULL,
  id              bigint GENERATED ALWAYS AS IDENTITY,
  provider        int NOT NULL,          -- the provider's id
  event_id        text NOT NULL          -- the provider's, or a hash of the content
    CONSTRAINT event_id_1_to_255_characters CHECK (length(event_id) BETWEEN 1 AND 255),
  notification_id uuid,                  -- the delivery, as soon as it is known
  n               int,
  provider_ref    text,
  happened        text NOT NULL
    CONSTRAINT known_event CHECK (happened IN ('sent', 'delivered', 'failed', 'bounced', 'complained')),
  happened_at     timestamptz,           -- by the provider's clock
  received_at     timestamptz NOT NULL,
  code            text,
  error_class     text,
  detail          text,                  -- redacted
  fate            text NOT NULL DEFAULT 'waiting'
    CONSTRAINT known_fate CHECK (fate IN ('waiting', 'applied', 'ignored')),
  reason          text,                  -- why the delivery's state was not changed
  applied_at      timestamptz,           -- when it was applied or ignored
  looks           int NOT NULL DEFAULT 0,  -- how often its delivery was not ready for it
  look_at         timestamptz NOT NULL,  -- while it waits: when to look for its delivery again
  PRIMARY KEY (tenant, id),
  CONSTRAINT receipt_event UNIQUE (tenant, provider, event_id),
  CONSTRAINT receipt_of_a_whole_delivery CHECK ((notification_id IS NULL) = (n IS NULL))
);
CREATE INDEX receipt_delivery ON postcommit.receipt (tenant, notification_id, n) WHERE notification_id IS NOT NULL;
-- Empty nearly always, so that looking for waiting receipts costs nothing.
CREATE INDEX receipt_waiting ON postcommit.receipt (look_at) WHERE fate = 'waiting';

-- Finds the delivery of a receipt that carries only the provider's own id of the message.
CREATE INDEX delivery_ledger_provider_ref ON postcommit.delivery_ledger (tenant, provider_ref) WHERE provider_ref IS NOT NULL;
