//! Which templates a tenant has, and which of them a notification uses. The texts are not here: a version is read when
//! it is needed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use postcommit::{Timestamp, channel_name};

use super::{DigestRule, QuietRule, StoredNotification, Throttle};
use crate::template::FlatPayload;

/// A template without its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateEntry {
    /// The template's id, unique in its tenant.
    pub id: String,
    /// The event type that it is for.
    pub event_type: String,
    /// The channel that it is for.
    pub channel: String,
    /// The party that it is written for. Empty if the event addresses one party only.
    pub audience: String,
    /// The language that it is written in. Empty means any.
    pub language: String,
    /// The type and the id of the thing that it is limited to, e.g. `listing` and `10`. Empty texts mean the whole
    /// tenant.
    pub scope: (String, String),
    /// The version that is used.
    pub version: i32,
    /// Whether it is sent once for an entity, and not once for each notification.
    pub once_per_entity: bool,
    /// The most messages for one recipient in a period.
    pub throttle: Option<Throttle>,
    /// Whether and how events are collected.
    pub digest: Option<DigestRule>,
    /// Since when it has been used with this event type, channel, audience and scope.
    pub active_since: Timestamp,
}

impl TemplateEntry {
    fn is_scoped(&self) -> bool {
        !self.scope.0.is_empty()
    }

    /// Whether a notification with this payload is in the template's scope: scope `listing 10` needs `listingId` = 10.
    fn covers(&self, payload: &FlatPayload) -> bool {
        let (kind, id) = &self.scope;
        !self.is_scoped() || payload.text(&format!("{kind}Id")) == Some(id)
    }
}

/// The templates, mandatory event types and settings of one tenant that decide how its notifications are expanded.
#[derive(Debug, Clone, Default)]
pub struct TenantContent {
    by_event_type: HashMap<String, Vec<Arc<TemplateEntry>>>,
    mandatory: HashSet<String>,
    /// Event types with another rule than the default.
    quiet_rules: HashMap<String, QuietRule>,
    /// Whether the tenant has, or had, a template.
    pub knows_templates: bool,
    /// The language of recipients whose own is not known.
    pub language: Option<String>,
    /// The time zone of recipients whose own is not known.
    pub time_zone: Option<String>,
    /// Whether the tenant has, or had, preferences or suppressions. Otherwise direct messages need no lookup.
    pub is_guarded: bool,
}

impl TenantContent {
    /// Enters an active template in place of its former entry.
    pub fn put(&mut self, entry: TemplateEntry) {
        self.remove(&entry.id);
        let of_type = self.by_event_type.entry(entry.event_type.clone()).or_default();
        let place = of_type.partition_point(|known| known.id < entry.id);
        of_type.insert(place, entry.into());
    }

    /// Removes a template that is deleted or not active any more.
    pub fn remove(&mut self, id: &str) {
        self.knows_templates = true;
        for of_type in self.by_event_type.values_mut() {
            of_type.retain(|known| known.id != id);
        }
        self.by_event_type.retain(|_, of_type| !of_type.is_empty());
    }

    /// Notes whether users can opt out of an event type.
    pub fn set_mandatory(&mut self, event_type: &str, mandatory: bool) {
        if mandatory {
            self.mandatory.insert(event_type.to_owned());
        } else {
            self.mandatory.remove(event_type);
        }
    }

    /// Notes what an event type does with messages that fall into quiet hours.
    pub fn set_quiet_rule(&mut self, event_type: &str, rule: QuietRule) {
        if rule == QuietRule::default() {
            self.quiet_rules.remove(event_type);
        } else {
            self.quiet_rules.insert(event_type.to_owned(), rule);
        }
    }

    /// What an event type does with messages that fall into quiet hours.
    #[must_use]
    pub fn quiet_rule(&self, event_type: &str) -> QuietRule {
        self.quiet_rules.get(event_type).copied().unwrap_or_default()
    }

