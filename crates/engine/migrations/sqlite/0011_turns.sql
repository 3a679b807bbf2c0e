-- Turns: tenants take turns, and dispatchers read what has changed of the providers instead of all of them (docs/decisions/0029).

-- What is not expanded or routed yet waits in its tenant's own lane, minus its number: providers' numbers are above 0. Before, it was lane 0 for all tenants.
-- The trigger stays as it is but for that number.
DROP TRIGGER postcommit_enqueue_insert;
CREATE TRIGGER postcommit_enqueue_insert INSTEAD OF INSERT ON postcommit_enqueue BEGIN
  INSERT OR IGNORE INTO postcommit_tenant (name, created_at) SELECT coalesce(NEW.tenant, 'default'), CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
    WHERE NOT EXISTS (SELECT 1 FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'));
  SELECT RAISE(ABORT, 'postcommit: idempotency_key is missing; 1 to 255 characters are needed') WHERE NEW.idempotency_key IS NULL;
  SELECT RAISE(ABORT, 'postcommit: tenant must be 1 to 63 letters, digits, ''_'', ''-'' or ''.''') WHERE (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) IS NULL;
  SELECT RAISE(ABORT, 'postcommit: due_at is not a time; write RFC 3339 as text or unix seconds as a number') WHERE CASE typeof(NEW.due_at) WHEN 'null' THEN 0 WHEN 'text' THEN NEW.due_at NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][T ]*' OR julianday(NEW.due_at) IS NULL OR date(substr(NEW.due_at, 1, 10), '+0 days') <> substr(NEW.due_at, 1, 10) WHEN 'blob' THEN 1 ELSE NEW.due_at NOT BETWEEN 0 AND 253402300799 END;
  SELECT RAISE(ABORT, 'postcommit: expires_at is not a time; write RFC 3339 as text or unix seconds as a number') WHERE CASE typeof(NEW.expires_at) WHEN 'null' THEN 0 WHEN 'text' THEN NEW.expires_at NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][T ]*' OR julianday(NEW.expires_at) IS NULL OR date(substr(NEW.expires_at, 1, 10), '+0 days') <> substr(NEW.expires_at, 1, 10) WHEN 'blob' THEN 1 ELSE NEW.expires_at NOT BETWEEN 0 AND 253402300799 END;
  -- A key that stands already: the first notification remains the only one.
  SELECT RAISE(ABORT, 'postcommit: idempotency_key was used with other content; nothing was enqueued (strict)') WHERE lower(CAST(NEW.strict AS TEXT)) IN ('1', 'true', 't', 'yes', 'on') AND EXISTS (SELECT 1 FROM postcommit_idempotency i JOIN postcommit_notification n ON n.tenant = i.tenant AND n.id = i.notification_id
      WHERE i.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND i.key = NEW.idempotency_key AND (n.event_type IS NOT NEW.event_type OR n.entity IS NOT NEW.entity OR n.title IS NOT NEW.title
        OR n.body IS NOT NEW.body OR n.action_url IS NOT NEW.action_url OR n.topic IS NOT NEW.topic OR n.schema_version IS NOT CAST(NEW.schema_version AS INTEGER)
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.payload) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.payload))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.recipients) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.recipients))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.channels) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.channels, '[]'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.channels, '[]')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.channels))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null')) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null')) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null')))));
  INSERT INTO postcommit_key_conflict (tenant, notification_id, event_type, entity, source, noted_at)
    SELECT i.tenant, i.notification_id, coalesce(NEW.event_type, ''), NEW.entity, NEW.source, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 FROM postcommit_idempotency i
    WHERE i.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND i.key = NEW.idempotency_key AND EXISTS (SELECT 1 FROM postcommit_idempotency i JOIN postcommit_notification n ON n.tenant = i.tenant AND n.id = i.notification_id
      WHERE i.tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND i.key = NEW.idempotency_key AND (n.event_type IS NOT NEW.event_type OR n.entity IS NOT NEW.entity OR n.title IS NOT NEW.title
        OR n.body IS NOT NEW.body OR n.action_url IS NOT NEW.action_url OR n.topic IS NOT NEW.topic OR n.schema_version IS NOT CAST(NEW.schema_version AS INTEGER)
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.payload) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.payload))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.recipients) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.recipients))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.channels) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.channels, '[]'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.channels, '[]')) EXCEPT SELECT fullkey, type, atom FROM json_tree(n.channels))
        OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null')) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null'))) OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null')) EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null')))));
  INSERT INTO postcommit_notification (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload, recipients, channels, title, body, action_url,
      data, priority, due_at, expires_at, source, correlation_id, created_at)
    SELECT (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')), lower(printf('%08x-%04x-7%s-%s%s-%s', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) / 65536, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) % 65536, substr(hex(randomblob(2)), 2), substr('89ab', 1 + abs(random()) % 4, 1), substr(hex(randomblob(2)), 2), hex(randomblob(6)))),
      NEW.event_type, NEW.entity, NEW.topic, CAST(NEW.schema_version AS INTEGER), NEW.idempotency_key, CASE WHEN json_valid(coalesce(NEW.payload, '{}')) THEN json(coalesce(NEW.payload, '{}')) ELSE coalesce(NEW.payload, '{}') END,
      CASE WHEN json_valid(coalesce(NEW.recipients, '[]')) THEN json(coalesce(NEW.recipients, '[]')) ELSE coalesce(NEW.recipients, '[]') END, CASE WHEN json_valid(coalesce(NEW.channels, '[]')) THEN json(coalesce(NEW.channels, '[]')) ELSE coalesce(NEW.channels, '[]') END,
      NEW.title, NEW.body, NEW.action_url, CASE WHEN json_valid(NEW.data) THEN json(NEW.data) ELSE NEW.data END,
      -- What is no digit becomes -1, and the constraint names the field.
      CASE WHEN NEW.priority IS NULL THEN 5 WHEN typeof(NEW.priority) = 'integer' THEN NEW.priority WHEN NEW.priority GLOB '[0-9]' THEN CAST(NEW.priority AS INTEGER) ELSE -1 END,
      coalesce(CASE typeof(NEW.due_at) WHEN 'null' THEN NULL WHEN 'text' THEN CAST(round((julianday(NEW.due_at) - 2440587.5) * 86400000) AS INTEGER) * 1000 ELSE CAST(NEW.due_at * 1000000 AS INTEGER) END, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000),
      coalesce(CASE typeof(NEW.expires_at) WHEN 'null' THEN NULL WHEN 'text' THEN CAST(round((julianday(NEW.expires_at) - 2440587.5) * 86400000) AS INTEGER) * 1000 ELSE CAST(NEW.expires_at * 1000000 AS INTEGER) END, coalesce(CASE typeof(NEW.due_at) WHEN 'null' THEN NULL WHEN 'text' THEN CAST(round((julianday(NEW.due_at) - 2440587.5) * 86400000) AS INTEGER) * 1000 ELSE CAST(NEW.due_at * 1000000 AS INTEGER) END, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) + 2592000000000),
      CASE WHEN json_valid(NEW.source) THEN json(NEW.source) ELSE NEW.source END, NEW.correlation_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
    WHERE NOT EXISTS (SELECT 1 FROM postcommit_idempotency WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND key = NEW.idempotency_key);
  -- The row above, if it was inserted. The key is asked for as well: under INSERT OR IGNORE a refused row is skipped in silence, and
  -- last_insert_rowid() then belongs to some other table.
  INSERT INTO postcommit_delivery_queue (tenant, notification_id, n, lane, priority, due_at)
    SELECT tenant, id, 0, -tenant, priority, due_at FROM postcommit_notification
    WHERE seq = last_insert_rowid() AND tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND idempotency_key = NEW.idempotency_key AND NOT EXISTS (SELECT 1 FROM postcommit_idempotency WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND key = NEW.idempotency_key);
  INSERT INTO postcommit_idempotency (tenant, key, notification_id)
    SELECT tenant, idempotency_key, id FROM postcommit_notification
    WHERE seq = last_insert_rowid() AND tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND idempotency_key = NEW.idempotency_key AND NOT EXISTS (SELECT 1 FROM postcommit_idempotency WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND key = NEW.idempotency_key);
  -- RAISE speaks even where the caller's OR IGNORE would swallow a constraint: nothing is lost in silence.
  SELECT RAISE(ABORT, 'postcommit: a field is beyond its limit; nothing was enqueued (a plain INSERT names it)') WHERE NOT EXISTS (SELECT 1 FROM postcommit_idempotency WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) AND key = NEW.idempotency_key);
