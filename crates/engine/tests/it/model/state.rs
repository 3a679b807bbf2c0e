//! The state of the model: the database, the workers, the network, the provider.
//!
//! A worker is identified by the claim it holds. An idle worker has no memory, so it is only a free slot. This also
//! avoids exploring states twice that differ only in the workers' names.

/// Numbers claims in the order in which they happen, and is never reused. It stands for the random token, and tells the
/// invariants which worker really holds the row.
pub type Claim = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guarantee {
    AtMostOnce,
    Idempotent,
    AtLeastOnce,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub db: Db,
    /// The database before its last commit, as long as a failover could restore it.
    pub before: Option<Db>,
    pub workers: Vec<Worker>,
    /// Requests in flight whose sender no longer waits, by the guarantee that the sender knew; sorted.
    pub orphans: Vec<Guarantee>,
    pub provider: Provider,
    /// The provider's guarantee, as the next claim reads it.
    pub guarantee: Guarantee,
    pub last_claim: Claim,
    pub crashes_left: u8,
    pub give_backs_left: u8,
    pub failovers_left: u8,
    pub seen: Seen,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Db {
    pub queue: Option<Row>,
    pub ledger: Option<End>,
    pub attempts: u8,
    /// How many leases ran out.
    pub losses: u8,
    /// Some attempt may have reached the provider. Like `attempts` it survives a move between the tables: the product
    /// keeps it in the append-only `attempt` table.
    pub unclear: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    /// Whether this is the notification's own row (n = 0), which the target's row has not replaced yet.
    pub own: bool,
    pub lease: Option<Lease>,
    pub intent: Option<u8>,
    /// The guarantee that the holder of the first lost lease knew, when a lease ran out and no worker has judged it
    /// yet.
    pub lost: Option<Guarantee>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub token: u8,
    pub claim: Claim,
    /// The guarantee that the holder of the lease knows. The product derives it from the time: the lease began before
    /// the guarantee was changed, or so shortly after that its holder may not have read the change.
    pub under: Guarantee,
    pub ran_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Sent,
    ParkedUnknown,
    ParkedExhausted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Worker {
    pub claim: Claim,
    pub token: u8,
    pub heard: Guarantee,
    /// Whether the worker holds the notification's own row.
    pub own: bool,
    pub step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Another worker lost this row. That loss must be judged first.
    TookOver,
    Claimed,
    Announced,
    Waiting,
    Accepted,
    Saw(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Sent,
    NotSent,
    Unclear,
}

/// The counters of the provider. They stop at two, because one request too many is as wrong as three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Provider {
    pub accepted: u8,
    /// Whether one of the accepted requests was sent by a worker that knew of at_most_once.
    pub promised: bool,
    pub effects: u8,
    pub knows_key: bool,
    pub window_over: bool,
    pub key_forgotten: bool,
}

/// Events that the state alone does not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    pub stale_wrote: bool,
    pub stale_turned_away: bool,
    pub success_reverted: bool,
}

impl State {
    pub fn lease(&self) -> Option<Lease> {
        self.db.queue.as_ref()?.lease
    }

    pub fn holds(&self, token: u8) -> bool {
        self.lease().is_some_and(|lease| lease.token == token)
    }

    /// Returns whether this worker really holds the row, regardless of the tokens.
    pub fn is_held_by(&self, claim: Claim) -> bool {
        self.lease().is_some_and(|lease| lease.claim == claim)
    }

    pub fn worker(&self, claim: Claim) -> Option<Worker> {
        self.workers.iter().find(|w| w.claim == claim).copied()
    }

    /// The guarantee that this worker knows.
    pub fn heard(&self, claim: Claim) -> Guarantee {
        self.worker(claim).map_or(self.guarantee, |w| w.heard)
    }

    pub fn step(&mut self, claim: Claim, step: Step) {
        for worker in self.workers.iter_mut().filter(|w| w.claim == claim) {
            worker.step = step;
        }
    }

    /// The worker becomes idle: it has finished, given up or died. Its request stays in flight.
    pub fn leave(&mut self, claim: Claim) {
        if let Some(worker) = self.worker(claim).filter(|w| w.step == Step::Waiting) {
            self.let_travel(worker.heard);
        }
        self.workers.retain(|w| w.claim != claim);
    }

    /// Keeps a request in flight whose sender no longer waits.
    pub fn let_travel(&mut self, heard: Guarantee) {
        self.orphans.push(heard);
        self.orphans.sort_unstable();
    }

    pub fn end_travel(&mut self, heard: Guarantee) {
        if let Some(place) = self.orphans.iter().position(|orphan| *orphan == heard) {
            self.orphans.remove(place);
        }
    }

    /// A lease running out is not a commit, so a failover does not undo it alone.
    pub fn let_lease_run_out(&mut self) {
        if let Some(lease) = self.db.queue.as_mut().and_then(|row| row.lease.as_mut()) {
            lease.ran_out = true;
        }
    }

    /// The new primary never received the last commit. A lease that had run out may be valid again, which only gives
    /// the adversary one more possibility.
    pub fn fail_over(&mut self) {
        self.failovers_left -= 1;
        if let Some(before) = self.before.take() {
            self.db = before;
        }
    }
}

impl Db {
    /// The row moves from the queue to the ledger, whose key admits one outcome, or it becomes free for a retry. From
    /// then on it is the target's row.
    pub fn settle(&mut self, end: Option<End>) {
        self.queue = end.is_none().then(Row::default);
        self.ledger = self.ledger.or(end);
    }
}

impl Provider {
    pub fn accept(&mut self, heard: Guarantee) {
        self.accepted = (self.accepted + 1).min(2);
        self.promised |= heard == Guarantee::AtMostOnce;
        if !self.knows_key {
            self.effects = (self.effects + 1).min(2);
            self.knows_key = true;
        }
    }
}
