//! Checks the channels: whether their messages are sent, only recorded, or parked.

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit_channel::driver::{self, Destination};
use postcommit_channel::model::{IN_APP, Provider};
use postcommit_engine::store::{ChannelInUse, OTHER, Store};

use super::{Finding, finding};
use crate::output::Failure;

/// A channel without a delivery in this period counts as not in use.
const IN_USE: Duration = Duration::from_secs(7 * 86_400);

fn goes(provider: &Provider, to: Destination) -> bool {
    driver::destination(&provider.driver) == to
}

/// Turns the finding into a warning if the provider only records messages that another provider should send.
pub fn captured(one: &Provider, all: &[Provider], found: Finding) -> Finding {
    if !(goes(one, Destination::Record) && one.is_default && one.enabled) {
        return found;
    }
    let takes = if one.channel == "*" {
        "every channel without a default provider of its own".to_owned()
    } else {
        format!("the channel {}", one.channel)
    };
    let sends = |other: &Provider| other.tenant == one.tenant && other.enabled && goes(other, Destination::Service);
    let alone = if all.iter().any(sends) {
        ""
    } else {
        "; no provider sends messages, which is fine for a trial: `postcommit providers create` creates a provider that sends"
    };
    let detail = format!("{}: it serves {takes}; it only records messages and sends nothing{alone}", found.detail);
    finding("provider", "warning", detail)
}

/// Reports channels that are in use but have no provider.
pub async fn unserved(
    store: &Store,
    providers: &[Provider],
    tenants: &BTreeMap<i32, String>,
) -> Result<Vec<Finding>, Failure> {
    let serves = |provider: &Provider, used: &ChannelInUse| {
        provider.tenant == used.tenant
            && provider.enabled
            && (provider.channel == used.channel || provider.channel == "*")
    };
    // The provider for inboxes is created when it is first needed.
    let is_served = |used: &ChannelInUse| {
        [IN_APP, OTHER].contains(&used.channel.as_str()) || providers.iter().any(|provider| serves(provider, used))
    };
    let in_use = store.channels_in_use(IN_USE).await?;
    Ok(in_use.iter().filter(|used| !is_served(used)).map(|used| unserved_channel(used, tenants)).collect())
}

fn unserved_channel(used: &ChannelInUse, tenants: &BTreeMap<i32, String>) -> Finding {
    let channel = &used.channel;
    let (shown, flag) = match tenants.get(&used.tenant).map(String::as_str) {
        None | Some("default") => (channel.clone(), String::new()),
        Some(tenant) => (format!("{tenant}/{channel}"), format!(" --tenant {tenant}")),
    };
    let create = format!("`postcommit providers create NAME --driver DRIVER --channel {channel}{flag}`");
    match used.is_parked {
        true => finding(
            "channel",
            "problem",
            format!(
                "{shown}: no provider serves this channel, so its deliveries are parked: {create}, then retry them"
            ),
        ),
        false => finding(
            "channel",
            "warning",
            format!(
                "{shown}: this channel was used in the last 7 days and no provider serves it now: its deliveries will \
                 be parked; {create}"
            ),
        ),
    }
}
