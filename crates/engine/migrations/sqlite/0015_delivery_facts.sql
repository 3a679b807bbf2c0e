-- A delivery's own facts, in its row: a retry goes by them and works nothing out again from the notification. Where there is nothing to say they are NULL,
-- which costs a row nothing.
ALTER TABLE postcommit_delivery_queue ADD COLUMN provider TEXT;             -- the provider that the recipient named
ALTER TABLE postcommit_delivery_queue ADD COLUMN template TEXT;             -- what it is rendered by; NULL is the notification's own title and body
ALTER TABLE postcommit_delivery_queue ADD COLUMN template_version INTEGER;
ALTER TABLE postcommit_delivery_queue ADD COLUMN language TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN provider TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN template TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN template_version INTEGER;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN language TEXT;

-- As before, and the facts go along.
DROP TRIGGER postcommit_cancel_insert;
CREATE TRIGGER postcommit_cancel_insert INSTEAD OF INSERT ON postcommit_cancel BEGIN
  INSERT OR IGNORE INTO postcommit_cancel_request (tenant, notification_id, n, asked_at)
    SELECT q.tenant, q.notification_id, q.n, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 FROM postcommit_notification note JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type);
  INSERT INTO postcommit_delivery_ledger (tenant, notification_id, n, lane, channel, target, provider, template, template_version, language, state, code, attempts, seq, unclear, finished_at)
    SELECT q.tenant, q.notification_id, q.n, q.lane, q.channel, q.target, q.provider, q.template, q.template_version, q.language, 'cancelled', 'cancelled', q.attempts, q.seq, q.unclear OR q.lost_since IS NOT NULL, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
    FROM postcommit_notification note JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type) AND q.lease_token IS NULL;
  DELETE FROM postcommit_delivery_queue WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND lease_token IS NULL AND notification_id IN (SELECT id FROM postcommit_notification note
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type));
END;
