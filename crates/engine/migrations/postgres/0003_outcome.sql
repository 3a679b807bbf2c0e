-- What kind of failure, in one vocabulary over all providers (crates/channel/src/model/error_class.rs), beside the code. It
-- lives and goes with the code. Rows from before have none.
ALTER TABLE postcommit.delivery_queue ADD COLUMN error_class text;
ALTER TABLE postcommit.delivery_ledger ADD COLUMN error_class text;
ALTER TABLE postcommit.attempt ADD COLUMN error_class text;

-- A driver for development has recorded it, and nothing was sent.
ALTER TABLE postcommit.delivery_ledger ADD COLUMN captured boolean NOT NULL DEFAULT false;
ALTER TABLE postcommit.attempt ADD COLUMN captured boolean NOT NULL DEFAULT false;
