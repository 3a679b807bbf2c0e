-- Hosts: one receiver's wish to wait, or its refusal, concerns that receiver alone where a lane serves many (docs/decisions/0028).

CREATE TABLE postcommit.lane_host (
  tenant     int NOT NULL,
  lane       int NOT NULL,            -- the provider's id
  host       text NOT NULL CONSTRAINT host_1_to_300_characters CHECK (length(host) BETWEEN 1 AND 300),  -- name and port: example.com:443
  held_until timestamptz,             -- NULL: not held
  paused     text,                    -- why; NULL: not paused
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  changed    bigint NOT NULL DEFAULT 0,  -- provider_version.version of the last change: a process reads what is newer than what it knows
  PRIMARY KEY (tenant, lane, host)
);
CREATE INDEX lane_host_changed ON postcommit.lane_host (changed);

-- Every dispatcher hears of a change with its next claim. The counter's row is locked until the commit, so that a smaller number is never committed later.
CREATE FUNCTION postcommit.note_host_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  UPDATE postcommit.provider_version SET version = version + 1 RETURNING version INTO NEW.changed;
  RETURN NEW;
END $$;
CREATE TRIGGER host_changed BEFORE INSERT OR UPDATE ON postcommit.lane_host FOR EACH ROW EXECUTE FUNCTION postcommit.note_host_change();

CREATE FUNCTION postcommit.forget_lane_hosts() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  DELETE FROM postcommit.lane_host WHERE tenant = OLD.tenant AND lane = OLD.id;
  RETURN NULL;
END $$;
CREATE TRIGGER provider_hosts_gone AFTER DELETE ON postcommit.provider FOR EACH ROW EXECUTE FUNCTION postcommit.forget_lane_hosts();

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postcommit FROM PUBLIC;
