CREATE OR REPLACE FUNCTION postcommit.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'postcommit: the audit log is append-only' USING ERRCODE = '42501';
END $$;
CREATE OR REPLACE TRIGGER audit_is_append_only BEFORE UPDATE ON postcommit.audit
  FOR EACH STATEMENT EXECUTE FUNCTION postcommit.refuse_change();
