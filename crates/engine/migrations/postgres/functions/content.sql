-- Numbers each change of a template, an event type or a tenant's content settings like a change of a provider
-- (functions/providers.sql), so that dispatchers read only the changed rows.
CREATE OR REPLACE TRIGGER content_settings_changed BEFORE INSERT OR UPDATE ON postcommit.content_settings
  FOR EACH ROW EXECUTE FUNCTION postcommit.number_change();
CREATE OR REPLACE TRIGGER event_type_changed BEFORE INSERT OR UPDATE ON postcommit.event_type
  FOR EACH ROW EXECUTE FUNCTION postcommit.number_change();
CREATE OR REPLACE TRIGGER template_changed BEFORE INSERT OR UPDATE ON postcommit.template
  FOR EACH ROW EXECUTE FUNCTION postcommit.number_change();

-- Records since when a template has been used at its place: its event type, channel, audience and scope. An expander that
-- takes over a lost notification reads from it whether the notification may have been sent without the template.
CREATE OR REPLACE FUNCTION postcommit.note_activation() RETURNS trigger
  LANGUAGE plpgsql SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  NEW.active_since := clock_timestamp();
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER template_came BEFORE INSERT ON postcommit.template
  FOR EACH ROW EXECUTE FUNCTION postcommit.note_activation();
CREATE OR REPLACE TRIGGER template_activated BEFORE UPDATE ON postcommit.template FOR EACH ROW
  WHEN (NOT OLD.active OR OLD.deleted_at IS NOT NULL OR (OLD.event_type, OLD.channel, OLD.audience, OLD.scope_type, OLD.scope_id)
    IS DISTINCT FROM (NEW.event_type, NEW.channel, NEW.audience, NEW.scope_type, NEW.scope_id))
  EXECUTE FUNCTION postcommit.note_activation();

-- Records that a tenant has preferences or suppressions. From the first one on, the expander looks up the tenant's direct
-- messages as well.
CREATE OR REPLACE FUNCTION postcommit.note_guard() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, postcommit, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM postcommit.content_guard g WHERE g.tenant = NEW.tenant) THEN
    INSERT INTO postcommit.content_guard (tenant) VALUES (NEW.tenant) ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER content_guard_changed BEFORE INSERT OR UPDATE ON postcommit.content_guard
  FOR EACH ROW EXECUTE FUNCTION postcommit.number_change();
CREATE OR REPLACE TRIGGER preference_guards AFTER INSERT ON postcommit.preference
  FOR EACH ROW EXECUTE FUNCTION postcommit.note_guard();
CREATE OR REPLACE TRIGGER suppression_guards AFTER INSERT ON postcommit.suppression
  FOR EACH ROW EXECUTE FUNCTION postcommit.note_guard();
