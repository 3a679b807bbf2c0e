//! The rules for layouts, partials and content settings. With `dry_run`, a change writes nothing and returns the
//! templates that would get a new version.

use postcommit_channel::model::short_name;
use postcommit_channel::template::{Source, limits};
use postcommit_engine::store::{
    ContentSettings, EditError, LAYOUTS, LayoutDraft, LayoutRow, LayoutUse, TRIES, Waiting,
};
use serde_json::Value;

use super::parts::{Layout, closure};
use super::{Common, Templates, compiled, is_still, language_tag, missing_of, overtaken, too_many, written};

/// The kinds of layouts.
pub const KINDS: [&str; 2] = ["layout", "partial"];
/// The maximum number of bytes of the brand values, as JSON text.
pub const BRAND_BYTES: usize = 16 * 1024;

/// The effect of a change, or of a dry run, of a layout or of the content settings.
#[derive(Debug, Default)]
pub struct Effect {
    /// Whether the change wrote something, or would write something.
    pub is_changed: bool,
    /// The ids of the templates that get a new version.
    pub templates: Vec<String>,
    /// The notifications of their event types that are not expanded yet. They will use the new versions.
    pub waiting: Waiting,
}

/// The content settings to change. `language: Some(None)` removes the language.
#[derive(Debug, Default, Clone)]
pub struct SettingsChange {
    pub language: Option<Option<String>>,
    pub time_zone: Option<String>,
    pub date_format: Option<String>,
    pub missing: Option<String>,
    /// The new brand values. They replace all brand values.
    pub brand: Option<Value>,
}

