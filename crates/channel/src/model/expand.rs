//! Expands a notification into its deliveries. The function is pure: with the same input, expanding twice gives the
//! same deliveries.

use std::collections::{BTreeSet, HashSet};

use postcommit::{Recipient, Timestamp, channel_name};
use uuid::Uuid;

use super::fan_out::reached_recipient;
use super::{Facts, FinishedState, Pacing, Provider, Reason, StoredNotification};

/// The result of expanding a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expansion {
    /// One entry per target, numbered from 1 in this order.
    Deliveries(Vec<Target>),
    /// Exactly one target, whenever the notification is expanded: one address on one channel, without a lookup. Only
    /// such a notification may be sent from its own row. With a lookup, another worker that takes it over could find
    /// more targets.
    OneDelivery(Box<Target>),
    /// The notification cannot be expanded. It is parked as a whole, and nothing is sent.
    Parked {
        /// A short, stable error code.
        code: &'static str,
        /// A sentence for the operator.
        detail: String,
    },
}

impl Expansion {
    /// The targets. Empty if the notification is parked.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        match self {
            Self::Deliveries(targets) => targets,
            Self::OneDelivery(target) => std::slice::from_ref::<Target>(target),
            Self::Parked { .. } => &[],
        }
    }

    /// The targets, mutable. Empty if the notification is parked.
    pub fn targets_mut(&mut self) -> &mut [Target] {
        match self {
            Self::Deliveries(targets) => targets,
            Self::OneDelivery(target) => std::slice::from_mut::<Target>(target),
            Self::Parked { .. } => &mut [],
        }
    }
}

/// One target of a notification, and whether it is sent or ends immediately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The columns of the delivery's row.
    pub facts: Facts,
    /// The lane, or the state in which the delivery ends immediately.
    pub fate: Fate,
    /// The hash of the send key and the recipient, if the template is sent once per entity. If another delivery
    /// already has this hash, the target is skipped as a duplicate when it is written.
    pub once: Option<Uuid>,
    /// The end of the user's quiet hours: the target is not due earlier. `None`: it is due when its notification is
    /// due.
    pub not_before: Option<Timestamp>,
    /// The throttle and the digest that apply when the target is written.
    pub pacing: Option<Box<Pacing>>,
}

impl Target {
    /// A target that is not limited to one send per entity.
    #[must_use]
    pub fn new(facts: Facts, fate: Fate) -> Self {
        Self { facts, fate, once: None, not_before: None, pacing: None }
    }
}

/// Whether a target is sent or ends immediately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The delivery is sent through the lane of this provider.
    Lane(i32),
    /// The delivery ends immediately and goes to the ledger.
    Ended {
        /// The state in which the delivery ends: parked or skipped.
        state: FinishedState,
        /// A short, stable error code.
        code: &'static str,
        /// A sentence for the operator.
        detail: String,
    },
}

impl Fate {
    /// The state in which the delivery ends, if it ends immediately.
    #[must_use]
    pub fn ended(&self) -> Option<FinishedState> {
        match self {
            Self::Lane(_) => None,
            Self::Ended { state, .. } => Some(*state),
        }
    }
}

/// The channel of users' inboxes. It is the default channel of a recipient that is a user.
pub const IN_APP: &str = "in_app";

/// The code of a target whose channel no provider serves.
const NO_PROVIDER: &str = "no_provider";

/// The channels that Postcommit knows. A tenant has further channels if its providers serve channels with other names.
pub const CHANNELS: [&str; 10] =
    ["email", IN_APP, "push", "slack", "sms", "teams", "voice", "web_push", "webhook", "whatsapp"];

/// The providers of one tenant, for routing.
#[derive(Debug, Clone, Copy)]
pub struct Routes<'a>(pub &'a [Provider]);

impl Routes<'_> {
    /// Whether this channel exists: it is one of [`CHANNELS`] or a provider of the tenant is configured for it. A
    /// provider that serves every channel does not count, because it would accept a misspelt name, too.
    #[must_use]
    pub fn know(&self, channel: &str) -> bool {
        CHANNELS.contains(&channel) || self.0.iter().any(|p| p.channel == channel)
    }

    /// The channels that exist, sorted.
    #[must_use]
    pub fn channels(&self) -> Vec<&str> {
        let own = self.0.iter().map(|p| p.channel.as_str()).filter(|channel| *channel != "*");
        CHANNELS.into_iter().chain(own).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn named(&self, name: &str) -> Option<&Provider> {
        self.0.iter().find(|p| p.name == name)
    }

    /// The default provider of this channel, or else the default provider that serves every channel. Only a provider of
    /// the inbox channel can serve inboxes.
    fn default_of(&self, channel: &str) -> Option<&Provider> {
        let serving = |wanted: &str| self.0.iter().find(|p| p.is_default && p.enabled && p.channel == wanted);
        serving(channel).or_else(|| if channel == IN_APP { None } else { serving("*") })
    }
}

