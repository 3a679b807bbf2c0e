-- Tenants: who may do what in which of them, and who did what.

-- A suspended tenant's lanes are as good as paused: what waits stays, and the application may go on enqueueing.
ALTER TABLE postcommit_tenant ADD COLUMN suspended_at INTEGER;
ALTER TABLE postcommit_tenant ADD COLUMN suspended_reason TEXT CONSTRAINT suspended_reason_1_to_255_characters CHECK (length(suspended_reason) BETWEEN 1 AND 255);
CREATE INDEX postcommit_tenant_suspended ON postcommit_tenant (id) WHERE suspended_at IS NOT NULL;

-- pc_<id>_<secret>: the id is public, of the secret's 32 bytes only the hash is kept.
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

-- A link that signs somebody in, once.
CREATE TABLE postcommit_login_link (
  tenant     INTEGER NOT NULL,
  hash       BLOB NOT NULL UNIQUE,        -- SHA-256 of what the link holds
  key_id     TEXT,                        -- the key it was made for: without it the link is worth nothing
  actor      TEXT NOT NULL,
  scopes     TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at    INTEGER,
  PRIMARY KEY (tenant, hash)
) WITHOUT ROWID;

-- Somebody signed in.
CREATE TABLE postcommit_session (
  tenant       INTEGER NOT NULL,
  hash         BLOB NOT NULL UNIQUE,      -- SHA-256 of what the cookie holds
  csrf_hash    BLOB NOT NULL,             -- and of what forms send along
  key_id       TEXT,                      -- the key behind it: without it the session is over
  actor        TEXT NOT NULL,
  scopes       TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  last_seen_at INTEGER NOT NULL,          -- to the minute
  expires_at   INTEGER NOT NULL,
  PRIMARY KEY (tenant, hash)
) WITHOUT ROWID;

-- Who changed what: written in the transaction of the change, never changed itself.
CREATE TABLE postcommit_audit (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant     INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  actor      TEXT NOT NULL,               -- key:<id>, cli:<user>, system, …
  action     TEXT NOT NULL,               -- noun.verb
  subject    TEXT NOT NULL,               -- on what
  details    TEXT,                        -- more about it, such as the filter, as JSON
  count      INTEGER NOT NULL,            -- how many
  request_id TEXT
);
CREATE INDEX postcommit_audit_of_tenant ON postcommit_audit (tenant, id);
CREATE INDEX postcommit_audit_subject ON postcommit_audit (tenant, subject);
CREATE TRIGGER postcommit_audit_is_append_only BEFORE UPDATE ON postcommit_audit BEGIN
  SELECT RAISE(ABORT, 'postcommit: the audit log is append-only');
END;
