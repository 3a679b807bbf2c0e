//! Says why a recipient is not reached, or why a whole notification reaches nobody.

use postcommit::{Recipient, channel_name};
use serde_json::{Value, json};

use super::fan::{Fan, Party, skipped};
use crate::model::Facts;
use crate::model::expand::{Expansion, Fate, Target, implied, park, parked, unknown_channel};
use crate::model::user::KnownUser;

/// The code of a recipient that can be reached only on channels that the notification does not name.
const OFF_CHANNELS: &str = "not_on_channels";
/// The code of a recipient that is an unknown user.
const UNKNOWN_USER: &str = "unknown_user";
/// The code of a notification or delivery for which there is no template.
const NO_TEMPLATE: &str = "template_not_found";
/// The field of a delivery's context that notes that its channel has no template.
const IN_CONTEXT: &str = "lacks_template";
/// The maximum number of recipients that a detail names.
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
            Some(why) if self.lacking.is_empty() => {
                park("no_recipient", format!("no recipient can be reached: {}", some_of(&why, "; ")))
            }
            _ => self.no_template(),
        }
    }

    /// Parks the notification if all its recipients are users that do not exist. A retry then finds the users that were
    /// created meanwhile. If there are other recipients, an unknown user is only skipped.
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
                skipped(NO_TEMPLATE, detail)
            }
            (None, Some(_)) => skipped(NO_TEMPLATE, format!("{place}: no template of the event type is for a {kind}")),
            (Some(own), None) => {
                let detail =
                    format!("{} is reached on {own}, and the notification asks for {named}", party.field(kind));
                skipped(OFF_CHANNELS, detail)
            }
            (None, None) => skipped(OFF_CHANNELS, format!("{} cannot be reached on {named}", party.field(kind))),
        };
        Target::new(Facts::new(possible().next().unwrap_or("any"), party.recipient.value()), fate)
    }

    /// Parks a notification for which there is no template. If it has templates, but names only channels that do not
    /// exist, the detail says so.
    pub(super) fn no_template(&self) -> Expansion {
        let named: Vec<&str> = self.note.channels.iter().map(|channel| channel_name(channel)).collect();
        if let ([first, ..], Some(_)) = (&named[..], self.choice)
            && !named.iter().any(|channel| self.routes.know(channel))
            && let Fate::Ended { code, detail, .. } = unknown_channel(first, self.routes)
        {
            return park(code, detail);
        }
        let on = if named.is_empty() { "for any recipient".to_owned() } else { format!("on {}", named.join(", ")) };
        park(NO_TEMPLATE, self.lack_of_template(&on))
    }

    /// The parked delivery on a channel that has no template.
    pub(super) fn no_template_on(&self, channel: &str) -> Fate {
        match self.routes.know(channel) {
            true => parked(NO_TEMPLATE, self.lack_of_template(&format!("on {channel}"))),
            false => unknown_channel(channel, self.routes),
        }
    }

    /// The target of a notification without recipients on a channel that has no template. It has no address, because
    /// the template would give it.
    pub(super) fn lacking_own(&self, channel: String) -> Target {
        let fate = self.no_template_on(&channel);
        Target::new(without_template(Facts { channel: Some(channel), ..Facts::default() }), fate)
    }

    fn lack_of_template(&self, on: &str) -> String {
        let event_type = &self.note.event_type;
        format!("no active template of event type {event_type:?} can be used {on}; create one, then retry")
    }
}

/// Notes in the context of a delivery that its channel has no template.
pub(super) fn without_template(facts: Facts) -> Facts {
    Facts { context: Some(json!({ IN_CONTEXT: true }).to_string()), ..facts }
}

/// Whether a delivery has no template because its channel had none when its notification was expanded. False for a
/// direct message, which needs no template.
#[must_use]
pub fn lacks_template(facts: &Facts) -> bool {
    let context = facts.context.as_deref().filter(|context| facts.template.is_none() && context.contains(IN_CONTEXT));
    let read = context.and_then(|context| serde_json::from_str::<Value>(context).ok());
    read.is_some_and(|context| context.get(IN_CONTEXT).is_some())
}

/// The skipped delivery of a user without an address on the channel. A user that does not exist at all gets a code of
/// its own.
pub(super) fn without_address(party: &Party, channel: &str, known: Option<&KnownUser>) -> Fate {
    let user = party.field("user");
    if known.is_some_and(|user| user.profile.is_some()) {
        return skipped("no_address", format!("{user} has no address for {channel}"));
    }
    let id = party.recipient.value();
    let detail = format!("{user} {id:?} does not exist; create the user, then enqueue a notification for this user");
    skipped(UNKNOWN_USER, detail)
}

/// Joins the first [`NAMED`] texts, and says how many more there are.
fn some_of(texts: &[String], separator: &str) -> String {
    let shown = texts.iter().take(NAMED).cloned().collect::<Vec<_>>().join(separator);
    match texts.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
