//! The nouns and the rules, without any I/O: what is stored, what a channel can answer, what we make of it.

mod actor;
mod delivery;
mod expand;
mod inbox;
mod judge;
mod notification;
mod outcome;
mod policy;
mod provider;
mod rate;
mod scope;

pub use actor::Actor;
pub use delivery::{Delivery, DeliveryId, DeliveryKey, DeliveryState, Facts, Finish, FinishedState, Reason};
pub use expand::{Expansion, Fate, IN_APP, Routes, Target, expand, lacks_in_app, recipients_of, route};
pub use inbox::InboxMessage;
pub use judge::{Case, Lost, MAX_ATTEMPTS_IN_ALL, MAX_LOSSES, Verdict, judge, key_window_over};
pub use notification::{SITE_CHARS, StoredNotification};
pub use outcome::{Because, Evidence, Outcome, Report};
pub use policy::{Policy, PolicyError, Schedule};
pub use provider::short_name;
pub use provider::{Guarantee, PROVIDERS, Provider, ProviderChange, ProviderDraft};
pub use rate::{Bucket, Rate};
pub use scope::{Scope, Scopes};
