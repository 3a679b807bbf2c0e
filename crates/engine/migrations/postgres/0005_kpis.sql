-- KPIs: how many deliveries entered which state, by minute and by hour. Counted in the transaction that changes the ledger, so the sums are exact, and read
-- without looking at history.

-- Where the delivery came from (source ->> 'site', 64 characters of it); '' is nowhere in particular. Whoever writes it has counted the row in the same statement,
-- as settle does for a whole batch: a trigger for each row, or a transition table, would cost every delivery 2 µs and more. NULL: the trigger below counts it.
ALTER TABLE postcommit.delivery_ledger ADD COLUMN site text;

-- What was counted and is not folded yet. Append-only: nobody waits for anybody's row, not even for an application's open transaction that cancels something.
-- Without an index, because it is emptied every minute and always read whole.
CREATE TABLE postcommit.rollup_fresh (
  tenant  int NOT NULL,
  slot    timestamptz NOT NULL,  -- the minute's start
  site    text NOT NULL,
  channel text NOT NULL,         -- '' before it was expanded
  state   text NOT NULL,         -- the ledger's states, and confirmed: sent before, and known to have arrived now
  count   bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Folded: one row for each minute, and for each hour, in which something happened. The same counts enter both in one statement.
CREATE TABLE postcommit.rollup_minute (
  tenant int NOT NULL, slot timestamptz NOT NULL, state text NOT NULL, channel text NOT NULL, site text NOT NULL, count bigint NOT NULL,
  PRIMARY KEY (tenant, slot, state, channel, site)
);
CREATE TABLE postcommit.rollup_hour (
  tenant int NOT NULL, slot timestamptz NOT NULL, state text NOT NULL, channel text NOT NULL, site text NOT NULL, count bigint NOT NULL,
  PRIMARY KEY (tenant, slot, state, channel, site)
);

-- The sites and channels of a tenant that are kept apart, the first so many; what comes later is folded into 'other'.
CREATE TABLE postcommit.rollup_label (
  tenant int NOT NULL, kind text NOT NULL, label text NOT NULL,
  PRIMARY KEY (tenant, kind, label)
);

-- Every other way into the ledger: targets that end when they are expanded, cancel, what a person does.
CREATE FUNCTION postcommit.count_outcome() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  INSERT INTO postcommit.rollup_fresh (tenant, slot, site, channel, state, count) VALUES (NEW.tenant,
    date_trunc('minute', CASE WHEN TG_OP = 'UPDATE' AND OLD.finished_at = NEW.finished_at THEN clock_timestamp() ELSE NEW.finished_at END),
    coalesce(NEW.site, left((SELECT note.source ->> 'site' FROM postcommit.notification note WHERE note.tenant = NEW.tenant AND note.id = NEW.notification_id), 64), ''),
    coalesce(NEW.channel, ''), CASE WHEN TG_OP = 'UPDATE' AND OLD.state = 'sent' AND NEW.state = 'delivered' THEN 'confirmed' ELSE NEW.state END, 1);
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION postcommit.count_outcome() FROM PUBLIC;
CREATE TRIGGER outcome_entered AFTER INSERT ON postcommit.delivery_ledger FOR EACH ROW WHEN (NEW.site IS NULL) EXECUTE FUNCTION postcommit.count_outcome();
CREATE TRIGGER outcome_changed AFTER UPDATE ON postcommit.delivery_ledger FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION postcommit.count_outcome();
