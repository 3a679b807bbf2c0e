-- Circuit breakers and failover. ../postgres/0010_failover.sql has the comments.
ALTER TABLE postcommit_provider
  ADD COLUMN breaker_failures INTEGER NOT NULL DEFAULT 5
    CONSTRAINT breaker_failures_0_to_100 CHECK (breaker_failures BETWEEN 0 AND 100);
ALTER TABLE postcommit_provider
  ADD COLUMN breaker_cool_down_s INTEGER NOT NULL DEFAULT 5
    CONSTRAINT breaker_cool_down_s_1_to_300 CHECK (breaker_cool_down_s BETWEEN 1 AND 300);
ALTER TABLE postcommit_provider ADD COLUMN trips INTEGER NOT NULL DEFAULT 0;
ALTER TABLE postcommit_provider ADD COLUMN hold_reason TEXT;
ALTER TABLE postcommit_provider ADD COLUMN failover TEXT;
ALTER TABLE postcommit_provider
  ADD COLUMN failover_after_s INTEGER NOT NULL DEFAULT 30
    CONSTRAINT failover_after_s_0_to_86400 CHECK (failover_after_s BETWEEN 0 AND 86400);

ALTER TABLE postcommit_lane_host ADD COLUMN trips INTEGER NOT NULL DEFAULT 0;
ALTER TABLE postcommit_lane_host ADD COLUMN hold_reason TEXT;

ALTER TABLE postcommit_delivery_queue ADD COLUMN moves INTEGER NOT NULL DEFAULT 0;
