//! The three records and what must hold between them (PROMISE.md §2.4). Nothing here knows how the product works inside.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;

use postcommit_testkit::HttpServer;

use crate::installation::{Guarantee, Installation, Row};

/// What the client was told, once per answer.
#[derive(Clone, Debug, Default)]
pub struct Told(pub Vec<Answer>);

/// One answer, and what the client knows about its own question.
#[derive(Clone, Debug)]
pub struct Answer {
    pub key: String,
    pub id: String,
    /// How many recipients it named.
    pub targets: usize,
}

/// The addresses of so many recipients: the number that a delivery must carry is the last part of its address.
pub fn addresses(url: &str, targets: usize) -> Vec<String> {
    (1..=targets).map(|n| format!("{url}/{n}")).collect()
}

/// One finished delivery.
#[derive(Clone, Debug, PartialEq)]
struct Finished {
    /// The key a receiver sees.
    webhook_id: String,
    notification: String,
    state: String,
    reason: String,
}

/// The three of them, read when everything has come to rest.
pub struct Records {
    told: Told,
    /// Id and key of every notification.
    notifications: Vec<(String, String)>,
    ledger: Vec<Finished>,
    /// Id and number of what is left in the queue.
    queue: Vec<Row>,
    /// Deliveries with more than one attempt that succeeded.
    sent_twice: Vec<Row>,
    /// How often each webhook id arrived.
    journal: HashMap<String, usize>,
    /// Requests whose webhook id is not that of the notification in their body and the recipient in their address.
    mislabelled: Vec<String>,
}

/// How it ended, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub notifications: usize,
    /// Recipients that the client named, each once.
    pub targets: usize,
    pub sent: usize,
    pub parked: usize,
    pub requests: usize,
    /// Requests beyond the first of their id.
    pub repeats: usize,
}

impl Records {
    /// `journal` is how often each webhook id arrived: a file, where the receiver writes one.
    pub fn read(told: Told, installation: &Installation, receiver: &HttpServer, journal: HashMap<String, usize>) -> Self {
        let pair = |row: Row| (row[0].clone(), row[1].clone());
        let notifications = installation.rows("SELECT id, idempotency_key FROM postcommit.notification");
        let ledger = installation.rows("SELECT notification_id, n, state, reason FROM postcommit.delivery_ledger");
        Self {
            told,
            notifications: notifications.into_iter().map(pair).collect(),
            ledger: ledger.iter().map(finished).collect(),
            queue: installation.rows("SELECT notification_id, n FROM postcommit.delivery_queue"),
            sent_twice: installation.rows(
                "SELECT notification_id, n FROM postcommit.attempt WHERE outcome IN ('sent', 'delivered') GROUP BY notification_id, n HAVING count(*) > 1",
            ),
            journal,
            mislabelled: receiver.requests().iter().filter_map(mislabelled).collect(),
        }
    }

    pub fn counts(&self) -> Counts {
        let of_state = |state: &str| self.ledger.iter().filter(|row| row.state == state).count();
        let requests = self.journal.values().sum();
        let targets: HashMap<&str, usize> = self.told.0.iter().map(|answer| (answer.key.as_str(), answer.targets)).collect();
        Counts {
            notifications: self.notifications.len(),
            targets: targets.into_values().sum(),
            sent: of_state("sent"),
            parked: of_state("parked"),
            requests,
            repeats: requests - self.journal.len(),
        }
    }

    /// Everything that does not hold, each with its evidence.
    pub fn violations(&self, guarantee: Guarantee) -> Vec<String> {
        [self.durability(), self.no_limbo(), self.one_per_key(), self.keys_are_stable(), self.honesty(guarantee), self.repeats(guarantee)]
            .concat()
    }

    /// N1: every id the client was told exists, under the key it was told for.
    fn durability(&self) -> Vec<String> {
        let known: HashSet<(&str, &str)> = self.notifications.iter().map(|(id, key)| (key.as_str(), id.as_str())).collect();
        let lost: Vec<_> = self.told.0.iter().filter(|answer| !known.contains(&(answer.key.as_str(), answer.id.as_str()))).collect();
        violation("N1 told to the client, not in the database", &lost)
    }

