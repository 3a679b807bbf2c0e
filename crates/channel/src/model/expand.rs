//! From a notification to its deliveries: pure, so that expanding it twice gives the same deliveries.

use std::collections::HashSet;

use postcommit::Recipient;

use super::{Facts, FinishedState, Provider, Reason, StoredNotification};

/// What becomes of a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expansion {
    /// One entry per target, numbered from 1 in this order.
    Deliveries(Vec<Target>),
    /// One target, now and whenever it is expanded: one address on one channel, and nothing to look up. Only such a
    /// notification may be sent from its own row; a list could have grown by the time another worker takes it over.
    OneDelivery(Target),
    /// The notification itself cannot be expanded; it is parked whole, and nothing is sent.
    Parked {
        /// Short and stable.
        code: &'static str,
        /// A sentence for people.
        detail: String,
    },
}

/// One target, and where it goes from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// What its row will say.
    pub facts: Facts,
    /// The lane, or the state it ends in immediately.
    pub fate: Fate,
}

/// Where a target goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Into this provider's lane.
    Lane(i32),
    /// Into the ledger.
    Ended {
        /// Parked or skipped.
        state: FinishedState,
        /// Short and stable.
        code: &'static str,
        /// A sentence for people.
        detail: String,
    },
}

impl Fate {
    /// The state it ends in, if it ends here.
    #[must_use]
    pub fn ended(&self) -> Option<FinishedState> {
        match self {
            Self::Lane(_) => None,
            Self::Ended { state, .. } => Some(*state),
        }
    }
}

/// The channel of users' inboxes: what a user is reached on when no channel is named.
pub const IN_APP: &str = "in_app";

/// The providers of one tenant, as routing needs them.
#[derive(Debug, Clone, Copy)]
pub struct Routes<'a>(pub &'a [Provider]);

impl Routes<'_> {
    fn named(&self, name: &str) -> Option<&Provider> {
        self.0.iter().find(|p| p.name == name)
    }

    /// The default of that channel, or the one that serves every channel. No other channel's provider can serve an
    /// inbox.
    fn default_of(&self, channel: &str) -> Option<&Provider> {
        let serving = |wanted: &str| self.0.iter().find(|p| p.is_default && p.enabled && p.channel == wanted);
        serving(channel).or_else(|| if channel == IN_APP { None } else { serving("*") })
    }
}

/// Resolves recipients and channels into deliveries.
#[must_use]
pub fn expand(note: &StoredNotification, routes: Routes<'_>) -> Expansion {
    let Some(entries) = note.recipients.as_array() else { return park("bad_recipient", "recipients cannot be read") };
    if entries.is_empty() {
        return park("no_recipient", "the notification names no recipient");
    }
    let (mut targets, mut unreached) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for (place, entry) in entries.iter().enumerate() {
        let recipient = match Recipient::from_json(entry) {
            Ok(recipient) => recipient,
            Err(problem) => return park("bad_recipient", format!("recipients[{place}]: {problem}")),
        };
        if let Recipient::List(name) = &recipient {
            // Lists live in a table that does not exist yet: every name is unknown.
            return park("unknown_list", format!("list {name:?} is not known"));
        }
        let channels = channels_for(&recipient, note, routes);
        if channels.is_empty() {
            unreached.push(off_channel(&recipient, place, note));
        }
        for channel in channels {
            let (target, provider) = (recipient.value(), named_provider(&recipient));
            if seen.insert((channel.clone(), target.to_owned(), provider.clone())) {
                let fate = fate(&recipient, place, &channel, routes);
                targets.push(Target { facts: Facts { provider, ..Facts::new(channel, target) }, fate });
            }
        }
    }
    if targets.is_empty() {
        return park("no_recipient", "no recipient can be reached on the channels named");
    }
    targets.extend(unreached);
    match targets.pop_if(|_| is_for_one(entries, note)) {
        Some(only) => Expansion::OneDelivery(only),
        None => Expansion::Deliveries(targets),
    }
}

/// The recipients behind some of its deliveries, as they were enqueued. Those that cannot be read are left out.
#[must_use]
pub fn recipients_of(note: &StoredNotification, deliveries: &[Facts]) -> Vec<Recipient> {
    let read = note.recipients.as_array().into_iter().flatten().filter_map(|entry| Recipient::from_json(entry).ok());
    let is_of = |facts: &Facts, recipient: &Recipient| {
        facts.target() == recipient.value() && facts.provider == named_provider(recipient)
    };
    read.filter(|recipient| deliveries.iter().any(|facts| is_of(facts, recipient))).collect()
}

/// Whether there is one address, and one channel at most to reach it on. A phone has several channels, and a user's
/// other addresses are looked up.
fn is_for_one(entries: &[serde_json::Value], note: &StoredNotification) -> bool {
    let [only] = entries else { return false };
    let several_channels = only.get("phone").is_some() && note.channels.len() > 1;
    let looked_up = only.get("list").is_some()
        || (only.get("user").is_some() && note.channels.iter().any(|channel| channel != IN_APP));
    !several_channels && !looked_up
}

