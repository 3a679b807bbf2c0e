-- Rates: how many sends a second a provider may be given, by all processes together.

ALTER TABLE postcommit_provider ADD COLUMN rate_per_s REAL CONSTRAINT rate_per_s_0_001_to_10000 CHECK (rate_per_s BETWEEN 0.001 AND 10000);  -- NULL is no limit
ALTER TABLE postcommit_provider ADD COLUMN burst INTEGER CONSTRAINT burst_1_to_10000 CHECK (burst BETWEEN 1 AND 10000);  -- NULL is what fits one second

-- The permits of a lane that are used up, as of then; they come back with time. Apart from the provider, whose every change is read anew by all.
CREATE TABLE postcommit_lane_rate (
  lane   INTEGER PRIMARY KEY,
  used   REAL NOT NULL DEFAULT 0,
  as_of  INTEGER NOT NULL
);

-- Whoever sets a rate, and by whatever way: without its row in lane_rate nothing of a limited lane is claimed. It outlives the limit, so that taking a limit off
-- and setting it again brings nothing.
CREATE TRIGGER postcommit_provider_made_limited AFTER INSERT ON postcommit_provider WHEN NEW.rate_per_s IS NOT NULL BEGIN
  INSERT INTO postcommit_lane_rate (lane, as_of) VALUES (NEW.id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000);
END;
CREATE TRIGGER postcommit_provider_limited AFTER UPDATE ON postcommit_provider WHEN NEW.rate_per_s IS NOT NULL BEGIN
  INSERT INTO postcommit_lane_rate (lane, as_of) VALUES (NEW.id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER postcommit_provider_gone AFTER DELETE ON postcommit_provider BEGIN
  DELETE FROM postcommit_lane_rate WHERE lane = OLD.id;
END;
