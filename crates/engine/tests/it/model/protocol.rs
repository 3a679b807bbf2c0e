//! The protocol of one delivery as a state machine: claim, intent, send, settle, and an adversary.

use super::state::{Claim, Db, End, Lease, Outcome, Provider, Row, Seen, State, Step, Worker};
use stateright::{Model, Property};

pub const NO_FALSE_SUCCESS: &str = "I1 no false success";
pub const ACCEPTED_ONCE: &str = "I2 accepted at most once";
pub const ONE_EFFECT: &str = "I3 one effect per key";
pub const STALE_NEVER_WRITES: &str = "I4 a stale token never writes";
pub const SUCCESS_STAYS: &str = "I5 a success never reverts";
pub const QUIET_IS_FINISHED: &str = "I6 quiet means finished";
pub const ONE_PLACE: &str = "I7 in queue or ledger, not both";
pub const NO_FALSE_FAILURE: &str = "I8 no false failure";

/// What must be true in every reachable state.
pub const INVARIANTS: [&str; 8] =
    [NO_FALSE_SUCCESS, ACCEPTED_ONCE, ONE_EFFECT, STALE_NEVER_WRITES, SUCCESS_STAYS, QUIET_IS_FINISHED, ONE_PLACE, NO_FALSE_FAILURE];

/// What must be possible: a protocol that does nothing would keep every invariant.
pub const REACHED: [&str; 3] = ["R1 sent", "R2 parked as unknown", "R3 stale token turned away"];

/// The protocol under test and the adversary's means. [`Protocol::ours`] is what the product does.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub guarantee: Guarantee,
    pub token: TokenKind,
    pub settle: Settle,
    pub intent: Intent,
    pub window: Window,
    /// An unclear attempt still counts when a later one is known not to have left.
    pub remembers_unclear: bool,
    /// A row whose lease ran out may be claimed.
    pub takeover: bool,
    pub classing: Classing,
    /// The HTTP client repeats a request on its own.
    pub client_resends: bool,
    pub workers: usize,
    /// Attempts a delivery may have: the bound on claims, and part of the protocol itself.
    pub attempts: u8,
    pub crashes: u8,
    pub failovers: u8,
    pub key_expires: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    AtMostOnce,
    Idempotent,
    AtLeastOnce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Random,
    /// The attempt's number: a counter, which a database that goes back in time hands out again.
    AttemptNumber,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    WhereTokenHolds,
    /// `WHERE state = 'running'`, whoever runs it.
    WhereLeased,
    /// `WHERE id = $1`, as one table with a status column would do it.
    ByKey,
    /// Deletes where the token holds, but inserts into the ledger without asking whether it
    /// deleted.
    InsertUntied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    Fenced,
    Unfenced,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Judged at settling and again at each claim; so much shorter than the key's life that an
    /// attempt begun inside ends before the provider forgets the key.
    Kept,
    /// As `Kept`, but as long as the key's life.
    WithoutMargin,
    /// Judged when an outcome is settled, not when a later claim finds the row.
    AtSettleOnly,
    Ignored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classing {
    Honest,
    /// A connection reset after the provider accepted is taken for "nothing left".
    ResetIsNotSent,
    /// Bytes written are taken for success.
    WrittenIsSent,
}

