-- INSERT INTO postcommit_enqueue (…) enqueues, in the application's own transaction. Times are RFC 3339 text or unix seconds;
-- lists and objects are JSON text.
CREATE VIEW postcommit_enqueue AS
  SELECT event_type, payload, idempotency_key, '' AS tenant, entity, recipients, channels, title, body, action_url, data,
    priority, due_at, expires_at, source, correlation_id, topic, schema_version, 0 AS strict
  FROM postcommit_notification WHERE 0;

CREATE TRIGGER postcommit_enqueue_insert INSTEAD OF INSERT ON postcommit_enqueue BEGIN
  INSERT OR IGNORE INTO postcommit_tenant (name, created_at)
    SELECT coalesce(NEW.tenant, 'default'), {now}
    WHERE NOT EXISTS (SELECT 1 FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'));
  SELECT RAISE(ABORT, 'postcommit: idempotency_key is missing; 1 to 255 characters are needed')
    WHERE NEW.idempotency_key IS NULL;
  SELECT RAISE(ABORT, 'postcommit: tenant must be 1 to 63 letters, digits, ''_'', ''-'' or ''.''')
    WHERE (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')) IS NULL;
  SELECT RAISE(ABORT, 'postcommit: due_at is not a time; write RFC 3339 as text or unix seconds as a number')
    WHERE CASE typeof(NEW.due_at)
      WHEN 'null' THEN 0
      WHEN 'text' THEN NEW.due_at NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][T ]*' OR julianday(NEW.due_at) IS NULL
        OR date(substr(NEW.due_at, 1, 10), '+0 days') <> substr(NEW.due_at, 1, 10)
      WHEN 'blob' THEN 1
      ELSE NEW.due_at NOT BETWEEN 0 AND 253402300799 END;
  SELECT RAISE(ABORT, 'postcommit: expires_at is not a time; write RFC 3339 as text or unix seconds as a number')
    WHERE CASE typeof(NEW.expires_at)
      WHEN 'null' THEN 0
      WHEN 'text' THEN NEW.expires_at NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][T ]*'
        OR julianday(NEW.expires_at) IS NULL
        OR date(substr(NEW.expires_at, 1, 10), '+0 days') <> substr(NEW.expires_at, 1, 10)
      WHEN 'blob' THEN 1
      ELSE NEW.expires_at NOT BETWEEN 0 AND 253402300799 END;
  INSERT INTO postcommit_enqueue_repeated (notification_id, tenant, event_type, payload, entity, recipients, channels, title,
      body, action_url, data, source, topic, schema_version, strict)
    SELECT notification_id, tenant, NEW.event_type, NEW.payload, NEW.entity, NEW.recipients, NEW.channels, NEW.title,
      NEW.body, NEW.action_url, NEW.data, NEW.source, NEW.topic, NEW.schema_version, NEW.strict
    FROM postcommit_idempotency
    WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'))
      AND key = NEW.idempotency_key;
  INSERT INTO postcommit_notification (tenant, id, event_type, entity, topic, schema_version, idempotency_key, payload,
      recipients, channels, title, body, action_url, data, priority, due_at, expires_at, source, correlation_id, created_at)
    SELECT (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default')),
      -- UUIDv7: milliseconds, then random bits.
      lower(printf('%08x-%04x-7%s-%s%s-%s',
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) / 65536,
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) % 65536,
        substr(hex(randomblob(2)), 2), substr('89ab', 1 + abs(random()) % 4, 1), substr(hex(randomblob(2)), 2),
        hex(randomblob(6)))),
      NEW.event_type, NEW.entity, NEW.topic, CAST(NEW.schema_version AS INTEGER), NEW.idempotency_key,
      CASE WHEN json_valid(coalesce(NEW.payload, '{}')) THEN json(coalesce(NEW.payload, '{}'))
        ELSE coalesce(NEW.payload, '{}') END,
      CASE WHEN json_valid(coalesce(NEW.recipients, '[]')) THEN json(coalesce(NEW.recipients, '[]'))
        ELSE coalesce(NEW.recipients, '[]') END,
      CASE WHEN json_valid(replace(coalesce(NEW.channels, '[]'), '"in-app"', '"in_app"')) THEN json(replace(coalesce(NEW.channels, '[]'), '"in-app"', '"in_app"'))
        ELSE replace(coalesce(NEW.channels, '[]'), '"in-app"', '"in_app"') END,
      NEW.title, NEW.body, NEW.action_url, CASE WHEN json_valid(NEW.data) THEN json(NEW.data) ELSE NEW.data END,
      -- A value that is not a digit becomes -1, and the constraint names the field.
      CASE WHEN NEW.priority IS NULL THEN 5 WHEN typeof(NEW.priority) = 'integer' THEN NEW.priority
        WHEN NEW.priority GLOB '[0-9]' THEN CAST(NEW.priority AS INTEGER) ELSE -1 END,
      coalesce(CASE typeof(NEW.due_at) WHEN 'null' THEN NULL
        WHEN 'text' THEN CAST(round((julianday(NEW.due_at) - 2440587.5) * 86400000) AS INTEGER) * 1000
        ELSE CAST(NEW.due_at * 1000000 AS INTEGER) END, {now}),
      -- The default is 30 days after due_at.
      coalesce(CASE typeof(NEW.expires_at) WHEN 'null' THEN NULL
        WHEN 'text' THEN CAST(round((julianday(NEW.expires_at) - 2440587.5) * 86400000) AS INTEGER) * 1000
        ELSE CAST(NEW.expires_at * 1000000 AS INTEGER) END,
        coalesce(CASE typeof(NEW.due_at) WHEN 'null' THEN NULL
          WHEN 'text' THEN CAST(round((julianday(NEW.due_at) - 2440587.5) * 86400000) AS INTEGER) * 1000
          ELSE CAST(NEW.due_at * 1000000 AS INTEGER) END, {now}) + 2592000000000),
      CASE WHEN json_valid(NEW.source) THEN json(NEW.source) ELSE NEW.source END, NEW.correlation_id, {now}
    WHERE NOT EXISTS (SELECT 1 FROM postcommit_idempotency
      WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'))
        AND key = NEW.idempotency_key);
  -- The queue row of the notification above, if that was inserted. The key is compared as well: under INSERT OR IGNORE a
  -- refused row is skipped without an error, and last_insert_rowid() then belongs to another table.
  INSERT INTO postcommit_delivery_queue (tenant, notification_id, n, lane, priority, due_at, first_due_at)
    SELECT tenant, id, 0, -tenant, priority, due_at, max(due_at, created_at) FROM postcommit_notification
    WHERE seq = last_insert_rowid()
      AND tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'))
      AND idempotency_key = NEW.idempotency_key
      AND NOT EXISTS (SELECT 1 FROM postcommit_idempotency known
        WHERE known.tenant = postcommit_notification.tenant AND known.key = NEW.idempotency_key);
  INSERT INTO postcommit_idempotency (tenant, key, notification_id)
    SELECT tenant, idempotency_key, id FROM postcommit_notification
    WHERE seq = last_insert_rowid()
      AND tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'))
      AND idempotency_key = NEW.idempotency_key
      AND NOT EXISTS (SELECT 1 FROM postcommit_idempotency known
        WHERE known.tenant = postcommit_notification.tenant AND known.key = NEW.idempotency_key);
  -- RAISE is reported even where the caller's OR IGNORE would suppress a constraint, so no notification is lost without an
  -- error.
  SELECT RAISE(ABORT, 'postcommit: a field is beyond its limit; nothing was enqueued (a plain INSERT names it)')
    WHERE NOT EXISTS (SELECT 1 FROM postcommit_idempotency
      WHERE tenant = (SELECT id FROM postcommit_tenant WHERE name = coalesce(NEW.tenant, 'default'))
        AND key = NEW.idempotency_key);
