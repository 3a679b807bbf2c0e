-- Types: SQLite keeps whatever it is given, so the views ask for what PostgreSQL's types ask for by themselves. A tenant whose name was bound as bytes once kept the
-- server from starting.

-- Names that were bound as bytes become text, where they are free. What is left is shown as unreadable, by its bytes.
UPDATE postcommit_tenant SET name = CAST(name AS TEXT)
  WHERE typeof(name) = 'blob' AND instr(name, x'00') = 0 AND length(name) BETWEEN 1 AND 63 AND CAST(name AS TEXT) NOT GLOB '*[^A-Za-z0-9_.-]*'
    AND NOT EXISTS (SELECT 1 FROM postcommit_tenant other WHERE other.name = CAST(postcommit_tenant.name AS TEXT));

-- By whatever way a tenant is made: length() and GLOB see neither bytes nor what follows a NUL. A client takes a path segment `.` or `..` out of its URL.
CREATE TRIGGER postcommit_tenant_made BEFORE INSERT ON postcommit_tenant BEGIN
  SELECT RAISE(ABORT, 'postcommit: tenant is bytes; text is allowed') WHERE typeof(NEW.name) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: tenant holds NUL; letters, digits, ''_'', ''-'' and ''.'' are allowed') WHERE instr(NEW.name, char(0)) > 0;
  SELECT RAISE(ABORT, 'postcommit: tenant_other_than_dot_and_dot_dot') WHERE NEW.name IN ('.', '..');
END;
CREATE TRIGGER postcommit_tenant_renamed BEFORE UPDATE OF name ON postcommit_tenant BEGIN
  SELECT RAISE(ABORT, 'postcommit: tenant is bytes; text is allowed') WHERE typeof(NEW.name) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: tenant holds NUL; letters, digits, ''_'', ''-'' and ''.'' are allowed') WHERE instr(NEW.name, char(0)) > 0;
  SELECT RAISE(ABORT, 'postcommit: tenant_other_than_dot_and_dot_dot') WHERE NEW.name IN ('.', '..');
END;

-- Beside the trigger that enqueues, whichever of the two runs first: ABORT undoes the whole statement. Nothing but bytes sorts behind x'', so all of it is one cheap
-- condition (1.4 µs), which nearly never holds. A whole number is taken where text is asked for, as its digits: applications bind the ids of their rows. A
-- floating-point number is none of those, since some drivers bind 42 as 42.0. RAISE takes a literal alone before SQLite 3.47.
CREATE TRIGGER postcommit_enqueue_types INSTEAD OF INSERT ON postcommit_enqueue WHEN
  NEW.event_type >= x'' OR NEW.idempotency_key >= x'' OR NEW.tenant >= x'' OR NEW.entity >= x'' OR NEW.title >= x'' OR NEW.body >= x''
  OR NEW.action_url >= x'' OR NEW.correlation_id >= x'' OR NEW.topic >= x'' OR NEW.payload >= x'' OR NEW.recipients >= x'' OR NEW.channels >= x''
  OR NEW.data >= x'' OR NEW.source >= x'' OR NEW.priority >= x'' OR NEW.strict >= x'' OR NEW.due_at >= x'' OR NEW.expires_at >= x''
  OR typeof(NEW.idempotency_key) = 'real' OR typeof(NEW.entity) = 'real' OR NEW.schema_version IS NOT NULL OR instr(NEW.action_url, char(0)) > 0
BEGIN
  SELECT RAISE(ABORT, 'postcommit: event_type is bytes; text is allowed') WHERE typeof(NEW.event_type) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: idempotency_key is bytes; text is allowed') WHERE typeof(NEW.idempotency_key) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: tenant is bytes; text is allowed') WHERE typeof(NEW.tenant) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: entity is bytes; text is allowed') WHERE typeof(NEW.entity) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: title is bytes; text is allowed') WHERE typeof(NEW.title) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: body is bytes; text is allowed') WHERE typeof(NEW.body) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: action_url is bytes; text is allowed') WHERE typeof(NEW.action_url) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: correlation_id is bytes; text is allowed') WHERE typeof(NEW.correlation_id) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: topic is bytes; text is allowed') WHERE typeof(NEW.topic) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: payload is bytes; JSON as text is allowed') WHERE typeof(NEW.payload) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: recipients is bytes; JSON as text is allowed') WHERE typeof(NEW.recipients) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: channels is bytes; JSON as text is allowed') WHERE typeof(NEW.channels) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: data is bytes; JSON as text is allowed') WHERE typeof(NEW.data) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: source is bytes; JSON as text is allowed') WHERE typeof(NEW.source) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: priority is bytes; a whole number from 0 to 9 is allowed') WHERE typeof(NEW.priority) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: strict is bytes; 0 and 1 are allowed') WHERE typeof(NEW.strict) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: due_at is bytes; RFC 3339 as text and unix seconds as a number are allowed') WHERE typeof(NEW.due_at) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: expires_at is bytes; RFC 3339 as text and unix seconds as a number are allowed') WHERE typeof(NEW.expires_at) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: schema_version is bytes; a whole number is allowed') WHERE typeof(NEW.schema_version) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: idempotency_key is a floating-point number; text is allowed, and a whole number') WHERE typeof(NEW.idempotency_key) = 'real';
  SELECT RAISE(ABORT, 'postcommit: entity is a floating-point number; text is allowed, and a whole number') WHERE typeof(NEW.entity) = 'real';
  SELECT RAISE(ABORT, 'postcommit: schema_version is no whole number; a 32-bit integer is allowed') WHERE CASE typeof(NEW.schema_version)
    WHEN 'text' THEN CAST(CAST(NEW.schema_version AS INTEGER) AS TEXT) <> NEW.schema_version WHEN 'real' THEN CAST(NEW.schema_version AS INTEGER) <> NEW.schema_version ELSE 0 END;
  SELECT RAISE(ABORT, 'postcommit: action_url holds NUL; http, https, mailto and tel without control characters are allowed') WHERE instr(NEW.action_url, char(0)) > 0;
END;

-- A cancel that names bytes would find nothing, and say nothing.
CREATE TRIGGER postcommit_cancel_types INSTEAD OF INSERT ON postcommit_cancel WHEN NEW.tenant >= x'' OR NEW.entity >= x'' OR NEW.event_type >= x'' OR typeof(NEW.entity) = 'real' BEGIN
  SELECT RAISE(ABORT, 'postcommit: tenant is bytes; text is allowed') WHERE typeof(NEW.tenant) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: entity is bytes; text is allowed') WHERE typeof(NEW.entity) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: event_type is bytes; text is allowed') WHERE typeof(NEW.event_type) = 'blob';
  SELECT RAISE(ABORT, 'postcommit: entity is a floating-point number; text is allowed, and a whole number') WHERE typeof(NEW.entity) = 'real';
END;
