-- Ids, hashes and names.

-- Small functions are single expressions (RETURN …). PostgreSQL inlines them into the calling statement, so the call costs
-- nothing. Their operators are resolved when the function is created, regardless of the caller's search_path. They are
-- STABLE where a function that they call is STABLE, because PostgreSQL does not inline a function that is marked stricter
-- than its body.

-- Returns a UUIDv7: 48 bits of milliseconds, the version, a byte that counts 256ths of the millisecond, and the last 64 bits of a
-- v4, which are its variant and 62 random bits. An enqueue takes longer than a 256th (4 µs), so the ids of one transaction have the
-- order of its calls. The byte x'70' is the version and four unused bits. It is inserted in a second step, because an expression that
-- names the clock twice could read two milliseconds.
CREATE OR REPLACE FUNCTION postcommit.new_id() RETURNS uuid LANGUAGE sql VOLATILE
  RETURN encode(overlay(overlay(uuid_send(gen_random_uuid())
    PLACING substring(int8send((date_part('epoch', clock_timestamp()) * 256000)::bigint) FROM 2) FROM 1 FOR 8)
    PLACING '\x70'::bytea FROM 7 FOR 0), 'hex')::uuid;

-- Returns a UUIDv7 for one row of a batch. `ticks` are 256ths of a millisecond: the time of the batch plus the position of the row.
-- So the ids have the order of the batch, whatever the order in which its rows are written.
CREATE OR REPLACE FUNCTION postcommit.new_id_in_batch(ticks bigint) RETURNS uuid LANGUAGE sql VOLATILE
  RETURN encode(overlay(overlay(uuid_send(gen_random_uuid()) PLACING substring(int8send(ticks) FROM 2) FROM 1 FOR 8)
    PLACING '\x70'::bytea FROM 7 FOR 0), 'hex')::uuid;

-- Returns the smallest id of a time, as a bound for partitions and ranges.
CREATE OR REPLACE FUNCTION postcommit.id_at(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

CREATE OR REPLACE FUNCTION postcommit.hash(content text) RETURNS uuid LANGUAGE sql STABLE
  RETURN encode(substring(sha256(convert_to(content, 'UTF8')) FOR 16), 'hex')::uuid;

-- Returns the id of the tenant with this name. A new tenant is created.
CREATE OR REPLACE FUNCTION postcommit.tenant_id(tenant_name text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE found int;
BEGIN
  SELECT t.id INTO found FROM postcommit.tenant t WHERE t.name = tenant_name;
  IF found IS NULL THEN
    INSERT INTO postcommit.tenant AS t (name) VALUES (tenant_name) ON CONFLICT (name) DO NOTHING;
    SELECT t.id INTO found FROM postcommit.tenant t WHERE t.name = tenant_name;
  END IF;
  RETURN found;
END $$;

-- Returns the name of this installation's role of one kind: owner, producer, worker, reader or tenant. NULL for any other
-- kind. The role need not exist. Roles belong to a cluster and an installation to one of its databases, so the name of a
-- role contains the OID of its database. Therefore no two databases of a cluster share a role, a renamed database keeps its
-- roles, and a copy has roles of its own (docs/decisions/0026).
CREATE OR REPLACE FUNCTION postcommit.role_name(kind text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
  SET search_path = pg_catalog, pg_temp AS $$
  SELECT 'postcommit_' || kind || '_' || d.oid FROM pg_database d
  WHERE d.datname = current_database() AND kind IN ('owner', 'producer', 'worker', 'reader', 'tenant')
$$;
