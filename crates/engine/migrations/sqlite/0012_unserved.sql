-- What a worker lacks for a provider. ../postgres/0012_unserved.sql has the comments.
ALTER TABLE postcommit_unopened_secret
  ADD COLUMN problem TEXT NOT NULL DEFAULT 'secrets'
    CONSTRAINT unopened_problem_is_known CHECK (problem IN ('secrets', 'driver'));
