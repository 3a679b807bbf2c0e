//! The protocol of one delivery as a state machine: claim, expand, intent, send, settle, and an adversary. This file
//! has the guards that may be missing and the possible actions; `steps` has their effects.

use super::state::{Claim, Db, End, Guarantee, Outcome, Provider, Row, Seen, State, Step, Worker};
use stateright::{Model, Property};

pub const NO_FALSE_SUCCESS: &str = "I1 no false success";
pub const ACCEPTED_ONCE: &str = "I2 accepted at most once";
pub const ONE_EFFECT: &str = "I3 one effect per key";
pub const STALE_NEVER_WRITES: &str = "I4 a stale token never writes";
pub const SUCCESS_STAYS: &str = "I5 a success never reverts";
pub const QUIET_IS_FINISHED: &str = "I6 quiet means finished";
pub const ONE_PLACE: &str = "I7 in queue or ledger, not both";
pub const NO_FALSE_FAILURE: &str = "I8 no false failure";

/// The statements that must be true in every reachable state.
pub const INVARIANTS: [&str; 8] = [
    NO_FALSE_SUCCESS,
    ACCEPTED_ONCE,
    ONE_EFFECT,
    STALE_NEVER_WRITES,
    SUCCESS_STAYS,
    QUIET_IS_FINISHED,
    ONE_PLACE,
    NO_FALSE_FAILURE,
];

/// Goals that must be reachable: a protocol that does nothing would keep every invariant.
pub const REACHED: [&str; 3] = ["R1 sent", "R2 parked as unknown", "R3 stale token turned away"];

/// The protocol under test and the adversary's abilities. [`Protocol::ours`] is the product's protocol.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub guarantee: Guarantee,
    pub own_row: OwnRow,
    pub token: TokenKind,
    pub settle: Settle,
    /// Expansion checks the token.
    pub expansion_fenced: bool,
    pub loss: Loss,
    pub intent: Intent,
    pub window: Window,
    /// An unclear attempt still counts when a later attempt is known not to have been sent.
    pub remembers_unclear: bool,
    /// A row whose lease ran out may be claimed.
    pub takeover: bool,
    pub classing: Classing,
    /// The HTTP client repeats a request by itself.
    pub client_resends: bool,
    pub workers: usize,
    /// Attempts that a delivery may have. It bounds the claims, and is part of the protocol itself.
    pub attempts: u8,
    /// Leases that may run out before the delivery is parked.
    pub losses: u8,
    pub crashes: u8,
    /// How often a claimed row may be given back untouched.
    pub give_backs: u8,
    pub failovers: u8,
    pub key_expires: bool,
    /// The guarantee may be changed to at_most_once at any time.
    pub made_stricter: bool,
}

/// The role of a notification's own row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnRow {
    /// Unused: the target has a row from the start, as with several targets.
    Unused,
    /// The only target is sent and settled from the notification's row, except under at_most_once, where it is expanded
    /// first.
    Sends,
    /// The only target is sent from the notification's row even under at_most_once, where nothing can be announced in
    /// it.
    SendsUnannounced,
}

/// How a lease that ran out is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The next claim judges the first loss that is not judged yet, by the guarantee that its holder knew.
    Judged,
    /// The next claim judges the last loss: a second loss hides the first.
    LastJudged,
    /// Giving the row back treats it as never tried.
    ForgottenWhenGivenBack,
    /// The loss is judged by the current guarantee, as if its holder had known it.
    ByPresentGuarantee,
    /// The loss of a notification's own row is treated as harmless, as it was when nothing was sent from it.
    HarmlessWhenOwn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Random,
    /// The attempt's number: a counter, which a database hands out again after it was restored to an earlier state.
    AttemptNumber,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    WhereTokenHolds,
    /// `WHERE state = 'running'`, without checking which worker runs it.
    WhereLeased,
    /// `WHERE id = $1`, as a single table with a status column would do it.
    ByKey,
    /// Deletes where the token matches, but inserts into the ledger even when nothing was deleted.
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
    /// Judged at settle and again at each claim. The window is shorter than the key's life, so that an attempt begun
    /// inside ends before the provider forgets the key.
    Kept,
    /// Like `Kept`, but as long as the key's life.
    WithoutMargin,
    /// Judged only when an outcome is settled, not when a later claim finds the row.
    AtSettleOnly,
    Ignored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classing {
    Honest,
    /// A connection reset after the provider accepted is classified as "not sent".
    ResetIsNotSent,
    /// Written bytes are classified as success.
    WrittenIsSent,
}

impl Protocol {
    /// The product's protocol against 2 workers, 4 attempts, 2 losses and 2 crashes.
    pub const fn ours(guarantee: Guarantee) -> Self {
        Self {
            guarantee,
            own_row: OwnRow::Unused,
            token: TokenKind::Random,
            settle: Settle::WhereTokenHolds,
            expansion_fenced: true,
            loss: Loss::Judged,
            intent: Intent::Fenced,
            window: Window::Kept,
            remembers_unclear: true,
            takeover: true,
            classing: Classing::Honest,
            client_resends: false,
            workers: 2,
            attempts: 4,
            losses: 2,
            crashes: 2,
            give_backs: 0,
            failovers: 0,
            key_expires: false,
            made_stricter: false,
        }
    }

