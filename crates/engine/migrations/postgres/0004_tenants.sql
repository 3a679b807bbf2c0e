-- Tenants: who may do what in which of them, and who did what. The walls between them are in isolation.sql, which is repeated after every migration.

-- A suspended tenant's lanes are as good as paused: what waits stays, and the application may go on enqueueing.
ALTER TABLE postcommit.tenant
  ADD COLUMN suspended_at timestamptz,
  ADD COLUMN suspended_reason text CONSTRAINT suspended_reason_1_to_255_characters CHECK (length(suspended_reason) BETWEEN 1 AND 255),
  ADD CONSTRAINT suspended_for_a_reason CHECK ((suspended_at IS NULL) = (suspended_reason IS NULL));
-- Every claim asks who is suspended: nearly always nobody.
CREATE INDEX tenant_suspended ON postcommit.tenant (id) WHERE suspended_at IS NOT NULL;

-- pc_<id>_<secret>: the id is public, of the secret's 32 bytes only the hash is kept.
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

-- A link that signs somebody in, once.
CREATE TABLE postcommit.login_link (
  tenant     int NOT NULL,
  hash       bytea NOT NULL,              -- SHA-256 of what the link holds
  key_id     text,                        -- the key it was made for: without it the link is worth nothing
  actor      text NOT NULL,
  scopes     text[] NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  used_at    timestamptz,
  PRIMARY KEY (tenant, hash),
  CONSTRAINT login_link_hash UNIQUE (hash)
);

-- Somebody signed in.
CREATE TABLE postcommit.session (
  tenant       int NOT NULL,
  hash         bytea NOT NULL,            -- SHA-256 of what the cookie holds
  csrf_hash    bytea NOT NULL,            -- and of what forms send along
  key_id       text,                      -- the key behind it: without it the session is over
  actor        text NOT NULL,
  scopes       text[] NOT NULL,
  created_at   timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,      -- to the minute
  expires_at   timestamptz NOT NULL,
  PRIMARY KEY (tenant, hash),
  CONSTRAINT session_hash UNIQUE (hash)
);

-- Who changed what: written in the transaction of the change, never changed itself.
CREATE TABLE postcommit.audit (
  tenant     int NOT NULL,
  id         bigint GENERATED ALWAYS AS IDENTITY,
  at         timestamptz NOT NULL,
  actor      text NOT NULL,               -- key:<id>, cli:<user>, system, …
  action     text NOT NULL,               -- noun.verb
  subject    text NOT NULL,               -- on what
  details    jsonb,                       -- more about it, such as the filter
  count      bigint NOT NULL,             -- how many
  request_id text,
  PRIMARY KEY (tenant, id),
  CONSTRAINT audit_id UNIQUE (id)
);
CREATE INDEX audit_subject ON postcommit.audit (tenant, subject);
CREATE FUNCTION postcommit.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'postcommit: the audit log is append-only' USING ERRCODE = '42501';
END $$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON postcommit.audit FOR EACH STATEMENT EXECUTE FUNCTION postcommit.refuse_change();

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postcommit FROM PUBLIC;