impl Templates<'_> {
    pub async fn find_layout(&self, name: &str) -> Result<LayoutRow, EditError> {
        let unknown = || EditError::Unknown { what: "layout", name: name.to_owned() };
        self.store.layout(self.tenant, name).await?.ok_or_else(unknown)
    }

    /// Creates a layout or a partial. If it has the name of a built-in layout, it replaces that layout, also in
    /// templates that use it.
    pub async fn create_layout(
        &self,
        name: &str,
        kind: &str,
        source: &str,
        dry_run: bool,
    ) -> Result<Effect, EditError> {
        let draft = LayoutDraft { name: name.to_owned(), kind: kind.to_owned(), source: source.to_owned() };
        for _ in 0..TRIES {
            let known = self.store.layouts_of(self.tenant).await?;
            check_new(&draft, &known.iter().map(|layout| layout.name.as_str()).collect::<Vec<_>>())?;
            if let Some(effect) = self.save(&draft, None, dry_run).await? {
                return Ok(effect);
            }
        }
        Err(overtaken("layout", name))
    }

    /// Changes the source of a layout, and creates new versions of the templates that use it. With a revision, the
    /// change is made only if the layout still has that revision.
    pub async fn update_layout(
        &self,
        name: &str,
        revision: Option<i32>,
        source: Option<&str>,
        dry_run: bool,
    ) -> Result<Effect, EditError> {
        for _ in 0..TRIES {
            let from = self.find_layout(name).await?;
            is_still("layout", name, revision, from.revision)?;
            let source = source.unwrap_or(&from.source).to_owned();
            if source == from.source {
                return Ok(Effect { waiting: Waiting { count: 0, is_exact: true }, ..Effect::default() });
            }
            let draft = LayoutDraft { name: name.to_owned(), kind: from.kind.clone(), source };
            if let Some(effect) = self.save(&draft, Some(&from), dry_run).await? {
                return Ok(effect);
            }
        }
        Err(overtaken("layout", name))
    }

    /// Checks and saves a layout. Returns `None` if a concurrent change interfered.
    async fn save(
        &self,
        draft: &LayoutDraft,
        from: Option<&LayoutRow>,
        dry_run: bool,
    ) -> Result<Option<Effect>, EditError> {
        let last_change = self.store.last_template_change(self.tenant).await?;
        let revision = from.map_or(0, |from| from.revision);
        let mut used = self.uses_of(self.common().await?, draft, revision).await?;
        let (templates, event_types) = split(self.store.templates_using(self.tenant, &draft.name).await?);
        (used.last_change, used.templates) = (last_change, templates);
        self.check_users(&used).await?;
        let waiting = self.store.waiting_of_types(self.tenant, &event_types).await?;
        if dry_run || self.store.save_layout(self.tenant, draft, revision, &used).await? {
            return Ok(Some(Effect { is_changed: true, templates: used.templates, waiting }));
        }
        Ok(None)
    }

    /// Checks a layout as [`Templates::create_layout`] and [`Templates::update_layout`] do before they write, and adds
    /// it to `common`.
    pub async fn rehearse_layout(&self, common: &mut Common, draft: &LayoutDraft) -> Result<(), EditError> {
        let revision = match common.layouts.get(&draft.name) {
            Some(known) => known.revision,
            None => {
                check_new(draft, &common.layouts.keys().map(String::as_str).collect::<Vec<_>>())?;
                0
            }
        };
        let mut used = self.uses_of(common.clone(), draft, revision).await?;
        used.templates = split(self.store.templates_using(self.tenant, &draft.name).await?).0;
        self.check_users(&used).await?;
        let (kind, source) = (draft.kind.clone(), draft.source.clone());
        common.layouts.insert(draft.name.clone(), Layout { kind, source, revision });
        Ok(())
    }

    /// Compiles the layout with the partials that it includes.
    async fn uses_of(&self, mut common: Common, draft: &LayoutDraft, revision: i32) -> Result<LayoutUse, EditError> {
        if draft.source.len() > limits::LAYOUT_BYTES {
            let (bytes, most) = (draft.source.len(), limits::LAYOUT_BYTES);
            return Err(EditError::Refused(format!("source: has {bytes} bytes; at most {most} are allowed")));
        }
        let (name, kind, source) = (draft.name.clone(), draft.kind.clone(), draft.source.clone());
        common.layouts.insert(name.clone(), Layout { kind, source, revision });
        let wanted = vec![("source".to_owned(), name)];
        let (parts, made_from) = closure(wanted, &common.layouts, common.settings.revision)
            .map_err(|error| of_source(error, &draft.name))?;
        let (layout, html) = match draft.kind.as_str() {
            "layout" => (Some(draft.name.clone()), String::new()),
            _ => (None, format!("{{% include \"{}\" %}}", draft.name)),
        };
        let brand = common.settings.brand.clone();
        let probe = Source { layout, html: Some(html), parts: parts.clone(), brand, ..common.empty() };
        compiled(&probe).await.map_err(|error| of_source(error, &draft.name))?;
        Ok(LayoutUse { parts, made_from, ..LayoutUse::default() })
    }

    /// Refuses a layout if a template that uses it could no longer be compiled, for example because the part with its
    /// layout would exceed a limit.
    async fn check_users(&self, used: &LayoutUse) -> Result<(), EditError> {
        for id in &used.templates {
            let mut source = self.source(id, self.find(id).await?.version).await?;
            source.parts.extend(used.parts.clone());
            compiled(&source).await.map_err(|error| match error {
                EditError::Refused(problem) => {
                    EditError::Refused(format!("source: template {id} cannot be compiled with this source: {problem}"))
                }
                other => other,
            })?;
        }
        Ok(())
    }

    /// Deletes a layout that neither a template nor another layout uses.
    pub async fn delete_layout(&self, name: &str) -> Result<(), EditError> {
        for _ in 0..TRIES {
            let found = self.find_layout(name).await?;
            let (templates, _) = split(self.store.templates_using(self.tenant, name).await?);
            let including = self.common().await?.including(name);
            let users: Vec<String> = templates.iter().map(|id| format!("template {id}")).chain(including).collect();
            if !users.is_empty() {
                return Err(is_used(name, &users));
            }
            if self.store.delete_layout(&found).await? {
                return Ok(());
            }
        }
        Err(overtaken("layout", name))
    }

    /// Changes the content settings, and creates new versions of the templates that use them.
    pub async fn update_settings(
        &self,
        revision: Option<i32>,
        change: &SettingsChange,
        dry_run: bool,
    ) -> Result<Effect, EditError> {
        for _ in 0..TRIES {
            let from = self.store.content_settings(self.tenant).await?;
            is_still("content", "settings", revision, from.revision)?;
            let to = checked_settings(&from, change).await?;
            if to == from {
                return Ok(Effect { waiting: Waiting { count: 0, is_exact: true }, ..Effect::default() });
            }
            let last_change = self.store.last_template_change(self.tenant).await?;
            let following = self.store.templates_following(self.tenant, &from, &to).await?;
            let (templates, event_types) = split(following);
            let waiting = self.store.waiting_of_types(self.tenant, &event_types).await?;
            let both = (&from, &to);
            if dry_run
                || self
                    .store
                    .update_content_settings(self.tenant, both, last_change, &templates)
                    .await
                    .map_err(written)?
            {
                return Ok(Effect { is_changed: true, templates, waiting });
            }
        }
        Err(overtaken("content", "settings"))
    }
}

