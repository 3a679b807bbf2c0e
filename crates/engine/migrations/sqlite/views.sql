-- The notification of each idempotency key. An application reads from it the id of the row that it has just inserted.
CREATE VIEW postcommit_key AS
  SELECT t.name AS tenant, i.key AS idempotency_key, i.notification_id AS id
  FROM postcommit_idempotency i JOIN postcommit_tenant t ON t.id = i.tenant;

-- The deliveries that a cancel would end now.
CREATE VIEW postcommit_cancellable AS
  SELECT t.name AS tenant, note.entity, note.event_type, q.tenant AS of_tenant, q.notification_id, q.n
  FROM postcommit_notification note
  JOIN postcommit_tenant t ON t.id = note.tenant
  JOIN postcommit_delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
  WHERE q.lease_token IS NULL AND note.entity IS NOT NULL;

-- Every attempt. The last attempt of a delivery may be stored in its ledger row. All other attempts are rows of
-- logged_attempt.
CREATE VIEW postcommit_attempt AS
  SELECT a.tenant, a.notification_id, a.n, a.seq, a.at, a.provider, a.outcome, a.code, a.detail, a.latency_ms, a.provider_ref,
    a.excerpt, a.token, a.error_class, a.captured
  FROM postcommit_logged_attempt a
  UNION ALL
  SELECT l.tenant, l.notification_id, l.n, l.seq, l.attempted_at, l.attempted_by, l.outcome, NULL, NULL, l.latency_ms, l.provider_ref,
    l.excerpt, l.token, NULL, l.captured
  FROM postcommit_delivery_ledger l WHERE l.attempted_at IS NOT NULL;

-- One row per delivery, live or finished. The documentation describes the columns.
CREATE VIEW postcommit_delivery AS
  SELECT d.notification_id || '.' || d.n AS id, t.name AS tenant, d.notification_id, d.n, note.event_type, note.entity,
    note.idempotency_key, d.channel, p.name AS provider, d.target, d.state, d.reason, d.attempts,
    strftime('%Y-%m-%dT%H:%M:%fZ', d.next_attempt_at / 1000000.0, 'unixepoch') AS next_attempt_at,
    d.code AS error_code, CASE WHEN d.code IS NOT NULL THEN d.detail END AS last_error, d.provider_ref,
    strftime('%Y-%m-%dT%H:%M:%fZ', note.created_at / 1000000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', d.sent_at / 1000000.0, 'unixepoch') AS sent_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(d.finished_at,
      (SELECT a.at FROM postcommit_logged_attempt a
        WHERE a.tenant = d.tenant AND a.notification_id = d.notification_id AND a.n = d.n AND a.seq = d.seq),
      note.created_at) / 1000000.0, 'unixepoch') AS updated_at,
    note.priority, strftime('%Y-%m-%dT%H:%M:%fZ', note.expires_at / 1000000.0, 'unixepoch') AS expires_at,
    d.unclear, d.tenant AS tenant_id, d.error_class,
    strftime('%Y-%m-%dT%H:%M:%fZ', d.first_due_at / 1000000.0, 'unixepoch') AS first_due_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN d.state = 'delivered' THEN d.finished_at END / 1000000.0, 'unixepoch') AS delivered_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(d.attempted_at, (SELECT a.at FROM postcommit_logged_attempt a
      WHERE a.tenant = d.tenant AND a.notification_id = d.notification_id AND a.n = d.n AND a.seq = d.seq))
      / 1000000.0, 'unixepoch') AS last_attempt_at,
    d.captured, d.template,
    -- For a resend, the entry in the audit log has the actor and the original notification.
    CASE WHEN substr(note.idempotency_key, 1, 7) = 'manual:' THEN (SELECT a.details ->> 'of' FROM postcommit_audit a
      WHERE a.tenant = d.tenant AND a.subject = d.notification_id AND a.action = 'entity.resend' LIMIT 1) END AS copy_of,
    CASE WHEN substr(note.idempotency_key, 1, 7) = 'manual:' THEN (SELECT a.actor FROM postcommit_audit a
      WHERE a.tenant = d.tenant AND a.subject = d.notification_id AND a.action = 'entity.resend' LIMIT 1) END AS asked_by,
    -- Version 0 means a copy of a direct message, which has no template.
    nullif(d.template_version, 0) AS template_version, d.language,
    -- The address of a direct message to an inbox is the user's id.
    coalesce(d.user_id, CASE WHEN d.channel = 'in_app' THEN d.target END) AS user_id, d.send_key,
    -- A detail without a code is no error. It holds warnings of the template (dispatch/render.rs).
    CASE WHEN d.code IS NULL AND d.detail LIKE 'warning: %' THEN substr(d.detail, 10) END AS warning
  FROM (
    SELECT q.tenant, q.notification_id, q.n, q.lane, q.channel, q.target,
      CASE WHEN q.lease_token IS NOT NULL THEN 'sending' WHEN q.attempts > 0 OR q.losses > 0 THEN 'retrying'
        ELSE 'pending' END AS state,
      NULL AS reason, q.attempts, q.seq, q.due_at AS next_attempt_at, q.code, q.detail, NULL AS provider_ref, NULL AS sent_at,
      NULL AS finished_at, q.unclear, q.error_class, coalesce(q.first_due_at, q.due_at) AS first_due_at, 0 AS captured, q.template,
      q.template_version, q.language, q.user_id, q.send_key, NULL AS attempted_at
    FROM postcommit_delivery_queue q
    UNION ALL
    SELECT l.tenant, l.notification_id, l.n, l.lane, l.channel, l.target, l.state, l.reason, l.attempts, l.seq, NULL, l.code,
      l.detail, l.provider_ref, l.sent_at, l.finished_at, l.unclear, l.error_class, NULL, l.captured, l.template,
      l.template_version, l.language, l.user_id, l.send_key, l.attempted_at
    FROM postcommit_delivery_ledger l
  ) d
  JOIN postcommit_notification note ON note.tenant = d.tenant AND note.id = d.notification_id
  JOIN postcommit_tenant t ON t.id = d.tenant
  LEFT JOIN postcommit_provider p ON p.id = d.lane;

