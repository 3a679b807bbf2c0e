-- Counts the ledger rows that no other statement counts: targets that end when they are expanded, cancelled deliveries, and
-- operators' actions. Settle counts its own rows and sets their site.
CREATE TRIGGER postcommit_outcome_entered AFTER INSERT ON postcommit_delivery_ledger WHEN NEW.site IS NULL BEGIN
  INSERT INTO postcommit_rollup_fresh (tenant, slot, site, channel, state, count, event_type, lane, error_class)
    VALUES (NEW.tenant, NEW.finished_at - NEW.finished_at % 60000000,
      coalesce(substr((SELECT note.source ->> 'site' FROM postcommit_notification note
        WHERE note.tenant = NEW.tenant AND note.id = NEW.notification_id), 1, 64), ''),
      coalesce(NEW.channel, ''), CASE WHEN NEW.captured THEN 'captured' ELSE NEW.state END, 1,
      (SELECT note.event_type FROM postcommit_notification note
        WHERE note.tenant = NEW.tenant AND note.id = NEW.notification_id), NEW.lane, NEW.error_class);
END;
CREATE TRIGGER postcommit_outcome_changed AFTER UPDATE OF state ON postcommit_delivery_ledger WHEN OLD.state <> NEW.state BEGIN
  INSERT INTO postcommit_rollup_fresh (tenant, slot, site, channel, state, count, event_type, lane, error_class)
    SELECT NEW.tenant, at - at % 60000000,
      coalesce(NEW.site, substr((SELECT note.source ->> 'site' FROM postcommit_notification note
        WHERE note.tenant = NEW.tenant AND note.id = NEW.notification_id), 1, 64), ''),
      coalesce(NEW.channel, ''),
      CASE WHEN OLD.state = 'sent' AND NEW.state = 'delivered' THEN 'confirmed' ELSE NEW.state END, 1,
      (SELECT note.event_type FROM postcommit_notification note
        WHERE note.tenant = NEW.tenant AND note.id = NEW.notification_id), NEW.lane, NEW.error_class
    FROM (SELECT CASE WHEN OLD.finished_at = NEW.finished_at THEN {now} ELSE NEW.finished_at END AS at);
END;
