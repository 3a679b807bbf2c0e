-- The attempt that a delivery was sent by is kept in the delivery's row of the ledger, if it has neither a code nor a detail
-- (docs/decisions/0044). All other attempts have rows of their own in logged_attempt. The view attempt has both.
ALTER TABLE postcommit.attempt RENAME TO logged_attempt;
DO $$
DECLARE
  child name;
BEGIN
  FOR child IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
      WHERE i.inhparent = 'postcommit.logged_attempt'::regclass AND starts_with(c.relname, 'attempt_') LOOP
    EXECUTE format('ALTER TABLE postcommit.%I RENAME TO %I', child, 'logged_' || child);
  END LOOP;
END $$;
ALTER TABLE postcommit.delivery_ledger
  ADD COLUMN attempted_at timestamptz,  -- NULL: the last attempt, if there was one, is in logged_attempt
  ADD COLUMN attempted_by text,         -- the provider's name then
  ADD COLUMN outcome text,
  ADD COLUMN latency_ms int,
  ADD COLUMN excerpt text,
  ADD COLUMN token uuid;

-- A generated column makes PostgreSQL copy every row once more. Settle writes the hash itself, and a trigger writes it into all
-- other rows (functions/ledger.sql). The index begins with the hash, because nearly every comparison ends there.
ALTER TABLE postcommit.delivery_ledger ALTER COLUMN recipient_hash DROP EXPRESSION;
DROP INDEX postcommit.delivery_ledger_recipient;
CREATE INDEX delivery_ledger_recipient ON postcommit.delivery_ledger (recipient_hash, tenant, notification_id);
