//! Throttles and digests: they limit the messages of a template to one recipient. The rules are pure. The counts and
//! the collected events are in the database, and the transaction that writes the targets changes them.

use postcommit::{Recipient, Timestamp, key};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// The highest limit of a throttle, in messages per period.
pub const THROTTLE_MAX: u32 = 10_000;
/// The longest period of a throttle in seconds: 30 days.
pub const THROTTLE_PERIOD_S: u32 = 30 * 86_400;
/// The longest window of a digest in seconds: 7 days.
pub const DIGEST_WINDOW_S: u32 = 7 * 86_400;
/// The maximum number of characters of a digest's key.
pub const DIGEST_KEY_CHARS: usize = 255;
/// The maximum number of items of a digest. A full digest is sent immediately, and the next event begins a new digest.
pub const DIGEST_ITEMS: u32 = 500;
/// The maximum number of bytes of all payloads of a digest.
pub const DIGEST_BYTES: u64 = 2 * 1024 * 1024;

/// The code of a target that a throttle has skipped.
pub const THROTTLED: &str = "throttled";
/// The code of a target that was put into a digest.
pub const DIGESTED: &str = "digested";

/// A limit of the messages of a template to one recipient in a period. The period begins with its first message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Throttle {
    /// The maximum number of messages in a period.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub max: u32,
    /// The length of the period in seconds.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2592000))]
    pub per_s: u32,
    /// Whether messages above the limit are skipped or collected. Default: skipped.
    #[serde(default)]
    pub then: Then,
}

/// The treatment of messages above the limit of a throttle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Then {
    /// Skip the messages.
    #[default]
    Skip,
    /// Collect the messages in the template's digest.
    Digest,
}

/// The rule of a digest: the events of a recipient are collected for a window, then one message is sent for all of
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DigestRule {
    /// The window in seconds. It begins with the first event.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 604800))]
    pub window_s: u32,
    /// A field of the payload, such as `listingId`. Each value of the field gets its own digest. Without it, all events
    /// of the recipient are collected together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub key: Option<String>,
}

/// Checks the throttle and the digest of a template.
///
/// # Errors
/// Names the field, its value and what is allowed.
pub fn check_pacing(throttle: Option<&Throttle>, digest: Option<&DigestRule>) -> Result<(), String> {
    let within = |field: &str, value: u32, most: u32| match (1..=most).contains(&value) {
        true => Ok(()),
        false => Err(format!("{field}: is {value}; 1 to {most} are allowed")),
    };
    if let Some(throttle) = throttle {
        within("throttle.max", throttle.max, THROTTLE_MAX)?;
        within("throttle.per_s", throttle.per_s, THROTTLE_PERIOD_S)?;
    }
    if let Some(digest) = digest {
        within("digest.window_s", digest.window_s, DIGEST_WINDOW_S)?;
        let chars = digest.key.as_ref().map_or(1, |key| key.chars().count());
        if !(1..=DIGEST_KEY_CHARS).contains(&chars) {
            return Err(format!("digest.key: has {chars} characters; 1 to {DIGEST_KEY_CHARS} are allowed"));
        }
    }
    match (throttle.map(|throttle| throttle.then), digest) {
        (Some(Then::Digest), None) => {
            Err("throttle.then: is \"digest\", but the template has no digest; set `digest`, or write \"skip\"".into())
        }
        (Some(Then::Skip), Some(_)) => {
            Err("throttle.then: is \"skip\", but the template has a digest; write \"digest\", or remove the digest"
                .into())
        }
        _ => Ok(()),
    }
}

/// The throttle and the digest that the transaction must apply when it writes a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pacing {
    /// The throttle, and the hash under which the recipient's messages are counted.
    pub throttle: Option<(Uuid, Throttle)>,
    /// The digest that collects the event. With a throttle, it collects only events above the limit.
    pub digest: Option<Digesting>,
}

/// An event that may be collected in a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digesting {
    /// The hash of the template, the recipient and the key.
    pub key_hash: Uuid,
    /// The window of the digest. It begins with the first event.
    pub window: Duration,
    /// The event type of the event, which is also that of the digest's own notification.
    pub event_type: String,
    /// The name of the tenant.
    pub tenant_name: String,
    /// The recipient of the digest: an address, or a user, whose address is looked up when the digest is sent.
    pub recipient: Recipient,
    /// The priority, 0 to 9. 9 is sent first.
    pub priority: i16,
    /// The number of bytes of the event's payload.
    pub bytes: u64,
}

/// The decision about a target with a throttle or a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Send the target.
    Send,
    /// Skip the target.
    Skip,
    /// Put the target into the digest.
    Collect,
}

/// The messages to one recipient in the current period of a throttle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// The end of the period. If it has passed, the next message begins a new period.
    pub until: Timestamp,
    /// The number of messages in the period.
    pub sent: u32,
}