-- One row per notification. The least finished delivery determines its state. A notification is delivered when all of its
-- deliveries that were sent are delivered.
CREATE VIEW postcommit_notification_status AS
  SELECT note.id, t.name AS tenant, note.event_type, note.entity, note.idempotency_key, note.payload, note.title, note.priority,
    coalesce((SELECT x.state FROM postcommit_delivery x WHERE x.tenant_id = note.tenant AND x.notification_id = note.id
      ORDER BY instr('sending retrying pending parked sent delivered expired cancelled discarded skipped', x.state)
      LIMIT 1), 'skipped') AS state,
    coalesce((SELECT sum(x.attempts) FROM postcommit_delivery x
      WHERE x.tenant_id = note.tenant AND x.notification_id = note.id), 0) AS attempts,
    (SELECT min(x.next_attempt_at) FROM postcommit_delivery x
      WHERE x.tenant_id = note.tenant AND x.notification_id = note.id) AS next_attempt_at,
    (SELECT x.error_code || coalesce(': ' || x.last_error, '') FROM postcommit_delivery x
      WHERE x.tenant_id = note.tenant AND x.notification_id = note.id AND x.error_code IS NOT NULL
      ORDER BY x.updated_at DESC LIMIT 1) AS last_error,
    strftime('%Y-%m-%dT%H:%M:%fZ', note.created_at / 1000000.0, 'unixepoch') AS created_at,
    (SELECT max(x.sent_at) FROM postcommit_delivery x
      WHERE x.tenant_id = note.tenant AND x.notification_id = note.id) AS sent_at,
    coalesce((SELECT max(x.updated_at) FROM postcommit_delivery x
        WHERE x.tenant_id = note.tenant AND x.notification_id = note.id),
      strftime('%Y-%m-%dT%H:%M:%fZ', note.created_at / 1000000.0, 'unixepoch')) AS updated_at,
    (SELECT count(*) FROM postcommit_delivery x
      WHERE x.tenant_id = note.tenant AND x.notification_id = note.id AND x.n > 0) AS deliveries,
    note.correlation_id, note.source, note.tenant AS tenant_id,
    (SELECT CASE WHEN max(x.state IN ('sending', 'retrying', 'pending', 'parked', 'sent')) = 0 THEN max(x.delivered_at) END
      FROM postcommit_delivery x WHERE x.tenant_id = note.tenant AND x.notification_id = note.id) AS delivered_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', (SELECT max(a.at) FROM postcommit_attempt a WHERE a.tenant = note.tenant AND a.notification_id = note.id) / 1000000.0, 'unixepoch')
      AS last_attempt_at,
    coalesce((SELECT max(x.captured) FROM postcommit_delivery x
      WHERE x.tenant_id = note.tenant AND x.notification_id = note.id), 0) AS captured, note.recipients
  FROM postcommit_notification note JOIN postcommit_tenant t ON t.id = note.tenant;
