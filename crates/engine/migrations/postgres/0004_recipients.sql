-- Lists by recipient: the user id or address of a finished delivery, by a hash of four bytes. The ledger alone has it: the queue
-- is small, and a claim or an enqueue pays nothing. A column, not an expression: hashtext is not leakproof, so behind row-level
-- security no index would be used for it. See docs/decisions/0031.
ALTER TABLE postcommit.delivery_ledger ADD COLUMN recipient_hash int GENERATED ALWAYS AS (hashtext(target)) STORED;
CREATE INDEX delivery_ledger_recipient ON postcommit.delivery_ledger (tenant, recipient_hash, notification_id);
-- What ended before it was expanded has no address. An index of its own, nearly empty: without statistics the planner would walk
-- the whole key for IS NULL.
CREATE INDEX delivery_ledger_unexpanded ON postcommit.delivery_ledger (tenant, notification_id) WHERE target IS NULL;
