//! Reads and writes the objects of a configuration folder in the database.

use std::collections::BTreeMap;

use postcommit_channel::driver::{self, Destination};
use postcommit_channel::model::Provider as StoredProvider;
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_channel::template::Warning;
use postcommit_engine::db::DbError;
use postcommit_engine::store::{
    EditError, EventTypeChange, EventTypeDraft, EventTypeFilter, ListFilter, MEMBERS_CHANGED, MemberDraft, Store,
    TemplateFilter, TemplatePosition,
};
use serde_json::{Value, json};

use super::objects::{self, Content, EventType, Layout, List, Provider, Template};
use super::{Kind, Object, SETTINGS, State};
use crate::output::{Exit, Failure};
use crate::providers::{Change as ProviderChange, Workshop};
use crate::templates::layouts::SettingsChange;
use crate::templates::{Change, Saved, Templates};

/// The number of rows that one query reads.
const PAGE: i64 = 200;
/// The reference to the current secret of a provider.
const STORED: &str = "stored";

/// The objects of one tenant in the database.
pub struct Stored<'a> {
    pub store: &'a Store,
    pub tenant: i32,
    pub workshop: Workshop<'a>,
}

impl Stored<'_> {
    pub(super) fn templates(&self) -> Templates<'_> {
        Templates { store: self.store, tenant: self.tenant }
    }

    /// Reads all objects of the tenant that a folder can contain.
    pub async fn read(&self) -> Result<State, EditError> {
        let mut state = State::default();
        for kind in [Kind::EventType, Kind::Layout, Kind::List, Kind::Provider, Kind::Template] {
            state.objects.entry(kind).or_default();
        }
        self.read_settings_and_layouts(&mut state).await?;
        self.read_event_types(&mut state).await?;
        self.read_lists(&mut state).await?;
        for provider in self.store.providers_of(self.tenant).await? {
            // The provider for inboxes is created automatically, so it is not exported.
            if driver::destination(&provider.driver) != Destination::Inbox {
                state.put(Kind::Provider, provider.name.clone(), objects::object(&provider_of(&provider)));
            }
        }
        self.read_templates(&mut state).await?;
        Ok(state)
    }

    async fn read_settings_and_layouts(&self, state: &mut State) -> Result<(), DbError> {
        let settings = self.store.content_settings(self.tenant).await?;
        if settings.revision > 0 {
            let content = Content {
                language: settings.language,
                time_zone: Some(settings.time_zone),
                date_format: Some(settings.date_format),
                missing: Some(settings.missing.name().to_owned()),
                brand: settings.brand.as_object().cloned().unwrap_or_default(),
            };
            state.put(Kind::Content, SETTINGS, objects::settings(content));
        }
        for layout in self.store.layouts_of(self.tenant).await? {
            let object = objects::object(&Layout { kind: layout.kind, source: layout.source });
            state.put(Kind::Layout, layout.name, object);
        }
        Ok(())
    }

    async fn read_event_types(&self, state: &mut State) -> Result<(), DbError> {
        let mut filter = EventTypeFilter { tenant: Some(self.tenant), after: None, limit: PAGE };
        loop {
            let rows = self.store.event_type_rows(&filter).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            filter.after = Some((self.tenant, last.name.clone()));
            for row in rows {
                state.put(Kind::EventType, row.name, objects::object(&row.event_type));
            }
        }
    }

    async fn read_lists(&self, state: &mut State) -> Result<(), DbError> {
        let mut filter = ListFilter { tenant: Some(self.tenant), after: None, limit: PAGE };
        loop {
            let rows = self.store.member_list_rows(&filter).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            filter.after = Some((self.tenant, last.name.clone()));
            for row in rows {
                let list = List { members: self.members(&row.name).await?, description: row.description };
                state.put(Kind::List, row.name, objects::list(list));
            }
        }
    }

    async fn members(&self, list: &str) -> Result<Vec<MemberDraft>, DbError> {
        let (mut members, mut after) = (Vec::new(), None);
        loop {
            let rows = self.store.member_rows(self.tenant, list, after.as_ref(), PAGE).await?;
            let Some(last) = rows.last() else { return Ok(members) };
            after = Some(last.place());
            members.extend(rows.into_iter().map(|row| MemberDraft {
                kind: row.kind,
                member: row.member,
                channel: row.channel,
            }));
        }
    }

    async fn read_templates(&self, state: &mut State) -> Result<(), EditError> {
        let settings = self.store.content_settings(self.tenant).await?;
        let mut filter = TemplateFilter { tenant: Some(self.tenant), limit: PAGE, ..TemplateFilter::default() };
        loop {
            let rows = self.store.template_rows(&filter).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            filter.after = Some(TemplatePosition(self.tenant, last.draft.id.clone()));
            for row in rows {
                let source = self.templates().source(&row.draft.id, row.version).await?;
                let own = |value: String, setting: &str| Some(value).filter(|value| value != setting);
                let template = Template {
                    event_type: row.draft.event_type,
                    channel: row.draft.channel,
                    audience: row.draft.audience,
                    language: row.draft.language,
                    scope_type: row.draft.scope_type,
                    scope_id: row.draft.scope_id,
                    active: row.draft.active,
                    once_per: row.draft.once_per,
                    throttle: row.draft.throttle,
                    digest: row.draft.digest,
                    to: source.to,
                    subject: source.subject,
                    text: source.text,
                    html: source.html,
                    data: source.data,
                    layout: source.layout,
                    missing: own(source.missing.name().to_owned(), settings.missing.name()),
                    date_format: own(source.date_format, &settings.date_format),
                    time_zone: own(source.time_zone, &settings.time_zone),
                };
                state.put(Kind::Template, row.draft.id, objects::object(&template));
            }
        }
    }

    /// Creates or changes an object. Returns whether something was written, and warnings.
    pub async fn put(
        &self,
        kind: Kind,
        name: &str,
        object: &Object,
        is_new: bool,
    ) -> Result<(bool, Vec<Warning>), Failure> {
        let is_changed = match kind {
            Kind::EventType => self.put_event_type(name, parsed(object)?, is_new).await?,
            Kind::Content => self.put_settings(parsed(object)?).await?,
            Kind::Layout => self.put_layout(name, parsed(object)?, is_new).await?,
            Kind::List => self.put_list(name, parsed(object)?, is_new).await?,
            Kind::Provider => self.put_provider(name, parsed(object)?, is_new).await?,
            Kind::Template => {
                let saved = self.put_template(name, parsed(object)?, is_new).await?;
                return Ok((saved.is_changed, saved.warnings));
            }
        };
        Ok((is_changed, vec![]))
    }

    async fn put_event_type(&self, name: &str, given: EventType, is_new: bool) -> Result<bool, Failure> {
        let draft = event_type_of(given);
        if is_new {
            self.store.create_event_type(self.tenant, name, &draft).await?;
            return Ok(true);
        }
        let change = EventTypeChange {
            description: Some(draft.description),
            sample: Some(draft.sample),
            placeholders: Some(draft.placeholders),
            mandatory: Some(draft.mandatory),
            quiet_hours: Some(draft.quiet_hours),
        };
        self.store.update_event_type(self.tenant, name, None, &change).await?;
        Ok(true)
    }

    async fn put_settings(&self, content: Content) -> Result<bool, Failure> {
        Ok(self.templates().update_settings(None, &settings_of(content), false).await?.is_changed)
    }

    async fn put_layout(&self, name: &str, layout: Layout, is_new: bool) -> Result<bool, Failure> {
        let templates = self.templates();
        if is_new {
            return Ok(templates.create_layout(name, &layout.kind, &layout.source, false).await?.is_changed);
        }
        check_layout_kind(name, &templates.find_layout(name).await?.kind, &layout)?;
        Ok(templates.update_layout(name, None, Some(&layout.source), false).await?.is_changed)
    }

    async fn put_list(&self, name: &str, list: List, is_new: bool) -> Result<bool, Failure> {
        // An earlier try, in which a nested list was missing, may already have created the list.
        if is_new && self.store.member_list_row(self.tenant, name).await?.is_none() {
            self.store.create_list(self.tenant, name, list.description.as_deref()).await?;
        } else {
            self.store.update_list(self.tenant, name, None, Some(list.description.as_deref())).await?;
        }
        let present = objects::sorted(List { description: None, members: self.members(name).await? }).members;
        let missing = |from: &[MemberDraft], of: &[MemberDraft]| -> Vec<MemberDraft> {
            from.iter().filter(|member| !of.contains(member)).cloned().collect()
        };
        for add in missing(&list.members, &present).chunks(MEMBERS_CHANGED) {
            self.store.change_members(self.tenant, name, add, &[]).await?;
        }
        for remove in missing(&present, &list.members).chunks(MEMBERS_CHANGED) {
            self.store.change_members(self.tenant, name, &[], remove).await?;
        }
        Ok(true)
    }

    async fn put_provider(&self, name: &str, provider: Provider, is_new: bool) -> Result<bool, Failure> {
        let (driver, change) = self.provider_change(name, provider, is_new).await?;
        if is_new {
            self.workshop.create(self.tenant, name, &driver, change).await?;
            return Ok(true);
        }
        Ok(self.workshop.update(self.tenant, name, None, &change).await?)
    }

    /// The driver of a provider, which cannot be changed, and the fields to set.
    pub(super) async fn provider_change(
        &self,
        name: &str,
        provider: Provider,
        is_new: bool,
    ) -> Result<(String, ProviderChange), Failure> {
        if !is_new && self.workshop.find(self.tenant, name).await?.driver != provider.driver {
            return Err(Failure::new(Exit::Usage, "driver: cannot be changed; create another provider"));
        }
        let mut secrets = Secrets::new();
        for (secret, reference) in &provider.secrets {
            let wrong = |problem: String| Failure::new(Exit::Usage, format!("secrets.{secret}: {problem}"));
            if reference != STORED {
                secrets.insert(secret.clone(), resolved(reference).map_err(wrong)?);
            } else if is_new {
                let problem =
                    "is \"stored\", but this provider is new and has no stored secret; write env:NAME or file:PATH";
                return Err(wrong(problem.into()));
            }
        }
        let change = ProviderChange {
            channel: provider.channel,
            settings: provider.settings,
            secrets,
            guarantee: provider.guarantee,
            policy: provider.policy,
            concurrency: provider.concurrency,
            timeout_ms: provider.timeout_ms,
            is_default: provider.is_default,
            rate_per_s: provider.rate_per_s.map(Some),
            burst: provider.burst.map(Some),
            breaker_failures: provider.breaker_failures,
            breaker_cool_down_s: provider.breaker_cool_down_s,
            failover: provider.failover.map(Some),
            failover_after_s: provider.failover_after_s,
            enabled: provider.enabled,
        };
        Ok((provider.driver, change))
    }

    async fn put_template(&self, id: &str, template: Template, is_new: bool) -> Result<Saved, EditError> {
        let (templates, change) = (self.templates(), template_of(template));
        match is_new {
            true => templates.create(id, &change).await,
            false => templates.update(id, None, &change).await,
        }
    }

    /// Deletes an object. A template is deactivated first. The content settings are never deleted.
    pub async fn delete(&self, kind: Kind, name: &str) -> Result<(), Failure> {
        match kind {
            Kind::EventType => self.store.delete_event_type(self.tenant, name).await?,
            Kind::Content => {}
            Kind::Layout => self.templates().delete_layout(name).await?,
            Kind::List => self.store.delete_list(self.tenant, name).await?,
            Kind::Provider => self.workshop.delete(self.tenant, name).await?,
            Kind::Template => {
                let change = Change { active: Some(false), ..Change::default() };
                self.templates().update(name, None, &change).await?;
                self.templates().delete(name).await?;
            }
        }
        Ok(())
    }
}

