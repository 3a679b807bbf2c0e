-- Refuses tenant names that the table's constraint does not detect: length() and GLOB see neither bytes nor characters after
-- a NUL, and HTTP clients remove a path segment `.` or `..` from a URL.
CREATE TRIGGER postcommit_tenant_made BEFORE INSERT ON postcommit_tenant BEGIN
  SELECT RAISE(ABORT, 'postcommit: tenant is bytes; text is allowed') WHERE typeof(NEW.name) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: tenant holds NUL; letters, digits, ''_'', ''-'' and ''.'' are allowed')
    WHERE instr(NEW.name, char(0)) > 0;
  SELECT RAISE(ABORT, 'postcommit: tenant_other_than_dot_and_dot_dot') WHERE NEW.name IN ('.', '..');
END;
CREATE TRIGGER postcommit_tenant_renamed BEFORE UPDATE OF name ON postcommit_tenant BEGIN
  SELECT RAISE(ABORT, 'postcommit: tenant is bytes; text is allowed') WHERE typeof(NEW.name) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: tenant holds NUL; letters, digits, ''_'', ''-'' and ''.'' are allowed')
    WHERE instr(NEW.name, char(0)) > 0;
  SELECT RAISE(ABORT, 'postcommit: tenant_other_than_dot_and_dot_dot') WHERE NEW.name IN ('.', '..');
END;

-- A change of weight or suspension gets a number from provider_version, so that dispatchers read it.
CREATE TRIGGER postcommit_tenant_changed AFTER UPDATE ON postcommit_tenant
WHEN (OLD.weight, OLD.suspended_at) IS NOT (NEW.weight, NEW.suspended_at) BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_tenant SET changed = (SELECT version FROM postcommit_provider_version) WHERE id = NEW.id;
END;
