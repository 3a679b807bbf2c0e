-- Speed: what the hot path needs to know without asking twice.

-- Counts the changes of all providers. A claim reads it along, so that a dispatcher keeps the providers in memory and still sees every change at once.
CREATE TABLE postcommit_provider_version (
  version     INTEGER NOT NULL,
  rerouted_at INTEGER NOT NULL  -- when something may last have been sent by another provider than it would be now
);
INSERT INTO postcommit_provider_version VALUES (1, 0);
CREATE TRIGGER postcommit_provider_inserted AFTER INSERT ON postcommit_provider BEGIN
  -- Before the first provider of a tenant there was none to send by.
  UPDATE postcommit_provider_version SET version = version + 1,
    rerouted_at = CASE WHEN EXISTS (SELECT 1 FROM postcommit_provider WHERE tenant = NEW.tenant AND id <> NEW.id) THEN CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 ELSE rerouted_at END;
END;
CREATE TRIGGER postcommit_provider_updated AFTER UPDATE ON postcommit_provider BEGIN
  UPDATE postcommit_provider_version SET version = version + 1,
    rerouted_at = CASE WHEN (OLD.name, OLD.channel, OLD.is_default, OLD.enabled) IS NOT (NEW.name, NEW.channel, NEW.is_default, NEW.enabled) THEN CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 ELSE rerouted_at END;
END;
CREATE TRIGGER postcommit_provider_deleted AFTER DELETE ON postcommit_provider BEGIN
  UPDATE postcommit_provider_version SET version = version + 1, rerouted_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000;
END;

-- As before, but what was given back after a lease had run out may have arrived.
DROP TRIGGER postcommit_cancel_insert;
CREATE TRIGGER postcommit_cancel_insert INSTEAD OF INSERT ON postcommit_cancel BEGIN
  INSERT OR IGNORE INTO postcommit_cancel_request (tenant, notification_id, n, asked_at)
    SELECT q.tenant, q.notification_id, q.n, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 FROM postcommit_notification note JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type);
  INSERT INTO postcommit_delivery_ledger (tenant, notification_id, n, lane, channel, target, state, code, attempts, seq, unclear, finished_at)
    SELECT q.tenant, q.notification_id, q.n, q.lane, q.channel, q.target, 'cancelled', 'cancelled', q.attempts, q.seq, q.unclear OR q.lost_since IS NOT NULL, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
    FROM postcommit_notification note JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type) AND q.lease_token IS NULL;
  DELETE FROM postcommit_delivery_queue WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND lease_token IS NULL AND notification_id IN (SELECT id FROM postcommit_notification note
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type));
END;
