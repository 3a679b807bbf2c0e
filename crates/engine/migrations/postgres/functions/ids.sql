-- Ids, hashes and names.

-- Small functions are single expressions (RETURN …): PostgreSQL inlines them into the statement that calls them, so the call
-- costs nothing, and their operators are bound here, whatever the caller's search_path. They are STABLE where a function that
-- they call is STABLE: PostgreSQL does not inline a function that is marked stricter than its body.

-- UUIDv7: 48 bits of milliseconds, the version, a byte that says which 256th of the millisecond it is, and the variant with 62
-- random bits of a v4. An enqueue takes longer than a 256th (4 µs), so the ids of one transaction are in the order of its calls. The
-- byte x'70' is the version with four bits that are not used. It is put in between, because an expression that names the clock
-- twice could read two milliseconds.
CREATE OR REPLACE FUNCTION postcommit.new_id() RETURNS uuid LANGUAGE sql VOLATILE
  RETURN encode(overlay(overlay(uuid_send(gen_random_uuid())
    PLACING substring(int8send((date_part('epoch', clock_timestamp()) * 256000)::bigint) FROM 2) FROM 1 FOR 8)
    PLACING '\x70'::bytea FROM 7 FOR 0), 'hex')::uuid;

-- The same for one row of a batch: 256ths of a millisecond, of the batch's time and the row's place in it. So the ids are in the
-- order of the batch, in whatever order the rows are made. A batch takes longer than a 256th for each of its rows.
CREATE OR REPLACE FUNCTION postcommit.new_id(ticks bigint) RETURNS uuid LANGUAGE sql VOLATILE
  RETURN encode(overlay(overlay(uuid_send(gen_random_uuid()) PLACING substring(int8send(ticks) FROM 2) FROM 1 FOR 8)
    PLACING '\x70'::bytea FROM 7 FOR 0), 'hex')::uuid;

-- The smallest id of a time: a bound for partitions and ranges.
CREATE OR REPLACE FUNCTION postcommit.id_at(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

CREATE OR REPLACE FUNCTION postcommit.hash(content text) RETURNS uuid LANGUAGE sql STABLE
  RETURN encode(substring(sha256(convert_to(content, 'UTF8')) FOR 16), 'hex')::uuid;

-- The id of the tenant of that name, which is made if it is new.
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

-- The name of this installation's role of a kind: owner, producer, worker, reader or tenant. NULL for any other kind. The role
-- need not exist. Roles belong to a cluster and an installation to one database of it, so a role's name carries the OID of its
-- database: no two databases of a cluster share a role, a renamed database keeps its own, and a copy has others
-- (docs/decisions/0026).
CREATE OR REPLACE FUNCTION postcommit.role_name(kind text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
  SET search_path = pg_catalog, pg_temp AS $$
  SELECT 'postcommit_' || kind || '_' || d.oid FROM pg_database d
  WHERE d.datname = current_database() AND kind IN ('owner', 'producer', 'worker', 'reader', 'tenant')
$$;