impl Protocol {
    /// The product's protocol against 2 workers, 4 attempts and 2 crashes.
    pub const fn ours(guarantee: Guarantee) -> Self {
        Self {
            guarantee,
            token: TokenKind::Random,
            settle: Settle::WhereTokenHolds,
            intent: Intent::Fenced,
            window: Window::Kept,
            remembers_unclear: true,
            takeover: true,
            classing: Classing::Honest,
            client_resends: false,
            workers: 2,
            attempts: 4,
            crashes: 2,
            failovers: 0,
            key_expires: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Claim,
    Announce(Claim),
    ConnectFails(Claim),
    Send(Claim),
    SendTwice(Claim),
    Settle(Claim),
    Accept(Claim),
    Reply(Claim),
    NoReply(Claim),
    OrphanAccepted,
    OrphanVanishes,
    Crash(Claim),
    LeaseRunsOut,
    FailOver,
    WindowCloses,
    KeyForgotten,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            db: Db { queue: Some(Row::default()), ..Db::default() },
            before: None,
            workers: Vec::new(),
            orphans: 0,
            provider: Provider::default(),
            last_claim: 0,
            crashes_left: self.crashes,
            failovers_left: self.failovers,
            seen: Seen::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.can_claim(state) {
            actions.push(Action::Claim);
        }
        for worker in &state.workers {
            self.worker_actions(*worker, actions);
            if state.crashes_left > 0 {
                actions.push(Action::Crash(worker.claim));
            }
        }
        self.adversary_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Claim => self.claim(&mut state),
            Action::Announce(claim) => self.announce(&mut state, claim),
            Action::ConnectFails(claim) => state.step(claim, Step::Saw(Outcome::NotSent)),
            Action::Send(claim) => state.step(claim, Step::Waiting),
            Action::SendTwice(claim) => {
                state.step(claim, Step::Waiting);
                state.orphans += 1;
            }
            Action::Settle(claim) => self.settle(&mut state, claim),
            Action::Accept(claim) => {
                state.provider.accept();
                state.step(claim, Step::Accepted);
            }
            Action::Reply(claim) => state.step(claim, Step::Saw(Outcome::Sent)),
            Action::NoReply(claim) => self.no_reply(&mut state, claim),
            Action::OrphanAccepted => {
                state.orphans -= 1;
                state.provider.accept();
            }
            Action::OrphanVanishes => state.orphans -= 1,
            Action::Crash(claim) => {
                state.crashes_left -= 1;
                state.leave(claim);
            }
            Action::LeaseRunsOut => state.let_lease_run_out(),
            Action::FailOver => state.fail_over(),
            Action::WindowCloses => state.provider.window_over = true,
            Action::KeyForgotten => {
                state.provider.key_forgotten = true;
                state.provider.knows_key = false;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_FALSE_SUCCESS, |_, s: &State| s.db.ledger != Some(End::Sent) || s.provider.accepted > 0),
            Property::always(ACCEPTED_ONCE, |_, s: &State| s.provider.accepted <= 1),
            Property::always(ONE_EFFECT, |_, s: &State| s.provider.effects <= 1),
            Property::always(STALE_NEVER_WRITES, |_, s: &State| !s.seen.stale_wrote),
            Property::always(SUCCESS_STAYS, |_, s: &State| !s.seen.success_reverted),
            Property::always(QUIET_IS_FINISHED, |m: &Protocol, s: &State| s.db.ledger.is_some() || !m.is_quiet(s)),
            Property::always(ONE_PLACE, |_, s: &State| s.db.queue.is_some() != s.db.ledger.is_some()),
            // "Exhausted" tells people that nothing arrived, so that sending it again by hand is safe.
            Property::always(NO_FALSE_FAILURE, |_, s: &State| s.db.ledger != Some(End::ParkedExhausted) || s.provider.accepted == 0),
            Property::sometimes(REACHED[0], |_, s: &State| s.db.ledger == Some(End::Sent)),
            Property::sometimes(REACHED[1], |_, s: &State| s.db.ledger == Some(End::ParkedUnknown)),
            Property::sometimes(REACHED[2], |_, s: &State| s.seen.stale_turned_away),
        ]
    }
}

/// Which actions are possible.
impl Protocol {
    fn can_claim(&self, state: &State) -> bool {
        let free = |row: &Row| row.lease.is_none_or(|lease| lease.ran_out && self.takeover);
        state.workers.len() < self.workers && state.db.queue.as_ref().is_some_and(free)
    }

    fn worker_actions(&self, Worker { claim, step, .. }: Worker, actions: &mut Vec<Action>) {
        match step {
            Step::Claimed if self.announces() => actions.push(Action::Announce(claim)),
            Step::Claimed | Step::Announced => {
                actions.extend([Action::ConnectFails(claim), Action::Send(claim)]);
                if self.client_resends {
                    actions.push(Action::SendTwice(claim));
                }
            }
            Step::Waiting => actions.extend([Action::Accept(claim), Action::NoReply(claim)]),
            Step::Accepted => actions.extend([Action::Reply(claim), Action::NoReply(claim)]),
            Step::Saw(_) => actions.push(Action::Settle(claim)),
        }
    }

    fn adversary_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.orphans > 0 {
            actions.extend([Action::OrphanAccepted, Action::OrphanVanishes]);
        }
        if state.lease().is_some_and(|lease| !lease.ran_out) {
            actions.push(Action::LeaseRunsOut);
        }
        if state.failovers_left > 0 && state.before.is_some() {
            actions.push(Action::FailOver);
        }
        if self.key_expires && !state.provider.window_over {
            actions.push(Action::WindowCloses);
        }
        if state.provider.window_over && !state.provider.key_forgotten && self.key_may_go(state) {
            actions.push(Action::KeyForgotten);
        }
    }

    /// The margin between the window and the key's life outlasts every attempt begun inside the
    /// window.
    fn key_may_go(&self, state: &State) -> bool {
        let sending = state.orphans > 0 || state.workers.iter().any(|w| !matches!(w.step, Step::Saw(_)));
        self.window == Window::WithoutMargin || !sending
    }

    fn announces(&self) -> bool {
        self.guarantee == Guarantee::AtMostOnce && self.intent != Intent::Never
    }

    fn is_quiet(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.is_empty()
    }
}

