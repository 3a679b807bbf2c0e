//! Limits how many connections may be open concurrently, in total and from one address. The limit per address keeps one
//! client from taking all connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_engine::metrics::Metrics;
use tokio::sync::Notify;

use super::refusal::DoorRefusal;

/// The shortest time between two log lines about refused connections.
const SAY_EVERY: Duration = Duration::from_secs(10);

pub struct ConnectionLimit {
    connections: usize,
    per_address: usize,
    state: Mutex<OpenConnections>,
    left: Notify,
    metrics: Metrics,
}

#[derive(Default)]
struct OpenConnections {
    inside: usize,
    /// The number of open connections per address. Connections from trusted proxies are not in it.
    by_address: HashMap<IpAddr, usize>,
    refused: u64,
    said: Option<Instant>,
}

/// The right to have one connection open. Dropping it gives the right back.
pub struct Slot {
    limit: Arc<ConnectionLimit>,
    address: Option<IpAddr>,
}

impl ConnectionLimit {
    pub fn new(connections: usize, per_address: usize, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { connections, per_address, state: Mutex::default(), left: Notify::new(), metrics })
    }

    /// Takes a place for one more connection, or returns why it is refused. Trusted proxies are exempt from the limit
    /// per address, because one proxy carries many clients.
    pub fn enter(self: &Arc<Self>, peer: IpAddr, is_proxy: bool) -> Result<Slot, DoorRefusal> {
        let address = (!is_proxy).then(|| holder(peer));
        let mut state = self.state();
        if state.inside >= self.connections {
            let limit = self.connections;
            return Err(state.refuse(DoorRefusal::full(
                format!("{limit} connections are open, which is the limit; try again later"),
                limit,
            )));
        }
        if let Some(address) = address {
            let held = state.by_address.entry(address).or_default();
            if *held >= self.per_address {
                let limit = self.per_address;
                return Err(state.refuse(DoorRefusal::full(
                    format!("{limit} connections from this address are open, which is the limit; close one first"),
                    limit,
                )));
            }
            *held += 1;
        }
        state.inside += 1;
        self.metrics.connections.add(1);
        Ok(Slot { limit: self.clone(), address })
    }

    /// Waits until every connection is closed.
    pub async fn emptied(&self) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.inside() == 0 {
                return;
            }
            left.await;
        }
    }

    pub fn inside(&self) -> usize {
        self.state().inside
    }

    fn state(&self) -> MutexGuard<'_, OpenConnections> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    /// Counts a refusal and logs at most one line per [`SAY_EVERY`]. A line for every refusal would let an attacker
    /// flood the log.
    fn refuse(&mut self, refusal: DoorRefusal) -> DoorRefusal {
        self.refused += 1;
        let now = clock::monotonic();
        if self.said.is_none_or(|said| now - said >= SAY_EVERY) {
            self.said = Some(now);
            tracing::warn!(
                refused = self.refused,
                reason = refusal.detail(),
                "connections are refused, because a limit is reached"
            );
        }
        refusal
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.limit.state();
        state.inside -= 1;
        self.limit.metrics.connections.add(-1);
        if let Some(address) = self.address
            && let Some(held) = state.by_address.get_mut(&address)
        {
            *held -= 1;
            if *held == 0 {
                state.by_address.remove(&address);
            }
        }
        drop(state);
        self.limit.left.notify_waiters();
    }
}

/// The address that a client is counted under. An IPv6 client usually controls a whole /64 network, so its address is
/// reduced to that network.
pub fn holder(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_and_for_so_many_of_one() {
        let limit = ConnectionLimit::new(3, 2, Metrics::default());
        let enter = |peer: &str, is_proxy| {
            limit.enter(peer.parse().unwrap(), is_proxy).map_err(|refusal| refusal.detail().to_owned())
        };
        let first = enter("192.0.2.1", false).unwrap();
        let _second = enter("192.0.2.1", false).unwrap();
        assert!(enter("192.0.2.1", false).err().unwrap().starts_with("2 connections from this address"));
        let other = enter("192.0.2.2", false).unwrap();
        assert!(enter("192.0.2.3", false).err().unwrap().starts_with("3 connections are open"));
        drop(other);
        drop(first);
        let _third = enter("192.0.2.1", false).unwrap();
        assert_eq!(limit.inside(), 2);
        assert!(enter("192.0.2.1", false).is_err());
        let _proxy = enter("192.0.2.1", true).unwrap();
    }

    #[test]
    fn a_network_of_version_six_is_one_client() {
        let limit = ConnectionLimit::new(9, 1, Metrics::default());
        let _slot = limit.enter("2001:db8::1".parse().unwrap(), false).unwrap_or_else(|_| panic!("there is room"));
        assert!(limit.enter("2001:db8::2".parse().unwrap(), false).is_err());
        assert!(limit.enter("2001:db8:0:1::2".parse().unwrap(), false).is_ok());
    }
}
