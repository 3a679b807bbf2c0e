//! The three records and what must hold between them (PROMISE.md §2.4). Nothing here depends on how the product works
//! inside.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;

use postcommit_testkit::HttpServer;

use crate::installation::{Guarantee, Installation, Row};

/// All answers that the client got.
#[derive(Clone, Debug, Default)]
pub struct Told(pub Vec<Answer>);

/// One answer, and what the client knows about its request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub key: String,
    pub id: String,
    /// How many recipients the notification has.
    pub targets: usize,
}

/// The addresses of `targets` recipients. The last part of an address is the number that its delivery must have.
pub fn addresses(url: &str, targets: usize) -> Vec<String> {
    (1..=targets).map(|n| format!("{url}/{n}")).collect()
}

/// One finished delivery.
#[derive(Clone, Debug, PartialEq)]
struct Finished {
    /// The key that a receiver sees.
    webhook_id: String,
    notification: String,
    state: String,
    reason: String,
}

/// The three records, read when nothing is left to do.
pub struct Records {
    told: Told,
    /// The id and key of every notification.
    notifications: Vec<(String, String)>,
    ledger: Vec<Finished>,
    /// The id and number of the rows that are left in the queue.
    queue: Vec<Row>,
    /// Deliveries with more than one successful attempt.
    sent_twice: Vec<Row>,
    /// How often each webhook id arrived.
    journal: HashMap<String, usize>,
    /// Requests whose webhook id does not match the notification in their body and the recipient in their address.
    mislabelled: Vec<String>,
}

/// The result in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub notifications: usize,
    /// All recipients that the client named.
    pub targets: usize,
    pub sent: usize,
    pub parked: usize,
    pub requests: usize,
    /// Requests after the first with the same id.
    pub repeats: usize,
}

impl Records {
    /// `journal` says how often each webhook id arrived; it comes from a file where the receiver writes one.
    pub fn read(
        told: Told,
        installation: &Installation,
        receiver: &HttpServer,
        journal: HashMap<String, usize>,
    ) -> Self {
        let pair = |row: Row| (row[0].clone(), row[1].clone());
        let notifications = installation.rows("SELECT id, idempotency_key FROM postcommit.notification");
        let ledger = installation.rows("SELECT notification_id, n, state, reason FROM postcommit.delivery_ledger");
        Self {
            told,
            notifications: notifications.into_iter().map(pair).collect(),
            ledger: ledger.iter().map(finished).collect(),
            queue: installation.rows("SELECT notification_id, n FROM postcommit.delivery_queue"),
            sent_twice: installation.rows(
                "SELECT notification_id, n \
                    FROM postcommit.attempt \
                    WHERE outcome IN ('sent', 'delivered') \
                    GROUP BY notification_id, n HAVING count(*) > 1",
            ),
            journal,
            mislabelled: receiver.requests().iter().filter_map(mislabelled).collect(),
        }
    }

    pub fn counts(&self) -> Counts {
        let of_state = |state: &str| self.ledger.iter().filter(|row| row.state == state).count();
        let requests = self.journal.values().sum();
        let targets: HashMap<&str, usize> =
            self.told.0.iter().map(|answer| (answer.key.as_str(), answer.targets)).collect();
        Counts {
            notifications: self.notifications.len(),
            targets: targets.into_values().sum(),
            sent: of_state("sent"),
            parked: of_state("parked"),
            requests,
            repeats: requests - self.journal.len(),
        }
    }

    /// All violations, each with its evidence.
    pub fn violations(&self, guarantee: Guarantee) -> Vec<String> {
        [
            self.durability(),
            self.no_limbo(),
            self.one_per_key(),
            self.keys_are_stable(),
            self.honesty(guarantee),
            self.repeats(guarantee),
        ]
        .concat()
    }

    /// N1: every id that the client was told exists, under the key of its request.
    fn durability(&self) -> Vec<String> {
        let known: HashSet<(&str, &str)> =
            self.notifications.iter().map(|(id, key)| (key.as_str(), id.as_str())).collect();
        let lost: Vec<_> =
            self.told.0.iter().filter(|answer| !known.contains(&(answer.key.as_str(), answer.id.as_str()))).collect();
        violation("N1 told to the client, not in the database", &lost)
    }

