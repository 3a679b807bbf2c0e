//! The unsubscribe links of a batch. Keys and mandatory event types are read once for the batch, and only if a template
//! shows a link.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

use postcommit_channel::model::{ANY, Facts, StoredNotification};
use postcommit_channel::secret::random;
use postcommit_channel::template::{IS_MANDATORY, NO_PUBLIC_URL};

use crate::db::DbError;
use crate::store::Store;
use crate::unsubscribe::{Unsubscribe, Who};

/// Signs unsubscribe links. Some deliveries have no link, and the error says why.
#[derive(Default)]
pub struct Links {
    public_url: String,
    keys: HashMap<i32, Vec<u8>>,
    mandatory: HashSet<(i32, String)>,
}

impl Links {
    /// Reads the keys and the mandatory event types of tenants. A tenant without a key gets one.
    pub async fn load(store: &Store, public_url: &str, event_types: BTreeSet<(i32, String)>) -> Result<Self, DbError> {
        if public_url.is_empty() || event_types.is_empty() {
            return Ok(Self::default());
        }
        let tenants: BTreeSet<i32> = event_types.iter().map(|(tenant, _)| *tenant).collect();
        let (mut keys, mandatory) =
            tokio::try_join!(store.inbox_token_keys(&tenants), store.mandatory_among(&event_types))?;
        for tenant in tenants {
            if let Entry::Vacant(unknown) = keys.entry(tenant) {
                unknown.insert(store.inbox_token_key_or(tenant, random()).await?.key);
            }
        }
        Ok(Self { public_url: public_url.to_owned(), keys, mandatory })
    }

    /// Returns the link for the recipient of a delivery. If the recipient is a user, the link stops messages of this
    /// event type on this channel. Otherwise it suppresses the address on the channel. Every attempt gets the same
    /// link.
    pub fn url(&self, facts: &Facts, note: &StoredNotification) -> Result<String, &'static str> {
        let key = self.keys.get(&note.tenant).ok_or(NO_PUBLIC_URL)?;
        if self.mandatory.contains(&(note.tenant, note.event_type.clone())) {
            return Err(IS_MANDATORY);
        }
        let (who, event_type) = match &facts.user_id {
            Some(user) => (Who::User(user.clone()), note.event_type.clone()),
            None => (Who::Address(facts.target().to_owned()), ANY.to_owned()),
        };
        let channel = facts.channel().to_owned();
        Ok(Unsubscribe { tenant: note.tenant, who, event_type, channel }.url(&self.public_url, key))
    }
}
