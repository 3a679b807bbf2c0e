//! Whose turn it is: which lanes a claim asks for, and where it looks for others. What is known here is a hint of this process; what it does not know of is
//! found by the search, which goes over all lanes that have rows, in pieces (docs/decisions/0029).

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

use crate::store::{Claim, Search, Want};

/// Tenants, and lanes of providers, that one claim asks for at most. Those after them are next.
const ASKED: usize = 128;
/// Lanes that gave something last are asked on a quiet day, whatever the search finds: so their notifications are claimed by one exchange, however many lanes
/// there are to search, and from their marks, however many dead entries there are.
const RECENT: usize = 8;
/// And so many where the search is slow.
const REMEMBERED: usize = 64;
/// Places that a piece of the search looks at, on either side: 2 ms where every lane has rows. With little room it is fewer: who is found should get more than
/// one, so that it is known whether there is more.
const VISITS: i32 = 512;
const LEAST_VISITS: i32 = 16;
/// On a busy day, when nobody waits for the search alone, a piece of it that found nobody is followed by the next after so long, or after so many claims.
const PAUSE: Duration = Duration::from_millis(50);
const CLAIMS: u32 = 4;
/// A piece that took longer than this walked over dead entries. Then it pauses for four times as long as it took, and so it does after a look in many pieces.
const SLOW: Duration = Duration::from_millis(50);
const COST: u32 = 4;
const LONGEST: Duration = Duration::from_secs(5);

/// The lane of what is not expanded or routed yet of a tenant.
pub fn expansion_lane(tenant: i32) -> i32 {
    -tenant
}

/// Whether a lane is one of those.
pub fn is_expansion(lane: i32) -> bool {
    lane < 0
}

/// What is known of who has something due.
#[derive(Debug)]
pub struct Turns {
    /// Tenants that gave all they were asked for: there is more to expand.
    tenants: BTreeSet<i32>,
    /// Lanes of providers on which something waits.
    lanes: BTreeSet<i32>,
    /// Whose turn was last.
    last: (i32, i32),
    /// Lanes that gave something, the last first.
    recent: VecDeque<i32>,
    /// What is not expanded, and the providers.
    ranges: [SearchRange; 2],
    pace: SearchPace,
}

/// When the search goes on.
#[derive(Debug, Default)]
struct SearchPace {
    began: Option<Instant>,
    pieces: u32,
    last_at: Option<Instant>,
    /// Claims since then.
    claims: u32,
    /// It found somebody who was not asked.
    fruitful: bool,
    /// Not before this, unless somebody insists.
    next_at: Option<Instant>,
    slow: bool,
    /// It would have been made but for that.
    deferred: bool,
}

/// One side of the search: it goes round, and knows where it began.
#[derive(Debug)]
struct SearchRange {
    first: i32,
    end: i32,
    at: i32,
    state: SearchState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchState {
    /// From there to the end.
    Up {
        origin: i32,
    },
    /// From the first to there.
    Around {
        origin: i32,
    },
    Through,
}

impl SearchRange {
    fn of(first: i32, end: i32) -> Self {
        Self { first, end, at: first, state: SearchState::Through }
    }

    fn set_out(&mut self) {
        self.state = SearchState::Up { origin: self.at };
    }

    fn between(&self) -> Option<(i32, i32)> {
        match self.state {
            SearchState::Up { .. } => Some((self.at, self.end)),
            SearchState::Around { origin } => Some((self.at, origin + 1)),
            SearchState::Through => None,
        }
    }

    fn reached(&mut self, until: i32, lane: i32) {
        if lane < until {
            // Other priorities of this lane may be left.
            self.at = lane - 1;
            return;
        }
        (self.at, self.state) = match self.state {
            SearchState::Up { origin } if origin > self.first => (self.first, SearchState::Around { origin }),
            SearchState::Around { origin } => (origin, SearchState::Through),
            SearchState::Up { .. } | SearchState::Through => (self.first, SearchState::Through),
        };
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            tenants: BTreeSet::new(),
            lanes: BTreeSet::new(),
            last: (0, 0),
            recent: VecDeque::new(),
            ranges: [SearchRange::of(i32::MIN, 0), SearchRange::of(0, i32::MAX)],
            pace: SearchPace::default(),
        }
    }
}

