-- KPIs: how many deliveries entered which state, by minute and by hour. Counted in the transaction that changes the ledger, so the sums are exact, and read
-- without looking at history.

-- Where the delivery came from (source ->> 'site', 64 characters of it); '' is nowhere in particular. Whoever writes it has counted the row in the same
-- transaction, as settle does for a whole batch. NULL: the trigger below counts it.
ALTER TABLE postcommit_delivery_ledger ADD COLUMN site TEXT;

-- What was counted and is not folded yet.
CREATE TABLE postcommit_rollup_fresh (
  tenant  INTEGER NOT NULL,
  slot    INTEGER NOT NULL,  -- the minute's start
  site    TEXT NOT NULL,
  channel TEXT NOT NULL,     -- '' before it was expanded
  state   TEXT NOT NULL,     -- the ledger's states, and confirmed: sent before, and known to have arrived now
  count   INTEGER NOT NULL
);

-- Folded: one row for each minute, and for each hour, in which something happened. The same counts enter both in one transaction.
CREATE TABLE postcommit_rollup_minute (
  tenant INTEGER NOT NULL, slot INTEGER NOT NULL, state TEXT NOT NULL, channel TEXT NOT NULL, site TEXT NOT NULL, count INTEGER NOT NULL,
  PRIMARY KEY (tenant, slot, state, channel, site)
) WITHOUT ROWID;
CREATE TABLE postcommit_rollup_hour (
  tenant INTEGER NOT NULL, slot INTEGER NOT NULL, state TEXT NOT NULL, channel TEXT NOT NULL, site TEXT NOT NULL, count INTEGER NOT NULL,
  PRIMARY KEY (tenant, slot, state, channel, site)
) WITHOUT ROWID;

-- The sites and channels of a tenant that are kept apart, the first so many; what comes later is folded into 'other'.
CREATE TABLE postcommit_rollup_label (
  tenant INTEGER NOT NULL, kind TEXT NOT NULL, label TEXT NOT NULL,
  PRIMARY KEY (tenant, kind, label)
) WITHOUT ROWID;

-- Every other way into the ledger: targets that end when they are expanded, cancel, what a person does.
CREATE TRIGGER postcommit_outcome_entered AFTER INSERT ON postcommit_delivery_ledger WHEN NEW.site IS NULL BEGIN
  INSERT INTO postcommit_rollup_fresh (tenant, slot, site, channel, state, count) VALUES (NEW.tenant, NEW.finished_at - NEW.finished_at % 60000000,
    coalesce(substr((SELECT note.source ->> 'site' FROM postcommit_notification note WHERE note.tenant = NEW.tenant AND note.id = NEW.notification_id), 1, 64), ''),
    coalesce(NEW.channel, ''), NEW.state, 1);
END;
CREATE TRIGGER postcommit_outcome_changed AFTER UPDATE OF state ON postcommit_delivery_ledger WHEN OLD.state <> NEW.state BEGIN
  INSERT INTO postcommit_rollup_fresh (tenant, slot, site, channel, state, count)
    SELECT NEW.tenant, at - at % 60000000,
      coalesce(NEW.site, substr((SELECT note.source ->> 'site' FROM postcommit_notification note WHERE note.tenant = NEW.tenant AND note.id = NEW.notification_id), 1, 64), ''),
      coalesce(NEW.channel, ''), CASE WHEN OLD.state = 'sent' AND NEW.state = 'delivered' THEN 'confirmed' ELSE NEW.state END, 1
    FROM (SELECT CASE WHEN OLD.finished_at = NEW.finished_at THEN CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 ELSE NEW.finished_at END AS at);
END;
