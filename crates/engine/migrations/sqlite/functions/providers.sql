-- Numbers each change of a provider or a host, so that dispatchers read only the changed rows (docs/decisions/0029).
-- Writing the number does not count as another change.
CREATE TRIGGER postcommit_provider_inserted AFTER INSERT ON postcommit_provider BEGIN
  -- The first provider of a tenant replaces no other provider.
  UPDATE postcommit_provider_version SET version = version + 1,
    rerouted_at = CASE WHEN EXISTS (SELECT 1 FROM postcommit_provider WHERE tenant = NEW.tenant AND id <> NEW.id) THEN {now}
      ELSE rerouted_at END;
  UPDATE postcommit_provider SET changed = (SELECT version FROM postcommit_provider_version) WHERE id = NEW.id;
END;
CREATE TRIGGER postcommit_provider_updated AFTER UPDATE ON postcommit_provider WHEN NEW.changed = OLD.changed BEGIN
  UPDATE postcommit_provider_version SET version = version + 1,
    rerouted_at = CASE WHEN (OLD.name, OLD.channel, OLD.is_default, OLD.enabled)
        IS NOT (NEW.name, NEW.channel, NEW.is_default, NEW.enabled) THEN {now}
      ELSE rerouted_at END;
  UPDATE postcommit_provider SET changed = (SELECT version FROM postcommit_provider_version) WHERE id = NEW.id;
END;
-- A dispatcher whose version is older than the rows kept in provider_gone reads all providers.
CREATE TRIGGER postcommit_provider_deleted AFTER DELETE ON postcommit_provider BEGIN
  UPDATE postcommit_provider_version SET version = version + 1, rerouted_at = {now};
  INSERT INTO postcommit_provider_gone (changed, id) SELECT version, OLD.id FROM postcommit_provider_version;
  DELETE FROM postcommit_provider_gone WHERE changed < (SELECT version FROM postcommit_provider_version) - 100000;
END;

-- A rate-limited lane has a row in lane_rate, regardless of how its rate was set. Without the row nothing is claimed from
-- the lane. The row stays when the limit is removed, so that removing a limit and setting it again gives no additional
-- permits.
CREATE TRIGGER postcommit_provider_made_limited AFTER INSERT ON postcommit_provider WHEN NEW.rate_per_s IS NOT NULL BEGIN
  INSERT INTO postcommit_lane_rate (lane, as_of) VALUES (NEW.id, {now});
END;
CREATE TRIGGER postcommit_provider_limited AFTER UPDATE ON postcommit_provider
WHEN NEW.rate_per_s IS NOT NULL AND NEW.changed = OLD.changed BEGIN
  INSERT INTO postcommit_lane_rate (lane, as_of) VALUES (NEW.id, {now}) ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER postcommit_provider_gone AFTER DELETE ON postcommit_provider BEGIN
  DELETE FROM postcommit_lane_rate WHERE lane = OLD.id;
END;

CREATE TRIGGER postcommit_host_came AFTER INSERT ON postcommit_lane_host BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_lane_host SET changed = (SELECT version FROM postcommit_provider_version)
    WHERE tenant = NEW.tenant AND lane = NEW.lane AND host = NEW.host;
END;
CREATE TRIGGER postcommit_host_changed AFTER UPDATE OF held_until, paused, trips ON postcommit_lane_host BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_lane_host SET changed = (SELECT version FROM postcommit_provider_version)
    WHERE tenant = NEW.tenant AND lane = NEW.lane AND host = NEW.host;
END;
CREATE TRIGGER postcommit_provider_hosts_gone AFTER DELETE ON postcommit_provider BEGIN
  DELETE FROM postcommit_lane_host WHERE tenant = OLD.tenant AND lane = OLD.id;
END;
