-- Turns: tenants take turns, and dispatchers read what has changed of the providers instead of all of them (docs/decisions/0029).

-- What is not expanded or routed yet waits in its tenant's own lane, minus its number: providers' numbers are above 0. Before, it was lane 0 for all tenants.
-- The functions stay as they are but for that number.
DO $$
DECLARE
  place record;
  was text;
BEGIN
  FOR place IN SELECT * FROM (VALUES
      ('enqueue', 'VALUES (of_tenant, new_id, 0, 0, priority, due_at)', 'VALUES (of_tenant, new_id, 0, -of_tenant, priority, due_at)'),
      ('enqueue_batch', 'SELECT tenant, id, 0, 0, priority, due_at FROM noted', 'SELECT tenant, id, 0, -tenant, priority, due_at FROM noted')) AS p (name, before, after) LOOP
    SELECT pg_get_functiondef(p.oid) INTO STRICT was FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND p.proname = place.name;
    IF position(place.before IN was) = 0 THEN
      RAISE EXCEPTION 'postcommit: function % is not as a migration left it', place.name;
    END IF;
    EXECUTE replace(was, place.before, place.after);
  END LOOP;
END $$;
-- What an older call enters meanwhile is found by the duty that looks for strays.
UPDATE postcommit.delivery_queue SET lane = -tenant WHERE lane = 0;

-- When several tenants have something due, each is given slots in proportion to its weight.
ALTER TABLE postcommit.tenant
  ADD COLUMN weight int NOT NULL DEFAULT 1 CONSTRAINT weight_1_to_100 CHECK (weight BETWEEN 1 AND 100),
  ADD COLUMN changed bigint NOT NULL DEFAULT 0;  -- the number of its last change of weight or suspension, as in provider
CREATE INDEX tenant_changed ON postcommit.tenant (changed) WHERE changed > 0;

-- The number of the last change: what provider_version said then. That row is locked until the change is committed, so numbers are given in the order of
-- commits, and whoever has read one has seen all before it.
ALTER TABLE postcommit.provider ADD COLUMN changed bigint NOT NULL DEFAULT 0;
CREATE INDEX provider_changed ON postcommit.provider (changed);
-- Providers that were deleted.
CREATE TABLE postcommit.provider_gone (
  changed bigint PRIMARY KEY,
  id      int NOT NULL
);

DROP TRIGGER provider_changed ON postcommit.provider;
DROP FUNCTION postcommit.count_provider_change();
CREATE FUNCTION postcommit.number_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  UPDATE postcommit.provider_version SET version = version + 1 RETURNING version INTO NEW.changed;
  RETURN NEW;
END $$;
CREATE TRIGGER provider_changed BEFORE INSERT OR UPDATE ON postcommit.provider FOR EACH ROW EXECUTE FUNCTION postcommit.number_change();
CREATE TRIGGER tenant_changed BEFORE UPDATE ON postcommit.tenant FOR EACH ROW
  WHEN ((OLD.weight, OLD.suspended_at) IS DISTINCT FROM (NEW.weight, NEW.suspended_at)) EXECUTE FUNCTION postcommit.number_change();

-- A dispatcher that is further behind than what is kept here reads all providers. After a TRUNCATE that is everybody.
CREATE FUNCTION postcommit.note_gone() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
DECLARE
  kept CONSTANT int := 100000;
  now_at bigint;
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    UPDATE postcommit.provider_version SET version = version + kept + 1;
    RETURN NULL;
  END IF;
  UPDATE postcommit.provider_version SET version = version + 1 RETURNING version INTO now_at;
  INSERT INTO postcommit.provider_gone (changed, id) VALUES (now_at, OLD.id);
  DELETE FROM postcommit.provider_gone WHERE changed < now_at - kept;
  RETURN NULL;
END $$;
CREATE TRIGGER provider_deleted AFTER DELETE ON postcommit.provider FOR EACH ROW EXECUTE FUNCTION postcommit.note_gone();
CREATE TRIGGER provider_emptied AFTER TRUNCATE ON postcommit.provider FOR EACH STATEMENT EXECUTE FUNCTION postcommit.note_gone();

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postcommit FROM PUBLIC;