/// Whether it goes to an inbox while the tenant has no provider for inboxes, which is to be made then. A provider that
/// is disabled, or has the name for another channel, is left as it is.
#[must_use]
pub fn lacks_in_app(note: &StoredNotification, routes: Routes<'_>) -> bool {
    let is_there = || routes.0.iter().any(|p| p.channel == IN_APP || p.name == IN_APP);
    let is_wanted = || note.channels.is_empty() || note.channels.iter().any(|channel| channel == IN_APP);
    let has_user = || note.recipients.as_array().is_some_and(|all| all.iter().any(|entry| entry.get("user").is_some()));
    has_user() && is_wanted() && !is_there()
}

/// The target of a recipient that has no address on the channels named: it is skipped, and the detail says so.
fn off_channel(recipient: &Recipient, place: usize, note: &StoredNotification) -> Target {
    let detail = format!("recipients[{place}].{} cannot be reached on {}", recipient.kind(), note.channels.join(", "));
    let fate = Fate::Ended { state: FinishedState::Skipped, code: "not_on_channels", detail };
    Target { facts: Facts::new(implied(recipient).first().copied().unwrap_or("any"), recipient.value()), fate }
}

/// Finds the lane of a delivery that has none, e.g. because its provider was missing when it was expanded.
#[must_use]
pub fn route(facts: &Facts, routes: Routes<'_>) -> Fate {
    match &facts.provider {
        Some(provider) => named_fate(provider, routes),
        None => by_channel(facts.channel(), routes),
    }
}

fn by_channel(channel: &str, routes: Routes<'_>) -> Fate {
    routes.default_of(channel).map_or_else(|| no_provider(channel), |provider| Fate::Lane(provider.id))
}

fn named_fate(provider: &str, routes: Routes<'_>) -> Fate {
    match routes.named(provider) {
        Some(found) if found.enabled => Fate::Lane(found.id),
        Some(_) => parked("provider_disabled", format!("provider {provider:?} is disabled; enable it, then retry")),
        None => parked("unknown_provider", format!("provider {provider:?} is not configured; create it, then retry")),
    }
}

fn park(code: &'static str, detail: impl Into<String>) -> Expansion {
    Expansion::Parked { code, detail: detail.into() }
}

fn named_provider(recipient: &Recipient) -> Option<String> {
    match recipient {
        Recipient::Provider { provider, .. } => Some(provider.clone()),
        _ => None,
    }
}

/// The channels that this kind of address can be reached on; the first is what it implies.
fn implied(recipient: &Recipient) -> &'static [&'static str] {
    match recipient {
        Recipient::Email(_) => &["email"],
        Recipient::Phone(_) => &["sms", "whatsapp", "voice"],
        Recipient::Slack(_) => &["slack"],
        Recipient::Teams(_) => &["teams"],
        Recipient::Webhook(_) => &["webhook"],
        Recipient::User(_) => &[IN_APP],
        _ => &[],
    }
}

/// The channels that a recipient is reached on. `channels` of the notification narrows what the address implies; a
/// phone number can also be widened to other channels that take numbers. A provider that is named decides its channel,
/// whatever `channels` says.
fn channels_for(recipient: &Recipient, note: &StoredNotification, routes: Routes<'_>) -> Vec<String> {
    if let Recipient::Provider { provider, .. } = recipient {
        let channel = routes.named(provider).map_or("*", |p| p.channel.as_str());
        let first_named = || note.channels.first().cloned().unwrap_or_else(|| "any".into());
        return vec![if channel == "*" { first_named() } else { channel.to_owned() }];
    }
    let possible = implied(recipient);
    if note.channels.is_empty() {
        return possible.first().map(|c| vec![(*c).to_owned()]).unwrap_or_default();
    }
    // A user may have any address: each channel named is looked at.
    let is_possible =
        |channel: &&String| matches!(recipient, Recipient::User(_)) || possible.contains(&channel.as_str());
    note.channels.iter().filter(is_possible).cloned().collect()
}

fn fate(recipient: &Recipient, place: usize, channel: &str, routes: Routes<'_>) -> Fate {
    if let Err(problem) = recipient.check() {
        // A bad address skips its own delivery and no other.
        let detail = format!("recipients[{place}].{} {problem}", recipient.kind());
        return Fate::Ended { state: FinishedState::Skipped, code: "bad_address", detail };
    }
    match recipient {
        Recipient::Provider { provider, .. } => named_fate(provider, routes),
        Recipient::User(_) if channel != IN_APP => no_address(place, channel),
        _ => by_channel(channel, routes),
    }
}

/// Users have an inbox and nothing else yet.
fn no_address(place: usize, channel: &str) -> Fate {
    let detail = format!("recipients[{place}].user has no address for {channel}");
    Fate::Ended { state: FinishedState::Skipped, code: "no_address", detail }
}

fn no_provider(channel: &str) -> Fate {
    parked(
        "no_provider",
        format!("no default provider of this tenant serves channel {channel:?}; create one, then retry"),
    )
}

fn parked(code: &'static str, detail: String) -> Fate {
    Fate::Ended { state: FinishedState::Parked(Reason::Config), code, detail }
}