END;
UPDATE postcommit_delivery_queue SET lane = -tenant WHERE lane = 0;

-- When several tenants have something due, each is given slots in proportion to its weight.
ALTER TABLE postcommit_tenant ADD COLUMN weight INTEGER NOT NULL DEFAULT 1 CONSTRAINT weight_1_to_100 CHECK (typeof(weight) = 'integer' AND weight BETWEEN 1 AND 100);
ALTER TABLE postcommit_tenant ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;  -- the number of its last change of weight or suspension, as in provider
CREATE INDEX postcommit_tenant_changed ON postcommit_tenant (changed) WHERE changed > 0;
CREATE TRIGGER postcommit_tenant_changed AFTER UPDATE ON postcommit_tenant WHEN (OLD.weight, OLD.suspended_at) IS NOT (NEW.weight, NEW.suspended_at) BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_tenant SET changed = (SELECT version FROM postcommit_provider_version) WHERE id = NEW.id;
END;

-- The number of the last change: what provider_version said then.
ALTER TABLE postcommit_provider ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX postcommit_provider_changed ON postcommit_provider (changed);
-- Providers that were deleted. A dispatcher that is further behind than what is kept here reads all providers.
CREATE TABLE postcommit_provider_gone (
  changed INTEGER PRIMARY KEY,
  id      INTEGER NOT NULL
);

