//! The data types and the rules, without any I/O: stored records, outcomes of sends, and the decisions after a send.

mod actor;
mod breaker;
mod content;
mod delivery;
mod error_class;
mod expand;
mod failover;
mod fan_out;
mod inbox;
mod judge;
mod notification;
mod outcome;
mod pacing;
mod policy;
mod provider;
mod quiet_hours;
mod rate;
mod receipt;
mod scope;
mod user;

pub use actor::Actor;
pub use breaker::{BREAKER_COOL_DOWN_S, BREAKER_FAILURES, Health, LONGEST_COOL_DOWN, cool_down};
pub use content::{Choice, TemplateEntry, TenantContent};
pub use delivery::{Delivery, DeliveryId, DeliveryKey, DeliveryState, Facts, Finish, FinishedState, Reason};
pub use error_class::ErrorClass;
pub use expand::{
    CHANNELS, Expansion, Fate, IN_APP, Routes, Target, expand, lacks_in_app, needs_in_app, reachable, recipients_of,
    route,
};
pub use failover::{CHAIN, FAILOVER_AFTER_S, Link, MAX_MOVES, can_follow, check_chains, may_move};
pub use fan_out::{
    Found, Lookup, NoAddress, OwnAddress, Pin, as_retried, fan_out, fan_out_part, lacks_template, lookup, lookup_again,
    named_members, narrowed, retried, skip_seen, skip_suppressed,
};
pub use inbox::InboxMessage;
pub use judge::{Case, Lost, MAX_ATTEMPTS_IN_ALL, MAX_LOSSES, Verdict, judge, key_window_over};
pub use notification::{DIGEST_KEY, Maker, RESEND_KEY, SITE_CHARS, StoredNotification};
pub use outcome::{Because, Evidence, Outcome, Report};
pub use pacing::{
    DIGEST_BYTES, DIGEST_ITEMS, DIGESTED, DigestRule, Digesting, OpenDigest, Pace, Pacing, Period, THROTTLED, Then,
    Throttle, check_pacing, digest_payload,
};
pub use policy::{Policy, PolicyError, Schedule};
pub use provider::short_name;
pub use provider::{Guarantee, PROVIDERS, Provider, ProviderChange, ProviderDraft, TIMEOUT_MS};
pub use quiet_hours::{QuietHours, QuietRule, QuietWindow};
pub use rate::{Bucket, Rate};
pub use receipt::{Happened, ReceiptEffect, Reported, Standing, receipt_effect};
pub use scope::{Scope, Scopes};
pub use user::{
    ADDRESS_KINDS, ANY, KnownUser, ListMember, Preference, Profile, address, channels_of_kind, comparable,
    kind_of_channel,
};