    /// Whether users cannot opt out of this event type.
    #[must_use]
    pub fn is_mandatory(&self, event_type: &str) -> bool {
        self.mandatory.contains(event_type)
    }

    /// Whether an active template is for this event type, in whatever scope.
    #[must_use]
    pub fn has(&self, event_type: &str) -> bool {
        self.by_event_type.contains_key(event_type)
    }

    /// The active template of an event type with this id.
    #[must_use]
    pub fn template(&self, event_type: &str, id: &str) -> Option<&Arc<TemplateEntry>> {
        self.by_event_type.get(event_type)?.iter().find(|entry| entry.id == id)
    }

    /// The active templates of a notification's event type in whose scope it is, for all channels.
    #[must_use]
    pub fn in_scope(&self, event_type: &str, payload: &FlatPayload) -> Vec<Arc<TemplateEntry>> {
        let of_type = self.by_event_type.get(event_type).map_or(&[][..], Vec::as_slice);
        of_type.iter().filter(|entry| entry.covers(payload)).cloned().collect()
    }
}

/// The templates that one notification may use, with the language of its tenant.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    entries: Vec<Arc<TemplateEntry>>,
    language: Option<String>,
}

impl Choice {
    /// Selects among the templates in scope by the channels that the notification names.
    #[must_use]
    pub fn of(note: &StoredNotification, in_scope: Vec<Arc<TemplateEntry>>, language: Option<&str>) -> Self {
        let is_named =
            |entry: &Arc<TemplateEntry>| note.channels.iter().any(|channel| channel_name(channel) == entry.channel);
        let entries = in_scope.into_iter().filter(|entry| note.channels.is_empty() || is_named(entry)).collect();
        Self { entries, language: language.map(str::to_owned) }
    }

    /// Since when the notification has had a template: the earliest of its templates that are still used.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        self.entries.iter().map(|entry| entry.active_since).min()
    }

    /// The channels with a template for this audience, sorted.
    #[must_use]
    pub fn channels(&self, audience: &str) -> BTreeSet<&str> {
        self.entries.iter().filter(|entry| entry.audience == audience).map(|entry| entry.channel.as_str()).collect()
    }

    /// One template for each channel and audience, for a notification that names no recipient.
    #[must_use]
    pub fn own(&self) -> Vec<Arc<TemplateEntry>> {
        let places: BTreeSet<_> =
            self.entries.iter().map(|entry| (entry.channel.as_str(), entry.audience.as_str())).collect();
        places.into_iter().filter_map(|(channel, audience)| self.template(channel, audience, None)).collect()
    }

    /// The template for a recipient with this language. The narrowest scope decides first, then the language: the
    /// recipient's, without its region, the tenant's, any.
    #[must_use]
    pub fn template(&self, channel: &str, audience: &str, language: Option<&str>) -> Option<Arc<TemplateEntry>> {
        let here = || self.entries.iter().filter(|entry| entry.channel == channel && entry.audience == audience);
        // With several scopes that fit, the type that comes first in the alphabet is taken, so that it is never a matter
        // of luck.
        let scope = here().map(|entry| &entry.scope).filter(|scope| !scope.0.is_empty()).min();
        let fits = |entry: &&Arc<TemplateEntry>| scope.is_none_or(|scope| entry.scope == *scope);
        let rank = |entry: &&Arc<TemplateEntry>| self.rank(&entry.language, language);
        here().filter(fits).min_by_key(rank).cloned()
    }

    /// The language that a message is written in: the template's, or else the recipient's, or else the tenant's.
    #[must_use]
    pub fn language_of(&self, entry: &TemplateEntry, language: Option<&str>) -> Option<String> {
        let own = Some(entry.language.as_str()).filter(|own| !own.is_empty());
        own.or(language).or(self.language.as_deref()).map(str::to_owned)
    }

    /// How well a template's language serves a recipient. Lower is better.
    fn rank(&self, offered: &str, wanted: Option<&str>) -> usize {
        let tags = [wanted, self.language.as_deref()].into_iter().flatten().flat_map(shortened);
        let chain = tags.chain([""]);
        chain.into_iter().position(|tag| tag.eq_ignore_ascii_case(offered)).unwrap_or(usize::MAX)
    }
}