/// Expands a notification into deliveries from its recipients and channels.
#[must_use]
pub fn expand(note: &StoredNotification, routes: Routes<'_>) -> Expansion {
    let Some(entries) = note.recipients.as_array() else {
        return park(
            "bad_recipient",
            "the recipients of the notification are not a JSON array; enqueue it again with an array",
        );
    };
    if entries.is_empty() {
        return park("no_recipient", "the notification names no recipient; enqueue it again with a recipient");
    }
    let (mut targets, mut unreached) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for (place, entry) in entries.iter().enumerate() {
        let recipient = match Recipient::from_json(entry) {
            Ok(recipient) => recipient,
            Err(problem) => return park("bad_recipient", format!("recipients[{place}]: {problem}")),
        };
        if let Recipient::List(name) = &recipient {
            // The dispatcher expands notifications with lists by `fan_out`, so a list here is a bug.
            let detail = format!("list {name:?} was not looked up before the expansion; report it as a bug");
            return park("unknown_list", detail);
        }
        let channels = channels_for(&recipient, note, routes);
        if channels.is_empty() {
            unreached.push(off_channel(&recipient, place, note));
        }
        for channel in channels {
            let (target, provider) = (recipient.value(), named_provider(&recipient));
            let is_new = match entries.len() {
                // Most notifications have one recipient. Its targets differ only in the channel, so a hash set is not
                // needed.
                1 => !targets.iter().any(|known: &Target| known.facts.channel() == channel),
                _ => seen.insert((channel.clone(), target.to_owned(), provider.clone())),
            };
            if is_new {
                let fate = fate(&recipient, place, &channel, routes);
                targets.push(Target::new(Facts { provider, ..Facts::new(channel, target) }, fate));
            }
        }
    }
    if targets.is_empty() {
        return park(
            "no_recipient",
            "no recipient can be reached on the channels of the notification; name another channel",
        );
    }
    targets.extend(unreached);
    match targets.pop_if(|_| is_for_one(entries, note)) {
        Some(only) => Expansion::OneDelivery(only.into()),
        None => Expansion::Deliveries(targets),
    }
}

/// The recipients of these deliveries, as the notification names them. For members of lists and for addresses from a
/// template, the recipient is the user or the address.
#[must_use]
pub fn recipients_of(note: &StoredNotification, deliveries: &[Facts]) -> Vec<Recipient> {
    let read = note.recipients.as_array().into_iter().flatten().filter_map(|entry| Recipient::from_json(entry).ok());
    let (mut recipients, named): (Vec<Recipient>, Vec<Recipient>) = (vec![], read.collect());
    let is_of = |facts: &Facts, recipient: &Recipient| {
        let is_user = || matches!(recipient, Recipient::User(id) if facts.user_id.as_ref() == Some(id));
        facts.provider == named_provider(recipient) && (facts.target() == recipient.value() || is_user())
    };
    for facts in deliveries {
        let recipient = named.iter().find(|recipient| is_of(facts, recipient)).cloned();
        let recipient = recipient.or_else(|| reached_recipient(facts));
        recipients.extend(recipient.filter(|recipient| !recipients.contains(recipient)));
    }
    recipients
}

/// The recipients of a notification that can be reached on `channel`, regardless of the channels that it names.
/// # Errors
/// If no recipient can be reached, a sentence that says why.
pub fn reachable(note: &StoredNotification, channel: &str, routes: Routes<'_>) -> Result<Vec<Recipient>, String> {
    let looked_up = |entry: &serde_json::Value| match Recipient::from_json(entry) {
        Ok(list @ Recipient::List(_)) => Some(list),
        Ok(user @ Recipient::User(_)) if channel != IN_APP => Some(user),
        _ => None,
    };
    let named = || note.recipients.as_array().into_iter().flatten();
    let mut reached: Vec<Recipient> = named().filter_map(looked_up).collect();
    if reached.is_empty() {
        return addresses_on(note, channel, routes);
    }
    // A missing provider for inboxes is no error, because the expansion creates it.
    if let (Fate::Ended { detail, .. }, true) =
        (lane_for(None, channel, routes), channel != IN_APP || has_in_app(routes))
    {
        return Err(detail);
    }
    let others: Vec<_> = named().filter(|entry| looked_up(entry).is_none()).cloned().collect();
    let others = StoredNotification { recipients: others.into(), ..note.clone() };
    reached.extend(addresses_on(&others, channel, routes).unwrap_or_default());
    Ok(reached)
}

