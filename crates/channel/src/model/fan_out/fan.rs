//! Collects the targets of one notification: the parties, their channels and templates, and the lane or end of each
//! target.

use std::collections::HashSet;
use std::sync::Arc;

use postcommit::{Recipient, channel_name};
use serde_json::{Value, json};

use super::rules::Rules;
use super::unreached::{without_address, without_template};
use super::{Found, Lookup, NoAddress, OwnAddress};
use crate::model::content::{Choice, TemplateEntry, TenantContent};
use crate::model::expand::{
    Expansion, Fate, IN_APP, Routes, Target, channels_for, implied, lane_for, named_provider, park, unknown_channel,
};
use crate::model::user::{KnownUser, ListMember, address, comparable, kind_of_channel};
use crate::model::{Facts, FinishedState, Maker, QuietRule, QuietWindow, StoredNotification};

/// One party: a recipient of the notification, or a member of a list.
pub(super) struct Party {
    pub(super) recipient: Recipient,
    /// The channel to which the party is limited. Set only for a list member that names a channel.
    pub(super) channel: Option<String>,
    /// The place where the party is named, for error details: `recipients[0]` or `list "x"`.
    pub(super) place: String,
}

impl Party {
    /// The name of the party's address in error details: `recipients[0].phone`, or `list "x": the phone` for a list
    /// member.
    pub(super) fn field(&self, kind: &str) -> String {
        let separator = if self.place.starts_with("recipients[") { "." } else { ": the " };
        format!("{}{separator}{kind}", self.place)
    }

    /// Whether a template of this channel may reach the party. A user may have an address on any channel.
    fn suits(&self, channel: &str) -> bool {
        match (&self.channel, &self.recipient) {
            (Some(only), _) => only == channel,
            (None, Recipient::User(_)) => true,
            (None, recipient) => implied(recipient).contains(&channel),
        }
    }
}

/// The targets of one notification while they are collected.
pub(super) struct Fan<'a> {
    pub(super) note: &'a StoredNotification,
    pub(super) routes: Routes<'a>,
    pub(super) choice: Option<&'a Choice>,
    is_mandatory: bool,
    quiet_rule: QuietRule,
    /// The tenant's time zone.
    time_zone: Option<String>,
    rules: Rules<'a>,
    found: &'a Found,
    pub(super) targets: Vec<Target>,
    /// The targets on channels that the notification names and that have no template. They are added after the other
    /// targets.
    pub(super) lacking: Vec<Target>,
    /// The channel, address, audience and provider of the targets so far.
    seen: HashSet<(String, String, String, Option<String>)>,
}

/// The kind of a list member that stands for a recipient with a named provider.
pub(super) const PROVIDER: &str = "provider";

/// Converts a list member to a party. `None` if its kind is unknown.
pub(super) fn party(member: &ListMember, place: &str) -> Option<Party> {
    let place = place.to_owned();
    if member.kind == PROVIDER {
        let recipient = Recipient::at(member.channel.as_str(), member.member.as_str());
        return Some(Party { recipient, channel: None, place });
    }
    let channel = Some(member.channel.clone()).filter(|channel| !channel.is_empty());
    Some(Party { recipient: member.recipient().ok()?, channel, place })
}

impl<'a> Fan<'a> {
    pub(super) fn new(
        note: &'a StoredNotification,
        routes: Routes<'a>,
        content: Option<&TenantContent>,
        lookup: &'a Lookup,
        found: &'a Found,
    ) -> Self {
        let is_mandatory = content.is_some_and(|content| content.is_mandatory(&note.event_type));
        let choice = lookup.choice.as_ref();
        let quiet_rule = content.map(|content| content.quiet_rule(&note.event_type)).unwrap_or_default();
        let time_zone = content.and_then(|content| content.time_zone.clone());
        Self {
            note,
            routes,
            choice,
            is_mandatory,
            quiet_rule,
            time_zone,
            rules: Rules { note, payload: &lookup.payload, maker: lookup.maker },
            found,
            targets: vec![],
            lacking: vec![],
            seen: HashSet::new(),
        }
    }

