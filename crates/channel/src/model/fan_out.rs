//! Expands a notification whose targets must be looked up: templates, users, lists, preferences. The functions are pure.
//! [`lookup`] says what must be looked up, and [`fan_out`] makes the targets from what was found.

mod fan;
mod rules;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use postcommit::{Recipient, Timestamp, channel_name};
use serde_json::Value;

use fan::{Fan, PROVIDER, gets_event, party, recipient_provider, skipped};

use rules::Rules;
pub(super) use rules::reached_recipient;

use super::content::{Choice, TemplateEntry, TenantContent};
use super::expand::{Expansion, Fate, IN_APP, Routes, Target, is_for_one};
use super::user::{KnownUser, ListMember, comparable};
use super::{Facts, Maker, Pacing, StoredNotification};
use crate::template::{Failure, FlatPayload};

/// What a notification needs before it can be expanded.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// Its payload, for templates and their scopes.
    pub payload: FlatPayload,
    /// Who made it.
    maker: Maker,
    /// The templates that it may use. `None` if it is a direct message.
    choice: Option<Choice>,
    /// The templates whose own `to` gives the address, because the notification names no recipient.
    pub own: Vec<Arc<TemplateEntry>>,
    /// The users that it names.
    pub users: Vec<String>,
    /// The lists that it names.
    pub lists: Vec<String>,
}

/// What a resend or a digest fixes, whatever templates there are now.
#[derive(Debug, Clone)]
pub enum Pin {
    /// Nothing: an application made it, or the present templates decide.
    None,
    /// It is a copy of a direct message.
    Direct,
    /// It is rendered by this version of a template, whatever its scope and state are.
    Template(Box<TemplateEntry>),
}

/// What was found for one or more notifications, by tenant and name.
#[derive(Debug, Clone)]
pub struct Found {
    /// The database's time at which it was looked up.
    pub at: Timestamp,
    /// Users of whom anything is stored.
    pub users: HashMap<(i32, String), KnownUser>,
    /// Members of the lists that exist.
    pub lists: HashMap<(i32, String), Vec<ListMember>>,
}

/// The address that a template itself gives.
pub type OwnAddress = (Arc<TemplateEntry>, Result<String, NoAddress>);

/// Why a template gives no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAddress {
    /// There is none, for this reason. The template's channel is skipped.
    Skipped(String),
    /// The template failed. Its channel is skipped, and the notification is parked if no other template gives an address.
    Failed(Failure),
}

/// Says what a notification needs before it can be expanded. `None` if [`super::expand`] can do it alone: a direct
/// message whose targets and states depend on nothing that is stored.
///
/// `pin` is what a resend or a digest fixes.
#[must_use]
pub fn lookup(
    note: &StoredNotification,
    content: Option<&TenantContent>,
    (maker, pin): (Maker, Pin),
) -> Option<Lookup> {
    let is_templated = match pin {
        Pin::None => content.is_some_and(|content| content.has(&note.event_type)),
        Pin::Direct => false,
        Pin::Template(_) => true,
    };
    let is_guarded = content.is_some_and(|content| content.is_guarded);
    // A notification without recipients is sent by a template or not at all.
    let lacks_template = entries(note).is_empty() && content.is_some_and(|content| content.knows_templates);
    let is_needed = is_guarded || lacks_template || needs_people(note);
    if !is_templated && !is_needed {
        return None;
    }
    let payload = FlatPayload::new(&note.payload);
    let in_scope = match pin {
        Pin::None => content.map(|content| content.in_scope(&note.event_type, &payload)).unwrap_or_default(),
        Pin::Direct => vec![],
        Pin::Template(only) => vec![Arc::new(*only)],
    };
    let language = content.and_then(|content| content.language.as_deref());
    let choice = (!in_scope.is_empty()).then(|| Choice::of(note, in_scope, language));
    if choice.is_none() && !is_needed {
        return None;
    }
    let own = choice.as_ref().filter(|_| entries(note).is_empty()).map(Choice::own).unwrap_or_default();
    let named = |kind: &str| {
        let name = |entry: &Value| entry.get(kind).and_then(Value::as_str).map(str::to_owned);
        entries(note).iter().filter_map(name).collect::<BTreeSet<_>>().into_iter().collect()
    };
    Some(Lookup { payload, maker, choice, own, users: named("user"), lists: named("list") })
}

impl Lookup {
    /// How many targets one recipient may have at most.
    #[must_use]
    pub fn channels(&self, note: &StoredNotification) -> usize {
        self.choice.as_ref().map_or(note.channels.len(), |choice| choice.channels("").len()).max(1)
    }

    /// Leaves out the templates if the notification may have been sent as a direct message, by a worker whose lease began
    /// at `leased_at` and which did not know them yet. It must not be sent a second time in another form. A worker whose
    /// lease began after a template was used knew it (docs/decisions/0033).
    #[must_use]
    pub fn without_late_templates(self, note: &StoredNotification, leased_at: Timestamp) -> Self {
        let since = self.choice.as_ref().and_then(Choice::since);
        let is_late = since.is_some_and(|since| leased_at <= since);
        match entries(note) {
            [only] if is_late && has_own_form(note, only) && is_for_one(entries(note), note) => {
                Self { choice: None, own: vec![], ..self }
            }
            _ => self,
        }
    }
}

