//! Expands a notification whose targets must be looked up: templates, users, lists, preferences. The functions are
//! pure. [`lookup`] returns the names that must be looked up, and [`fan_out`] builds the targets from the result.

mod fan;
mod rules;
mod unreached;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use postcommit::{Recipient, Timestamp, channel_name};
use serde_json::{Value, json};

use fan::{Fan, PROVIDER, gets_event, party, recipient_provider, skipped};

use rules::Rules;
pub(super) use rules::reached_recipient;
pub use unreached::lacks_template;

use super::content::{Choice, TemplateEntry, TenantContent};
use super::expand::{Expansion, Fate, IN_APP, Routes, Target, is_for_one, recipients_of};
use super::user::{KnownUser, ListMember, comparable};
use super::{Facts, Maker, Pacing, StoredNotification};
use crate::template::{Failure, FlatPayload};

/// The users, lists and templates that must be read before a notification can be expanded.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// The payload of the notification, for templates and their scopes.
    pub payload: FlatPayload,
    /// The origin of the notification: an application, a resend or a digest.
    maker: Maker,
    /// The templates that the notification may use. `None` for a direct message.
    choice: Option<Choice>,
    /// The templates whose part `to` renders the address, because the notification names no recipient.
    pub own: Vec<Arc<TemplateEntry>>,
    /// The users that the notification names.
    pub users: Vec<String>,
    /// The lists that the notification names.
    pub lists: Vec<String>,
}

/// The text that a resend must use, regardless of the current templates.
#[derive(Debug, Clone)]
pub enum Pin {
    /// No text is fixed: the notification is not a resend, or it uses the current templates.
    None,
    /// The resend is a copy of a direct message.
    Direct,
    /// The resend uses this version of a template, regardless of the template's scope and state.
    Template(Box<TemplateEntry>),
}

/// The result of the lookup for one or more notifications, by tenant and name.
#[derive(Debug, Clone)]
pub struct Found {
    /// The time of the lookup, by the database's clock.
    pub at: Timestamp,
    /// The users that the database knows.
    pub users: HashMap<(i32, String), KnownUser>,
    /// The members of the lists that exist.
    pub lists: HashMap<(i32, String), Vec<ListMember>>,
}

/// A template and the address that its part `to` renders.
pub type OwnAddress = (Arc<TemplateEntry>, Result<String, NoAddress>);

/// The reason why a template's part `to` renders no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAddress {
    /// The part renders to nothing, for this reason. The template's channel is skipped.
    Skipped(String),
    /// The template failed. Its channel is skipped. If no other template renders an address, the notification is
    /// parked.
    Failed(Failure),
}

/// Returns the data that must be read before a notification can be expanded. `None` if [`super::expand`] needs no
/// stored data: a direct message whose targets do not depend on users, lists, templates or preferences.
///
/// `pin` is the text that a resend must use.
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
    // A notification without recipients can only be sent by a template.
    let lacks_template = entries(note).is_empty() && content.is_some_and(|content| content.knows_templates);
    let is_needed = is_guarded || lacks_template || needs_people(note);
    if !is_templated && !is_needed {
        return None;
    }
    let payload = note.payload.flat().clone();
    let in_scope = match pin {
        Pin::None => content.map(|content| content.in_scope(&note.event_type, &payload)).unwrap_or_default(),
        Pin::Direct => vec![],
        Pin::Template(only) => vec![Arc::new(*only)],
    };
    let choice = (!in_scope.is_empty()).then(|| choice_of(note, content, in_scope));
    if choice.is_none() && !is_needed {
        return None;
    }
    Some(Lookup::new(note, maker, choice, payload))
}

/// Returns the data that must be read before a delivery is expanded again because its channel had no template. `note`
/// is the notification that [`narrowed`] returns.
#[must_use]
pub fn lookup_again(note: &StoredNotification, content: Option<&TenantContent>) -> Lookup {
    let payload = note.payload.flat().clone();
    let in_scope = content.map(|content| content.in_scope(&note.event_type, &payload)).unwrap_or_default();
    Lookup::new(note, Maker::Application, Some(choice_of(note, content, in_scope)), payload)
}

fn choice_of(note: &StoredNotification, content: Option<&TenantContent>, in_scope: Vec<Arc<TemplateEntry>>) -> Choice {
    Choice::of(note, in_scope, content.and_then(|content| content.language.as_deref()))
}

