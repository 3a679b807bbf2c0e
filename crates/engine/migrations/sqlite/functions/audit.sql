CREATE TRIGGER postcommit_audit_is_append_only BEFORE UPDATE ON postcommit_audit BEGIN
  SELECT RAISE(ABORT, 'postcommit: the audit log is append-only');
END;
