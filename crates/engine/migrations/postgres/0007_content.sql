-- What is said, and to whom: event types, templates, users, lists, preferences, suppressions. docs/decisions/0033 says how a
-- delivery keeps rendering to the same bytes: what it depends on is never changed (a template's version) or copied (context).

-- Content -------------------------------------------------------------------------------------------------------------

-- What templates of a tenant have in common. A tenant without a row has the defaults.
CREATE TABLE postcommit.content_settings (
  tenant      int PRIMARY KEY,
  language    text CONSTRAINT language_is_a_tag CHECK (language ~ '^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$'),
  time_zone   text NOT NULL DEFAULT 'UTC' CONSTRAINT time_zone_1_to_63_characters CHECK (length(time_zone) BETWEEN 1 AND 63),
  date_format text NOT NULL DEFAULT '%d-%b-%Y'
    CONSTRAINT date_format_1_to_63_characters CHECK (length(date_format) BETWEEN 1 AND 63),
  missing     text NOT NULL DEFAULT 'empty' CONSTRAINT known_missing CHECK (missing IN ('empty', 'keep', 'refuse')),
  brand       jsonb NOT NULL DEFAULT '{}'  -- values that templates read as brand.name
    CONSTRAINT brand_is_an_object CHECK (jsonb_typeof(brand) = 'object')
    CONSTRAINT brand_at_most_16384_bytes CHECK (octet_length(brand::text) <= 16384),
  revision    int NOT NULL DEFAULT 1,
  updated_at  timestamptz NOT NULL DEFAULT now(),
  changed     bigint NOT NULL DEFAULT 0  -- provider_version.version of the last change, here and below
);
CREATE INDEX content_settings_changed ON postcommit.content_settings (changed);

-- A declared event type. Declaring one is optional.
CREATE TABLE postcommit.event_type (
  tenant       int NOT NULL,
  name         text NOT NULL CONSTRAINT event_type_name_1_to_255_characters CHECK (length(name) BETWEEN 1 AND 255),
  description  text CONSTRAINT event_type_description_at_most_1000_characters CHECK (length(description) <= 1000),
  sample       jsonb CONSTRAINT sample_at_most_262144_bytes CHECK (octet_length(sample::text) <= 262144),
  placeholders text[] NOT NULL DEFAULT '{}'
    CONSTRAINT placeholders_at_most_500 CHECK (cardinality(placeholders) <= 500),
  mandatory    boolean NOT NULL DEFAULT false,  -- users cannot opt out of it
  revision     int NOT NULL DEFAULT 1,
  created_at   timestamptz NOT NULL DEFAULT now(),
  updated_at   timestamptz NOT NULL DEFAULT now(),
  deleted_at   timestamptz,
  changed      bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant, name)
);
CREATE INDEX event_type_changed ON postcommit.event_type (changed);

-- A layout, or a part that templates include. A template's version keeps a copy: a change here makes new versions.
CREATE TABLE postcommit.layout (
  tenant     int NOT NULL,
  name       text NOT NULL CONSTRAINT layout_name_1_to_63_letters_digits_or_marks CHECK (name ~ '^[A-Za-z0-9_.-]{1,63}$'),
  kind       text NOT NULL CONSTRAINT known_layout_kind CHECK (kind IN ('layout', 'partial')),
  source     text NOT NULL CONSTRAINT layout_at_most_65536_bytes CHECK (octet_length(source) <= 65536),
  revision   int NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, name)
);

