-- The inbox: what the channel in_app delivers, by user, with read marks; and what open pages need to hear of it at once.

-- One row per user who has ever got a message. Whoever changes something in an inbox first takes the next position here, and holds this row
-- until the commit: so the changes of one user become visible in the order of their positions, and who has seen one has seen all before it.
CREATE TABLE postcommit.inbox (
  tenant   int NOT NULL,
  user_id  text NOT NULL
    CONSTRAINT user_id_1_to_255_characters CHECK (length(user_id) BETWEEN 1 AND 255)
    CONSTRAINT user_id_without_line_breaks CHECK (user_id !~ '[\r\n]'),
  position bigint NOT NULL,  -- of the last change
  PRIMARY KEY (tenant, user_id)
) WITH (fillfactor = 50);

-- The key is the delivery's: the same delivery once more writes nothing new.
CREATE TABLE postcommit.inbox_message (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  n               int NOT NULL,
  user_id         text NOT NULL,
  position        bigint NOT NULL,  -- when it came, among the user's changes
  changed         bigint NOT NULL,  -- its last change: it came, was read, was archived
  event_type      text NOT NULL,
  entity          text,
  title           text,
  body            text,
  action_url      text,
  data            jsonb,            -- what the notification's data holds for in_app
  created_at      timestamptz NOT NULL,
  expires_at      timestamptz NOT NULL,  -- the notification's: from then on it is not listed
  read_at         timestamptz,
  archived_at     timestamptz,
  PRIMARY KEY (tenant, notification_id, n)
);
CREATE INDEX inbox_message_newest ON postcommit.inbox_message (tenant, user_id, position);
CREATE INDEX inbox_message_changed ON postcommit.inbox_message (tenant, user_id, changed);
-- Counts what is unread without a look at what was read, however much that is.
CREATE INDEX inbox_message_unread ON postcommit.inbox_message (tenant, user_id, expires_at) WHERE read_at IS NULL AND archived_at IS NULL;

-- A process with open pages says so here; the bell is rung only when somebody would hear it.
CREATE UNLOGGED TABLE postcommit.inbox_watch (
  watcher uuid PRIMARY KEY,
  until   timestamptz NOT NULL
) WITH (fillfactor = 50);

-- What a tenant's user tokens are signed with. Deleting the row revokes them all.
CREATE TABLE postcommit.inbox_token_key (
  tenant     int PRIMARY KEY,
  key        bytea NOT NULL CONSTRAINT key_of_32_bytes CHECK (octet_length(key) = 32),
  created_at timestamptz NOT NULL
);

-- On the table, so that no change can forget it. The user's id is not told to everybody who may listen: a hash is enough to know one's own by.
CREATE FUNCTION postcommit.inbox_moved() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM postcommit.inbox_watch WHERE until > clock_timestamp()) THEN
    PERFORM pg_notify('postcommit_inbox', NEW.tenant || ':' || left(encode(sha256(convert_to(NEW.user_id, 'UTF8')), 'hex'), 16));
  END IF;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION postcommit.inbox_moved() FROM PUBLIC;
CREATE TRIGGER inbox_moved AFTER INSERT OR UPDATE OF position ON postcommit.inbox FOR EACH ROW EXECUTE FUNCTION postcommit.inbox_moved();