    /// Adds the targets of a notification that names no recipient: each template renders its own address. A template
    /// that renders no address, or fails, does not affect the others.
    pub(super) fn reach_own(&mut self, own: Vec<OwnAddress>) -> Result<(), Expansion> {
        let mut without = Vec::new();
        for (entry, given) in own {
            let template = format!("template {:?}", entry.id);
            let (code, detail) = match given {
                Ok(to) => {
                    let recipient = recipient_on(&entry.channel, to);
                    let party = Party { recipient, channel: None, place: format!("`to` of {template}") };
                    let target = self.target(&party, &entry.channel, Some(&entry), true);
                    self.targets.push(target);
                    continue;
                }
                Err(NoAddress::Skipped(why)) => ("no_address", format!("{template} gives no address: {why}")),
                Err(NoAddress::Failed(failure)) => (failure.code(), format!("`to` of {template}: {failure}")),
            };
            without.push((code, detail, Facts { target: None, ..self.facts(&entry, "", None) }));
        }
        if self.targets.is_empty() {
            let failed = without.iter().find(|(code, ..)| *code != "no_address");
            return Err(match failed {
                _ if without.is_empty() => self.no_template(),
                Some((code, detail, _)) => park(code, detail.clone()),
                None => {
                    let why: Vec<&str> = without.iter().map(|(_, detail, _)| detail.as_str()).collect();
                    park("no_recipient", format!("the notification names no recipient, and {}", why.join("; ")))
                }
            });
        }
        self.targets.extend(without.into_iter().map(|(code, detail, facts)| Target::new(facts, skipped(code, detail))));
        let is_served = |channel: &str| self.choice.is_some_and(|choice| choice.serves(channel));
        for channel in self.named_without(is_served) {
            self.targets.push(self.lacking_own(channel));
        }
        Ok(())
    }

    /// Adds the targets of the recipients that the notification names.
    pub(super) fn reach_named(&mut self, named: &[Value]) -> Result<(), Expansion> {
        let mut unreached = Vec::new();
        for party in self.parties(named)? {
            unreached.extend(self.reach(&party));
        }
        if self.targets.is_empty() {
            return Err(self.nobody(&unreached));
        }
        self.targets.extend(unreached);
        match self.unknown_users() {
            Some(parked) => Err(parked),
            None => {
                self.targets.append(&mut self.lacking);
                Ok(())
            }
        }
    }

    /// Adds the targets of one party. If no channel reaches the party, returns its skipped target.
    pub(super) fn reach(&mut self, party: &Party) -> Option<Target> {
        let (channels, lacking) = (self.channels_of(party), self.lacking_of(party));
        if channels.is_empty() && lacking.is_empty() {
            return Some(self.unreached(party));
        }
        for channel in channels {
            let language = self.user(party).and_then(|user| user.profile.as_ref()?.language.as_deref());
            let entry = self.choice.and_then(|choice| choice.template(&channel, "", language));
            let target = self.target(party, &channel, entry.as_ref(), false);
            self.targets.push(target);
        }
        for channel in lacking {
            let target = self.target(party, &channel, None, false);
            self.lacking.push(target);
        }
        None
    }

    /// The recipients, with lists replaced by their members.
    fn parties(&self, named: &[Value]) -> Result<Vec<Party>, Expansion> {
        let mut parties = Vec::with_capacity(named.len());
        for (number, entry) in named.iter().enumerate() {
            let place = format!("recipients[{number}]");
            match Recipient::from_json(entry) {
                Err(problem) => return Err(park("bad_recipient", format!("{place}: {problem}"))),
                Ok(Recipient::List(name)) => parties.extend(self.members(&name)?),
                Ok(recipient) => parties.push(Party { recipient, channel: None, place }),
            }
        }
        if parties.is_empty() {
            return Err(park(
                "no_recipient",
                "the lists that the notification names have no members; add members, then retry",
            ));
        }
        Ok(parties)
    }

    fn members(&self, name: &str) -> Result<Vec<Party>, Expansion> {
        let Some(members) = self.found.lists.get(&(self.note.tenant, name.to_owned())) else {
            return Err(park("unknown_list", format!("list {name:?} does not exist; create it, then retry")));
        };
        let place = format!("list {name:?}");
        Ok(members.iter().filter_map(|member| party(member, &place)).collect())
    }

