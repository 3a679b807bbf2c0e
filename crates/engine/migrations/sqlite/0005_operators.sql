-- What operators see: how many deliveries a job leaves out, and the names that HTTP and the command line have.

-- Deliveries that matched but may have arrived, when the job was created: a retry without consent leaves them out.
ALTER TABLE postcommit_job ADD COLUMN left_out INTEGER NOT NULL DEFAULT 0;

-- One name for one thing, in SQL, HTTP and on the command line. views.sql makes the views anew.
ALTER TABLE postcommit_job RENAME COLUMN pace TO pace_per_s;
ALTER TABLE postcommit_provider RENAME COLUMN not_before TO held_until;
