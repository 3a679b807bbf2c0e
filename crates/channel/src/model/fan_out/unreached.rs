//! Says why a recipient is not reached, or why a whole notification reaches nobody.

use postcommit::{Recipient, channel_name};

use super::fan::{Fan, Party, skipped};
use crate::model::Facts;
use crate::model::expand::{Expansion, Fate, Target, implied, park};
use crate::model::user::KnownUser;

/// The code of a recipient that can be reached only on channels that the notification does not name.
const OFF_CHANNELS: &str = "not_on_channels";
/// The code of a recipient that is a user of whom nothing is stored.
const UNKNOWN_USER: &str = "unknown_user";
/// How many recipients a detail names at most.
const NAMED: usize = 5;

impl Fan<'_> {
    /// Parks a notification that reaches none of its recipients: it names other channels, or there is no template for
    /// them.
    pub(super) fn nobody(&self, unreached: &[Target]) -> Expansion {
        let why = |target: &Target| match &target.fate {
            Fate::Ended { code: OFF_CHANNELS, detail, .. } => Some(detail.clone()),
            _ => None,
        };
        match unreached.iter().map(why).collect::<Option<Vec<_>>>() {
            Some(why) => park("no_recipient", format!("no recipient can be reached: {}", some_of(&why, "; "))),
            None => self.no_template(),
        }
    }

    /// Parks the notification if all its recipients are users that do not exist. A retry then finds those that were
    /// created. Beside other recipients, such a user is skipped.
    pub(super) fn unknown_users(&self) -> Option<Expansion> {
        let unknown = |target: &Target| match (&target.fate, &target.facts.user_id) {
            (Fate::Ended { code: UNKNOWN_USER, .. }, Some(id)) => Some(format!("{id:?}")),
            _ => None,
        };
        let mut users = self.targets.iter().map(unknown).collect::<Option<Vec<_>>>()?;
        users.dedup();
        let (they, are) = if users.len() == 1 { ("user", "does") } else { ("users", "do") };
        let detail = format!("{they} {} {are} not exist; create the {they}, then retry", some_of(&users, ", "));
        Some(park(UNKNOWN_USER, detail))
    }

    /// The skipped target of a party that no channel reaches: the notification asks for other channels, or its channels
    /// have no template.
    pub(super) fn unreached(&self, party: &Party) -> Target {
        let (kind, place) = (party.recipient.kind(), &party.place);
        let own = party.channel.as_deref();
        let possible = || own.into_iter().chain(implied(&party.recipient).iter().copied().filter(|_| own.is_none()));
        let asked: Vec<&str> = self.note.channels.iter().map(|channel| channel_name(channel)).collect();
        // A user may have an address on any channel.
        let is_user = matches!(party.recipient, Recipient::User(_));
        let is_asked = is_user || asked.is_empty() || possible().any(|channel| asked.contains(&channel));
        let named = asked.join(", ");
        let fate = match (own, self.choice.filter(|_| is_asked)) {
            (Some(own), Some(_)) => {
                let detail = format!("{place}: no template of the event type is for {own}, the channel of this {kind}");
                skipped("template_not_found", detail)
            }
            (None, Some(_)) => {
                skipped("template_not_found", format!("{place}: no template of the event type is for a {kind}"))
            }
            (Some(own), None) => {
                let detail =
                    format!("{} is reached on {own}, and the notification asks for {named}", party.field(kind));
                skipped(OFF_CHANNELS, detail)
            }
            (None, None) => skipped(OFF_CHANNELS, format!("{} cannot be reached on {named}", party.field(kind))),
        };
        Target::new(Facts::new(possible().next().unwrap_or("any"), party.recipient.value()), fate)
    }

    pub(super) fn no_template(&self) -> Expansion {
        let (event_type, named) = (&self.note.event_type, self.note.channels.join(", "));
        let on = if named.is_empty() { "for any recipient".to_owned() } else { format!("on {named}") };
        let detail =
            format!("no active template of event type {event_type:?} can be used {on}; create one, then retry");
        park("template_not_found", detail)
    }
}

/// The skipped delivery of a user without an address on the channel. A user that does not exist is told apart from one
/// that has no such address.
pub(super) fn without_address(party: &Party, channel: &str, known: Option<&KnownUser>) -> Fate {
    let user = party.field("user");
    if known.is_some_and(|user| user.profile.is_some()) {
        return skipped("no_address", format!("{user} has no address for {channel}"));
    }
    let id = party.recipient.value();
    let detail = format!("{user} {id:?} does not exist; create the user, then enqueue a notification for this user");
    skipped(UNKNOWN_USER, detail)
}

/// The first few texts, and how many more there are.
fn some_of(texts: &[String], separator: &str) -> String {
    let shown = texts.iter().take(NAMED).cloned().collect::<Vec<_>>().join(separator);
    match texts.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