impl Pacing {
    /// Decides whether a target is sent, skipped or collected, and counts it if it is sent. `counted` is the end of the
    /// period in which the target was already counted, or `None`. A target is counted once per period.
    pub fn decide(&self, period: Option<&mut Period>, now: Timestamp, counted: Option<Timestamp>) -> Pace {
        let Some(((_, throttle), period)) = self.throttle.as_ref().zip(period) else {
            return if self.digest.is_some() { Pace::Collect } else { Pace::Send };
        };
        if now < period.until && counted == Some(period.until) {
            return Pace::Send;
        }
        if period.until <= now {
            *period = Period { until: now.plus(Duration::from_secs(throttle.per_s.into())), sent: 0 };
        }
        if period.sent < throttle.max {
            period.sent += 1;
            return Pace::Send;
        }
        match throttle.then {
            Then::Skip => Pace::Skip,
            Then::Digest if self.digest.is_some() => Pace::Collect,
            // This recipient cannot have a digest. Send the message, so that it is not lost.
            Then::Digest => Pace::Send,
        }
    }
}

/// The field of a delivery's context that holds the end of the period in which the throttle counted the delivery.
const IN_CONTEXT: &str = "counted_until";

impl Period {
    /// Records in a delivery's context that the delivery is counted in this period, so that it is not counted twice if
    /// it is parked before it is sent, and then retried.
    pub fn note_in(&self, context: &mut Option<String>) {
        let read = context.take().and_then(|context| serde_json::from_str(&context).ok());
        let mut own: Value = read.unwrap_or_else(|| json!({}));
        own[IN_CONTEXT] = self.until.as_micros().into();
        *context = Some(own.to_string());
    }

    /// The end of the period in which a delivery was counted.
    #[must_use]
    pub fn counted_until(context: Option<&str>) -> Option<Timestamp> {
        let context = context.filter(|context| context.contains(IN_CONTEXT))?;
        let until = serde_json::from_str::<Value>(context).ok()?.get(IN_CONTEXT)?.as_i64()?;
        Some(Timestamp::from_micros(until))
    }

    /// Removes the end of the period from a context, because templates must not read it.
    pub fn remove_from(context: &mut serde_json::Map<String, Value>) {
        context.remove(IN_CONTEXT);
    }
}

/// A digest while it is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenDigest {
    /// The id of the digest's own notification.
    pub id: Uuid,
    /// The number of events in the digest.
    pub items: u32,
    /// The number of bytes of the events' payloads.
    pub bytes: u64,
}

impl OpenDigest {
    /// Whether an event of this size fits into the digest. The first event always fits.
    #[must_use]
    pub fn has_room_for(&self, bytes: u64) -> bool {
        self.items == 0 || (self.items < DIGEST_ITEMS && self.bytes + bytes <= DIGEST_BYTES)
    }

    /// Adds an event.
    pub fn add(&mut self, bytes: u64) {
        self.items += 1;
        self.bytes += bytes;
    }

    /// Whether the digest is full, so that it is sent before the end of its window.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.items >= DIGEST_ITEMS || self.bytes >= DIGEST_BYTES
    }
}

/// The hash of several strings, such as a template and a recipient.
pub(super) fn hash(what: &str, parts: &[&str]) -> Uuid {
    let hash = Sha256::digest(key::of(what, parts));
    Uuid::from_slice(hash.get(..16).unwrap_or_default()).unwrap_or_default()
}

