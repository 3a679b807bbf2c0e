-- Circuit breakers and failover (docs/decisions/0040). A breaker that trips holds its lane or host. `trips` counts the trips since the
-- last success: while it is above 0, one send is made at a time.
ALTER TABLE postcommit.provider
  ADD COLUMN breaker_failures int NOT NULL DEFAULT 5  -- failures in a row until it trips; 0: switched off
    CONSTRAINT breaker_failures_0_to_100 CHECK (breaker_failures BETWEEN 0 AND 100),
  ADD COLUMN breaker_cool_down_s int NOT NULL DEFAULT 5  -- the first hold; it doubles with each further trip
    CONSTRAINT breaker_cool_down_s_1_to_300 CHECK (breaker_cool_down_s BETWEEN 1 AND 300),
  ADD COLUMN trips int NOT NULL DEFAULT 0,
  ADD COLUMN hold_reason text,                           -- why the breaker tripped last; NULL: the provider asked to wait
  ADD COLUMN failover text,                              -- the name of the next provider
  ADD COLUMN failover_after_s int NOT NULL DEFAULT 30    -- a longer hold lets the next provider take over
    CONSTRAINT failover_after_s_0_to_86400 CHECK (failover_after_s BETWEEN 0 AND 86400);
ALTER TABLE postcommit.lane_host
  ADD COLUMN trips int NOT NULL DEFAULT 0,
  ADD COLUMN hold_reason text;
-- How often the delivery went on with another provider, in this round.
ALTER TABLE postcommit.delivery_queue ADD COLUMN moves int NOT NULL DEFAULT 0;