/// The worker's steps. Each takes one transaction at most.
impl Protocol {
    /// A row whose lease ran out tells its finder that an attempt was begun and not settled: it is
    /// unclear, unless an intent was due before the first byte and none stands.
    fn claim(&self, state: &mut State) {
        let mut db = state.db.clone();
        let Some(row) = &mut db.queue else { return };
        let taken_over = row.lease.is_some();
        if taken_over && (self.guarantee != Guarantee::AtMostOnce || row.intent.is_some()) {
            db.unclear = true;
        }
        if (taken_over || self.window != Window::AtSettleOnly)
            && let Some(end) = self.verdict(&db, state.provider)
        {
            db.settle(Some(end));
            return self.commit(state, db);
        }
        db.attempts += 1;
        state.last_claim += 1;
        let claim = state.last_claim;
        let token = match self.token {
            TokenKind::Random => claim,
            TokenKind::AttemptNumber => db.attempts,
        };
        db.queue = Some(Row { lease: Some(Lease { token, claim, ran_out: false }), intent: None });
        state.workers.push(Worker { claim, token, step: Step::Claimed });
        self.commit(state, db);
    }

    /// The intent is on record before the first byte leaves. Whoever cannot record it must not
    /// send.
    fn announce(&self, state: &mut State, claim: Claim) {
        let Some(worker) = state.worker(claim) else {
            return;
        };
        let holds = state.lease().is_some_and(|lease| lease.token == worker.token && !lease.ran_out);
        if self.intent == Intent::Fenced && !holds {
            state.seen.stale_turned_away = true;
            state.leave(claim);
            return;
        }
        let mut db = state.db.clone();
        if let Some(row) = &mut db.queue {
            row.intent = Some(worker.token);
            state.seen.stale_wrote |= !state.is_held_by(claim);
        }
        self.commit(state, db);
        state.step(claim, Step::Announced);
    }

    /// The reply is lost, or the worker's patience ends while its request still travels.
    fn no_reply(&self, state: &mut State, claim: Claim) {
        let accepted = state.worker(claim).is_some_and(|w| w.step == Step::Accepted);
        if !accepted {
            state.orphans += 1;
        }
        let outcome = match self.classing {
            Classing::ResetIsNotSent if accepted => Outcome::NotSent,
            Classing::WrittenIsSent => Outcome::Sent,
            _ => Outcome::Unclear,
        };
        state.step(claim, Step::Saw(outcome));
    }

    /// One statement: where the token still holds, the row goes into the ledger or is freed. A stale
    /// token changes nothing and is counted.
    fn settle(&self, state: &mut State, claim: Claim) {
        let Some(Worker { token, step: Step::Saw(outcome), .. }) = state.worker(claim) else {
            return;
        };
        state.leave(claim);
        let holds = state.lease().is_some_and(|lease| lease.token == token);
        let mut db = state.db.clone();
        db.unclear = outcome == Outcome::Unclear || (db.unclear && self.remembers_unclear);
        let end = match outcome {
            Outcome::Sent => Some(End::Sent),
            Outcome::NotSent | Outcome::Unclear => self.verdict(&db, state.provider),
        };
        match self.settle {
            _ if holds => db.settle(end),
            Settle::WhereLeased if state.lease().is_some() => db.settle(end),
            Settle::InsertUntied if db.ledger.is_none() && end.is_some() => db.ledger = end,
            Settle::ByKey => {
                db.ledger = None;
                db.settle(end);
            }
            _ => {
                state.seen.stale_turned_away = true;
                return;
            }
        }
        state.seen.stale_wrote |= !state.is_held_by(claim);
        self.commit(state, db);
    }

    /// How a delivery that was not seen to be sent ends; `None` means it is tried again.
    fn verdict(&self, db: &Db, provider: Provider) -> Option<End> {
        let may_repeat = match self.guarantee {
            Guarantee::AtMostOnce => false,
            Guarantee::Idempotent => !provider.window_over || self.window == Window::Ignored,
            Guarantee::AtLeastOnce => true,
        };
        match (db.unclear, db.attempts < self.attempts) {
            (true, more) if !more || !may_repeat => Some(End::ParkedUnknown),
            (false, false) => Some(End::ParkedExhausted),
            _ => None,
        }
    }

    fn commit(&self, state: &mut State, db: Db) {
        state.seen.success_reverted |= state.db.ledger == Some(End::Sent) && db.ledger != Some(End::Sent);
        let before = std::mem::replace(&mut state.db, db);
        state.before = (state.failovers_left > 0).then_some(before);
    }
}