END;

-- Handles a key that was used before: different content is refused under strict, otherwise recorded. The first notification
-- remains the only one. The comparison is a separate trigger, because SQLite clears the registers of a trigger each time it
-- starts. Inside postcommit_enqueue_insert, these registers cost every enqueue 18 % of its instructions.
CREATE VIEW postcommit_enqueue_repeated AS
  SELECT id AS notification_id, tenant, event_type, payload, entity, recipients, channels, title, body, action_url, data, source,
    topic, schema_version, 0 AS strict
  FROM postcommit_notification WHERE 0;

CREATE TRIGGER postcommit_enqueue_conflict INSTEAD OF INSERT ON postcommit_enqueue_repeated BEGIN
  INSERT INTO postcommit_key_conflict (tenant, notification_id, event_type, entity, source, noted_at)
    SELECT n.tenant, n.id, coalesce(NEW.event_type, ''), NEW.entity, NEW.source, {now}
    FROM postcommit_notification n
    WHERE n.tenant = NEW.tenant AND n.id = NEW.notification_id
      AND (n.event_type IS NOT NEW.event_type OR n.entity IS NOT NEW.entity OR n.title IS NOT NEW.title
      OR n.body IS NOT NEW.body OR n.action_url IS NOT NEW.action_url OR n.topic IS NOT NEW.topic
      OR n.schema_version IS NOT CAST(NEW.schema_version AS INTEGER)
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.payload)
        EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}')))
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.payload, '{}'))
        EXCEPT SELECT fullkey, type, atom FROM json_tree(n.payload))
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.recipients)
        EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]')))
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.recipients, '[]'))
        EXCEPT SELECT fullkey, type, atom FROM json_tree(n.recipients))
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(n.channels)
        EXCEPT SELECT fullkey, type, atom FROM json_tree(replace(coalesce(NEW.channels, '[]'), '"in-app"', '"in_app"')))
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(replace(coalesce(NEW.channels, '[]'), '"in-app"', '"in_app"'))
        EXCEPT SELECT fullkey, type, atom FROM json_tree(n.channels))
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null'))
        EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null')))
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(coalesce(NEW.data, 'null'))
        EXCEPT SELECT fullkey, type, atom FROM json_tree(coalesce(n.data, 'null'))));
  SELECT RAISE(ABORT, 'postcommit: idempotency_key was used with other content; nothing was enqueued (strict)')
    WHERE changes() > 0 AND lower(CAST(NEW.strict AS TEXT)) IN ('1', 'true', 't', 'yes', 'on');