/// The recipients that can be reached on `channel`, like [`reachable`], for a notification whose recipients need no
/// lookup.
fn addresses_on(note: &StoredNotification, channel: &str, routes: Routes<'_>) -> Result<Vec<Recipient>, String> {
    let on_it = StoredNotification { channels: vec![channel.to_owned()], ..note.clone() };
    let targets = match expand(&on_it, routes) {
        Expansion::Deliveries(targets) => targets,
        Expansion::OneDelivery(target) => vec![*target],
        Expansion::Parked { detail, .. } => return Err(detail),
    };
    // If the tenant has no provider for inboxes yet, the expansion creates it, so the inbox can be reached.
    let is_made = lacks_in_app(&on_it, routes);
    let is_reached = |target: &Target| target.fate.ended().is_none() || (is_made && target.facts.channel() == IN_APP);
    let (reached, others): (Vec<_>, Vec<_>) =
        targets.into_iter().partition(|target| target.facts.channel() == channel && is_reached(target));
    let facts: Vec<Facts> = reached.into_iter().map(|target| target.facts).collect();
    match others.into_iter().next().map(|target| target.fate) {
        Some(Fate::Ended { detail, .. }) if facts.is_empty() => Err(detail),
        _ if facts.is_empty() => Err("no recipient can be reached on this channel; name another channel".into()),
        _ => Ok(recipients_of(note, &facts)),
    }
}

/// Whether the notification has exactly one target that is known without a lookup. False for a phone number with
/// several channels, a list, a user on a channel other than the inbox, and a channel that is not in [`CHANNELS`].
pub(super) fn is_for_one(entries: &[serde_json::Value], note: &StoredNotification) -> bool {
    let [only] = entries else { return false };
    let several_channels = only.get("phone").is_some() && note.channels.len() > 1;
    let looked_up = only.get("list").is_some()
        || note.channels.iter().any(|channel| !CHANNELS.contains(&channel_name(channel)))
        || (only.get("user").is_some() && note.channels.iter().any(|channel| channel_name(channel) != IN_APP));
    !several_channels && !looked_up
}

/// Whether the notification goes to an inbox and a provider for inboxes must be created. False if the tenant has a
/// provider of the inbox channel, even a disabled one, or another provider with the name `in_app`.
#[must_use]
pub fn lacks_in_app(note: &StoredNotification, routes: Routes<'_>) -> bool {
    let is_wanted = || note.channels.is_empty() || note.channels.iter().any(|channel| channel_name(channel) == IN_APP);
    let has_user = || note.recipients.as_array().is_some_and(|all| all.iter().any(|entry| entry.get("user").is_some()));
    has_user() && is_wanted() && !has_in_app(routes)
}

/// Whether a target goes to an inbox and a provider for inboxes must be created.
#[must_use]
pub fn needs_in_app(targets: &[Target], routes: Routes<'_>) -> bool {
    let lacks = |target: &Target| {
        target.facts.channel() == IN_APP && matches!(target.fate, Fate::Ended { code: NO_PROVIDER, .. })
    };
    targets.iter().any(lacks) && !has_in_app(routes)
}

fn has_in_app(routes: Routes<'_>) -> bool {
    routes.0.iter().any(|p| p.channel == IN_APP || p.name == IN_APP)
}

/// The skipped target of a recipient that cannot be reached on the notification's channels. Its detail says why.
fn off_channel(recipient: &Recipient, place: usize, note: &StoredNotification) -> Target {
    let detail = format!("recipients[{place}].{} cannot be reached on {}", recipient.kind(), note.channels.join(", "));
    let fate = Fate::Ended { state: FinishedState::Skipped, code: "not_on_channels", detail };
    Target::new(Facts::new(implied(recipient).first().copied().unwrap_or("any"), recipient.value()), fate)
}

/// Finds the lane of a delivery without a lane, for example because its provider did not exist at expansion.
#[must_use]
pub fn route(facts: &Facts, routes: Routes<'_>) -> Fate {
    lane_for(facts.provider.as_deref(), facts.channel(), routes)
}

/// Finds the lane of a target. If the recipient names a provider, it is the lane of that provider. Otherwise the
/// channel decides. If there is no lane, the target ends, and the result says why.
pub(super) fn lane_for(provider: Option<&str>, channel: &str, routes: Routes<'_>) -> Fate {
    provider.map_or_else(|| by_channel(channel, routes), |provider| named_fate(provider, routes))
}

