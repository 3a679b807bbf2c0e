-- Numbers each change of a provider, a host or a tenant, so that dispatchers read only the changed rows
-- (docs/decisions/0029).

-- The row of the counter is locked until the commit, so that a smaller number is never committed later.
CREATE OR REPLACE FUNCTION postcommit.number_change() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  UPDATE postcommit.provider_version SET version = version + 1 RETURNING version INTO NEW.changed;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER provider_changed BEFORE INSERT OR UPDATE ON postcommit.provider
  FOR EACH ROW EXECUTE FUNCTION postcommit.number_change();
CREATE OR REPLACE TRIGGER host_changed BEFORE INSERT OR UPDATE ON postcommit.lane_host
  FOR EACH ROW EXECUTE FUNCTION postcommit.number_change();
CREATE OR REPLACE TRIGGER tenant_changed BEFORE UPDATE ON postcommit.tenant FOR EACH ROW
  WHEN ((OLD.weight, OLD.suspended_at) IS DISTINCT FROM (NEW.weight, NEW.suspended_at))
  EXECUTE FUNCTION postcommit.number_change();

-- Records a deleted provider. A dispatcher whose version is older than the rows kept here reads all providers. After a
-- TRUNCATE every dispatcher reads all providers.
CREATE OR REPLACE FUNCTION postcommit.note_gone() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
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
CREATE OR REPLACE TRIGGER provider_deleted AFTER DELETE ON postcommit.provider
  FOR EACH ROW EXECUTE FUNCTION postcommit.note_gone();
CREATE OR REPLACE TRIGGER provider_emptied AFTER TRUNCATE ON postcommit.provider
  FOR EACH STATEMENT EXECUTE FUNCTION postcommit.note_gone();

-- Records when deliveries may have begun to use another provider.
CREATE OR REPLACE FUNCTION postcommit.note_rerouting() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  -- The first provider of a tenant replaces no other provider.
  IF TG_OP <> 'INSERT' OR EXISTS (SELECT 1 FROM postcommit.provider p WHERE p.tenant = NEW.tenant AND p.id <> NEW.id) THEN
    UPDATE postcommit.provider_version SET rerouted_at = clock_timestamp();
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER provider_came_or_went AFTER INSERT OR DELETE ON postcommit.provider
  FOR EACH ROW EXECUTE FUNCTION postcommit.note_rerouting();
CREATE OR REPLACE TRIGGER provider_rerouted AFTER UPDATE ON postcommit.provider FOR EACH ROW
  WHEN ((OLD.name, OLD.channel, OLD.is_default, OLD.enabled)
    IS DISTINCT FROM (NEW.name, NEW.channel, NEW.is_default, NEW.enabled))
  EXECUTE FUNCTION postcommit.note_rerouting();

-- A rate-limited lane has a row in lane_rate, regardless of how its rate was set. Without the row nothing is claimed from
-- the lane. The row stays when the limit is removed, so that removing a limit and setting it again gives no additional
-- permits.
CREATE OR REPLACE FUNCTION postcommit.keep_lane_rate() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM postcommit.lane_rate WHERE lane = OLD.id;
  ELSE
    INSERT INTO postcommit.lane_rate (lane) VALUES (NEW.id) ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER provider_limited AFTER INSERT OR UPDATE ON postcommit.provider
  FOR EACH ROW WHEN (NEW.rate_per_s IS NOT NULL) EXECUTE FUNCTION postcommit.keep_lane_rate();
CREATE OR REPLACE TRIGGER provider_gone AFTER DELETE ON postcommit.provider
  FOR EACH ROW EXECUTE FUNCTION postcommit.keep_lane_rate();

CREATE OR REPLACE FUNCTION postcommit.forget_lane_hosts() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  DELETE FROM postcommit.lane_host WHERE tenant = OLD.tenant AND lane = OLD.id;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER provider_hosts_gone AFTER DELETE ON postcommit.provider
  FOR EACH ROW EXECUTE FUNCTION postcommit.forget_lane_hosts();
