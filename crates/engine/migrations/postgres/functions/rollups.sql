-- Counts every row that enters the ledger uncounted: targets that end when they are expanded, cancel, an operator's actions.
-- Settle counts its own rows and sets their site.
CREATE OR REPLACE FUNCTION postcommit.count_outcome() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  INSERT INTO postcommit.rollup_fresh (tenant, slot, site, channel, state, count) VALUES (NEW.tenant,
    date_trunc('minute', CASE WHEN TG_OP = 'UPDATE' AND OLD.finished_at = NEW.finished_at THEN clock_timestamp()
      ELSE NEW.finished_at END),
    coalesce(NEW.site, left((SELECT note.source ->> 'site' FROM postcommit.notification note
      WHERE note.tenant = NEW.tenant AND note.id = NEW.notification_id), 64), ''),
    coalesce(NEW.channel, ''),
    CASE WHEN TG_OP = 'UPDATE' AND OLD.state = 'sent' AND NEW.state = 'delivered' THEN 'confirmed' ELSE NEW.state END, 1);
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER outcome_entered AFTER INSERT ON postcommit.delivery_ledger
  FOR EACH ROW WHEN (NEW.site IS NULL) EXECUTE FUNCTION postcommit.count_outcome();
CREATE OR REPLACE TRIGGER outcome_changed AFTER UPDATE ON postcommit.delivery_ledger
  FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION postcommit.count_outcome();
