-- What kind of failure, in one vocabulary over all providers (crates/channel/src/model/error_class.rs), beside the code. It
-- lives and goes with the code. Rows from before have none.
ALTER TABLE postcommit_delivery_queue ADD COLUMN error_class TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN error_class TEXT;
ALTER TABLE postcommit_attempt ADD COLUMN error_class TEXT;

-- A driver for development has recorded it, and nothing was sent.
ALTER TABLE postcommit_delivery_ledger ADD COLUMN captured INTEGER NOT NULL DEFAULT 0;
ALTER TABLE postcommit_attempt ADD COLUMN captured INTEGER NOT NULL DEFAULT 0;
