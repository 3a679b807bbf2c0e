//! The actions of the workers of [`Protocol`].

use super::protocol::{Classing, Intent, Loss, Protocol, Settle, TokenKind, Window};
use super::state::{Claim, Db, End, Guarantee, Lease, Outcome, Provider, Row, State, Step, Worker};

/// The worker's steps. Each needs one transaction at most.
impl Protocol {
    /// A row whose lease ran out means that an attempt may have been begun and not settled. That is judged in a
    /// separate transaction; until then the row remembers it.
    pub fn claim(&self, state: &mut State) {
        let (mut db, heard) = (state.db.clone(), state.guarantee);
        let Some(row) = &mut db.queue else { return };
        row.lost = self.lost(row);
        let (own, lost) = (row.own, row.lost.is_some());
        db.losses += u8::from(row.lease.is_some());
        let end = match lost {
            // Too many losses: judged in the claim itself, or the model would never end.
            true if db.losses > self.losses => Some(self.judged(&mut db, heard, state.provider).unwrap_or(parked(&db))),
            false if self.window != Window::AtSettleOnly => self.verdict(&db, heard, state.provider),
            _ => None,
        };
        if end.is_some() {
            db.settle(end);
            return self.commit(state, db);
        }
        db.attempts += u8::from(!lost);
        state.last_claim += 1;
        let claim = state.last_claim;
        let token = match self.token {
            TokenKind::Random => claim,
            TokenKind::AttemptNumber => db.attempts + db.losses,
        };
        if let Some(row) = &mut db.queue {
            row.lease = Some(Lease { token, claim, under: heard, ran_out: false });
        }
        let step = if lost { Step::TookOver } else { Step::Claimed };
        state.workers.push(Worker { claim, token, heard, own, step });
        self.commit(state, db);
    }

    /// The first loss that is not judged yet, as the guarantee that its holder knew.
    fn lost(&self, row: &Row) -> Option<Guarantee> {
        let last = row.lease.map(|lease| lease.under);
        if self.loss == Loss::LastJudged { last.or(row.lost) } else { row.lost.or(last) }
    }

    /// A lost attempt is unclear, unless its holder knew that it must expand or announce before the first byte, and no
    /// intent is recorded.
    fn judged(&self, db: &mut Db, heard: Guarantee, provider: Provider) -> Option<End> {
        let Row { own, intent, lost, .. } = db.queue.clone().unwrap_or_default();
        let under = if self.loss == Loss::ByPresentGuarantee { heard } else { lost.unwrap_or(heard) };
        let unsent = match own {
            true => under == Guarantee::AtMostOnce || self.loss == Loss::HarmlessWhenOwn,
            false => under == Guarantee::AtMostOnce && intent.is_none(),
        };
        db.unclear |= !unsent;
        self.verdict(db, heard, provider)
    }

    /// A worker that took over a lost row settles that loss first.
    pub fn judge(&self, state: &mut State, claim: Claim) {
        let Some(worker) = state.worker(claim) else { return };
        state.leave(claim);
        if !state.holds(worker.token) {
            state.seen.stale_turned_away = true;
            return;
        }
        let mut db = state.db.clone();
        let end = self.judged(&mut db, worker.heard, state.provider);
        db.settle(end);
        self.commit(state, db);
    }

    /// A claimed row that was not begun becomes free again, unchanged.
    pub fn give_back(&self, state: &mut State, claim: Claim) {
        let Some(worker) = state.worker(claim) else { return };
        state.give_backs_left -= 1;
        state.leave(claim);
        if !state.holds(worker.token) {
            state.seen.stale_turned_away = true;
            return;
        }
        let mut db = state.db.clone();
        if let Some(row) = &mut db.queue {
            row.lease = None;
            if self.loss == Loss::ForgottenWhenGivenBack {
                (row.lost, row.intent) = (None, None);
            }
        }
        self.commit(state, db);
    }

    /// The notification's own row becomes the target's row.
    pub fn expand(&self, state: &mut State, claim: Claim) {
        let Some(worker) = state.worker(claim) else { return };
        state.leave(claim);
        if self.expansion_fenced && !state.holds(worker.token) {
            state.seen.stale_turned_away = true;
            return;
        }
        state.seen.stale_wrote |= !state.is_held_by(claim);
        let db = Db { queue: Some(Row::default()), ..state.db.clone() };
        self.commit(state, db);
    }

    /// The intent is recorded before the first byte is sent. A worker that cannot record it must not send.
    pub fn announce(&self, state: &mut State, claim: Claim) {
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

    /// The reply is lost, or the worker times out while its request is still in flight.
    pub fn no_reply(&self, state: &mut State, claim: Claim) {
        let accepted = state.worker(claim).is_some_and(|w| w.step == Step::Accepted);
        if !accepted {
            state.let_travel(state.heard(claim));
        }
        let outcome = match self.classing {
            Classing::ResetIsNotSent if accepted => Outcome::NotSent,
            Classing::WrittenIsSent => Outcome::Sent,
            _ => Outcome::Unclear,
        };
        state.step(claim, Step::Saw(outcome));
    }

    /// One statement: where the token still matches, the row moves into the ledger or is freed. A stale token changes
    /// nothing and is counted.
    pub fn settle(&self, state: &mut State, claim: Claim) {
        let Some(Worker { token, heard, step: Step::Saw(outcome), .. }) = state.worker(claim) else {
            return;
        };
        state.leave(claim);
        let holds = state.holds(token);
        let mut db = state.db.clone();
        db.unclear = outcome == Outcome::Unclear || (db.unclear && self.remembers_unclear);
        let end = match outcome {
            Outcome::Sent => Some(End::Sent),
            Outcome::NotSent | Outcome::Unclear => self.verdict(&db, heard, state.provider),
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

    /// How a delivery ends that is not known to be sent. `None` means a retry.
    fn verdict(&self, db: &Db, guarantee: Guarantee, provider: Provider) -> Option<End> {
        let may_repeat = match guarantee {
            Guarantee::AtMostOnce => false,
            Guarantee::Idempotent => !provider.window_over || self.window == Window::Ignored,
            Guarantee::AtLeastOnce => true,
        };
        match (db.unclear, db.attempts < self.attempts) {
            (true, more) if !more || !may_repeat => Some(parked(db)),
            (false, false) => Some(parked(db)),
            _ => None,
        }
    }

    fn commit(&self, state: &mut State, db: Db) {
        state.seen.success_reverted |= state.db.ledger == Some(End::Sent) && db.ledger != Some(End::Sent);
        let before = std::mem::replace(&mut state.db, db);
        state.before = (state.failovers_left > 0).then_some(before);
    }
}

fn parked(db: &Db) -> End {
    if db.unclear { End::ParkedUnknown } else { End::ParkedExhausted }
}
