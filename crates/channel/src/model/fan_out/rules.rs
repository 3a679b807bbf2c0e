//! The rules of a template for each of its targets: the send key, the throttle and the digest.

use std::time::Duration;

use postcommit::{Recipient, key};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::fan::recipient_on;
use crate::model::content::TemplateEntry;
use crate::model::expand::IN_APP;
use crate::model::pacing::hash;
use crate::model::user::{comparable, kind_of_channel};
use crate::model::{Digesting, Facts, Maker, Pacing, StoredNotification};
use crate::template::FlatPayload;

/// The data of a notification that the rules of its templates read.
#[derive(Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) note: &'a StoredNotification,
    pub(super) payload: &'a FlatPayload,
    pub(super) maker: Maker,
}

impl Rules<'_> {
    /// The send key that is stored with a delivery. A resend and a digest use their own idempotency keys, so they are
    /// never duplicates.
    pub(super) fn send_key(&self, entry: &TemplateEntry) -> Option<String> {
        if self.maker != Maker::Application {
            return Some(self.note.idempotency_key.clone());
        }
        let entity = self.note.entity.as_deref().filter(|_| entry.once_per_entity)?;
        Some(key::of(entity, &[&self.note.event_type, &entry.channel, &entry.id]))
    }

    /// The hash that is stored for a delivery that is sent once per entity: the hash of its send key and its recipient.
    /// If the template itself gives the address, the template counts as the recipient, so that a changed phone number
    /// causes no second send.
    pub(super) fn once(&self, entry: &TemplateEntry, facts: &Facts, is_own: bool) -> Option<Uuid> {
        if self.maker != Maker::Application || !entry.once_per_entity {
            return None;
        }
        let (kind, recipient) = match &facts.user_id {
            _ if is_own => ("template", entry.id.clone()),
            Some(user) => ("user", user.clone()),
            None => ("address", comparable(facts.target()).into_owned()),
        };
        let hash = Sha256::digest(key::of(kind, &[facts.send_key.as_deref()?, &recipient]));
        Uuid::from_slice(hash.get(..16)?).ok()
    }

    /// The throttle and the digest that apply to a target. `None` if the template has neither. Also `None` for a
    /// resend, because an operator requested that message, and for a digest, because a digest is not collected into
    /// another digest.
    pub(super) fn pacing(&self, entry: &TemplateEntry, facts: &Facts) -> Option<Pacing> {
        if (entry.throttle.is_none() && entry.digest.is_none()) || self.maker != Maker::Application {
            return None;
        }
        let address = comparable(facts.target());
        let (kind, recipient) = match &facts.user_id {
            Some(user) => ("user", user.as_str()),
            None => ("address", &*address),
        };
        let throttle =
            entry.throttle.clone().map(|throttle| (hash("throttle", &[&entry.id, kind, recipient]), throttle));
        let digest = entry.digest.as_ref().and_then(|rule| {
            let key = rule.key.as_deref().and_then(|key| self.payload.text(key)).unwrap_or_default();
            Some(Digesting {
                key_hash: hash("digest", &[&entry.id, kind, recipient, key]),
                window: Duration::from_secs(rule.window_s.into()),
                event_type: self.note.event_type.clone(),
                tenant_name: self.note.tenant_name.clone(),
                recipient: reached_recipient(facts)?,
                priority: self.note.priority,
                bytes: self.note.payload.get().len() as u64,
            })
        });
        (throttle.is_some() || digest.is_some()).then_some(Pacing { throttle, digest })
    }
}

/// The recipient of a delivery, in a form that another notification can name. `None` for an address on a channel that
/// Postcommit does not know, because such an address cannot be named as a recipient.
pub(in crate::model) fn reached_recipient(facts: &Facts) -> Option<Recipient> {
    match (&facts.user_id, &facts.provider) {
        (Some(user), _) => Some(Recipient::user(user.as_str())),
        (None, Some(provider)) => Some(Recipient::at(provider.as_str(), facts.target())),
        (None, None) if facts.channel() != IN_APP && kind_of_channel(facts.channel()).is_none() => None,
        (None, None) => Some(recipient_on(facts.channel(), facts.target().to_owned())),
    }
}
