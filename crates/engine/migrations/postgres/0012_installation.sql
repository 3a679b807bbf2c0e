-- Roles belong to a cluster, an installation to one database of it. So a role's name carries the OID of its database: no two databases of a cluster share one,
-- a renamed database keeps its own, and a copy has another. roles.sql, isolation.sql and foreign.sql go by these names. See docs/decisions/0026.

-- The name of this installation's role of that kind: owner, producer, worker, reader or tenant. NULL for any other kind. The role need not exist.
CREATE FUNCTION postcommit.role_name(kind text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
  SET search_path = pg_catalog, pg_temp AS $$
  SELECT 'postcommit_' || kind || '_' || d.oid FROM pg_database d
  WHERE d.datname = current_database() AND kind IN ('owner', 'producer', 'worker', 'reader', 'tenant')
$$;
REVOKE ALL ON FUNCTION postcommit.role_name(text) FROM PUBLIC;
