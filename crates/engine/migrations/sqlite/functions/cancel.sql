-- INSERT INTO postcommit_cancel (tenant, entity[, event_type]) cancels the deliveries of an entity that are not sent yet. A
-- delivery whose lease expired and that was returned to the queue since may have arrived, so it is cancelled as unclear.
CREATE VIEW postcommit_cancel AS SELECT '' AS tenant, entity, event_type FROM postcommit_notification WHERE 0;

CREATE TRIGGER postcommit_cancel_insert INSTEAD OF INSERT ON postcommit_cancel BEGIN
  INSERT OR IGNORE INTO postcommit_cancel_request (tenant, notification_id, n, asked_at)
    SELECT q.tenant, q.notification_id, q.n, {now}
    FROM postcommit_notification note
    JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'))
      AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type);
  INSERT INTO postcommit_delivery_ledger (tenant, notification_id, n, lane, channel, target, provider, template,
      template_version, language, user_id, context, send_key, state, code, attempts, seq, unclear, finished_at)
    SELECT q.tenant, q.notification_id, q.n, q.lane, q.channel, q.target, q.provider, q.template,
      q.template_version, q.language, q.user_id, q.context, q.send_key, 'cancelled', 'cancelled', q.attempts, q.seq,
      q.unclear OR q.lost_since IS NOT NULL, {now}
    FROM postcommit_notification note
    JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'))
      AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type)
      AND q.lease_token IS NULL;
  DELETE FROM postcommit_delivery_queue
    WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND lease_token IS NULL
      AND notification_id IN (SELECT id FROM postcommit_notification note
        WHERE note.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'))
          AND note.entity = NEW.entity AND (NEW.event_type IS NULL OR note.event_type = NEW.event_type));
END;

-- Refuses bytes. A cancel with bytes would find no delivery and report no error.
CREATE TRIGGER postcommit_cancel_types INSTEAD OF INSERT ON postcommit_cancel
WHEN NEW.tenant >= x'' OR NEW.entity >= x'' OR NEW.event_type >= x'' OR typeof(NEW.entity) = 'real'
BEGIN
  SELECT RAISE(ABORT, 'postcommit: tenant is bytes; text is allowed') WHERE typeof(NEW.tenant) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: entity is bytes; text is allowed') WHERE typeof(NEW.entity) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: event_type is bytes; text is allowed') WHERE typeof(NEW.event_type) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: entity is a floating-point number; text is allowed, and a whole number')
    WHERE typeof(NEW.entity) = 'real';
END;