    /// N2: nothing is left in the queue, and every recipient of every notification has exactly one outcome, under its
    /// own number.
    fn no_limbo(&self) -> Vec<String> {
        let targets: HashMap<&str, usize> =
            self.told.0.iter().map(|answer| (answer.key.as_str(), answer.targets)).collect();
        let mut outcomes: HashMap<&str, Vec<&str>> = HashMap::new();
        for row in &self.ledger {
            outcomes.entry(&row.notification).or_default().push(&row.webhook_id);
        }
        outcomes.values_mut().for_each(|ids| ids.sort_unstable());
        let wanted = |id: &str, key: &str| {
            (1..=targets.get(key).copied().unwrap_or(1)).map(|n| format!("{id}_{n}")).collect::<Vec<_>>()
        };
        let has_all = |id: &str, key: &str| outcomes.get(id).is_some_and(|ids| *ids == wanted(id, key));
        let odd: Vec<_> = self.notifications.iter().filter(|(id, key)| !has_all(id, key)).collect();
        let known: HashSet<&str> = self.notifications.iter().map(|(id, _)| id.as_str()).collect();
        let strange: Vec<_> = self.ledger.iter().filter(|row| !known.contains(row.notification.as_str())).collect();
        [
            violation("N2 left in the queue", &self.queue),
            violation("N2 not exactly one ledger row for each recipient", &odd),
            violation("N2 in the ledger without a notification", &strange),
            violation("N3 more than one attempt that succeeded", &self.sent_twice),
        ]
        .concat()
    }

    /// N6: one notification per key, and one for every key that the client used.
    fn one_per_key(&self) -> Vec<String> {
        let mut by_key: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, key) in &self.notifications {
            *by_key.entry(key).or_default() += 1;
        }
        let asked: HashSet<&str> = self.told.0.iter().map(|answer| answer.key.as_str()).collect();
        let odd: Vec<_> = by_key.into_iter().filter(|(key, count)| *count != 1 || !asked.contains(key)).collect();
        violation("N6 a key with more than one notification, or with one that no client enqueued", &odd)
    }

    /// N5: all requests of one delivery carry its own webhook id.
    fn keys_are_stable(&self) -> Vec<String> {
        let known: HashSet<&str> = self.ledger.iter().map(|row| row.webhook_id.as_str()).collect();
        let strange: Vec<_> = self.journal.keys().filter(|id| !known.contains(id.as_str())).collect();
        [
            violation("N5 a webhook id of no delivery", &strange),
            violation("N5 a webhook id that is not the body's and the address's", &self.mislabelled),
        ]
        .concat()
    }

    /// N7: sent means that it arrived. A delivery that arrived and is not sent has an unknown outcome in the ledger.
    fn honesty(&self, guarantee: Guarantee) -> Vec<String> {
        let arrived = |row: &Finished| self.journal.contains_key(&row.webhook_id);
        let unknown = |row: &Finished| {
            guarantee == Guarantee::AtMostOnce && row.state == "parked" && row.reason == "outcome_unknown"
        };
        let false_success: Vec<_> = self.ledger.iter().filter(|row| row.state == "sent" && !arrived(row)).collect();
        let false_failure: Vec<_> = self.ledger.iter().filter(|row| row.state != "sent" && !unknown(row)).collect();
        [
            violation("N7 sent, and the receiver knows nothing of it", &false_success),
            violation("N7 neither sent nor honestly unknown", &false_failure),
        ]
        .concat()
    }

    /// N4 and N5: at most one request per delivery, or at least one with the same id, depending on the guarantee.
    fn repeats(&self, guarantee: Guarantee) -> Vec<String> {
        if guarantee == Guarantee::AtMostOnce {
            let repeated: Vec<_> = self.journal.iter().filter(|(_, count)| **count > 1).collect();
            return violation("N4 at_most_once, and more than one request", &repeated);
        }
        let missing: Vec<_> = self.ledger.iter().filter(|row| !self.journal.contains_key(&row.webhook_id)).collect();
        violation("N5 no effect", &missing)
    }
}

/// The whole ledger as text, to check that nothing in it has changed.
pub fn ledger(installation: &Installation) -> Vec<Row> {
    installation.rows(
        "SELECT tenant, notification_id, n, state, reason, code, detail, attempts, seq, unclear, provider_ref, sent_at, finished_at
         FROM postcommit.delivery_ledger ORDER BY notification_id, n",
    )
}

/// The number of late results so far.
pub fn stale_settles(installation: &Installation) -> usize {
    installation.count("SELECT count(*) FROM postcommit.stale_settle")
}

fn finished(row: &Row) -> Finished {
    let [notification, n, state, reason] = row.as_slice() else { panic!("{row:?}") };
    Finished {
        webhook_id: format!("{notification}_{n}"),
        notification: notification.clone(),
        state: state.clone(),
        reason: reason.clone(),
    }
}

fn mislabelled(request: &postcommit_testkit::Request) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let expected =
        format!("{}_{}", body["id"].as_str().unwrap_or_default(), request.path.rsplit('/').next().unwrap_or_default());
    let labelled = request.header("webhook-id").unwrap_or_default();
    (labelled != expected).then(|| format!("{labelled} instead of {expected}"))
}

/// One line for the violations found. Empty when there are none.
fn violation<T: Debug>(what: &str, found: &[T]) -> Vec<String> {
    if found.is_empty() { vec![] } else { vec![format!("{what}: {}: {:?}", found.len(), &found[..found.len().min(3)])] }
}
