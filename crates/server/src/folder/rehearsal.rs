//! Applies a folder in memory: every step finds the problems that it would find in the database, and nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use postcommit_channel::model::Link;
use postcommit_channel::template::Warning;
use postcommit_engine::store::{
    EditError, LIST_MEMBERS, LayoutDraft, MEMBERS_CHANGED, MemberDraft, TEMPLATES, TemplateDraft, check_list,
    check_members, cyclic_list, too_many_members, unknown_inner_list,
};

use super::objects::{self, Layout, List};
use super::stored::{check_layout_kind, event_type_of, parsed, settings_of, template_of};
use super::{Kind, Object, State, Stored};
use crate::output::Failure;
use crate::providers::ProviderError;
use crate::templates::layouts::{checked_settings, is_used};
use crate::templates::{Common, drafted, place_taken, too_many};

/// The objects of one tenant as they would be after the steps so far.
pub struct Rehearsal<'a> {
    stored: &'a Stored<'a>,
    common: Common,
    /// Templates by id, with the layouts and partials that they use.
    templates: BTreeMap<String, (TemplateDraft, BTreeSet<String>)>,
    /// The members of each list, by the list's name.
    lists: BTreeMap<String, Vec<MemberDraft>>,
    /// The changed providers, as links of failover chains.
    providers: BTreeMap<String, Link>,
}

impl<'a> Rehearsal<'a> {
    /// Creates a rehearsal that starts from the stored objects.
    pub async fn new(stored: &'a Stored<'a>, present: &State) -> Result<Self, Failure> {
        let common = stored.templates().common().await?;
        let (mut templates, mut lists) = (BTreeMap::new(), BTreeMap::new());
        for (id, object) in present.of(Kind::Template) {
            let (draft, source) = drafted(&common, id, &template_of(parsed(object)?))?;
            templates.insert(id.clone(), (draft, source.parts.into_keys().collect()));
        }
        for (name, object) in present.of(Kind::List) {
            lists.insert(name.clone(), parsed::<List>(object)?.members);
        }
        Ok(Self { stored, common, templates, lists, providers: BTreeMap::new() })
    }

    /// Performs [`Stored::put`] in memory.
    pub async fn put(
        &mut self,
        kind: Kind,
        name: &str,
        object: &Object,
        is_new: bool,
    ) -> Result<Vec<Warning>, Failure> {
        match kind {
            Kind::EventType => {
                let draft = event_type_of(parsed(object)?);
                draft.check_as(name)?;
                self.common.event_types.insert(name.to_owned(), draft);
            }
            Kind::Content => {
                self.common.settings = checked_settings(&self.common.settings, &settings_of(parsed(object)?)).await?;
            }
            Kind::Layout => self.put_layout(name, parsed(object)?).await?,
            Kind::List => self.put_list(name, parsed(object)?)?,
            Kind::Provider => {
                let (driver, change) = self.stored.provider_change(name, parsed(object)?, is_new).await?;
                let new_driver = is_new.then_some(driver.as_str());
                let workshop = &self.stored.workshop;
                workshop.rehearse(self.stored.tenant, name, new_driver, change, &mut self.providers).await?;
            }
            Kind::Template => return self.put_template(name, object, is_new).await,
        }
        Ok(vec![])
    }

    async fn put_layout(&mut self, name: &str, layout: Layout) -> Result<(), Failure> {
        if let Some(known) = self.common.layouts.get(name) {
            check_layout_kind(name, &known.kind, &layout)?;
        }
        let draft = LayoutDraft { name: name.to_owned(), kind: layout.kind, source: layout.source };
        Ok(self.stored.templates().rehearse_layout(&mut self.common, &draft).await?)
    }