/// Reduces a notification to the recipient and the channel of one of its deliveries, whose channel had no template.
/// `None` if a notification cannot name the address on this channel.
#[must_use]
pub fn narrowed(note: &StoredNotification, facts: &Facts) -> Option<StoredNotification> {
    let recipients = match facts.target {
        None => vec![],
        Some(_) => vec![recipients_of(note, std::slice::from_ref(facts)).pop()?],
    };
    let channels = vec![facts.channel().to_owned()];
    Some(StoredNotification { channels, recipients: json!(recipients), ..note.clone() })
}

impl Lookup {
    fn new(note: &StoredNotification, maker: Maker, choice: Option<Choice>, payload: FlatPayload) -> Self {
        let own = choice.as_ref().filter(|_| entries(note).is_empty()).map(Choice::own).unwrap_or_default();
        let named = |kind: &str| {
            let name = |entry: &Value| entry.get(kind).and_then(Value::as_str).map(str::to_owned);
            entries(note).iter().filter_map(name).collect::<BTreeSet<_>>().into_iter().collect()
        };
        Self { payload, maker, choice, own, users: named("user"), lists: named("list") }
    }

    /// The maximum number of targets of one recipient.
    #[must_use]
    pub fn channels(&self, note: &StoredNotification) -> usize {
        let templates = self.choice.as_ref().map_or(0, |choice| choice.channels("").len());
        templates.max(note.channels.len()).max(1)
    }

    /// Removes the templates if a worker that did not know them yet may have sent the notification as a direct message,
    /// so that it is not sent a second time in another form. `leased_at` is the time at which that worker's lease
    /// began; the templates are removed only if all of them became active then or later. An event without a title and a
    /// body keeps its templates, because its direct message would be empty.
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

/// Whether a direct message names a list, or a user on a channel other than the inbox.
fn needs_people(note: &StoredNotification) -> bool {
    let elsewhere = || note.channels.iter().any(|channel| channel_name(channel) != IN_APP);
    entries(note).iter().any(|entry| entry.get("list").is_some() || (entry.get("user").is_some() && elsewhere()))
}

/// Expands a notification from the result of its lookup. `own` are the addresses of [`Lookup::own`].
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
        // Only a direct message to one address may be sent from the notification's own row. For any other notification,
        // a worker that takes over the row could find other targets.
        Ok(()) if fan.choice.is_none() && is_for_one(entries(note), note) && fan.targets.len() == 1 => {
            fan.targets.pop().map_or(Expansion::Deliveries(vec![]), |only| Expansion::OneDelivery(only.into()))
        }
        Ok(()) => Expansion::Deliveries(fan.targets),
    }
}

/// Builds a new target for a delivery that was parked before anything was sent, with the send key, the throttle and the
/// digest of its template. `None` if none of these applies to the delivery, or if the template is no longer active.
#[must_use]
pub fn retried(note: &StoredNotification, content: Option<&TenantContent>, facts: &Facts, lane: i32) -> Option<Target> {
    let entry = content?.template(&note.event_type, facts.template.as_deref()?)?;
    let rules = Rules { note, payload: note.payload.flat(), maker: note.maker(facts) };
    let once = rules.once(entry, facts, entries(note).is_empty());
    let pacing = rules.pacing(entry, facts);
    if once.is_none() && pacing.is_none() {
        return None;
    }
    let pacing = pacing.map(Box::new);
    Some(as_retried(Target { once, pacing, ..Target::new(facts.clone(), Fate::Lane(lane)) }))
}

/// Prepares the target of a retried delivery. The step that checks its send key looks only at targets with a throttle
/// or digest, so a target that has neither gets an empty [`Pacing`].
#[must_use]
pub fn as_retried(mut target: Target) -> Target {
    if target.once.is_some() && target.pacing.is_none() {
        target.pacing = Some(Box::new(Pacing { throttle: None, digest: None }));
    }
    target
}

/// The recipients of a notification, except lists, in the form of list members. A large expansion stores them in this
/// form. If a recipient names a provider, the field `channel` holds the name of that provider.
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
    fan.targets.append(&mut fan.lacking);
    fan.targets
}

/// Skips the targets whose channel and address are already targets of an earlier part.
pub fn skip_seen(targets: &mut [Target], seen: &HashSet<(String, String)>) {
    for target in targets.iter_mut().filter(|target| target.fate.ended().is_none()) {
        let (channel, to) = (target.facts.channel(), comparable(target.facts.target()));
        if seen.contains(&(channel.to_owned(), to.into_owned())) {
            let detail = format!("list: the notification already goes to this address on {channel}");
            (target.fate, target.once) = (skipped("duplicate", detail), None);
        }
    }
}

/// Skips the targets whose address is suppressed. `reason` returns why an address is suppressed on a channel.
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