/// Refuses a new layout if its name or kind is not allowed, its name is taken, or the tenant has too many layouts.
fn check_new(draft: &LayoutDraft, known: &[&str]) -> Result<(), EditError> {
    let LayoutDraft { name, kind, .. } = draft;
    short_name("name", name).map_err(EditError::Refused)?;
    if !KINDS.contains(&kind.as_str()) {
        let problem = format!("kind: {kind:?} is not known; allowed are {}", KINDS.join(", "));
        return Err(EditError::Refused(problem));
    }
    if known.contains(&name.as_str()) {
        return Err(EditError::Exists { what: "layout", name: name.clone() });
    }
    if known.len() >= LAYOUTS {
        return Err(too_many(LAYOUTS, "layouts"));
    }
    Ok(())
}

/// The error of a layout that cannot be deleted.
pub fn is_used(name: &str, users: &[String]) -> EditError {
    EditError::Conflict(format!("layout {name:?} is used by {}; change these first", users.join(", ")))
}

/// Returns the content settings after a change. Refuses settings with which no template could be compiled.
pub async fn checked_settings(from: &ContentSettings, change: &SettingsChange) -> Result<ContentSettings, EditError> {
    let to = settings_of(from, change)?;
    let (time_zone, date_format) = (to.time_zone.clone(), to.date_format.clone());
    let text = Some(String::new());
    compiled(&Source { text, time_zone, date_format, brand: to.brand.clone(), ..Source::default() }).await?;
    Ok(to)
}

/// Replaces the name of the layout, with which an error about its source begins, by the field `source`.
fn of_source(error: EditError, name: &str) -> EditError {
    let own = [format!("layout {name}: "), format!("partial {name}: ")];
    match error {
        EditError::Refused(problem) => {
            let rest = own.iter().find_map(|part| problem.strip_prefix(part.as_str()));
            EditError::Refused(rest.map_or(problem.clone(), |rest| format!("source: {rest}")))
        }
        other => other,
    }
}

/// The ids of the templates, and their event types without duplicates.
fn split(templates: Vec<(String, String)>) -> (Vec<String>, Vec<String>) {
    let (ids, mut event_types): (Vec<_>, Vec<_>) = templates.into_iter().unzip();
    event_types.sort_unstable();
    event_types.dedup();
    (ids, event_types)
}

fn settings_of(from: &ContentSettings, change: &SettingsChange) -> Result<ContentSettings, EditError> {
    let mut to = from.clone();
    if let Some(language) = &change.language {
        to.language = language.as_deref().map(|tag| language_tag("language", tag)).transpose()?;
    }
    if let Some(missing) = &change.missing {
        to.missing = missing_of(missing)?;
    }
    to.time_zone = change.time_zone.clone().unwrap_or(to.time_zone);
    to.date_format = change.date_format.clone().unwrap_or(to.date_format);
    to.brand = change.brand.clone().unwrap_or(to.brand);
    if !to.brand.is_object() {
        return Err(EditError::Refused("brand: must be a JSON object".into()));
    }
    let bytes = to.brand.to_string().len();
    if bytes > BRAND_BYTES {
        return Err(EditError::Refused(format!("brand: has {bytes} bytes; at most {BRAND_BYTES} are allowed")));
    }
    Ok(to)
}
