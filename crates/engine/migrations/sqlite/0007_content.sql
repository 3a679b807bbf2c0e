-- What is said, and to whom: event types, templates, users, lists, preferences, suppressions.
-- postgres/0007_content.sql says why a table is as it is.

-- Content -------------------------------------------------------------------------------------------------------------

-- What templates of a tenant have in common. A tenant without a row has the defaults.
CREATE TABLE postcommit_content_settings (
  tenant      INTEGER PRIMARY KEY,
  language    TEXT CONSTRAINT language_is_a_tag CHECK (language NOT GLOB '*[^A-Za-z0-9-]*' AND length(language) <= 35),
  time_zone   TEXT NOT NULL DEFAULT 'UTC' CONSTRAINT time_zone_1_to_63_characters CHECK (length(time_zone) BETWEEN 1 AND 63),
  date_format TEXT NOT NULL DEFAULT '%d-%b-%Y'
    CONSTRAINT date_format_1_to_63_characters CHECK (length(date_format) BETWEEN 1 AND 63),
  missing     TEXT NOT NULL DEFAULT 'empty' CONSTRAINT known_missing CHECK (missing IN ('empty', 'keep', 'refuse')),
  brand       TEXT NOT NULL DEFAULT '{}'  -- values that templates read as brand.name
    CONSTRAINT brand_is_an_object CHECK (json_valid(brand) AND json_type(brand) = 'object')
    CONSTRAINT brand_at_most_16384_bytes CHECK (length(CAST(brand AS BLOB)) <= 16384),
  revision    INTEGER NOT NULL DEFAULT 1,
  updated_at  INTEGER NOT NULL,
  changed     INTEGER NOT NULL DEFAULT 0  -- provider_version.version of the last change, here and below
);
CREATE INDEX postcommit_content_settings_changed ON postcommit_content_settings (changed);

