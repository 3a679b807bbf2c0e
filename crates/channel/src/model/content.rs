//! The templates of a tenant, and the choice of templates for a notification. The text of a template is not here: it is
//! read from the database, by version, when it is needed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use postcommit::{Timestamp, channel_name};

use super::{DigestRule, QuietRule, StoredNotification, Throttle};
use crate::template::FlatPayload;

/// A template without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateEntry {
    /// The template's id, unique in its tenant.
    pub id: String,
    /// The event type of the template.
    pub event_type: String,
    /// The channel of the template.
    pub channel: String,
    /// The audience of the template, such as `guest`. Empty if the event addresses only one audience.
    pub audience: String,
    /// The language of the template. Empty means any language.
    pub language: String,
    /// The scope of the template: type and id of one thing, e.g. `listing` and `10`. Empty strings mean the whole
    /// tenant.
    pub scope: (String, String),
    /// The number of the current version.
    pub version: i32,
    /// Whether the template is sent once per entity instead of once per notification.
    pub once_per_entity: bool,
    /// The limit of messages to one recipient in a period.
    pub throttle: Option<Throttle>,
    /// The rule by which events are collected in a digest. `None` if they are not collected.
    pub digest: Option<DigestRule>,
    /// The time since which the template is active with this event type, channel, audience and scope.
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
    /// The rules for quiet hours of event types that do not use the default rule.
    quiet_rules: HashMap<String, QuietRule>,
    /// Whether the tenant has or had a template.
    pub knows_templates: bool,
    /// The language of recipients whose own language is unknown.
    pub language: Option<String>,
    /// The time zone of recipients whose own time zone is unknown.
    pub time_zone: Option<String>,
    /// Whether the tenant has or had preferences or suppressions. If false, direct messages need no lookup.
    pub is_guarded: bool,
}

impl TenantContent {
    /// Adds an active template, or replaces its earlier entry.
    pub fn put(&mut self, entry: TemplateEntry) {
        self.remove(&entry.id);
        let of_type = self.by_event_type.entry(entry.event_type.clone()).or_default();
        let place = of_type.partition_point(|known| known.id < entry.id);
        of_type.insert(place, entry.into());
    }

    /// Removes a template that was deleted or deactivated.
    pub fn remove(&mut self, id: &str) {
        self.knows_templates = true;
        for of_type in self.by_event_type.values_mut() {
            of_type.retain(|known| known.id != id);
        }
        self.by_event_type.retain(|_, of_type| !of_type.is_empty());
    }

    /// Stores whether an event type is mandatory, so that users cannot opt out of it.
    pub fn set_mandatory(&mut self, event_type: &str, mandatory: bool) {
        if mandatory {
            self.mandatory.insert(event_type.to_owned());
        } else {
            self.mandatory.remove(event_type);
        }
    }

    /// Stores the rule of an event type for messages in quiet hours.
    pub fn set_quiet_rule(&mut self, event_type: &str, rule: QuietRule) {
        if rule == QuietRule::default() {
            self.quiet_rules.remove(event_type);
        } else {
            self.quiet_rules.insert(event_type.to_owned(), rule);
        }
    }

    /// The rule of an event type for messages in quiet hours.
    #[must_use]
    pub fn quiet_rule(&self, event_type: &str) -> QuietRule {
        self.quiet_rules.get(event_type).copied().unwrap_or_default()
    }

    /// Whether users cannot opt out of this event type.
    #[must_use]
    pub fn is_mandatory(&self, event_type: &str) -> bool {
        self.mandatory.contains(event_type)
    }

    /// Whether this event type has an active template in any scope.
    #[must_use]
    pub fn has(&self, event_type: &str) -> bool {
        self.by_event_type.contains_key(event_type)
    }

    /// The active template of an event type with this id.
    #[must_use]
    pub fn template(&self, event_type: &str, id: &str) -> Option<&Arc<TemplateEntry>> {
        self.by_event_type.get(event_type)?.iter().find(|entry| entry.id == id)
    }

    /// The active templates of an event type whose scope includes this payload, for all channels.
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

    /// The earliest `active_since` of the templates in this choice. `None` if there are none.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        self.entries.iter().map(|entry| entry.active_since).min()
    }

    /// The channels with a template for this audience, sorted.
    #[must_use]
    pub fn channels(&self, audience: &str) -> BTreeSet<&str> {
        self.entries.iter().filter(|entry| entry.audience == audience).map(|entry| entry.channel.as_str()).collect()
    }

    /// Whether a channel has a template for any audience.
    #[must_use]
    pub fn serves(&self, channel: &str) -> bool {
        self.entries.iter().any(|entry| entry.channel == channel)
    }

    /// One template per channel and audience, for a notification that names no recipient.
    #[must_use]
    pub fn own(&self) -> Vec<Arc<TemplateEntry>> {
        let places: BTreeSet<_> =
            self.entries.iter().map(|entry| (entry.channel.as_str(), entry.audience.as_str())).collect();
        places.into_iter().filter_map(|(channel, audience)| self.template(channel, audience, None)).collect()
    }

    /// The template for a recipient with this language. The narrowest scope decides first. Then the language decides,
    /// in this order: the recipient's, the recipient's without its region, the tenant's, any.
    #[must_use]
    pub fn template(&self, channel: &str, audience: &str, language: Option<&str>) -> Option<Arc<TemplateEntry>> {
        let here = || self.entries.iter().filter(|entry| entry.channel == channel && entry.audience == audience);
        // If several scopes include the notification, the alphabetically first type is used, so that the choice is
        // always the same.
        let scope = here().map(|entry| &entry.scope).filter(|scope| !scope.0.is_empty()).min();
        let fits = |entry: &&Arc<TemplateEntry>| scope.is_none_or(|scope| entry.scope == *scope);
        let rank = |entry: &&Arc<TemplateEntry>| self.rank(&entry.language, language);
        here().filter(fits).min_by_key(rank).cloned()
    }

    /// The language of a message: the template's, or else the recipient's, or else the tenant's.
    #[must_use]
    pub fn language_of(&self, entry: &TemplateEntry, language: Option<&str>) -> Option<String> {
        let own = Some(entry.language.as_str()).filter(|own| !own.is_empty());
        own.or(language).or(self.language.as_deref()).map(str::to_owned)
    }

    /// The rank of a template's language for a recipient. A lower rank is better.
    fn rank(&self, offered: &str, wanted: Option<&str>) -> usize {
        let tags = [wanted, self.language.as_deref()].into_iter().flatten().flat_map(shortened);
        let chain = tags.chain([""]);
        chain.into_iter().position(|tag| tag.eq_ignore_ascii_case(offered)).unwrap_or(usize::MAX)
    }
}

/// Returns a language tag and its shorter forms: `pt-BR`, `pt`.
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