    /// N2: nothing is left in the queue, and every recipient of every notification has exactly one outcome, under its own number.
    fn no_limbo(&self) -> Vec<String> {
        let targets: HashMap<&str, usize> = self.told.0.iter().map(|answer| (answer.key.as_str(), answer.targets)).collect();
        let mut outcomes: HashMap<&str, Vec<&str>> = HashMap::new();
        for row in &self.ledger {
            outcomes.entry(&row.notification).or_default().push(&row.webhook_id);
        }
        outcomes.values_mut().for_each(|ids| ids.sort_unstable());
        let wanted = |id: &str, key: &str| (1..=targets.get(key).copied().unwrap_or(1)).map(|n| format!("{id}_{n}")).collect::<Vec<_>>();
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

    /// N6: one notification per key, and one per key the client used.
    fn one_per_key(&self) -> Vec<String> {
        let mut by_key: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, key) in &self.notifications {
            *by_key.entry(key).or_default() += 1;
        }
        let asked: HashSet<&str> = self.told.0.iter().map(|answer| answer.key.as_str()).collect();
        let odd: Vec<_> = by_key.into_iter().filter(|(key, count)| *count != 1 || !asked.contains(key)).collect();
        violation("N6 a key with more than one notification, or with one nobody asked for", &odd)
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

    /// N7: sent means it arrived; arrived and not sent means the ledger says that it does not know.
    fn honesty(&self, guarantee: Guarantee) -> Vec<String> {
        let arrived = |row: &Finished| self.journal.contains_key(&row.webhook_id);
        let unknown = |row: &Finished| guarantee == Guarantee::AtMostOnce && row.state == "parked" && row.reason == "outcome_unknown";
        let false_success: Vec<_> = self.ledger.iter().filter(|row| row.state == "sent" && !arrived(row)).collect();
        let false_failure: Vec<_> = self.ledger.iter().filter(|row| row.state != "sent" && !unknown(row)).collect();
        [
            violation("N7 sent, and the receiver knows nothing of it", &false_success),
            violation("N7 neither sent nor honestly unknown", &false_failure),
        ]
        .concat()
    }

    /// N4 and N5: at most one request, or at least one effect of each, told apart by the id.
    fn repeats(&self, guarantee: Guarantee) -> Vec<String> {
        if guarantee == Guarantee::AtMostOnce {
            let repeated: Vec<_> = self.journal.iter().filter(|(_, count)| **count > 1).collect();
            return violation("N4 at_most_once, and more than one request", &repeated);
        }
        let missing: Vec<_> = self.ledger.iter().filter(|row| !self.journal.contains_key(&row.webhook_id)).collect();
        violation("N5 no effect", &missing)
    }
}

/// The whole ledger as text, to see that nothing in it has moved.
pub fn ledger(installation: &Installation) -> Vec<Row> {
    installation.rows(
        "SELECT tenant, notification_id, n, state, reason, code, detail, attempts, seq, unclear, provider_ref, sent_at, finished_at
         FROM postcommit.delivery_ledger ORDER BY notification_id, n",
    )
}

/// Results that came too late, ever.
pub fn stale_settles(installation: &Installation) -> usize {
    installation.count("SELECT count(*) FROM postcommit.stale_settle")
}

fn finished(row: &Row) -> Finished {
    let [notification, n, state, reason] = row.as_slice() else { panic!("{row:?}") };
    Finished { webhook_id: format!("{notification}_{n}"), notification: notification.clone(), state: state.clone(), reason: reason.clone() }
}

fn mislabelled(request: &postcommit_testkit::Request) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let expected = format!("{}_{}", body["id"].as_str().unwrap_or_default(), request.path.rsplit('/').next().unwrap_or_default());
    let labelled = request.header("webhook-id").unwrap_or_default();
    (labelled != expected).then(|| format!("{labelled} instead of {expected}"))
}

/// One line for what was found; none when nothing was.
fn violation<T: Debug>(what: &str, found: &[T]) -> Vec<String> {
    if found.is_empty() { vec![] } else { vec![format!("{what}: {}: {:?}", found.len(), &found[..found.len().min(3)])] }
}
