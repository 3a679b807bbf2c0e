-- Hosts: one receiver's wish to wait, or its refusal, concerns that receiver alone where a lane serves many (docs/decisions/0028).

CREATE TABLE postcommit_lane_host (
  tenant     INTEGER NOT NULL,
  lane       INTEGER NOT NULL,        -- the provider's id
  host       TEXT NOT NULL CONSTRAINT host_1_to_300_characters CHECK (typeof(host) = 'text' AND length(host) BETWEEN 1 AND 300),  -- name and port: example.com:443
  held_until INTEGER,                 -- NULL: not held
  paused     TEXT,                    -- why; NULL: not paused
  updated_at INTEGER NOT NULL,
  changed    INTEGER NOT NULL DEFAULT 0,  -- provider_version.version of the last change: a process reads what is newer than what it knows
  PRIMARY KEY (tenant, lane, host)
) WITHOUT ROWID;
CREATE INDEX postcommit_lane_host_changed ON postcommit_lane_host (changed);

-- Every dispatcher hears of a change with its next claim.
CREATE TRIGGER postcommit_host_came AFTER INSERT ON postcommit_lane_host BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_lane_host SET changed = (SELECT version FROM postcommit_provider_version) WHERE tenant = NEW.tenant AND lane = NEW.lane AND host = NEW.host;
END;
CREATE TRIGGER postcommit_host_changed AFTER UPDATE OF held_until, paused ON postcommit_lane_host BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_lane_host SET changed = (SELECT version FROM postcommit_provider_version) WHERE tenant = NEW.tenant AND lane = NEW.lane AND host = NEW.host;
END;
CREATE TRIGGER postcommit_provider_hosts_gone AFTER DELETE ON postcommit_provider BEGIN
  DELETE FROM postcommit_lane_host WHERE tenant = OLD.tenant AND lane = OLD.id;
END;
