-- Rates: how many sends a second a provider may be given, by all processes together.

ALTER TABLE postcommit.provider
  ADD COLUMN rate_per_s double precision CONSTRAINT rate_per_s_0_001_to_10000 CHECK (rate_per_s BETWEEN 0.001 AND 10000),  -- NULL is no limit
  ADD COLUMN burst int CONSTRAINT burst_1_to_10000 CHECK (burst BETWEEN 1 AND 10000);                                     -- NULL is what fits one second

-- The permits of a lane that are used up, as of then; they come back with time. Apart from the provider, whose every change is read anew by all.
CREATE TABLE postcommit.lane_rate (
  lane   int PRIMARY KEY,
  used   double precision NOT NULL DEFAULT 0,
  as_of  timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- Whoever sets a rate, and by whatever way: without its row in lane_rate nothing of a limited lane is claimed. It outlives the limit, so that taking a limit off
-- and setting it again brings nothing.
CREATE FUNCTION postcommit.keep_lane_rate() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM postcommit.lane_rate WHERE lane = OLD.id;
  ELSE
    INSERT INTO postcommit.lane_rate (lane) VALUES (NEW.id) ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER provider_limited AFTER INSERT OR UPDATE ON postcommit.provider FOR EACH ROW WHEN (NEW.rate_per_s IS NOT NULL) EXECUTE FUNCTION postcommit.keep_lane_rate();
CREATE TRIGGER provider_gone AFTER DELETE ON postcommit.provider FOR EACH ROW EXECUTE FUNCTION postcommit.keep_lane_rate();

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postcommit FROM PUBLIC;
