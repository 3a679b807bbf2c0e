-- Which key seals the secrets of providers, and which secrets workers cannot open.

-- The key is outside the database. Its fingerprint is kept, so that nothing is sealed with another key: the server could not open
-- it. One row, from the first sealed secret on.
CREATE TABLE postcommit_secret_key (
  fingerprint BLOB NOT NULL,             -- 16 bytes of an HMAC with the key: no key can be found from it
  noted_at    INTEGER NOT NULL,
  one         INTEGER NOT NULL DEFAULT 1 PRIMARY KEY CONSTRAINT secret_key_is_one_row CHECK (one = 1)
);

-- A worker or a pass that cannot open the secrets of a provider leaves its lane alone. When none of them can, the lane is closed.
CREATE TABLE postcommit_unopened_secret (
  tenant   INTEGER NOT NULL,
  lane     INTEGER NOT NULL,             -- the provider's id
  worker   TEXT NOT NULL,                -- its name in duty
  reason   TEXT NOT NULL,
  noted_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, lane, worker)
) WITHOUT ROWID;