impl Turns {
    /// Something waits on this provider's lane.
    pub fn wait(&mut self, lane: i32) {
        self.lanes.insert(lane);
    }

    /// Nothing is known to wait there, or it cannot be begun.
    pub fn forget(&mut self, lane: i32) {
        self.lanes.remove(&lane);
    }

    /// Lanes of providers on which something is known to wait.
    pub fn waiting(&self) -> impl Iterator<Item = i32> + '_ {
        self.lanes.iter().copied()
    }

    /// The lanes of providers whose turn it is.
    pub fn next_lanes(&mut self, busy: bool) -> Vec<i32> {
        let mut next = turn(&self.lanes, &mut self.last.1);
        next.extend(self.recent(busy).filter(|lane| !is_expansion(*lane) && !self.lanes.contains(lane)));
        next
    }

    /// So much room for what is not expanded, dealt out to the tenants whose turn it is by their weights. On a quiet day it is dealt to those who gave something
    /// last.
    pub fn share_out(&mut self, room: usize, busy: bool, weight: impl Fn(i32) -> u32) -> Vec<Want> {
        let (mut next, mut others) = (turn(&self.tenants, &mut self.last.0), vec![]);
        let recent: Vec<i32> = self.recent(busy).filter(|lane| is_expansion(*lane)).map(|lane| -lane).collect();
        if next.is_empty() {
            next = recent;
        } else {
            others = recent.into_iter().filter(|tenant| !self.tenants.contains(tenant)).collect();
        }
        // Those of whom nothing is known are asked for one: if they have it they are among the others the next time.
        others.truncate(room / 2);
        next.truncate(room - others.len());
        let weighed: Vec<u32> = next.iter().map(|tenant| weight(*tenant)).collect();
        let quotas = shares(room - others.len(), &weighed).into_iter().chain(std::iter::repeat(1));
        let want = |(tenant, quota)| Want { lane: expansion_lane(tenant), quota: i32::try_from(quota).unwrap_or(i32::MAX) };
        next.into_iter().chain(others).zip(quotas).map(want).collect()
    }

    fn recent(&self, busy: bool) -> impl Iterator<Item = i32> + '_ {
        let count = match (self.pace.slow, busy) {
            (true, _) => REMEMBERED,
            (false, true) => 0,
            (false, false) => RECENT,
        };
        self.recent.iter().copied().take(count)
    }

    /// From now on everything is to be looked at once, wherever the search is.
    pub fn look_anew(&mut self) {
        self.ranges.iter_mut().for_each(SearchRange::set_out);
        (self.pace.began, self.pace.pieces) = (None, 0);
    }

    /// Whether all lanes have been searched since.
    pub fn is_through(&self) -> bool {
        self.ranges.iter().all(|side| side.state == SearchState::Through)
    }

    /// When the search may go on, if it is put off.
    pub fn next_search_at(&self) -> Option<Instant> {
        self.pace.next_at.filter(|_| self.pace.deferred)
    }

    /// The next piece of the search, around the lanes that are asked for anyway; none when it is not due. Whoever insists is not put off.
    pub fn search(&mut self, asked: &[i32], quota: usize, busy: bool, insists: bool) -> Search {
        let now = clock::monotonic();
        self.pace.deferred = !insists && self.pace.next_at.is_some_and(|at| at > now);
        self.pace.claims += 1;
        let is_recent = self.pace.last_at.is_some_and(|at| now < at + PAUSE) && self.pace.claims < CLAIMS;
        if self.pace.deferred || (busy && is_recent && !self.pace.fruitful) {
            return Search::default();
        }
        if self.is_through() {
            self.look_anew();
        }
        self.pace.began.get_or_insert(now);
        self.pace.pieces += 1;
        let mut around: Vec<i32> = asked.iter().copied().chain(self.lanes.iter().copied().take(ASKED)).collect();
        around.sort_unstable();
        around.dedup();
        let between = self.ranges.iter().filter_map(SearchRange::between).collect();
        let quota = i32::try_from(quota).unwrap_or(i32::MAX);
        // Who is found is given no more than those who are known to wait.
        let each = (quota / i32::try_from(1 + self.tenants.len()).unwrap_or(quota)).max(2);
        Search { between, around, visits: (quota / 2).clamp(LEAST_VISITS, VISITS), quota, each }
    }

    /// Learns from a claim: how much each lane gave, and how long it took. Returns which lanes gave all they were asked for.
    pub fn note(&mut self, wants: &[Want], search: &Search, claim: &Claim, took: Duration) -> BTreeSet<i32> {
        let mut given: HashMap<i32, i32> = HashMap::new();
        claim.deliveries.iter().for_each(|delivery| *given.entry(delivery.lane).or_default() += 1);
        let mut filled = BTreeSet::new();
        for want in wants {
            let is_filled = given.get(&want.lane).is_some_and(|count| *count >= want.quota);
            filled.extend(is_filled.then_some(want.lane));
            match (is_expansion(want.lane), is_filled) {
                (true, true) => _ = self.tenants.insert(-want.lane),
                (true, false) => _ = self.tenants.remove(&-want.lane),
                (false, true) => _ = self.lanes.insert(want.lane),
                (false, false) => _ = self.lanes.remove(&want.lane),
            }
        }
        if !search.between.is_empty() {
            self.note_search(wants, search, claim, &given, took);
        }
        for lane in given.keys().take(REMEMBERED) {
            self.recent.retain(|known| known != lane);
            self.recent.push_front(*lane);
        }
        self.recent.truncate(REMEMBERED);
        filled
    }

    fn note_search(&mut self, wants: &[Want], search: &Search, claim: &Claim, given: &HashMap<i32, i32>, took: Duration) {
        let asked: BTreeSet<i32> = wants.iter().map(|want| want.lane).collect();
        let fresh: Vec<(i32, i32)> = given.iter().filter(|(lane, _)| !asked.contains(lane)).map(|(lane, count)| (*lane, *count)).collect();
        let is_cut = fresh.iter().map(|(_, count)| count).sum::<i32>() >= search.quota;
        // Who gave one only, while there was room for more, has given all.
        self.tenants.extend(fresh.iter().filter(|(_, count)| is_cut || *count > 1).map(|(lane, _)| -lane));
        for (until, lane) in &claim.searched.reached {
            let [unexpanded, providers] = &mut self.ranges;
            (if *until > 0 { providers } else { unexpanded }).reached(*until, *lane);
        }
        // What was found beyond the room there was has its turn with the next piece.
        if let Some(last) = fresh.iter().map(|(lane, _)| *lane).max().filter(|_| is_cut) {
            let [unexpanded, _] = &mut self.ranges;
            let origin =
                if let SearchState::Up { origin } | SearchState::Around { origin } = unexpanded.state { origin } else { unexpanded.first };
            (unexpanded.at, unexpanded.state) =
                (last, if last < origin { SearchState::Around { origin } } else { SearchState::Up { origin } });
        }
        let now = clock::monotonic();
        let pace = &mut self.pace;
        (pace.last_at, pace.slow, pace.next_at) = (Some(now), took > SLOW, None);
        (pace.claims, pace.fruitful) = (0, !fresh.is_empty());
        let many = pace.began.filter(|_| pace.pieces > 1).map(|began| now.duration_since(began));
        let through = self.ranges.iter().all(|side| side.state == SearchState::Through);
        let spent = if pace.slow { Some(took) } else { many.filter(|_| through) };
        pace.next_at = spent.map(|spent| now + (spent * COST).min(LONGEST));
    }
}

/// Those whose turn it is, from the one after the last.
fn turn(all: &BTreeSet<i32>, last: &mut i32) -> Vec<i32> {
    if all.len() <= ASKED {
        return all.iter().copied().collect();
    }
    let next: Vec<i32> = all.range(*last + 1..).chain(all.range(..=*last)).copied().take(ASKED).collect();
    *last = next.last().copied().unwrap_or(0);
    next
}

/// Divides it by weight, at least one each; there is as much as there are weights.
fn shares(room: usize, weights: &[u32]) -> Vec<usize> {
    let all: usize = weights.iter().map(|weight| *weight as usize).sum();
    let beyond = room.saturating_sub(weights.len());
    let mut shares: Vec<usize> = weights.iter().map(|weight| 1 + beyond * *weight as usize / all.max(1)).collect();
    let left = room.saturating_sub(shares.iter().sum());
    shares.iter_mut().take(left).for_each(|share| *share += 1);
    shares
}

#[cfg(test)]
mod tests;
