-- What KPIs are read from: since when a live delivery has been due, and counts by event type, provider and error class.

-- When the delivery was first due: when it was enqueued, or its scheduled time if that is later; an operator's retry
-- begins anew. Retries move due_at and leave this. Written when a row enters the queue, read by KPIs and lists only, in
-- no index. NULL: the row is older than this column and has not been put off; then it is due_at.
ALTER TABLE postcommit_delivery_queue ADD COLUMN first_due_at INTEGER;
UPDATE postcommit_delivery_queue SET first_due_at = (SELECT max(note.created_at, note.due_at)
    FROM postcommit_notification note
    WHERE note.tenant = postcommit_delivery_queue.tenant AND note.id = postcommit_delivery_queue.notification_id)
  WHERE attempts > 0 OR losses > 0 OR code IS NOT NULL;

-- NULL in rows that were written before, or by a program of the version before: not known.
ALTER TABLE postcommit_rollup_fresh ADD COLUMN event_type TEXT;
ALTER TABLE postcommit_rollup_fresh ADD COLUMN lane INTEGER;
ALTER TABLE postcommit_rollup_fresh ADD COLUMN error_class TEXT;

-- Folded counts by what rollup_minute does not tell apart, one kind at a time: all combinations would be too many rows.
CREATE TABLE postcommit_rollup_group (
  tenant INTEGER NOT NULL,
  slot   INTEGER NOT NULL,  -- the minute's start
  kind   TEXT NOT NULL,     -- event_type, provider (its lane) or error (the class)
  state  TEXT NOT NULL,
  label  TEXT NOT NULL,     -- '' where there is none
  count  INTEGER NOT NULL,
  PRIMARY KEY (tenant, slot, kind, state, label)
) WITHOUT ROWID;
