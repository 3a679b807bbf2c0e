-- What operators see: how many deliveries a job leaves out, and the names that HTTP and the command line have.

-- Deliveries that matched but may have arrived, when the job was created: a retry without consent leaves them out.
ALTER TABLE postcommit.job ADD COLUMN left_out bigint NOT NULL DEFAULT 0;

-- One name for one thing, in SQL, HTTP and on the command line.
ALTER TABLE postcommit.job RENAME COLUMN pace TO pace_per_s;
ALTER TABLE postcommit.provider RENAME COLUMN not_before TO held_until;
-- Its column status became state; views.sql makes it again.
DROP VIEW IF EXISTS postcommit.notification_status;