    fn put_list(&mut self, name: &str, list: List) -> Result<(), EditError> {
        check_list(name, list.description.as_deref())?;
        let present = objects::sorted(List {
            description: None,
            members: self.lists.entry(name.to_owned()).or_default().clone(),
        });
        let add: Vec<_> = list.members.iter().filter(|member| !present.members.contains(member)).cloned().collect();
        for some in add.chunks(MEMBERS_CHANGED) {
            check_members(some, &[])?;
            for (place, inner) in some.iter().enumerate().filter(|(_, member)| member.kind == "list") {
                if !self.lists.contains_key(&inner.member) {
                    return Err(unknown_inner_list(place, &inner.member));
                }
                if self.contains(&inner.member, name) {
                    return Err(cyclic_list(place, &inner.member, name));
                }
            }
        }
        if list.members.len() > LIST_MEMBERS {
            return Err(too_many_members(i64::try_from(present.members.len()).unwrap_or(i64::MAX)));
        }
        self.lists.insert(name.to_owned(), list.members);
        Ok(())
    }

    /// Whether the list `outer` is the list `name`, or contains it directly or through other lists.
    fn contains(&self, outer: &str, name: &str) -> bool {
        let (mut seen, mut open) = (BTreeSet::new(), vec![outer]);
        while let Some(list) = open.pop().filter(|_| !seen.contains(name)) {
            if seen.insert(list) {
                let members = self.lists.get(list).into_iter().flatten().filter(|member| member.kind == "list");
                open.extend(members.map(|member| member.member.as_str()));
            }
        }
        seen.contains(name)
    }

    async fn put_template(&mut self, id: &str, object: &Object, is_new: bool) -> Result<Vec<Warning>, Failure> {
        let change = template_of(parsed(object)?);
        let rules = self.stored.templates();
        let (draft, source, warnings) = rules.rehearse(&self.common, id, &change, is_new).await?;
        if is_new && self.templates.len() >= TEMPLATES {
            return Err(too_many(TEMPLATES, "templates").into());
        }
        let place = |of: &TemplateDraft| {
            let TemplateDraft { event_type, channel, audience, language, scope_type, scope_id, .. } = of.clone();
            (event_type, channel, audience, language, scope_type, scope_id)
        };
        let has_it = |(other, (known, _)): &(&String, &(TemplateDraft, _))| {
            *other != id && known.active && place(known) == place(&draft)
        };
        if let Some((other, _)) = self.templates.iter().find(has_it).filter(|_| draft.active) {
            return Err(place_taken(other).into());
        }
        self.templates.insert(id.to_owned(), (draft, source.parts.into_keys().collect()));
        Ok(warnings)
    }

    /// Performs [`Stored::delete`] in memory.
    pub async fn delete(&mut self, kind: Kind, name: &str) -> Result<(), Failure> {
        match kind {
            Kind::EventType | Kind::Content => {}
            Kind::Layout => {
                let users = self.users_of(name);
                if !users.is_empty() {
                    return Err(is_used(name, &users).into());
                }
                self.common.layouts.remove(name);
            }
            Kind::List => {
                let holds = |members: &Vec<MemberDraft>| members.iter().any(|m| m.kind == "list" && m.member == name);
                if let Some((outer, _)) = self.lists.iter().find(|(_, members)| holds(members)) {
                    let problem = format!("list {name:?} is a member of list {outer:?}; remove it there first");
                    return Err(EditError::Conflict(problem).into());
                }
                self.lists.remove(name);
            }
            Kind::Provider => {
                let Stored { store, tenant, workshop } = self.stored;
                let waiting = store.waiting_for(workshop.find(*tenant, name).await?.id).await?;
                if waiting > 0 {
                    return Err(ProviderError::Waited(name.to_owned(), waiting).into());
                }
            }
            Kind::Template => drop(self.templates.remove(name)),
        }
        Ok(())
    }

    /// The templates and layouts that use a layout.
    fn users_of(&self, name: &str) -> Vec<String> {
        let templates = self.templates.iter().filter(|(_, (_, uses))| uses.contains(name));
        let layouts = self.common.including(name);
        templates.map(|(id, _)| format!("template {id}")).chain(layouts).collect()
    }
}