/// A language tag, and the same without its last parts: `pt-BR`, `pt`.
fn shortened(tag: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(tag), |tag| tag.rsplit_once('-').map(|(shorter, _)| shorter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, channel: &str, language: &str, scope: (&str, &str)) -> Arc<TemplateEntry> {
        Arc::new(TemplateEntry {
            id: id.into(),
            event_type: "booking.confirmed".into(),
            channel: channel.into(),
            audience: String::new(),
            language: language.into(),
            scope: (scope.0.into(), scope.1.into()),
            version: 1,
            once_per_entity: false,
            throttle: None,
            digest: None,
            active_since: Timestamp::from_micros(0),
        })
    }

    #[test]
    fn c1_the_language_goes_from_the_recipients_own_to_the_tenants_to_any() {
        let of = |languages: &[&str], default: Option<&str>| Choice {
            entries: languages.iter().map(|language| entry(language, "email", language, ("", ""))).collect(),
            language: default.map(str::to_owned),
        };
        for (offered, default, wanted, used) in [
            (&["pt-BR", "pt", "en", ""][..], Some("en"), Some("pt-BR"), "pt-BR"),
            (&["pt", "en", ""], Some("en"), Some("pt-BR"), "pt"),
            (&["en", ""], Some("en-GB"), Some("pt-BR"), "en"),
            (&["de", ""], Some("en"), Some("pt-BR"), ""),
            (&["de", "fr"], None, Some("pt-BR"), "de"),
            (&["pt-BR", ""], None, Some("pt"), ""),
            (&["PT-br", ""], None, Some("pt-BR"), "PT-br"),
            (&["en", "pt"], Some("pt"), None, "pt"),
        ] {
            let found = of(offered, default).template("email", "", wanted).unwrap();
            assert_eq!(found.language, used, "{offered:?}, tenant {default:?}, recipient {wanted:?}");
        }
    }

    #[test]
    fn c1_the_narrowest_scope_decides_before_the_language() {
        let choice = Choice {
            entries: vec![
                entry("of tenant", "sms", "de", ("", "")),
                entry("of listing", "sms", "", ("listing", "10")),
                entry("of city", "sms", "", ("city", "7")),
                entry("mail", "email", "", ("", "")),
            ],
            language: None,
        };
        assert_eq!(
            choice.template("sms", "", Some("de")).unwrap().id,
            "of city",
            "of several types, the first by name"
        );
        assert_eq!(choice.own().iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["mail", "of city"]);
    }

    #[test]
    fn c1_a_scope_is_found_in_the_flat_payload_and_a_changed_template_takes_its_new_place() {
        let mut content = TenantContent::default();
        let payload = |json: serde_json::Value| FlatPayload::from(&json);
        let of_listing = (*entry("a", "sms", "", ("listing", "10"))).clone();
        content.put(of_listing.clone());
        let found =
            |content: &TenantContent, payload: FlatPayload| content.in_scope("booking.confirmed", &payload).len();
        for (json, many) in [
            (serde_json::json!({"listingId": 10}), 1),
            (serde_json::json!({"listing": {"ID": "10"}}), 1),
            (serde_json::json!({"listingId": 11}), 0),
            (serde_json::json!({}), 0),
        ] {
            assert_eq!(found(&content, payload(json.clone())), many, "{json}");
        }
        content.put(TemplateEntry { event_type: "other".into(), ..of_listing });
        assert!(!content.has("booking.confirmed") && content.has("other"));
        content.remove("a");
        assert!(!content.has("other") && content.knows_templates);
    }
}