    /// The channels on which a party is reached. With templates, they are the channels of the templates that fit the
    /// address. A program that receives the raw event needs no template.
    fn channels_of(&self, party: &Party) -> Vec<String> {
        let Some(choice) = self.choice.filter(|_| !gets_event(&party.recipient)) else {
            return match &party.channel {
                None => channels_for(&party.recipient, self.note, self.routes),
                Some(only) => {
                    let is_named = || self.note.channels.iter().any(|channel| channel_name(channel) == only);
                    if self.note.channels.is_empty() || is_named() { vec![only.clone()] } else { vec![] }
                }
            };
        };
        choice.channels("").into_iter().filter(|channel| party.suits(channel)).map(str::to_owned).collect()
    }

    /// The channels that the notification names, that may reach a party and that have no template. A channel that does
    /// not exist is kept, so that its delivery is parked and not lost.
    fn lacking_of(&self, party: &Party) -> Vec<String> {
        let Some(choice) = self.choice.filter(|_| !gets_event(&party.recipient)) else { return vec![] };
        let mut lacking = self.named_without(|channel| choice.template(channel, "", None).is_some());
        lacking.retain(|channel| party.suits(channel) || (party.channel.is_none() && !self.routes.know(channel)));
        lacking
    }

    /// The channels that the notification names, each once, without the channels for which `is_served` is true.
    fn named_without(&self, is_served: impl Fn(&str) -> bool) -> Vec<String> {
        let mut lacking: Vec<String> = vec![];
        for channel in self.note.channels.iter().map(|channel| channel_name(channel)) {
            if !is_served(channel) && !lacking.iter().any(|known| known == channel) {
                lacking.push(channel.to_owned());
            }
        }
        lacking
    }

    fn user(&self, party: &Party) -> Option<&KnownUser> {
        match &party.recipient {
            Recipient::User(id) => self.found.users.get(&(self.note.tenant, id.clone())),
            _ => None,
        }
    }

    /// The target of one party on one channel.
    fn target(&mut self, party: &Party, channel: &str, entry: Option<&Arc<TemplateEntry>>, is_own: bool) -> Target {
        let known = self.user(party).cloned();
        let recipient = self.reached_at(party, channel, known.as_ref());
        let user = match &party.recipient {
            Recipient::User(id) => Some(id.as_str()),
            _ => None,
        };
        let target = recipient.as_ref().map_or(party.recipient.value(), Recipient::value);
        let mut facts = match entry {
            Some(entry) => self.facts(entry, target, known.as_ref()),
            None if self.lacks_template(party, entry) => without_template(Facts::new(channel, target)),
            None => Facts::new(channel, target),
        };
        // An address that the template renders is routed by its channel, not by a provider.
        facts.provider = named_provider(&party.recipient).filter(|_| !is_own);
        // The address of a direct message to an inbox is the user's id, so the column `user_id` stays empty.
        facts.user_id = user.filter(|_| entry.is_some() || channel != IN_APP).map(str::to_owned);
        let fate = self.fate(party, channel, (recipient.as_ref(), known.as_ref()), entry, &facts);
        let mut added = Target::new(facts, fate);
        // Quiet hours are stored for a parked target, too, because they apply when an operator retries it.
        if !matches!(added.fate.ended(), Some(FinishedState::Skipped)) {
            self.keep_quiet(&mut added, known.as_ref());
        }
        if added.fate.ended().is_none() {
            added.once = entry.and_then(|entry| self.rules.once(entry, &added.facts, is_own));
            added.pacing = entry.and_then(|entry| self.rules.pacing(entry, &added.facts)).map(Box::new);
        }
        added
    }

    /// Whether a party could only be reached by a template, and there is no template for it.
    fn lacks_template(&self, party: &Party, entry: Option<&Arc<TemplateEntry>>) -> bool {
        entry.is_none() && self.choice.is_some() && !gets_event(&party.recipient)
    }

    /// Applies the quiet hours of the target's user. They do not apply to inbox messages, which disturb no one.
    fn keep_quiet(&self, target: &mut Target, known: Option<&KnownUser>) {
        let profile = known.and_then(|user| user.profile.as_ref());
        let Some((profile, hours)) = profile.and_then(|profile| Some((profile, profile.quiet_hours.as_ref()?))) else {
            return;
        };
        if target.facts.channel() == IN_APP || self.quiet_rule == QuietRule::Ignore {
            return;
        }
        let window = QuietWindow::new(hours, [profile.time_zone.as_deref(), self.time_zone.as_deref()]);
        let end = window.end(self.found.at);
        // A digest is not skipped, because its items would be lost.
        let is_skipped = self.quiet_rule == QuietRule::Skip && self.rules.maker != Maker::Digest;
        if let (Some(end), true, None) = (end, is_skipped, target.fate.ended()) {
            let detail =
                format!("the user has quiet hours until {end}, and the event type skips messages in quiet hours");
            target.fate = skipped("quiet_hours", detail);
            return;
        }
        // A delivery waits until its expiry at the latest.
        target.not_before = end.map(|end| end.min(self.note.expires_at));
        let context = target.facts.context.take().and_then(|context| serde_json::from_str(&context).ok());
        let mut context = context.unwrap_or_else(|| json!({}));
        window.put_into(&mut context);
        target.facts.context = Some(context.to_string());
    }

