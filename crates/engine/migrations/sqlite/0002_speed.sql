-- Speed: what the hot path needs to know without asking twice.

-- Counts the changes of all providers. A claim reads it along, so that a dispatcher keeps the providers in memory and still sees every change at once.
CREATE TABLE postcommit_provider_version (
  version     INTEGER NOT NULL,
  rerouted_at INTEGER NOT NULL  -- when something may last have been sent by another provider than it would be now
);
INSERT INTO postcommit_provider_version VALUES (1, 0);
CREATE TRIGGER postcommit_provider_inserted AFTER INSERT ON postcommit_provider BEGIN
  -- Before the first provider of a tenant there was none to send by.
  UPDATE postcommit_provider_version SET version = version + 1,
    rerouted_at = CASE WHEN EXISTS (SELECT 1 FROM postcommit_provider WHERE tenant = NEW.tenant AND id <> NEW.id) THEN CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 ELSE rerouted_at END;
END;
CREATE TRIGGER postcommit_provider_updated AFTER UPDATE ON postcommit_provider BEGIN
  UPDATE postcommit_provider_version SET version = version + 1,
    rerouted_at = CASE WHEN (OLD.name, OLD.channel, OLD.is_default, OLD.enabled) IS NOT (NEW.name, NEW.channel, NEW.is_default, NEW.enabled) THEN CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 ELSE rerouted_at END;
END;
CREATE TRIGGER postcommit_provider_deleted AFTER DELETE ON postcommit_provider BEGIN
  UPDATE postcommit_provider_version SET version = version + 1, rerouted_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000;
END;
