-- Cancels the deliveries of an entity that are not sent yet. A delivery that is being sent is not cancelled, but it is not
-- retried. A delivery whose lease expired and that was returned to the queue since may have arrived, so it is cancelled as
-- unclear.
CREATE OR REPLACE FUNCTION postcommit.cancel(tenant text, entity text, event_type text DEFAULT NULL) RETURNS int
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  of_tenant int := (SELECT t.id FROM postcommit.tenant t WHERE t.name = cancel.tenant);
  taken int;
BEGIN
  WITH live AS MATERIALIZED (
    SELECT q.notification_id, q.n, q.lease_token
    FROM postcommit.notification note
    JOIN postcommit.delivery_queue q ON q.tenant = note.tenant AND q.notification_id = note.id
    WHERE note.tenant = of_tenant AND note.entity = cancel.entity
      AND (cancel.event_type IS NULL OR note.event_type = cancel.event_type)
  ), taken_back AS (
    DELETE FROM postcommit.delivery_queue q USING live
      WHERE q.tenant = of_tenant AND q.notification_id = live.notification_id AND q.n = live.n AND q.lease_token IS NULL
      RETURNING q.*
  ), entered AS (
    INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, provider, template,
        template_version, language, user_id, context, send_key, state, code, attempts, seq, unclear, finished_at)
      SELECT t.tenant, t.notification_id, t.n, t.lane, t.channel, t.target, t.provider, t.template,
        t.template_version, t.language, t.user_id, t.context, t.send_key, 'cancelled', 'cancelled', t.attempts, t.seq,
        t.unclear OR t.lost_since IS NOT NULL, clock_timestamp()
      FROM taken_back t ORDER BY t.notification_id, t.n
  ), word_left AS (
    INSERT INTO postcommit.cancel_request (tenant, notification_id, n)
      SELECT of_tenant, live.notification_id, live.n FROM live ON CONFLICT DO NOTHING
  )
  SELECT count(*) INTO taken FROM taken_back;
  RETURN taken;
END $$;
