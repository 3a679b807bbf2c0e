-- Attempts in the ledger. ../postgres/0011_ledger.sql has the comments.
ALTER TABLE postcommit_attempt RENAME TO postcommit_logged_attempt;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN attempted_at INTEGER;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN attempted_by TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN outcome TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN latency_ms INTEGER;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN excerpt TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN token TEXT;
