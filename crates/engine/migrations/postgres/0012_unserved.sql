-- A worker also notes the providers whose driver it cannot set up, e.g. because it does not know their recipe. `problem` says what it
-- lacks.
ALTER TABLE postcommit.unopened_secret
  ADD COLUMN problem text NOT NULL DEFAULT 'secrets'  -- secrets, or driver
    CONSTRAINT unopened_problem_is_known CHECK (problem IN ('secrets', 'driver'));