pub(super) fn parsed<T: serde::de::DeserializeOwned>(object: &Object) -> Result<T, Failure> {
    objects::of(object).map_err(|problem| Failure::new(Exit::Usage, problem))
}

pub(super) fn event_type_of(given: EventType) -> EventTypeDraft {
    let EventType { description, sample, placeholders, mandatory, quiet_hours } = given;
    EventTypeDraft { description, sample, placeholders, mandatory, quiet_hours }
}

/// Returns a change that sets all content settings. Omitted fields get their defaults.
pub(super) fn settings_of(content: Content) -> SettingsChange {
    let defaults = postcommit_engine::store::ContentSettings::default();
    SettingsChange {
        language: Some(content.language),
        time_zone: Some(content.time_zone.unwrap_or(defaults.time_zone)),
        date_format: Some(content.date_format.unwrap_or(defaults.date_format)),
        missing: Some(content.missing.unwrap_or_else(|| defaults.missing.name().to_owned())),
        brand: Some(Value::Object(content.brand)),
    }
}

/// Refuses a layout that would become a partial, or the other way round.
pub(super) fn check_layout_kind(name: &str, kind: &str, layout: &Layout) -> Result<(), Failure> {
    if kind == layout.kind {
        return Ok(());
    }
    let problem = format!("layout {name:?} is a {kind}; it cannot become a {}; choose another name", layout.kind);
    Err(Failure::new(Exit::Refused, problem))
}