fn by_channel(channel: &str, routes: Routes<'_>) -> Fate {
    match routes.default_of(channel) {
        Some(provider) if provider.channel == channel => Fate::Lane(provider.id),
        _ if !routes.know(channel) => unknown_channel(channel, routes),
        Some(provider) => Fate::Lane(provider.id),
        None => no_provider(channel),
    }
}

fn named_fate(provider: &str, routes: Routes<'_>) -> Fate {
    match routes.named(provider) {
        Some(found) if found.enabled => Fate::Lane(found.id),
        Some(_) => parked("provider_disabled", format!("provider {provider:?} is disabled; enable it, then retry")),
        None => parked("unknown_provider", format!("provider {provider:?} is not configured; create it, then retry")),
    }
}

pub(super) fn park(code: &'static str, detail: impl Into<String>) -> Expansion {
    Expansion::Parked { code, detail: detail.into() }
}

pub(super) fn named_provider(recipient: &Recipient) -> Option<String> {
    match recipient {
        Recipient::Provider { provider, .. } => Some(provider.clone()),
        _ => None,
    }
}

/// The channels on which this kind of address can be reached. The first one is the default.
pub(super) fn implied(recipient: &Recipient) -> &'static [&'static str] {
    match recipient {
        Recipient::Email(_) => &["email"],
        Recipient::Phone(_) => &["sms", "whatsapp", "voice"],
        Recipient::Slack(_) => &["slack"],
        Recipient::Teams(_) => &["teams"],
        Recipient::Webhook(_) => &["webhook"],
        Recipient::Push(_) => &["push"],
        Recipient::WebPush(_) => &["web_push"],
        Recipient::User(_) => &[IN_APP],
        _ => &[],
    }
}

/// The channels on which a recipient is reached. Without `channels`, the kind of address decides. `channels` of the
/// notification selects among the channels that are possible for the address. If the recipient names a provider, the
/// provider decides the channel. If that provider serves every channel, the first of `channels` is used.
pub(super) fn channels_for(recipient: &Recipient, note: &StoredNotification, routes: Routes<'_>) -> Vec<String> {
    if let Recipient::Provider { provider, .. } = recipient {
        let channel = routes.named(provider).map_or("*", |p| p.channel.as_str());
        let first_named = || note.channels.first().cloned().unwrap_or_else(|| "any".into());
        return vec![if channel == "*" { first_named() } else { channel.to_owned() }];
    }
    let possible = implied(recipient);
    if note.channels.is_empty() {
        return possible.first().map(|c| vec![(*c).to_owned()]).unwrap_or_default();
    }
    // A user may have an address on any channel, so each named channel is tried. A channel that does not exist is kept,
    // so that its delivery is parked and not lost.
    let is_possible =
        |channel: &&str| matches!(recipient, Recipient::User(_)) || possible.contains(channel) || !routes.know(channel);
    let named = note.channels.iter().map(|channel| channel_name(channel));
    named.filter(is_possible).map(str::to_owned).collect()
}

fn fate(recipient: &Recipient, place: usize, channel: &str, routes: Routes<'_>) -> Fate {
    if let Err(problem) = recipient.check() {
        // An invalid address skips only its own delivery.
        let detail = format!("recipients[{place}].{} {problem}", recipient.kind());
        return Fate::Ended { state: FinishedState::Skipped, code: "bad_address", detail };
    }
    match recipient {
        Recipient::Provider { provider, .. } => named_fate(provider, routes),
        Recipient::User(_) if channel != IN_APP && routes.know(channel) => no_address(place, channel),
        _ => by_channel(channel, routes),
    }
}

/// The skipped delivery of a user on a channel other than the inbox. Normally the dispatcher looks up such users and
/// expands their notifications by `fan_out` instead.
fn no_address(place: usize, channel: &str) -> Fate {
    let detail = format!("recipients[{place}].user has no address for {channel}");
    Fate::Ended { state: FinishedState::Skipped, code: "no_address", detail }
}

fn no_provider(channel: &str) -> Fate {
    parked(
        NO_PROVIDER,
        format!("no default provider of this tenant serves channel {channel:?}; create one, then retry"),
    )
}

/// Parks a delivery on a channel that does not exist.
pub(super) fn unknown_channel(channel: &str, routes: Routes<'_>) -> Fate {
    let known = routes.channels().join(", ");
    parked(
        "unknown_channel",
        format!("channel {channel:?} does not exist; allowed are {known}; create a provider for it, then retry"),
    )
}

pub(super) fn parked(code: &'static str, detail: String) -> Fate {
    Fate::Ended { state: FinishedState::Parked(Reason::Config), code, detail }
}
