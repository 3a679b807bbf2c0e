-- The inbox: what the channel in_app delivers, by user, with read marks. Open pages hear of a change by the file's version.

-- One row per user who has ever got a message; it numbers the changes. There is one writer, so they become visible in the order of their positions.
CREATE TABLE postcommit_inbox (
  tenant   INTEGER NOT NULL,
  user_id  TEXT NOT NULL
    CONSTRAINT user_id_1_to_255_characters CHECK (length(user_id) BETWEEN 1 AND 255)
    CONSTRAINT user_id_without_line_breaks CHECK (instr(user_id, char(10)) = 0 AND instr(user_id, char(13)) = 0 AND instr(user_id, char(0)) = 0),
  position INTEGER NOT NULL,  -- of the last change
  PRIMARY KEY (tenant, user_id)
) WITHOUT ROWID;

-- The key is the delivery's: the same delivery once more writes nothing new.
CREATE TABLE postcommit_inbox_message (
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,
  user_id         TEXT NOT NULL,
  position        INTEGER NOT NULL,  -- when it came, among the user's changes
  changed         INTEGER NOT NULL,  -- its last change: it came, was read, was archived
  event_type      TEXT NOT NULL,
  entity          TEXT,
  title           TEXT,
  body            TEXT,
  action_url      TEXT,
  data            TEXT,              -- what the notification's data holds for in_app
  created_at      INTEGER NOT NULL,
  expires_at      INTEGER NOT NULL,  -- the notification's: from then on it is not listed
  read_at         INTEGER,
  archived_at     INTEGER,
  PRIMARY KEY (tenant, notification_id, n)
);
CREATE INDEX postcommit_inbox_message_newest ON postcommit_inbox_message (tenant, user_id, position);
CREATE INDEX postcommit_inbox_message_changed ON postcommit_inbox_message (tenant, user_id, changed);
-- Counts what is unread without a look at what was read, however much that is.
CREATE INDEX postcommit_inbox_message_unread ON postcommit_inbox_message (tenant, user_id, expires_at) WHERE read_at IS NULL AND archived_at IS NULL;

-- What a tenant's user tokens are signed with. Deleting the row revokes them all.
CREATE TABLE postcommit_inbox_token_key (
  tenant     INTEGER PRIMARY KEY,
  key        BLOB NOT NULL CONSTRAINT key_of_32_bytes CHECK (length(key) = 32),
  created_at INTEGER NOT NULL
);