/// Returns a change that sets all fields of a template.
pub(super) fn template_of(template: Template) -> Change {
    Change {
        event_type: Some(template.event_type),
        channel: Some(template.channel),
        audience: Some(template.audience),
        language: Some(template.language),
        scope_type: Some(template.scope_type),
        scope_id: Some(template.scope_id),
        active: Some(template.active),
        once_per: Some(template.once_per),
        throttle: Some(template.throttle),
        digest: Some(template.digest),
        from_version: None,
        to: Some(template.to),
        subject: Some(template.subject),
        text: Some(template.text),
        html: Some(template.html),
        data: Some(template.data),
        layout: Some(template.layout),
        missing: Some(template.missing),
        date_format: Some(template.date_format),
        time_zone: Some(template.time_zone),
        note: Some("applied from files".into()),
    }
}

/// A provider as an object of the folder. Each secret is replaced by the reference `stored`.
fn provider_of(provider: &StoredProvider) -> Provider {
    let names = driver::kind(&provider.driver).map(|kind| kind.secrets.clone()).unwrap_or_default();
    let stored = names.iter().filter(|_| provider.secrets.is_some());
    let secrets: BTreeMap<String, String> = stored.map(|name| (name.to_string(), STORED.to_owned())).collect();
    Provider {
        driver: provider.driver.clone(),
        channel: Some(provider.channel.clone()),
        settings: provider.settings.as_object().cloned().unwrap_or_default(),
        guarantee: Some(provider.guarantee.name().to_owned()),
        policy: Some(json!(provider.policy)),
        concurrency: Some(provider.concurrency),
        timeout_ms: Some(provider.timeout_ms),
        is_default: Some(provider.is_default),
        rate_per_s: provider.rate_per_s,
        burst: provider.burst,
        breaker_failures: Some(provider.breaker_failures),
        breaker_cool_down_s: Some(provider.breaker_cool_down_s),
        failover: provider.failover.clone(),
        failover_after_s: Some(provider.failover_after_s),
        enabled: Some(provider.enabled),
        secrets,
    }
}

/// Reads the secret that a reference names. The error does not contain the content of the file or variable.
fn resolved(reference: &str) -> Result<Secret, String> {
    match reference.split_once(':') {
        Some(("env", name)) => {
            std::env::var(name).map(Secret::new).map_err(|_| format!("the environment has no variable {name}; set it"))
        }
        Some(("file", path)) => {
            let read = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
            read.map(|text| Secret::new(text.trim()))
        }
        _ => Err("is not a reference to a secret; write env:NAME, file:PATH or stored".into()),
    }
}
