-- Jobs: what an operator does to many deliveries at once; lists of one site.

-- Retry, discard or cancel by filter, in slices, in the background.
CREATE TABLE postcommit_job (
  tenant      INTEGER NOT NULL,      -- 0: every tenant, asked for by operations
  id          TEXT NOT NULL,
  kind        TEXT NOT NULL CONSTRAINT known_kind CHECK (kind IN ('retry', 'discard', 'cancel')),
  filter      TEXT NOT NULL,
  asked_by    TEXT NOT NULL,
  asked_at    INTEGER NOT NULL,      -- also the bound: what is parked, or enqueued, from then on is left alone
  total       INTEGER NOT NULL,      -- how many it was then; at least so many, where counting was given up
  is_exact    INTEGER NOT NULL,
  done        INTEGER NOT NULL DEFAULT 0,
  skipped     INTEGER NOT NULL DEFAULT 0,  -- somebody else had moved them
  pace        INTEGER NOT NULL CONSTRAINT pace_1_to_10000_a_second CHECK (pace BETWEEN 1 AND 10000),
  state       TEXT NOT NULL DEFAULT 'queued' CONSTRAINT known_job_state CHECK (state IN ('queued', 'running', 'done', 'cancelled', 'failed')),
  position    TEXT,                  -- where the next slice begins; moves in the transaction of the slice
  lease_token TEXT,                  -- one process at a time
  lease_until INTEGER,
  next_at     INTEGER NOT NULL,      -- the pace: not before this
  failures    INTEGER NOT NULL DEFAULT 0,  -- in a row
  last_error  TEXT,
  finished_at INTEGER,
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX postcommit_job_open ON postcommit_job (next_at) WHERE state IN ('queued', 'running');

-- Only what names a site is in here: enqueue pays for it where it is used.
CREATE INDEX postcommit_notification_site ON postcommit_notification (tenant, source ->> 'site', id) WHERE source ->> 'site' IS NOT NULL;
