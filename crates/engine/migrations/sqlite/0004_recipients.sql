-- Lists by recipient: the user id or address of a finished delivery. SQLite has no hash function of its own, so the address itself
-- is in the index. The key of the table follows it there: newest first needs no sorting. See docs/decisions/0031.
CREATE INDEX postcommit_delivery_ledger_recipient ON postcommit_delivery_ledger (tenant, target, notification_id);