-- A declared event type. Declaring one is optional.
CREATE TABLE postcommit_event_type (
  tenant       INTEGER NOT NULL,
  name         TEXT NOT NULL CONSTRAINT event_type_name_1_to_255_characters CHECK (length(name) BETWEEN 1 AND 255),
  description  TEXT CONSTRAINT event_type_description_at_most_1000_characters CHECK (length(description) <= 1000),
  sample       TEXT CONSTRAINT sample_at_most_262144_bytes CHECK (length(CAST(sample AS BLOB)) <= 262144),
  placeholders TEXT NOT NULL DEFAULT '[]'
    CONSTRAINT placeholders_is_an_array_of_at_most_500 CHECK (json_valid(placeholders) AND json_array_length(placeholders) <= 500),
  mandatory    INTEGER NOT NULL DEFAULT 0,  -- users cannot opt out of it
  revision     INTEGER NOT NULL DEFAULT 1,
  created_at   INTEGER NOT NULL,
  updated_at   INTEGER NOT NULL,
  deleted_at   INTEGER,
  changed      INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE INDEX postcommit_event_type_changed ON postcommit_event_type (changed);

-- A layout, or a part that templates include. A template's version keeps a copy: a change here makes new versions.
CREATE TABLE postcommit_layout (
  tenant     INTEGER NOT NULL,
  name       TEXT NOT NULL CONSTRAINT layout_name_1_to_63_letters_digits_or_marks CHECK (length(name) BETWEEN 1 AND 63 AND name NOT GLOB '*[^A-Za-z0-9_.-]*'),
  kind       TEXT NOT NULL CONSTRAINT known_layout_kind CHECK (kind IN ('layout', 'partial')),
  source     TEXT NOT NULL CONSTRAINT layout_at_most_65536_bytes CHECK (length(CAST(source AS BLOB)) <= 65536),
  revision   INTEGER NOT NULL DEFAULT 1,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- A template is never deleted, because deliveries name it: deleted_at hides it, and saving it again brings it back.
CREATE TABLE postcommit_template (
  tenant     INTEGER NOT NULL,
  id         TEXT NOT NULL CONSTRAINT template_id_1_to_63_letters_digits_or_marks CHECK (length(id) BETWEEN 1 AND 63 AND id NOT GLOB '*[^A-Za-z0-9_.-]*'),
  event_type TEXT NOT NULL CONSTRAINT template_event_type_1_to_255_characters CHECK (length(event_type) BETWEEN 1 AND 255),
  channel    TEXT NOT NULL CONSTRAINT template_channel_1_to_63_characters CHECK (length(channel) BETWEEN 1 AND 63),
  audience   TEXT NOT NULL DEFAULT ''  -- for whom it is written, e.g. guest and host: each gets its own
    CONSTRAINT audience_at_most_63_characters CHECK (length(audience) <= 63),
  language   TEXT NOT NULL DEFAULT ''  -- '': any
    CONSTRAINT template_language_is_a_tag CHECK (language NOT GLOB '*[^A-Za-z0-9-]*' AND length(language) <= 35),
  scope_type TEXT NOT NULL DEFAULT '' CONSTRAINT scope_type_at_most_63_characters CHECK (length(scope_type) <= 63),
  scope_id   TEXT NOT NULL DEFAULT '' CONSTRAINT scope_id_at_most_255_characters CHECK (length(scope_id) <= 255),
  active     INTEGER NOT NULL DEFAULT 1,
  once_per   TEXT NOT NULL DEFAULT 'notification' CONSTRAINT known_once_per CHECK (once_per IN ('entity', 'notification')),
  version    INTEGER NOT NULL,               -- the version that is used
  active_since INTEGER NOT NULL DEFAULT 0,   -- at this place; kept by functions/content.sql
  revision   INTEGER NOT NULL DEFAULT 1,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  deleted_at INTEGER,
  changed    INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant, id),
  CONSTRAINT scope_has_type_and_id CHECK ((scope_type = '') = (scope_id = ''))
) WITHOUT ROWID;
-- One active template per place, so that it is never a matter of luck which is used.
CREATE UNIQUE INDEX postcommit_template_place ON postcommit_template (tenant, event_type, channel, audience, scope_type, scope_id, language)
  WHERE active AND deleted_at IS NULL;
CREATE INDEX postcommit_template_changed ON postcommit_template (changed);

-- Immutable, and complete in itself: layouts, partials and brand values are copied in.
CREATE TABLE postcommit_template_version (
  tenant      INTEGER NOT NULL,
  template    TEXT NOT NULL,
  version     INTEGER NOT NULL,
  recipient   TEXT,                      -- the part `to`: an expression that gives the address
  subject     TEXT,
  text        TEXT,
  html        TEXT,
  data        TEXT,                     -- channel data, its texts are templates
  layout      TEXT,                      -- the name of the layout that html is put into
  parts       TEXT NOT NULL DEFAULT '{}',  -- copies of the layout and the partials by name
  brand       TEXT NOT NULL DEFAULT '{}',  -- a copy
  missing     TEXT NOT NULL CONSTRAINT known_version_missing CHECK (missing IN ('empty', 'keep', 'refuse')),
  date_format TEXT NOT NULL,
  time_zone   TEXT NOT NULL,
  created_at  INTEGER NOT NULL,
  created_by  TEXT NOT NULL,
  note        TEXT CONSTRAINT note_at_most_1000_characters CHECK (length(note) <= 1000),
  PRIMARY KEY (tenant, template, version),
  CONSTRAINT parts_of_a_template_at_most_65536_bytes CHECK (
    coalesce(length(CAST(recipient AS BLOB)), 0) + coalesce(length(CAST(subject AS BLOB)), 0) + coalesce(length(CAST(text AS BLOB)), 0)
      + coalesce(length(CAST(html AS BLOB)), 0) + coalesce(length(CAST(data AS BLOB)), 0) <= 65536)
) WITHOUT ROWID;

-- Users, lists, preferences, suppressions -----------------------------------------------------------------------------

CREATE TABLE postcommit_user_profile (
  tenant      INTEGER NOT NULL,
  id          TEXT NOT NULL CONSTRAINT user_id_1_to_255_characters CHECK (length(id) BETWEEN 1 AND 255),
  name        TEXT CONSTRAINT user_name_at_most_255_characters CHECK (length(name) <= 255),
  language    TEXT CONSTRAINT user_language_is_a_tag CHECK (language NOT GLOB '*[^A-Za-z0-9-]*' AND length(language) <= 35),
  time_zone   TEXT CONSTRAINT user_time_zone_1_to_63_characters CHECK (length(time_zone) BETWEEN 1 AND 63),
  quiet_hours TEXT,                     -- from, until, and what is done meanwhile
  data        TEXT NOT NULL DEFAULT '{}'  -- fields that templates read as user.data.name
    CONSTRAINT user_data_is_an_object CHECK (json_valid(data) AND json_type(data) = 'object')
    CONSTRAINT user_data_at_most_2048_bytes CHECK (length(CAST(data AS BLOB)) <= 2048),
  revision    INTEGER NOT NULL DEFAULT 1,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

-- A kind is the name of an address in recipients: email, phone, slack, teams, webhook. One address of a kind is used: the
-- lowest position that is not disabled.
CREATE TABLE postcommit_user_address (
  tenant          INTEGER NOT NULL,
  user_id         TEXT NOT NULL,
  kind            TEXT NOT NULL CONSTRAINT address_kind_1_to_63_characters CHECK (length(kind) BETWEEN 1 AND 63),
  position        INTEGER NOT NULL,
  address         TEXT NOT NULL CONSTRAINT address_1_to_2048_bytes CHECK (length(CAST(address AS BLOB)) BETWEEN 1 AND 2048),
  verified_at     INTEGER,
  disabled_reason TEXT CONSTRAINT disabled_reason_1_to_255_characters CHECK (length(disabled_reason) BETWEEN 1 AND 255),
  PRIMARY KEY (tenant, user_id, kind, position),
  CONSTRAINT user_address_once UNIQUE (tenant, user_id, kind, address)
) WITHOUT ROWID;

-- The most specific row decides: event type and channel, event type, channel, neither. '*' is all.
CREATE TABLE postcommit_preference (
  tenant     INTEGER NOT NULL,
  user_id    TEXT NOT NULL CONSTRAINT preference_user_1_to_255_characters CHECK (length(user_id) BETWEEN 1 AND 255),
  event_type TEXT NOT NULL DEFAULT '*',
  channel    TEXT NOT NULL DEFAULT '*',
  allowed    INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  updated_by TEXT NOT NULL,
  PRIMARY KEY (tenant, user_id, event_type, channel)
) WITHOUT ROWID;

CREATE TABLE postcommit_list (
  tenant      INTEGER NOT NULL,
  name        TEXT NOT NULL CONSTRAINT list_name_1_to_255_characters CHECK (length(name) BETWEEN 1 AND 255),
  description TEXT CONSTRAINT list_description_at_most_1000_characters CHECK (length(description) <= 1000),
  revision    INTEGER NOT NULL DEFAULT 1,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

CREATE TABLE postcommit_list_member (
  tenant   INTEGER NOT NULL,
  list     TEXT NOT NULL,
  kind     TEXT NOT NULL,                -- user, list, or the kind of an address
  member   TEXT NOT NULL CONSTRAINT member_1_to_2048_bytes CHECK (length(CAST(member AS BLOB)) BETWEEN 1 AND 2048),
  channel  TEXT NOT NULL DEFAULT '',     -- of an address; '': as its kind says
  added_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, list, kind, member, channel)
) WITHOUT ROWID;
-- In which lists a user, an address or a list is.
CREATE INDEX postcommit_list_member_of ON postcommit_list_member (tenant, kind, member);

-- Nothing is sent to such an address on that channel ('*': any) until it is removed or the time is over.
CREATE TABLE postcommit_suppression (
  tenant     INTEGER NOT NULL,
  channel    TEXT NOT NULL,
  address    TEXT NOT NULL CONSTRAINT suppressed_address_1_to_2048_bytes CHECK (length(CAST(address AS BLOB)) BETWEEN 1 AND 2048),
  reason     TEXT NOT NULL CONSTRAINT suppression_reason_1_to_255_characters CHECK (length(reason) BETWEEN 1 AND 255),
  created_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  until      INTEGER,
  PRIMARY KEY (tenant, channel, address)
) WITHOUT ROWID;

-- A tenant that has, or had, preferences or suppressions. Direct messages of other tenants are sent without a lookup.
CREATE TABLE postcommit_content_guard (
  tenant  INTEGER PRIMARY KEY,
  changed INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX postcommit_content_guard_changed ON postcommit_content_guard (changed);

-- Expansion -----------------------------------------------------------------------------------------------------------

-- A template with once_per = 'entity' sends once: the first delivery with the key holds it.
CREATE TABLE postcommit_send_key (
  tenant          INTEGER NOT NULL,
  key_hash        TEXT NOT NULL,         -- of entity, event type, channel, template and recipient
  notification_id TEXT NOT NULL,
  n               INTEGER NOT NULL,
  created_at      INTEGER NOT NULL,
  PRIMARY KEY (tenant, key_hash)
) WITHOUT ROWID;

-- The members of a large expansion, as they were when it began. Each part removes what it has expanded, so what is left is
-- the position.
CREATE TABLE postcommit_expansion_member (
  tenant          INTEGER NOT NULL,
  notification_id TEXT NOT NULL,
  position        INTEGER NOT NULL,
  kind            TEXT NOT NULL,
  member          TEXT NOT NULL,
  channel         TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (tenant, notification_id, position)
) WITHOUT ROWID;

-- NULL for direct messages, which pay nothing.
ALTER TABLE postcommit_delivery_queue ADD COLUMN user_id TEXT;
ALTER TABLE postcommit_delivery_queue ADD COLUMN context TEXT;
ALTER TABLE postcommit_delivery_queue ADD COLUMN send_key TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN user_id TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN context TEXT;
ALTER TABLE postcommit_delivery_ledger ADD COLUMN send_key TEXT;
-- Lists by user: of whom a delivery is that goes to the address of a user. Rows without a user are not in it.
CREATE INDEX postcommit_delivery_ledger_user ON postcommit_delivery_ledger (tenant, user_id, notification_id) WHERE user_id IS NOT NULL;
