//! Decides which lanes the next claim asks for, and where it searches for other lanes with due work. The known lanes
//! are only a hint of this process. The search covers all lanes that have rows, piece by piece (docs/decisions/0029).

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

use crate::FastMap;
use crate::store::{Claim, Search, Want};

/// The most tenants, and the most providers' lanes, that one claim asks for. The next claim continues after them.
const ASKED: usize = 128;
/// How many of the lanes that had work most recently are asked for when there is little load. One exchange with the
/// database then claims their notifications, however many lanes there are. It starts from the lanes' low-water marks,
/// so dead index entries do not slow it down.
const RECENT: usize = 8;
/// How many of the lanes that had work most recently are remembered. All of them are asked for while the search is
/// slow.
const REMEMBERED: usize = 64;
/// How many index positions one piece of the search visits in each range: 2 ms where every lane has rows. With few free
/// slots it visits fewer, so that each found tenant can get more than one row, which shows whether it has more.
const VISITS: i32 = 512;
const LEAST_VISITS: i32 = 16;
/// Under load, the next piece of the search follows a piece without a result after this time or this many claims.
const PAUSE: Duration = Duration::from_millis(50);
const CLAIMS: u32 = 4;
/// A piece of the search that takes longer than this has scanned dead index entries. The search then pauses for `COST`
/// times as long as the piece took. After a search in many pieces it pauses for `COST` times as long as all of them
/// took. A pause lasts at most `LONGEST`.
const SLOW: Duration = Duration::from_millis(50);
const COST: u32 = 4;
const LONGEST: Duration = Duration::from_secs(5);

/// Returns the expansion lane of a tenant. It holds notifications that are not expanded or routed yet.
pub fn expansion_lane(tenant: i32) -> i32 {
    -tenant
}

/// Returns whether a lane is an expansion lane.
pub fn is_expansion(lane: i32) -> bool {
    lane < 0
}

/// The lanes that this process believes to have due work, and the state of the search for others.
#[derive(Debug)]
pub struct Turns {
    /// Tenants that filled their quota in the last claim. They probably have more to expand.
    tenants: BTreeSet<i32>,
    /// Providers' lanes with waiting deliveries.
    lanes: BTreeSet<i32>,
    /// The last tenant and the last provider's lane that were asked for.
    last: (i32, i32),
    /// Lanes that had work, most recent first.
    recent: VecDeque<i32>,
    /// The two ranges of the search: expansion lanes, and providers' lanes.
    ranges: [SearchRange; 2],
    pace: SearchPace,
}

/// Decides when the next piece of the search is due.
#[derive(Debug, Default)]
struct SearchPace {
    began: Option<Instant>,
    pieces: u32,
    last_at: Option<Instant>,
    /// How many claims were made since the last piece of the search.
    claims: u32,
    /// Whether the last piece found a lane that the claim had not asked for.
    fruitful: bool,
    /// The time until which the search is deferred, unless the caller insists.
    next_at: Option<Instant>,
    slow: bool,
    /// Whether the piece that was last asked for was deferred because of `next_at`.
    deferred: bool,
}

/// One range of lane numbers that the search covers. The search starts anywhere in it and wraps around at its end.
#[derive(Debug)]
struct SearchRange {
    first: i32,
    end: i32,
    at: i32,
    state: SearchState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchState {
    /// The search goes from its origin to the end of the range.
    Up {
        origin: i32,
    },
    /// The search has wrapped around and goes from the first lane to its origin.
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
            // Rows of this lane with other priorities may follow, so the next piece starts with this lane again.
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
    /// Records that deliveries wait on this provider's lane.
    pub fn wait(&mut self, lane: i32) {
        self.lanes.insert(lane);
    }

    /// Records that nothing waits on this lane, or that this process cannot serve it.
    pub fn forget(&mut self, lane: i32) {
        self.lanes.remove(&lane);
    }

    /// Returns the providers' lanes with waiting deliveries.
    pub fn waiting(&self) -> impl Iterator<Item = i32> + '_ {
        self.lanes.iter().copied()
    }

    /// Returns the providers' lanes that the next claim asks for.
    pub fn next_lanes(&mut self, busy: bool) -> Vec<i32> {
        let mut next = turn(&self.lanes, &mut self.last.1);
        next.extend(self.recent(busy).filter(|lane| !is_expansion(*lane) && !self.lanes.contains(lane)));
        next
    }