-- As before, but numbered. Writing the number down is no change itself.
DROP TRIGGER postcommit_provider_inserted;
DROP TRIGGER postcommit_provider_updated;
DROP TRIGGER postcommit_provider_deleted;
CREATE TRIGGER postcommit_provider_inserted AFTER INSERT ON postcommit_provider BEGIN
  -- Before the first provider of a tenant there was none to send by.
  UPDATE postcommit_provider_version SET version = version + 1,
    rerouted_at = CASE WHEN EXISTS (SELECT 1 FROM postcommit_provider WHERE tenant = NEW.tenant AND id <> NEW.id) THEN CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 ELSE rerouted_at END;
  UPDATE postcommit_provider SET changed = (SELECT version FROM postcommit_provider_version) WHERE id = NEW.id;
END;
CREATE TRIGGER postcommit_provider_updated AFTER UPDATE ON postcommit_provider WHEN NEW.changed = OLD.changed BEGIN
  UPDATE postcommit_provider_version SET version = version + 1,
    rerouted_at = CASE WHEN (OLD.name, OLD.channel, OLD.is_default, OLD.enabled) IS NOT (NEW.name, NEW.channel, NEW.is_default, NEW.enabled) THEN CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 ELSE rerouted_at END;
  UPDATE postcommit_provider SET changed = (SELECT version FROM postcommit_provider_version) WHERE id = NEW.id;
END;
CREATE TRIGGER postcommit_provider_deleted AFTER DELETE ON postcommit_provider BEGIN
  UPDATE postcommit_provider_version SET version = version + 1, rerouted_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000;
  INSERT INTO postcommit_provider_gone (changed, id) SELECT version, OLD.id FROM postcommit_provider_version;
  DELETE FROM postcommit_provider_gone WHERE changed < (SELECT version FROM postcommit_provider_version) - 100000;
END;
DROP TRIGGER postcommit_provider_limited;
CREATE TRIGGER postcommit_provider_limited AFTER UPDATE ON postcommit_provider WHEN NEW.rate_per_s IS NOT NULL AND NEW.changed = OLD.changed BEGIN
  INSERT INTO postcommit_lane_rate (lane, as_of) VALUES (NEW.id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) ON CONFLICT DO NOTHING;
END;
