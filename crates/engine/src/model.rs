//! The nouns and the rules, without any I/O: what is stored, what a channel can answer, what we make of it.

mod delivery;
mod expand;
mod judge;
mod notification;
mod outcome;
mod policy;
mod provider;
mod rate;

pub use delivery::{Delivery, DeliveryId, DeliveryKey, Finish, FinishedState, Reason};
pub use expand::{Expansion, Fate, Routes, Target, expand, route};
pub use judge::{Case, MAX_LOSSES, Verdict, judge, key_window_over};
pub use notification::StoredNotification;
pub use outcome::{Because, Evidence, Outcome, Report};
pub use policy::{Policy, PolicyError, Schedule};
pub use provider::{Guarantee, Provider, ProviderDraft};
pub use rate::{Bucket, Rate};