-- A template is never deleted, because deliveries name it: deleted_at hides it, and saving it again brings it back.
CREATE TABLE postcommit.template (
  tenant     int NOT NULL,
  id         text NOT NULL CONSTRAINT template_id_1_to_63_letters_digits_or_marks CHECK (id ~ '^[A-Za-z0-9_.-]{1,63}$'),
  event_type text NOT NULL CONSTRAINT template_event_type_1_to_255_characters CHECK (length(event_type) BETWEEN 1 AND 255),
  channel    text NOT NULL CONSTRAINT template_channel_1_to_63_characters CHECK (length(channel) BETWEEN 1 AND 63),
  audience   text NOT NULL DEFAULT ''  -- for whom it is written, e.g. guest and host: each gets its own
    CONSTRAINT audience_at_most_63_characters CHECK (length(audience) <= 63),
  language   text NOT NULL DEFAULT ''  -- '': any
    CONSTRAINT template_language_is_a_tag CHECK (language ~ '^([A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3})?$'),
  scope_type text NOT NULL DEFAULT '' CONSTRAINT scope_type_at_most_63_characters CHECK (length(scope_type) <= 63),
  scope_id   text NOT NULL DEFAULT '' CONSTRAINT scope_id_at_most_255_characters CHECK (length(scope_id) <= 255),
  active     boolean NOT NULL DEFAULT true,
  once_per   text NOT NULL DEFAULT 'notification' CONSTRAINT known_once_per CHECK (once_per IN ('entity', 'notification')),
  version    int NOT NULL,               -- the version that is used
  active_since timestamptz NOT NULL DEFAULT now(),  -- at this place; kept by functions/content.sql
  revision   int NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  deleted_at timestamptz,
  changed    bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant, id),
  CONSTRAINT scope_has_type_and_id CHECK ((scope_type = '') = (scope_id = ''))
);
-- One active template per place, so that it is never a matter of luck which is used.
CREATE UNIQUE INDEX template_place ON postcommit.template (tenant, event_type, channel, audience, scope_type, scope_id, language)
  WHERE active AND deleted_at IS NULL;
CREATE INDEX template_changed ON postcommit.template (changed);

-- Immutable, and complete in itself: layouts, partials and brand values are copied in.
CREATE TABLE postcommit.template_version (
  tenant      int NOT NULL,
  template    text NOT NULL,
  version     int NOT NULL,
  recipient   text,                      -- the part `to`: an expression that gives the address
  subject     text,
  text        text,
  html        text,
  data        jsonb,                     -- channel data, its texts are templates
  layout      text,                      -- the name of the layout that html is put into
  parts       jsonb NOT NULL DEFAULT '{}',  -- copies of the layout and the partials by name
  brand       jsonb NOT NULL DEFAULT '{}',  -- a copy
  missing     text NOT NULL CONSTRAINT known_version_missing CHECK (missing IN ('empty', 'keep', 'refuse')),
  date_format text NOT NULL,
  time_zone   text NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  created_by  text NOT NULL,
  note        text CONSTRAINT note_at_most_1000_characters CHECK (length(note) <= 1000),
  PRIMARY KEY (tenant, template, version),
  CONSTRAINT parts_of_a_template_at_most_65536_bytes CHECK (
    coalesce(octet_length(recipient), 0) + coalesce(octet_length(subject), 0) + coalesce(octet_length(text), 0)
      + coalesce(octet_length(html), 0) + coalesce(octet_length(data::text), 0) <= 65536)
);

-- Users, lists, preferences, suppressions -----------------------------------------------------------------------------

CREATE TABLE postcommit.user_profile (
  tenant      int NOT NULL,
  id          text NOT NULL CONSTRAINT user_id_1_to_255_characters CHECK (length(id) BETWEEN 1 AND 255),
  name        text CONSTRAINT user_name_at_most_255_characters CHECK (length(name) <= 255),
  language    text CONSTRAINT user_language_is_a_tag CHECK (language ~ '^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$'),
  time_zone   text CONSTRAINT user_time_zone_1_to_63_characters CHECK (length(time_zone) BETWEEN 1 AND 63),
  quiet_hours jsonb,                     -- from, until, and what is done meanwhile
  data        jsonb NOT NULL DEFAULT '{}'  -- fields that templates read as user.data.name
    CONSTRAINT user_data_is_an_object CHECK (jsonb_typeof(data) = 'object')
    CONSTRAINT user_data_at_most_2048_bytes CHECK (octet_length(data::text) <= 2048),
  revision    int NOT NULL DEFAULT 1,
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, id)
);

-- A kind is the name of an address in recipients: email, phone, slack, teams, webhook. One address of a kind is used: the
-- lowest position that is not disabled.
CREATE TABLE postcommit.user_address (
  tenant          int NOT NULL,
  user_id         text NOT NULL,
  kind            text NOT NULL CONSTRAINT address_kind_1_to_63_characters CHECK (length(kind) BETWEEN 1 AND 63),
  position        int NOT NULL,
  address         text NOT NULL CONSTRAINT address_1_to_2048_bytes CHECK (octet_length(address) BETWEEN 1 AND 2048),
  verified_at     timestamptz,
  disabled_reason text CONSTRAINT disabled_reason_1_to_255_characters CHECK (length(disabled_reason) BETWEEN 1 AND 255),
  PRIMARY KEY (tenant, user_id, kind, position),
  CONSTRAINT user_address_once UNIQUE (tenant, user_id, kind, address)
);

