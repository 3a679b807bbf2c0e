-- Which key seals the secrets of providers, and which secrets workers cannot open.

-- The key is outside the database. Its fingerprint is kept, so that nothing is sealed with another key: the server could not open
-- it. One row, from the first sealed secret on.
CREATE TABLE postcommit.secret_key (
  fingerprint bytea NOT NULL,            -- 16 bytes of an HMAC with the key: no key can be found from it
  noted_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  one         boolean NOT NULL DEFAULT true PRIMARY KEY CONSTRAINT secret_key_is_one_row CHECK (one)
);

-- A worker or a pass that cannot open the secrets of a provider leaves its lane alone. When none of them can, the lane is closed.
CREATE TABLE postcommit.unopened_secret (
  tenant   int NOT NULL,
  lane     int NOT NULL,                 -- the provider's id
  worker   text NOT NULL,                -- its name in duty
  reason   text NOT NULL,
  noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant, lane, worker)
);
