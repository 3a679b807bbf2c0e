-- Numbers each change of a template, an event type or a tenant's content settings like a change of a provider
-- (functions/providers.sql). Writing the number does not count as another change.
CREATE TRIGGER postcommit_content_settings_inserted AFTER INSERT ON postcommit_content_settings BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_content_settings SET changed = (SELECT version FROM postcommit_provider_version) WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER postcommit_content_settings_updated AFTER UPDATE ON postcommit_content_settings WHEN NEW.changed = OLD.changed BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_content_settings SET changed = (SELECT version FROM postcommit_provider_version) WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER postcommit_event_type_inserted AFTER INSERT ON postcommit_event_type BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_event_type SET changed = (SELECT version FROM postcommit_provider_version) WHERE tenant = NEW.tenant AND name = NEW.name;
END;
CREATE TRIGGER postcommit_event_type_updated AFTER UPDATE ON postcommit_event_type WHEN NEW.changed = OLD.changed BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_event_type SET changed = (SELECT version FROM postcommit_provider_version) WHERE tenant = NEW.tenant AND name = NEW.name;
END;
-- active_since: since when a template has been used at its place. postgres/functions/content.sql has the purpose.
CREATE TRIGGER postcommit_template_inserted AFTER INSERT ON postcommit_template BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_template SET changed = (SELECT version FROM postcommit_provider_version), active_since = {now}
    WHERE tenant = NEW.tenant AND id = NEW.id;
END;
CREATE TRIGGER postcommit_template_updated AFTER UPDATE ON postcommit_template WHEN NEW.changed = OLD.changed BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_template SET changed = (SELECT version FROM postcommit_provider_version),
      active_since = CASE WHEN NOT OLD.active OR OLD.deleted_at IS NOT NULL
          OR (OLD.event_type, OLD.channel, OLD.audience, OLD.scope_type, OLD.scope_id)
            IS NOT (NEW.event_type, NEW.channel, NEW.audience, NEW.scope_type, NEW.scope_id) THEN {now}
        ELSE active_since END
    WHERE tenant = NEW.tenant AND id = NEW.id;
END;
-- Records that a tenant has preferences or suppressions. From the first one on, the expander looks up the tenant's direct
-- messages as well.
CREATE TRIGGER postcommit_content_guard_inserted AFTER INSERT ON postcommit_content_guard BEGIN
  UPDATE postcommit_provider_version SET version = version + 1;
  UPDATE postcommit_content_guard SET changed = (SELECT version FROM postcommit_provider_version) WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER postcommit_preference_guards AFTER INSERT ON postcommit_preference
WHEN NOT EXISTS (SELECT 1 FROM postcommit_content_guard g WHERE g.tenant = NEW.tenant) BEGIN
  INSERT INTO postcommit_content_guard (tenant) VALUES (NEW.tenant);
END;
CREATE TRIGGER postcommit_suppression_guards AFTER INSERT ON postcommit_suppression
WHEN NOT EXISTS (SELECT 1 FROM postcommit_content_guard g WHERE g.tenant = NEW.tenant) BEGIN
  INSERT INTO postcommit_content_guard (tenant) VALUES (NEW.tenant);
END;