END;

-- Checks the types of the values, because SQLite accepts any type where PostgreSQL's column types refuse it. This trigger
-- may run before or after the one above: ABORT undoes the whole statement. Only bytes sort after x'', so the check is one
-- cheap condition (1.4 µs) that is nearly never true. A whole number is accepted where text is expected, as its digits,
-- because applications bind the ids of their rows. A floating-point number is refused, because some drivers bind 42 as 42.0.
-- Before SQLite 3.47 RAISE accepts only a literal.
CREATE TRIGGER postcommit_enqueue_types INSTEAD OF INSERT ON postcommit_enqueue WHEN
  NEW.event_type >= x'' OR NEW.idempotency_key >= x'' OR NEW.tenant >= x'' OR NEW.entity >= x'' OR NEW.title >= x''
  OR NEW.body >= x'' OR NEW.action_url >= x'' OR NEW.correlation_id >= x'' OR NEW.topic >= x'' OR NEW.payload >= x''
  OR NEW.recipients >= x'' OR NEW.channels >= x'' OR NEW.data >= x'' OR NEW.source >= x'' OR NEW.priority >= x''
  OR NEW.strict >= x'' OR NEW.due_at >= x'' OR NEW.expires_at >= x'' OR typeof(NEW.idempotency_key) = 'real'
  OR typeof(NEW.entity) = 'real' OR NEW.schema_version IS NOT NULL OR instr(NEW.action_url, char(0)) > 0
BEGIN
  SELECT RAISE(ABORT, 'postcommit: event_type is bytes; text is allowed') WHERE typeof(NEW.event_type) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: idempotency_key is bytes; text is allowed') WHERE typeof(NEW.idempotency_key) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: tenant is bytes; text is allowed') WHERE typeof(NEW.tenant) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: entity is bytes; text is allowed') WHERE typeof(NEW.entity) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: title is bytes; text is allowed') WHERE typeof(NEW.title) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: body is bytes; text is allowed') WHERE typeof(NEW.body) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: action_url is bytes; text is allowed') WHERE typeof(NEW.action_url) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: correlation_id is bytes; text is allowed') WHERE typeof(NEW.correlation_id) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: topic is bytes; text is allowed') WHERE typeof(NEW.topic) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: payload is bytes; JSON as text is allowed') WHERE typeof(NEW.payload) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: recipients is bytes; JSON as text is allowed') WHERE typeof(NEW.recipients) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: channels is bytes; JSON as text is allowed') WHERE typeof(NEW.channels) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: data is bytes; JSON as text is allowed') WHERE typeof(NEW.data) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: source is bytes; JSON as text is allowed') WHERE typeof(NEW.source) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: priority is bytes; a whole number from 0 to 9 is allowed')
    WHERE typeof(NEW.priority) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: strict is bytes; 0 and 1 are allowed') WHERE typeof(NEW.strict) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: due_at is bytes; RFC 3339 as text and unix seconds as a number are allowed')
    WHERE typeof(NEW.due_at) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: expires_at is bytes; RFC 3339 as text and unix seconds as a number are allowed')
    WHERE typeof(NEW.expires_at) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: schema_version is bytes; a whole number is allowed')
    WHERE typeof(NEW.schema_version) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: idempotency_key is a floating-point number; text is allowed, and a whole number')
    WHERE typeof(NEW.idempotency_key) = 'real';
  SELECT RAISE(ABORT, 'postcommit: entity is a floating-point number; text is allowed, and a whole number')
    WHERE typeof(NEW.entity) = 'real';
  SELECT RAISE(ABORT, 'postcommit: schema_version is no whole number; a 32-bit integer is allowed')
    WHERE CASE typeof(NEW.schema_version)
      WHEN 'text' THEN CAST(CAST(NEW.schema_version AS INTEGER) AS TEXT) <> NEW.schema_version
      WHEN 'real' THEN CAST(NEW.schema_version AS INTEGER) <> NEW.schema_version ELSE 0 END;
  SELECT RAISE(ABORT, 'postcommit: action_url holds NUL; http, https, mailto and tel without control characters are allowed')
    WHERE instr(NEW.action_url, char(0)) > 0;
END;
