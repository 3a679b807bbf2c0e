-- Notifies open pages of a change in an inbox. It is a trigger, so that no statement can omit it. Every login that may
-- connect may also LISTEN. The payload is therefore a hash with a key that only the owner and workers can read, so a
-- listener can neither read nor guess the tenant and the user. The key is the row of tenant 0 in inbox_token_key, created by
-- the first process that watches. Without the key the payload is empty, which means any inbox.
CREATE OR REPLACE FUNCTION postcommit.inbox_moved() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
DECLARE
  secret bytea;
BEGIN
  IF EXISTS (SELECT FROM postcommit.inbox_watch WHERE until > clock_timestamp()) THEN
    SELECT k.key INTO secret FROM postcommit.inbox_token_key k WHERE k.tenant = 0;
    PERFORM pg_notify('postcommit_inbox', coalesce(left(encode(
      sha256(secret || sha256(secret || convert_to(NEW.tenant || ':' || NEW.user_id, 'UTF8'))), 'hex'), 32), ''));
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER inbox_moved AFTER INSERT OR UPDATE OF position ON postcommit.inbox
  FOR EACH ROW EXECUTE FUNCTION postcommit.inbox_moved();