-- The most specific row decides: event type and channel, event type, channel, neither. '*' is all.
CREATE TABLE postcommit.preference (
  tenant     int NOT NULL,
  user_id    text NOT NULL CONSTRAINT preference_user_1_to_255_characters CHECK (length(user_id) BETWEEN 1 AND 255),
  event_type text NOT NULL DEFAULT '*',
  channel    text NOT NULL DEFAULT '*',
  allowed    boolean NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT now(),
  updated_by text NOT NULL,
  PRIMARY KEY (tenant, user_id, event_type, channel)
);

CREATE TABLE postcommit.list (
  tenant      int NOT NULL,
  name        text NOT NULL CONSTRAINT list_name_1_to_255_characters CHECK (length(name) BETWEEN 1 AND 255),
  description text CONSTRAINT list_description_at_most_1000_characters CHECK (length(description) <= 1000),
  revision    int NOT NULL DEFAULT 1,
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, name)
);

CREATE TABLE postcommit.list_member (
  tenant   int NOT NULL,
  list     text NOT NULL,
  kind     text NOT NULL,                -- user, list, or the kind of an address
  member   text NOT NULL CONSTRAINT member_1_to_2048_bytes CHECK (octet_length(member) BETWEEN 1 AND 2048),
  channel  text NOT NULL DEFAULT '',     -- of an address; '': as its kind says
  added_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, list, kind, member, channel)
);
-- In which lists a user, an address or a list is.
CREATE INDEX list_member_of ON postcommit.list_member (tenant, kind, member);

-- Nothing is sent to such an address on that channel ('*': any) until it is removed or the time is over.
CREATE TABLE postcommit.suppression (
  tenant     int NOT NULL,
  channel    text NOT NULL,
  address    text NOT NULL CONSTRAINT suppressed_address_1_to_2048_bytes CHECK (octet_length(address) BETWEEN 1 AND 2048),
  reason     text NOT NULL CONSTRAINT suppression_reason_1_to_255_characters CHECK (length(reason) BETWEEN 1 AND 255),
  created_at timestamptz NOT NULL DEFAULT now(),
  created_by text NOT NULL,
  until      timestamptz,
  PRIMARY KEY (tenant, channel, address)
);

-- A tenant that has, or had, preferences or suppressions. Direct messages of other tenants are sent without a lookup.
-- functions/content.sql keeps it.
CREATE TABLE postcommit.content_guard (
  tenant  int PRIMARY KEY,
  changed bigint NOT NULL DEFAULT 0
);
CREATE INDEX content_guard_changed ON postcommit.content_guard (changed);

-- Expansion -----------------------------------------------------------------------------------------------------------

-- A template with once_per = 'entity' sends once: the first delivery with the key holds it.
CREATE TABLE postcommit.send_key (
  tenant          int NOT NULL,
  key_hash        uuid NOT NULL,         -- of entity, event type, channel, template and recipient
  notification_id uuid NOT NULL,
  n               int NOT NULL,
  created_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, key_hash)
);

-- The members of a large expansion, as they were when it began. Each part removes what it has expanded, so what is left is
-- the position.
CREATE TABLE postcommit.expansion_member (
  tenant          int NOT NULL,
  notification_id uuid NOT NULL,
  position        int NOT NULL,
  kind            text NOT NULL,
  member          text NOT NULL,
  channel         text NOT NULL DEFAULT '',
  PRIMARY KEY (tenant, notification_id, position)
);

-- NULL for direct messages, which pay nothing.
ALTER TABLE postcommit.delivery_queue
  ADD COLUMN user_id text,
  ADD COLUMN context text,               -- JSON of at most 4 KB: the user's fields that the template may use
  ADD COLUMN send_key text;              -- entity:event type:channel:template
ALTER TABLE postcommit.delivery_ledger
  ADD COLUMN user_id text,
  ADD COLUMN context text,
  ADD COLUMN send_key text;
-- Lists by user: of whom a delivery is that goes to the address of a user. Rows without a user are not in it.
CREATE INDEX delivery_ledger_user ON postcommit.delivery_ledger (tenant, user_id, notification_id) WHERE user_id IS NOT NULL;