    /// Divides the room for expansion by weight among the tenants that are next. If no tenant is known to have a
    /// backlog, the room goes to the tenants that had work most recently.
    pub fn share_out(&mut self, room: usize, busy: bool, weight: impl Fn(i32) -> u32) -> Vec<Want> {
        let (mut next, mut others) = (turn(&self.tenants, &mut self.last.0), vec![]);
        let recent: Vec<i32> = self.recent(busy).filter(|lane| is_expansion(*lane)).map(|lane| -lane).collect();
        if next.is_empty() {
            next = recent;
        } else {
            others = recent.into_iter().filter(|tenant| !self.tenants.contains(tenant)).collect();
        }
        // Tenants without a known backlog are asked for one row. If they have one, they count as having a backlog from
        // then on.
        others.truncate(room / 2);
        next.truncate(room - others.len());
        let weighed: Vec<u32> = next.iter().map(|tenant| weight(*tenant)).collect();
        let quotas = shares(room - others.len(), &weighed).into_iter().chain(std::iter::repeat(1));
        let want =
            |(tenant, quota)| Want { lane: expansion_lane(tenant), quota: i32::try_from(quota).unwrap_or(i32::MAX) };
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

    /// Starts a new search over all lanes, from the current position.
    pub fn look_anew(&mut self) {
        self.ranges.iter_mut().for_each(SearchRange::set_out);
        (self.pace.began, self.pace.pieces) = (None, 0);
    }

    /// Returns whether the search has covered all lanes.
    pub fn is_through(&self) -> bool {
        self.ranges.iter().all(|side| side.state == SearchState::Through)
    }

    /// Returns when a deferred search may go on.
    pub fn next_search_at(&self) -> Option<Instant> {
        self.pace.next_at.filter(|_| self.pace.deferred)
    }

    /// Returns the next piece of the search, without the lanes that the claim asks for anyway. Returns an empty search
    /// when no piece is due. If the caller insists, the search is not deferred.
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
        // A tenant that the search finds gets no more rows than tenants with a known backlog.
        let each = (quota / i32::try_from(1 + self.tenants.len()).unwrap_or(quota)).max(2);
        Search { between, around, visits: (quota / 2).clamp(LEAST_VISITS, VISITS), quota, each }
    }

    /// Updates the known lanes after a claim: how many rows each lane had, and how long the claim took. Returns the
    /// lanes that filled their quota.
    pub fn note(&mut self, wants: &[Want], search: &Search, claim: &Claim, took: Duration) -> BTreeSet<i32> {
        let mut given: FastMap<i32, i32> = FastMap::default();
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

    fn note_search(
        &mut self,
        wants: &[Want],
        search: &Search,
        claim: &Claim,
        given: &FastMap<i32, i32>,
        took: Duration,
    ) {
        let asked: BTreeSet<i32> = wants.iter().map(|want| want.lane).collect();
        let fresh: Vec<(i32, i32)> =
            given.iter().filter(|(lane, _)| !asked.contains(lane)).map(|(lane, count)| (*lane, *count)).collect();
        let is_cut = fresh.iter().map(|(_, count)| count).sum::<i32>() >= search.quota;
        // A lane that gave only one row although there was room for more is empty now.
        self.tenants.extend(fresh.iter().filter(|(_, count)| is_cut || *count > 1).map(|(lane, _)| -lane));
        for (until, lane) in &claim.searched.reached {
            let [unexpanded, providers] = &mut self.ranges;
            (if *until > 0 { providers } else { unexpanded }).reached(*until, *lane);
        }
        // The room did not suffice for all found lanes. The next piece continues after the last lane that got room.
        if let Some(last) = fresh.iter().map(|(lane, _)| *lane).max().filter(|_| is_cut) {
            let [unexpanded, _] = &mut self.ranges;
            let origin = if let SearchState::Up { origin } | SearchState::Around { origin } = unexpanded.state {
                origin
            } else {
                unexpanded.first
            };
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

/// Returns the next members of the set, at most `ASKED`, and continues after the last one of the previous call.
fn turn(all: &BTreeSet<i32>, last: &mut i32) -> Vec<i32> {
    if all.len() <= ASKED {
        return all.iter().copied().collect();
    }
    let next: Vec<i32> = all.range(*last + 1..).chain(all.range(..=*last)).copied().take(ASKED).collect();
    *last = next.last().copied().unwrap_or(0);
    next
}

/// Divides `room` by weight. Each share is at least one, so `room` must be at least the number of weights.
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