/// The payload with which a digest is rendered: the fields of its first item, `items` (a list of all payloads) and
/// `count`.
#[must_use]
pub fn digest_payload(items: &[Box<RawValue>]) -> Box<RawValue> {
    let first = items.first().map_or("{}", |first| first.get());
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(first).unwrap_or_default();
    let own = [("items".to_owned(), serde_json::to_string(items)), ("count".to_owned(), Ok(items.len().to_string()))];
    let own: BTreeMap<String, Box<RawValue>> =
        own.into_iter().filter_map(|(name, json)| Some((name, RawValue::from_string(json.ok()?).ok()?))).collect();
    let mut merged = fields;
    merged.extend(own.iter().map(|(name, value)| (name.clone(), &**value)));
    serde_json::value::to_raw_value(&merged).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    fn throttle(max: u32, then: Then) -> Throttle {
        Throttle { max, per_s: 60, then }
    }

    fn digesting() -> Digesting {
        Digesting {
            key_hash: Uuid::nil(),
            window: Duration::from_secs(60),
            event_type: "a".into(),
            tenant_name: "default".into(),
            recipient: Recipient::user("1"),
            priority: 5,
            bytes: 2,
        }
    }

    #[test]
    fn a_throttle_lets_so_many_pass_in_a_period_and_begins_another_with_the_next() {
        let t0 = Timestamp::from_micros(1_800_000_000_000_000);
        let at = |seconds| t0.plus(Duration::from_secs(seconds));
        for (then, rest) in [(Then::Skip, Pace::Skip), (Then::Digest, Pace::Collect)] {
            let digest = (then == Then::Digest).then(digesting);
            let pacing = Pacing { throttle: Some((Uuid::nil(), throttle(2, then))), digest };
            let mut period = Period { until: t0, sent: 0 };
            let times = [0, 1, 2, 59, 60, 61, 119, 120];
            let paces = times.map(|second| pacing.decide(Some(&mut period), at(second), None));
            assert_eq!(paces, [Pace::Send, Pace::Send, rest, rest, Pace::Send, Pace::Send, rest, Pace::Send]);
        }
        let pacing = Pacing { throttle: Some((Uuid::nil(), throttle(1, Then::Skip))), digest: None };
        let mut full = Period { until: at(60), sent: 1 };
        let mut context = Some(r#"{"name":"Ana"}"#.to_owned());
        full.note_in(&mut context);
        let counted = Period::counted_until(context.as_deref());
        assert_eq!(
            (context.as_deref(), counted),
            (Some(r#"{"counted_until":1800000060000000,"name":"Ana"}"#), Some(at(60)))
        );
        assert_eq!((pacing.decide(Some(&mut full), at(1), counted), full.sent), (Pace::Send, 1), "counted before");
        assert_eq!(pacing.decide(Some(&mut full), at(1), Some(at(59))), Pace::Skip, "in another period");
        assert_eq!(
            (pacing.decide(Some(&mut full), at(60), counted), full.until),
            (Pace::Send, at(120)),
            "in the next one"
        );
        let without = Pacing { throttle: Some((Uuid::nil(), throttle(1, Then::Digest))), digest: None };
        let mut period = Period { until: at(60), sent: 1 };
        assert_eq!(without.decide(Some(&mut period), t0, None), Pace::Send, "rather than lost");
        let collects = Pacing { throttle: None, digest: Some(digesting()) };
        assert_eq!(collects.decide(None, t0, None), Pace::Collect);
    }

    #[test]
    fn a_digest_is_full_by_items_or_bytes_and_takes_any_first_item() {
        let mut digest = OpenDigest { id: Uuid::nil(), items: 0, bytes: 0 };
        assert!(digest.has_room_for(DIGEST_BYTES + 1));
        for _ in 0..DIGEST_ITEMS {
            assert!(digest.has_room_for(10) && !digest.is_full());
            digest.add(10);
        }
        assert!(!digest.has_room_for(10) && digest.is_full());
        let mut large = OpenDigest { id: Uuid::nil(), items: 0, bytes: 0 };
        large.add(DIGEST_BYTES - 10);
        assert!(!large.is_full() && large.has_room_for(10) && !large.has_room_for(11));
        large.add(10);
        assert!(large.is_full());
    }

    #[test]
    fn a_digest_has_the_fields_of_its_first_item_and_all_items_with_every_digit() {
        let items = [raw(r#"{"price": 1.50, "count": 7, "name": "Ada"}"#), raw(r#"{"price": 2.00}"#)];
        let payload = digest_payload(&items);
        assert_eq!(
            payload.get(),
            r#"{"count":2,"items":[{"price": 1.50, "count": 7, "name": "Ada"},{"price": 2.00}],"name":"Ada","price":1.50}"#
        );
        assert_eq!(digest_payload(&[]).get(), r#"{"count":0,"items":[]}"#);
    }

    #[test]
    fn the_rules_of_a_template_are_checked() {
        let digest = |window_s, key: Option<&str>| DigestRule { window_s, key: key.map(str::to_owned) };
        let (hour, skip) = (digest(3600, Some("listingId")), throttle(3, Then::Skip));
        for (throttle, digest) in [(None, None), (Some(&skip), None), (None, Some(&hour))] {
            assert_eq!(check_pacing(throttle, digest), Ok(()));
        }
        assert_eq!(check_pacing(Some(&throttle(3, Then::Digest)), Some(&hour)), Ok(()));
        for (throttle, digest, field) in [
            (Some(throttle(0, Then::Skip)), None, "throttle.max: is 0; 1 to 10000 are allowed"),
            (Some(Throttle { per_s: 0, ..skip.clone() }), None, "throttle.per_s: is 0; 1 to 2592000 are allowed"),
            (None, Some(digest(604_801, None)), "digest.window_s: is 604801; 1 to 604800 are allowed"),
            (None, Some(digest(1, Some(""))), "digest.key: has 0 characters; 1 to 255 are allowed"),
            (Some(throttle(1, Then::Digest)), None, "throttle.then: is \"digest\", but the template has no digest"),
            (Some(skip), Some(hour), "throttle.then: is \"skip\", but the template has a digest"),
        ] {
            let problem = check_pacing(throttle.as_ref(), digest.as_ref()).unwrap_err();
            assert!(problem.starts_with(field), "{problem}");
        }
    }
}