    /// The address of a party on a channel. `None` if the party is a user without an address for the channel.
    fn reached_at(&self, party: &Party, channel: &str, known: Option<&KnownUser>) -> Option<Recipient> {
        match &party.recipient {
            Recipient::User(_) if channel != IN_APP => {
                let kind = kind_of_channel(channel).unwrap_or(channel);
                let value = known?.addresses.get(kind)?;
                Some(recipient_on(channel, value.clone()))
            }
            recipient => Some(recipient.clone()),
        }
    }

    fn fate(
        &mut self,
        party: &Party,
        channel: &str,
        (recipient, known): (Option<&Recipient>, Option<&KnownUser>),
        entry: Option<&Arc<TemplateEntry>>,
        facts: &Facts,
    ) -> Fate {
        let place = &party.place;
        let Some(recipient) = recipient else {
            // If the channel does not exist, the delivery is parked, so that it is not lost.
            return match self.routes.know(channel) {
                true => without_address(party, channel, known),
                false => unknown_channel(channel, self.routes),
            };
        };
        if let Err(problem) = recipient.check() {
            return skipped("bad_address", format!("{} {problem}", party.field(recipient.kind())));
        }
        if !self.is_mandatory && known.is_some_and(|user| !user.allows(&self.note.event_type, channel)) {
            return skipped("opted_out", format!("{place}: the user opted out of this event type on {channel}"));
        }
        let audience = entry.map(|entry| entry.audience.clone()).unwrap_or_default();
        let to = comparable(facts.target()).into_owned();
        if !self.seen.insert((channel.to_owned(), to, audience, facts.provider.clone())) {
            return skipped(
                "duplicate",
                format!("{place}: the notification already goes to this address on {channel}"),
            );
        }
        match self.lacks_template(party, entry) {
            true => self.no_template_on(channel),
            false => lane_for(facts.provider.as_deref(), channel, self.routes),
        }
    }

    /// The columns of a target that a template renders.
    fn facts(&self, entry: &TemplateEntry, target: &str, known: Option<&KnownUser>) -> Facts {
        let profile = known.and_then(|user| user.profile.as_ref());
        let language = profile.and_then(|profile| profile.language.as_deref());
        let context = profile.map(|profile| {
            json!({"name": profile.name, "language": profile.language, "time_zone": profile.time_zone,
                "data": profile.data})
            .to_string()
        });
        Facts {
            template: Some(entry.id.clone()),
            template_version: Some(entry.version),
            language: self.choice.and_then(|choice| choice.language_of(entry, language)),
            context,
            send_key: self.rules.send_key(entry),
            ..Facts::new(entry.channel.clone(), target)
        }
    }
}

/// Converts an address on a channel to a recipient, so that it can be checked. On a channel that Postcommit does not
/// know, only its length and characters are checked. Such a recipient has the form of one that names a provider, but
/// its provider is not used.
pub(super) fn recipient_on(channel: &str, value: String) -> Recipient {
    match kind_of_channel(channel) {
        _ if channel == IN_APP => Recipient::User(value),
        Some(kind) => address(kind, &value).unwrap_or(Recipient::List(value)),
        None => Recipient::at(channel, value),
    }
}

/// Whether a recipient is a program that receives the event itself.
pub(super) fn gets_event(recipient: &Recipient) -> bool {
    matches!(recipient, Recipient::Webhook(_) | Recipient::Provider { .. })
}

pub(super) fn recipient_provider(recipient: &Recipient) -> Option<&str> {
    match recipient {
        Recipient::Provider { provider, .. } => Some(provider),
        _ => None,
    }
}

pub(super) fn skipped(code: &'static str, detail: String) -> Fate {
    Fate::Ended { state: FinishedState::Skipped, code, detail }
}
