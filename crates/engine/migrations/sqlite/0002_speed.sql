-- Speed: what the hot path needs to know without asking twice.

-- Counts the changes of all providers. A claim reads it along, so that a dispatcher keeps the providers in memory and still sees every change at once.
CREATE TABLE postcommit_provider_version (
  version INTEGER NOT NULL
);
INSERT INTO postcommit_provider_version VALUES (1);
CREATE TRIGGER postcommit_provider_inserted AFTER INSERT ON postcommit_provider BEGIN UPDATE postcommit_provider_version SET version = version + 1; END;
CREATE TRIGGER postcommit_provider_updated AFTER UPDATE ON postcommit_provider BEGIN UPDATE postcommit_provider_version SET version = version + 1; END;
CREATE TRIGGER postcommit_provider_deleted AFTER DELETE ON postcommit_provider BEGIN UPDATE postcommit_provider_version SET version = version + 1; END;