    /// The product's protocol for the only target of a notification, which is sent from the notification's own row.
    pub const fn from_own_row(guarantee: Guarantee) -> Self {
        Self { own_row: OwnRow::Sends, ..Self::ours(guarantee) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Claim,
    Judge(Claim),
    GiveBack(Claim),
    Expand(Claim),
    Announce(Claim),
    ConnectFails(Claim),
    Send(Claim),
    SendTwice(Claim),
    Settle(Claim),
    Accept(Claim),
    Reply(Claim),
    NoReply(Claim),
    OrphanAccepted(Guarantee),
    OrphanVanishes(Guarantee),
    Crash(Claim),
    LeaseRunsOut,
    FailOver,
    WindowCloses,
    KeyForgotten,
    MadeAtMostOnce,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            db: Db { queue: Some(Row { own: self.own_row != OwnRow::Unused, ..Row::default() }), ..Db::default() },
            before: None,
            workers: Vec::new(),
            orphans: Vec::new(),
            provider: Provider::default(),
            guarantee: self.guarantee,
            last_claim: 0,
            crashes_left: self.crashes,
            give_backs_left: self.give_backs,
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
            if state.give_backs_left > 0 && matches!(worker.step, Step::TookOver | Step::Claimed) {
                actions.push(Action::GiveBack(worker.claim));
            }
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
            Action::Judge(claim) => self.judge(&mut state, claim),
            Action::GiveBack(claim) => self.give_back(&mut state, claim),
            Action::Expand(claim) => self.expand(&mut state, claim),
            Action::Announce(claim) => self.announce(&mut state, claim),
            Action::ConnectFails(claim) => state.step(claim, Step::Saw(Outcome::NotSent)),
            Action::Send(claim) => state.step(claim, Step::Waiting),
            Action::SendTwice(claim) => {
                state.step(claim, Step::Waiting);
                state.let_travel(state.heard(claim));
            }
            Action::Settle(claim) => self.settle(&mut state, claim),
            Action::Accept(claim) => {
                state.provider.accept(state.heard(claim));
                state.step(claim, Step::Accepted);
            }
            Action::Reply(claim) => state.step(claim, Step::Saw(Outcome::Sent)),
            Action::NoReply(claim) => self.no_reply(&mut state, claim),
            Action::OrphanAccepted(heard) => {
                state.end_travel(heard);
                state.provider.accept(heard);
            }
            Action::OrphanVanishes(heard) => state.end_travel(heard),
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
            Action::MadeAtMostOnce => state.guarantee = Guarantee::AtMostOnce,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_FALSE_SUCCESS, |_, s: &State| {
                s.db.ledger != Some(End::Sent) || s.provider.accepted > 0
            }),
            // When the guarantee is made stricter in between, a worker that knows it must not add to accepted requests,
            // and no request may be accepted in addition to one of such a worker.
            Property::always(ACCEPTED_ONCE, |m: &Protocol, s: &State| {
                s.provider.accepted <= 1 || (m.made_stricter && !s.provider.promised)
            }),
            Property::always(ONE_EFFECT, |_, s: &State| s.provider.effects <= 1),
            Property::always(STALE_NEVER_WRITES, |_, s: &State| !s.seen.stale_wrote),
            Property::always(SUCCESS_STAYS, |_, s: &State| !s.seen.success_reverted),
            Property::always(QUIET_IS_FINISHED, |m: &Protocol, s: &State| s.db.ledger.is_some() || !m.is_quiet(s)),
            Property::always(ONE_PLACE, |_, s: &State| s.db.queue.is_some() != s.db.ledger.is_some()),
            // "Exhausted" tells operators that nothing arrived, so that it is safe to send again by hand.
            Property::always(NO_FALSE_FAILURE, |_, s: &State| {
                s.db.ledger != Some(End::ParkedExhausted) || s.provider.accepted == 0
            }),
            Property::sometimes(REACHED[0], |_, s: &State| s.db.ledger == Some(End::Sent)),
            Property::sometimes(REACHED[1], |_, s: &State| s.db.ledger == Some(End::ParkedUnknown)),
            Property::sometimes(REACHED[2], |_, s: &State| s.seen.stale_turned_away),
        ]
    }
}

/// The possible actions.
impl Protocol {
    fn can_claim(&self, state: &State) -> bool {
        let free = |row: &Row| row.lease.is_none_or(|lease| lease.ran_out && self.takeover);
        state.workers.len() < self.workers && state.db.queue.as_ref().is_some_and(free)
    }

    fn worker_actions(&self, Worker { claim, step, own, heard, .. }: Worker, actions: &mut Vec<Action>) {
        match step {
            Step::TookOver => actions.push(Action::Judge(claim)),
            Step::Claimed if own && heard == Guarantee::AtMostOnce && self.own_row == OwnRow::Sends => {
                actions.push(Action::Expand(claim));
            }
            Step::Claimed if !own && self.announces(heard) => actions.push(Action::Announce(claim)),
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
        let mut travelling = state.orphans.clone();
        travelling.dedup();
        actions.extend(
            travelling.into_iter().flat_map(|heard| [Action::OrphanAccepted(heard), Action::OrphanVanishes(heard)]),
        );
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
        if self.made_stricter && state.guarantee != Guarantee::AtMostOnce {
            actions.push(Action::MadeAtMostOnce);
        }
    }

    /// The margin between the window and the key's life is longer than every attempt begun inside the window.
    fn key_may_go(&self, state: &State) -> bool {
        let sending = !state.orphans.is_empty() || state.workers.iter().any(|w| !matches!(w.step, Step::Saw(_)));
        self.window == Window::WithoutMargin || !sending
    }

    fn announces(&self, heard: Guarantee) -> bool {
        heard == Guarantee::AtMostOnce && self.intent != Intent::Never
    }

    fn is_quiet(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.is_empty()
    }
}
