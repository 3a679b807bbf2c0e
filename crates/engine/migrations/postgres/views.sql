-- The views. security_invoker: a view reads with the privileges of its reader, so that row-level security applies to it
-- (isolation.sql). CREATE OR REPLACE VIEW can add columns at the end; db/migrate.rs says what to do for any other change of
-- columns.

-- Idle dispatchers, which NOTIFY would wake.
CREATE OR REPLACE VIEW postcommit.asleep WITH (security_invoker = true) AS
  SELECT worker FROM postcommit.idle WHERE until > clock_timestamp();

-- Every attempt. The last attempt of a delivery may be stored in its ledger row. All other attempts are rows of
-- logged_attempt.
CREATE OR REPLACE VIEW postcommit.attempt WITH (security_invoker = true) AS
  SELECT a.tenant, a.notification_id, a.n, a.seq, a.at, a.provider, a.outcome, a.code, a.detail, a.latency_ms, a.provider_ref,
    a.excerpt, a.token, a.error_class, a.captured
  FROM postcommit.logged_attempt a
  UNION ALL
  SELECT l.tenant, l.notification_id, l.n, l.seq, l.attempted_at, l.attempted_by, l.outcome, NULL, NULL, l.latency_ms, l.provider_ref,
    l.excerpt, l.token, NULL, l.captured
  FROM postcommit.delivery_ledger l WHERE l.attempted_at IS NOT NULL;

-- One row per delivery, live or finished. The documentation describes the columns.
CREATE OR REPLACE VIEW postcommit.delivery WITH (security_invoker = true) AS
  SELECT d.notification_id || '.' || d.n AS id, t.name AS tenant, d.notification_id, d.n, note.event_type, note.entity,
    note.idempotency_key, d.channel, p.name AS provider, d.target, d.state, d.reason, d.attempts, d.next_attempt_at,
    d.code AS error_code, CASE WHEN d.code IS NOT NULL THEN d.detail END AS last_error, d.provider_ref, note.created_at, d.sent_at,
    coalesce(d.finished_at, (SELECT a.at FROM postcommit.logged_attempt a WHERE d.seq > 0
      AND a.tenant = d.tenant AND a.notification_id = d.notification_id AND a.n = d.n AND a.seq = d.seq),
      note.created_at) AS updated_at, note.priority, note.expires_at, d.unclear, d.tenant AS tenant_id, d.error_class,
    CASE WHEN d.state = 'delivered' THEN d.finished_at END AS delivered_at,
    coalesce(d.attempted_at, (SELECT a.at FROM postcommit.logged_attempt a WHERE d.seq > 0
      AND a.tenant = d.tenant AND a.notification_id = d.notification_id AND a.n = d.n AND a.seq = d.seq)) AS last_attempt_at,
    d.captured, d.first_due_at, d.recipient_hash, d.template,
    -- For a resend, the entry in the audit log has the actor and the original notification.
    CASE WHEN starts_with(note.idempotency_key, 'manual:') THEN (SELECT (a.details ->> 'of')::uuid FROM postcommit.audit a
      WHERE a.tenant = d.tenant AND a.subject = d.notification_id::text AND a.action = 'entity.resend' LIMIT 1) END AS copy_of,
    CASE WHEN starts_with(note.idempotency_key, 'manual:') THEN (SELECT a.actor FROM postcommit.audit a
      WHERE a.tenant = d.tenant AND a.subject = d.notification_id::text AND a.action = 'entity.resend' LIMIT 1) END AS asked_by,
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
      NULL AS reason, q.attempts, q.seq, q.due_at AS next_attempt_at, q.code, q.detail, NULL AS provider_ref,
      NULL::timestamptz AS sent_at, NULL::timestamptz AS finished_at, q.unclear, q.error_class,
      coalesce(q.first_due_at, q.due_at) AS first_due_at, hashtext(q.target) AS recipient_hash, false AS captured, q.template,
      q.template_version, q.language, q.user_id, q.send_key, NULL::timestamptz AS attempted_at
    FROM postcommit.delivery_queue q
    UNION ALL
    SELECT l.tenant, l.notification_id, l.n, l.lane, l.channel, l.target, l.state, l.reason, l.attempts, l.seq, NULL, l.code,
      l.detail, l.provider_ref, l.sent_at, l.finished_at, l.unclear, l.error_class, NULL, l.recipient_hash,
      l.captured, l.template, l.template_version, l.language, l.user_id, l.send_key, l.attempted_at
    FROM postcommit.delivery_ledger l
  ) d
  JOIN postcommit.notification note ON note.tenant = d.tenant AND note.id = d.notification_id
  JOIN postcommit.tenant t ON t.id = d.tenant
  LEFT JOIN postcommit.provider p ON p.tenant = d.tenant AND p.id = d.lane;

-- One row per notification. The least finished delivery determines its state. A notification is delivered when all of its
-- deliveries that were sent are delivered.
CREATE OR REPLACE VIEW postcommit.notification_status WITH (security_invoker = true) AS
  SELECT note.id, t.name AS tenant, note.event_type, note.entity, note.idempotency_key, note.payload, note.title, note.priority,
    coalesce(d.state, 'skipped') AS state, coalesce(d.attempts, 0) AS attempts, d.next_attempt_at, d.last_error,
    note.created_at, d.sent_at, coalesce(d.updated_at, note.created_at) AS updated_at, coalesce(d.deliveries, 0) AS deliveries,
    note.correlation_id, note.source, note.tenant AS tenant_id,
    CASE WHEN d.state = 'delivered' THEN d.delivered_at END AS delivered_at,
    (SELECT max(a.at) FROM postcommit.attempt a
      WHERE a.tenant = note.tenant AND a.notification_id = note.id) AS last_attempt_at,
    coalesce(d.captured, false) AS captured, note.recipients
  FROM postcommit.notification note
  JOIN postcommit.tenant t ON t.id = note.tenant
  LEFT JOIN LATERAL (
    SELECT (array_agg(x.state ORDER BY array_position(ARRAY['sending', 'retrying', 'pending', 'parked', 'sent', 'delivered',
        'expired', 'cancelled', 'discarded', 'skipped'], x.state)))[1] AS state,
      sum(x.attempts)::int AS attempts, min(x.due_at) AS next_attempt_at, max(x.sent_at) AS sent_at,
      max(x.finished_at) FILTER (WHERE x.state = 'delivered') AS delivered_at, bool_or(x.captured) AS captured,
      max(x.finished_at) AS updated_at, count(*) FILTER (WHERE x.n > 0)::int AS deliveries,
      (array_agg(concat_ws(': ', x.code, x.detail) ORDER BY x.finished_at DESC NULLS FIRST)
        FILTER (WHERE x.code IS NOT NULL))[1] AS last_error
    FROM (
      SELECT q.n, CASE WHEN q.lease_token IS NOT NULL THEN 'sending' WHEN q.attempts > 0 OR q.losses > 0 THEN 'retrying'
          ELSE 'pending' END AS state,
        q.attempts, q.due_at, NULL::timestamptz AS sent_at, NULL::timestamptz AS finished_at, q.code, q.detail,
        false AS captured
      FROM postcommit.delivery_queue q WHERE q.tenant = note.tenant AND q.notification_id = note.id
      UNION ALL
      SELECT l.n, l.state, l.attempts, NULL, l.sent_at, l.finished_at, l.code, l.detail, l.captured
      FROM postcommit.delivery_ledger l WHERE l.tenant = note.tenant AND l.notification_id = note.id
    ) x
  ) d ON true;
