//! What the model remembers: the database, the workers, the wire, the provider.
//!
//! A worker is known by the claim it holds. An idle worker has no memory, so it is only a free
//! slot; this also keeps states that differ in nothing but the workers' names from being explored
//! twice.

/// Numbers claims in the order they happen and is never used twice: a random token, and for the
/// invariants the truth about who holds what.
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
    /// The database before its last commit, as long as a failover could bring it back.
    pub before: Option<Db>,
    pub workers: Vec<Worker>,
    /// Requests still travelling whose sender waits no longer, by the guarantee it had heard of;
    /// sorted.
    pub orphans: Vec<Guarantee>,
    pub provider: Provider,
    /// The provider's, as anybody hears it who claims now.
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
    /// Leases that ran out.
    pub losses: u8,
    /// Some attempt may have reached the provider. Like `attempts` it outlives a move between the
    /// tables: the product keeps it in the append-only `attempt` table.
    pub unclear: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    /// The notification's own (n = 0), not yet replaced by the target's.
    pub own: bool,
    pub lease: Option<Lease>,
    pub intent: Option<u8>,
    /// A lease ran out and nobody has judged yet what that means: what its holder had heard of.
    pub lost: Option<Guarantee>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub token: u8,
    pub claim: Claim,
    /// What its holder has heard of. The product knows it by the time: the lease began before the
    /// guarantee was changed, or so shortly after that its holder may not have heard.
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
    /// It holds the notification's own row.
    pub own: bool,
    pub step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Its row was lost by another: that is to be judged first.
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

/// Counts stop at two: one too many is as wrong as three too many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Provider {
    pub accepted: u8,
    /// One of them was sent by somebody who knew that at most one must be.
    pub promised: bool,
    pub effects: u8,
    pub knows_key: bool,
    pub window_over: bool,
    pub key_forgotten: bool,
}

/// What happened on the way and the state alone would not tell.
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

    /// The truth, whatever the tokens say.
    pub fn is_held_by(&self, claim: Claim) -> bool {
        self.lease().is_some_and(|lease| lease.claim == claim)
    }

    pub fn worker(&self, claim: Claim) -> Option<Worker> {
        self.workers.iter().find(|w| w.claim == claim).copied()
    }

    /// The guarantee by which this worker acts.
    pub fn heard(&self, claim: Claim) -> Guarantee {
        self.worker(claim).map_or(self.guarantee, |w| w.heard)
    }

    pub fn step(&mut self, claim: Claim, step: Step) {
        for worker in self.workers.iter_mut().filter(|w| w.claim == claim) {
            worker.step = step;
        }
    }

    /// The worker is idle again, having finished, given up or died; what it put on the wire travels
    /// on.
    pub fn leave(&mut self, claim: Claim) {
        if let Some(worker) = self.worker(claim).filter(|w| w.step == Step::Waiting) {
            self.let_travel(worker.heard);
        }
        self.workers.retain(|w| w.claim != claim);
    }

    /// A request whose sender waits no longer.
    pub fn let_travel(&mut self, heard: Guarantee) {
        self.orphans.push(heard);
        self.orphans.sort_unstable();
    }

    pub fn end_travel(&mut self, heard: Guarantee) {
        if let Some(place) = self.orphans.iter().position(|orphan| *orphan == heard) {
            self.orphans.remove(place);
        }
    }

    /// Time passing is no commit, so no failover takes it back alone.
    pub fn let_lease_run_out(&mut self) {
        if let Some(lease) = self.db.queue.as_mut().and_then(|row| row.lease.as_mut()) {
            lease.ran_out = true;
        }
    }

    /// The new primary never saw the last commit. A lease that had run out may come back running,
    /// which only gives the adversary one more way.
    pub fn fail_over(&mut self) {
        self.failovers_left -= 1;
        if let Some(before) = self.before.take() {
            self.db = before;
        }
    }
}

impl Db {
    /// The row leaves the queue for the ledger, whose key admits one outcome, or is free to be
    /// tried again; whichever row it was, it is the target's from then on.
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
