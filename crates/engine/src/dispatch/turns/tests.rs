use std::collections::HashMap;

use super::*;
use crate::store::{Searched, delivery_in};
use postcommit_channel::model::Delivery;

const EVEN: fn(i32) -> u32 = |_| 1;

fn delivery(lane: i32) -> Delivery {
    delivery_in(lane, lane.abs())
}

/// A simulated database. For each tenant it has a number of notifications to expand, and it has lanes with due
/// deliveries.
struct Queue {
    tenants: HashMap<i32, i32>,
    lanes: BTreeSet<i32>,
}

impl Queue {
    fn claim(&mut self, wants: &[Want], search: &Search) -> Claim {
        let mut claim = Claim::default();
        let take = |left: &mut i32, lane: i32, most: i32| {
            let taken = most.min(*left);
            *left -= taken;
            (0..taken).map(|_| delivery(lane)).collect::<Vec<_>>()
        };
        for want in wants.iter().filter(|want| is_expansion(want.lane)) {
            claim.deliveries.extend(take(self.tenants.entry(-want.lane).or_default(), want.lane, want.quota));
        }
        for (after, until) in &search.between {
            let mut with_rows: Vec<i32> =
                self.tenants.iter().filter(|(_, left)| **left > 0).map(|(tenant, _)| -tenant).collect();
            with_rows.extend(self.lanes.iter());
            with_rows.sort_unstable();
            with_rows.retain(|lane| (after + 1..*until).contains(lane) && search.around.binary_search(lane).is_err());
            let most = usize::try_from(search.visits).unwrap();
            let seen = &with_rows[..with_rows.len().min(most)];
            claim.searched.reached.push((*until, if with_rows.len() < most { *until } else { *seen.last().unwrap() }));
            let fresh: Vec<i32> = seen.iter().copied().filter(|lane| is_expansion(*lane)).collect();
            claim.searched.lanes.extend(seen.iter().filter(|lane| !is_expansion(**lane)));
            let (each, mut left) =
                ((search.quota / i32::try_from(fresh.len().max(1)).unwrap() + 1).min(search.each), search.quota);
            for lane in fresh {
                let taken = take(self.tenants.get_mut(&-lane).unwrap(), lane, each.min(left));
                left -= i32::try_from(taken.len()).unwrap();
                claim.deliveries.extend(taken);
            }
        }
        claim
    }
}

/// Runs one claim. Returns how many rows each tenant got.
fn round(turns: &mut Turns, queue: &mut Queue, room: usize, weight: fn(i32) -> u32) -> HashMap<i32, i32> {
    let wants = turns.share_out(room, true, weight);
    let quotas: i32 = wants.iter().map(|want| want.quota).sum();
    assert!(usize::try_from(quotas).unwrap() <= room && wants.len() <= ASKED, "{quotas} of {room} for {}", wants.len());
    let asked: Vec<i32> = wants.iter().map(|want| want.lane).collect();
    let search = turns.search(&asked, room, false, true);
    let claim = queue.claim(&wants, &search);
    turns.note(&wants, &search, &claim, Duration::ZERO);
    let mut given = HashMap::new();
    claim.deliveries.iter().for_each(|delivery| *given.entry(delivery.key.tenant).or_default() += 1);
    given
}

#[test]
fn a_single_one_is_claimed_with_the_next_batch_whatever_others_have() {
    let mut queue = Queue { tenants: [(1, 60_000)].into(), lanes: BTreeSet::new() };
    let mut turns = Turns::default();
    for _ in 0..5 {
        assert_eq!(round(&mut turns, &mut queue, 500, EVEN).into_iter().collect::<Vec<_>>(), [(1, 500)]);
    }
    queue.tenants.insert(2, 1);
    assert_eq!(round(&mut turns, &mut queue, 500, EVEN), [(1, 500), (2, 1)].into());
}

#[test]
fn room_is_dealt_by_weight() {
    let mut queue = Queue { tenants: [(1, 60_000), (2, 60_000), (3, 60_000)].into(), lanes: BTreeSet::new() };
    let mut turns = Turns::default();
    let weight = |tenant| if tenant == 2 { 3 } else { 1 };
    round(&mut turns, &mut queue, 500, weight);
    assert_eq!(round(&mut turns, &mut queue, 500, weight), [(1, 101), (2, 299), (3, 100)].into());
    assert_eq!(shares(3, &[100, 1, 1]), [1, 1, 1]);
    assert_eq!(shares(10, &[1]), [10]);
}

#[test]
fn of_a_thousand_tenants_none_waits_for_long() {
    let mut queue = Queue { tenants: (1..=1000).map(|tenant| (tenant, 1000)).collect(), lanes: BTreeSet::new() };
    let mut turns = Turns::default();
    let mut given: HashMap<i32, i32> = HashMap::new();
    for _ in 0..40 {
        round(&mut turns, &mut queue, 256, EVEN)
            .into_iter()
            .for_each(|(tenant, count)| *given.entry(tenant).or_default() += count);
    }
    let (least, most) = ((1..=1000).map(|tenant| given.get(&tenant).copied().unwrap_or(0)).min(), given.values().max());
    assert!(least >= Some(5) && most <= Some(&30), "{least:?} to {most:?}");
}

#[test]
fn what_is_searched_in_pieces_is_searched_all_round() {
    let mut queue = Queue { tenants: HashMap::new(), lanes: (1..=2000).collect() };
    let mut turns = Turns::default();
    let mut found = BTreeSet::new();
    let mut pieces = 0;
    turns.look_anew();
    while !turns.is_through() {
        let search = turns.search(&[], 1000, false, true);
        let claim = queue.claim(&[], &search);
        found.extend(claim.searched.lanes.iter().copied());
        turns.note(&[], &search, &claim, Duration::ZERO);
        pieces += 1;
        if pieces == 2 {
            // Starts the search again. Everything must be found once more, whatever the first pieces found.
            turns.look_anew();
            found.clear();
        }
    }
    assert_eq!(found, queue.lanes);
    assert!(pieces <= 8, "{pieces}");
    assert!(
        turns.search(&[], 10, false, false).between.is_empty() && turns.next_search_at().is_some(),
        "a new search does not begin immediately, because it costs too much"
    );
    queue.lanes.clear();
    assert!(!turns.search(&[], 10, false, true).between.is_empty(), "a caller can force a new search");
}

#[test]
fn lanes_that_are_known_to_wait_are_asked_in_turn_and_not_searched() {
    let mut turns = Turns::default();
    (1..=300).for_each(|lane| turns.wait(lane));
    let mut asked: BTreeSet<i32> = BTreeSet::new();
    for _ in 0..3 {
        let next = turns.next_lanes(true);
        assert_eq!(next.len(), ASKED);
        asked.extend(next);
    }
    assert_eq!(asked.len(), 300);
    turns.note(
        &[Want { lane: 7, quota: 2 }, Want { lane: 8, quota: 1 }],
        &Search::default(),
        &Claim { deliveries: vec![delivery(7), delivery(8)], searched: Searched::default(), ..Claim::default() },
        Duration::ZERO,
    );
    assert!(turns.waiting().all(|lane| lane != 7) && turns.waiting().any(|lane| lane == 8));
    assert!(turns.next_lanes(false).contains(&7), "without load, the lane that last had deliveries is asked again");
}