/// Whether a notification says something to its recipient without a template. Otherwise a direct message would be empty.
fn has_own_form(note: &StoredNotification, recipient: &Value) -> bool {
    let has_words = note.title.is_some() || note.body.is_some() || note.data.is_some();
    has_words || Recipient::from_json(recipient).is_ok_and(|recipient| gets_event(&recipient))
}

fn entries(note: &StoredNotification) -> &[Value] {
    note.recipients.as_array().map_or(&[], Vec::as_slice)
}

/// Whether a direct message names a list, or a user on another channel than the inbox.
fn needs_people(note: &StoredNotification) -> bool {
    let elsewhere = || note.channels.iter().any(|channel| channel_name(channel) != IN_APP);
    entries(note).iter().any(|entry| entry.get("list").is_some() || (entry.get("user").is_some() && elsewhere()))
}

/// Expands a notification from what was looked up. `own` are the addresses of [`Lookup::own`].
#[must_use]
pub fn fan_out(
    note: &StoredNotification,
    routes: Routes<'_>,
    content: Option<&TenantContent>,
    lookup: &Lookup,
    (found, own): (&Found, Vec<OwnAddress>),
) -> Expansion {
    let mut fan = Fan::new(note, routes, content, lookup, found);
    let filled = match entries(note) {
        [] if lookup.choice.is_some() => fan.reach_own(own),
        [] if content.is_some_and(|content| content.knows_templates) => Err(fan.no_template()),
        [] => return super::expand(note, routes),
        named => fan.reach_named(named),
    };
    match filled {
        Err(parked) => parked,
        // Only a direct message to one address may be sent from its own row, so that it is never sent in two ways.
        Ok(()) if fan.choice.is_none() && is_for_one(entries(note), note) && fan.targets.len() == 1 => {
            fan.targets.pop().map_or(Expansion::Deliveries(vec![]), |only| Expansion::OneDelivery(only.into()))
        }
        Ok(()) => Expansion::Deliveries(fan.targets),
    }
}

/// A delivery that was parked and never sent, as a new target: what its template counts, collects and holds a key for. `None`
/// if the template does none of it, or is not used any more.
#[must_use]
pub fn retried(note: &StoredNotification, content: Option<&TenantContent>, facts: &Facts, lane: i32) -> Option<Target> {
    let entry = content?.template(&note.event_type, facts.template.as_deref()?)?;
    let rules = Rules { note, payload: &FlatPayload::new(&note.payload), maker: note.maker(facts) };
    let once = rules.once(entry, facts, entries(note).is_empty());
    let pacing = rules.pacing(entry, facts);
    if once.is_none() && pacing.is_none() {
        return None;
    }
    // Without a throttle or a digest it is sent, if its key is free.
    let pacing = pacing.unwrap_or(Pacing { throttle: None, digest: None });
    Some(Target { once, pacing: Some(pacing.into()), ..Target::new(facts.clone(), Fate::Lane(lane)) })
}

/// The recipients of a notification other than lists, as members: what a large expansion keeps of them. A named
/// provider stands in place of the channel.
#[must_use]
pub fn named_members(note: &StoredNotification) -> Vec<ListMember> {
    let read = entries(note).iter().filter_map(|entry| Recipient::from_json(entry).ok());
    let member = |recipient: Recipient| ListMember {
        kind: if recipient_provider(&recipient).is_some() { PROVIDER } else { recipient.kind() }.to_owned(),
        member: recipient.value().to_owned(),
        channel: recipient_provider(&recipient).unwrap_or_default().to_owned(),
    };
    read.filter(|recipient| !matches!(recipient, Recipient::List(_))).map(member).collect()
}

/// Expands some of the members of a notification's lists: one part of a large expansion.
#[must_use]
pub fn fan_out_part(
    note: &StoredNotification,
    routes: Routes<'_>,
    content: Option<&TenantContent>,
    lookup: &Lookup,
    (found, members): (&Found, &[ListMember]),
) -> Vec<Target> {
    let mut fan = Fan::new(note, routes, content, lookup, found);
    for member in members {
        let unreached = match party(member, "list") {
            Some(party) => fan.reach(&party),
            None => {
                let detail = format!("list: a member of kind {:?} cannot be reached", member.kind);
                Some(Target::new(Facts::new("any", member.member.as_str()), skipped("bad_address", detail)))
            }
        };
        fan.targets.extend(unreached);
    }
    fan.targets
}

/// Skips the targets whose channel and address an earlier part has sent to.
pub fn skip_seen(targets: &mut [Target], seen: &HashSet<(String, String)>) {
    for target in targets.iter_mut().filter(|target| target.fate.ended().is_none()) {
        let (channel, to) = (target.facts.channel(), comparable(target.facts.target()));
        if seen.contains(&(channel.to_owned(), to.into_owned())) {
            let detail = format!("list: the notification goes to this address on {channel} already");
            (target.fate, target.once) = (skipped("duplicate", detail), None);
        }
    }
}

/// Skips the targets whose address is suppressed. `reason` returns why an address on a channel is.
pub fn skip_suppressed(targets: &mut [Target], reason: impl Fn(&str, &str) -> Option<String>) {
    for target in targets {
        if target.fate.ended().is_some() {
            continue;
        }
        if let Some(reason) = reason(target.facts.channel(), target.facts.target()) {
            let detail = format!("the address is suppressed on {}: {reason}", target.facts.channel());
            target.fate = skipped("suppressed", detail);
            target.once = None;
        }
    }
}
