-- Counts the ledger rows that no other statement counts: targets that end when they are expanded, cancelled deliveries, and
-- operators' actions. Settle counts its own rows and sets their site.
CREATE OR REPLACE FUNCTION postcommit.count_outcome() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
DECLARE note record;
BEGIN
  SELECT n.source ->> 'site' AS site, n.event_type INTO note FROM postcommit.notification n
    WHERE n.tenant = NEW.tenant AND n.id = NEW.notification_id;
  INSERT INTO postcommit.rollup_fresh (tenant, slot, site, channel, state, count, event_type, lane, error_class)
    VALUES (NEW.tenant,
    date_trunc('minute', CASE WHEN TG_OP = 'UPDATE' AND OLD.finished_at = NEW.finished_at THEN clock_timestamp()
      ELSE NEW.finished_at END),
    coalesce(NEW.site, left(note.site, 64), ''), coalesce(NEW.channel, ''),
    CASE WHEN TG_OP = 'UPDATE' AND OLD.state = 'sent' AND NEW.state = 'delivered' THEN 'confirmed'
      WHEN TG_OP = 'INSERT' AND NEW.captured THEN 'captured' ELSE NEW.state END,
    1, note.event_type, NEW.lane, NEW.error_class);
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER outcome_entered AFTER INSERT ON postcommit.delivery_ledger
  FOR EACH ROW WHEN (NEW.site IS NULL) EXECUTE FUNCTION postcommit.count_outcome();
CREATE OR REPLACE TRIGGER outcome_changed AFTER UPDATE ON postcommit.delivery_ledger
  FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION postcommit.count_outcome();
