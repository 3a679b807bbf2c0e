-- What KPIs are read from: since when a live delivery has been due, and counts by event type, provider and error class.

-- When the delivery was first due: when it was enqueued, or its scheduled time if that is later; an operator's retry
-- begins anew. Retries move due_at and leave this. Written when a row enters the queue, read by KPIs and lists only, in
-- no index. NULL: the row is older than this column and has not been put off; then it is due_at.
ALTER TABLE postcommit.delivery_queue ADD COLUMN first_due_at timestamptz;
UPDATE postcommit.delivery_queue q SET first_due_at = greatest(note.created_at, note.due_at)
  FROM postcommit.notification note
  WHERE note.tenant = q.tenant AND note.id = q.notification_id
    AND (q.attempts > 0 OR q.losses > 0 OR q.code IS NOT NULL);

-- NULL in rows that were written before, or by a program of the version before: not known.
ALTER TABLE postcommit.rollup_fresh ADD COLUMN event_type text, ADD COLUMN lane int, ADD COLUMN error_class text;

-- Folded counts by what rollup_minute does not tell apart, one kind at a time: all combinations would be too many rows.
CREATE TABLE postcommit.rollup_group (
  tenant int NOT NULL,
  slot   timestamptz NOT NULL,  -- the minute's start
  kind   text NOT NULL,         -- event_type, provider (its lane) or error (the class)
  state  text NOT NULL,
  label  text NOT NULL,         -- '' where there is none
  count  bigint NOT NULL,
  PRIMARY KEY (tenant, slot, kind, state, label)
);
