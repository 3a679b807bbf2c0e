//! Low-water marks: where to begin looking for due work.
//!
//! While somebody's long transaction keeps vacuum away, the claim's index is full of entries whose rows are gone, and a claim from the beginning walks
//! over all of them: in a trial of the idea at 1.1 million, 686 ms against 0.8 ms from a mark. A mark is a hint of this process
//! and no more: what it hides, such as a row that a long transaction commits late, is found by the next full look, seconds later.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::Delivery;

use crate::store::Want;

/// A full look is made at least so often.
const LOOK: Duration = Duration::from_secs(2);
/// But where it is slow, so seldom that it costs a hundredth of the time; and never more seldom than this.
const COST: u32 = 100;
const LONGEST: Duration = Duration::from_secs(30);
/// A full look that took longer than this walked over something: then marks are used even where the last claim found too little.
const SLOW: Duration = Duration::from_millis(50);
/// Lanes, and lanes with a priority, of which something is kept.
const LANES: usize = 10_000;

/// Where each lane and priority begins.
#[derive(Debug, Default)]
pub struct Marks {
    by_queue: HashMap<(i32, i16), Mark>,
    /// Of each lane: not all of them are asked by the same claims, and a full look at one says nothing about another.
    by_lane: HashMap<i32, FullLook>,
}

#[derive(Debug, Clone, Copy)]
struct FullLook {
    next_at: Instant,
    /// The last one took long.
    slow: bool,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// The earliest of the last batch.
    from: Timestamp,
    /// More was due than the batch could take: the next begins where this one did.
    more: bool,
}

/// Where one claim begins, for the priorities 9 to 0 of each lane in turn.
#[derive(Debug)]
pub struct Look {
    pub from: Vec<Option<Timestamp>>,
    /// Lanes that are looked at in full.
    full: Vec<i32>,
    began: Instant,
}

impl Marks {
    /// Where to begin now.
    pub fn look(&mut self, lanes: &[i32]) -> Look {
        let began = clock::monotonic();
        let recent = |lane: i32| self.by_lane.get(&lane).filter(|look| look.next_at > began);
        let from = |(lane, priority)| {
            let look = recent(lane)?;
            self.by_queue.get(&(lane, priority)).filter(|mark| mark.more || look.slow).map(|mark| mark.from)
        };
        let full = lanes.iter().copied().filter(|lane| recent(*lane).is_none()).collect();
        let from =
            lanes.iter().flat_map(|lane| (0_i16..=9).rev().map(move |priority| (*lane, priority))).map(from).collect();
        Look { from, full, began }
    }

    /// Learns from what was found on the lanes that were looked at. A look that searched other lanes as well and was slow says nothing about these.
    pub fn note(&mut self, look: &Look, wants: &[Want], found: &[Delivery], searched: bool) {
        let took = look.began.elapsed();
        let full = FullLook { next_at: clock::monotonic() + (took * COST).clamp(LOOK, LONGEST), slow: took > SLOW };
        let quotas: HashMap<i32, usize> =
            wants.iter().map(|want| (want.lane, usize::try_from(want.quota).unwrap_or(0))).collect();
        for lane in quotas.keys() {
            for priority in 0..=9 {
                self.by_queue.entry((*lane, priority)).and_modify(|mark| mark.more = false);
            }
        }
        if !(searched && full.slow) {
            self.by_lane.extend(look.full.iter().filter(|lane| quotas.contains_key(lane)).map(|lane| (*lane, full)));
        }
        for (queue, batch) in batches(found) {
            // Only the last priority of a lane was cut short by the quota; those before it were emptied.
            if let Some(quota) = quotas.get(&queue.0) {
                self.by_queue.insert(queue, Mark { from: batch.earliest, more: batch.so_far >= *quota });
            }
        }
        self.forget();
    }

    /// Hints about lanes that are neither slow nor have more are worth little: there must not be ever more of them.
    fn forget(&mut self) {
        if self.by_lane.len() > LANES {
            self.by_lane.retain(|_, look| look.slow);
        }
        if self.by_queue.len() > LANES {
            let slow = &self.by_lane;
            self.by_queue.retain(|(lane, _), mark| mark.more || slow.get(lane).is_some_and(|look| look.slow));
        }
    }
}

/// What was found of one priority of one lane.
struct Batch {
    earliest: Timestamp,
    /// How many of this lane were found, this priority and those before it.
    so_far: usize,
}

fn batches(found: &[Delivery]) -> BTreeMap<(i32, i16), Batch> {
    let mut batches: BTreeMap<(i32, i16), Batch> = BTreeMap::new();
    for delivery in found {
        let queue = (delivery.lane, delivery.priority);
        let batch = batches.entry(queue).or_insert(Batch { earliest: delivery.due_at, so_far: 0 });
        batch.earliest = batch.earliest.min(delivery.due_at);
        batch.so_far += 1;
    }
    let mut before = (0, 0);
    // From the highest priority of each lane down.
    for ((lane, _), batch) in batches.iter_mut().rev() {
        batch.so_far += if before.0 == *lane { before.1 } else { 0 };
        before = (*lane, batch.so_far);
    }
    batches
}

#[cfg(test)]
mod tests {
    use postcommit::Timestamp;
    use uuid::Uuid;

    use super::*;
    use postcommit_channel::model::{DeliveryKey, Facts};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000 + second * 1_000_000)
    }

    fn found(lane: i32, priority: i16, second: i64) -> Delivery {
        let key = DeliveryKey { tenant: 1, notification: Uuid::nil(), n: 0 };
        let (due_at, leased_at) = (at(second), at(second));
        Delivery {
            key,
            row: 0,
            lane,
            priority,
            due_at,
            leased_at,
            attempts: 0,
            losses: 0,
            seq: 0,
            lost_since: None,
            intent_stands: false,
            unclear: false,
            first_try_at: None,
            facts: Facts::default(),
            token: Uuid::nil(),
        }
    }

    /// Where the next claim of lane 1 begins, for the priorities 9 to 0.
    fn next(marks: &mut Marks) -> Vec<Option<Timestamp>> {
        marks.look(&[1]).from
    }

    fn claim(marks: &mut Marks, quota: i32, deliveries: &[Delivery]) {
        let look = marks.look(&[1]);
        marks.note(&look, &[Want { lane: 1, quota }], deliveries, false);
    }

    #[test]
    fn a_backlog_is_continued_where_the_last_batch_began() {
        let mut marks = Marks::default();
        claim(&mut marks, 3, &[found(1, 5, 9), found(1, 5, 7), found(1, 5, 8)]);
        assert_eq!(next(&mut marks)[4], Some(at(7)), "priority 5 stands fifth");
        assert_eq!(next(&mut marks).iter().flatten().count(), 1);
    }

    #[test]
    fn what_was_emptied_is_looked_at_from_the_beginning() {
        let mut marks = Marks::default();
        claim(&mut marks, 3, &[found(1, 5, 7), found(1, 5, 8), found(1, 5, 9)]);
        claim(&mut marks, 3, &[found(1, 5, 10)]);
        assert!(next(&mut marks).iter().all(Option::is_none));
        claim(&mut marks, 2, &[found(1, 9, 4), found(1, 5, 11)]);
        let from = next(&mut marks);
        assert_eq!((from[0], from[4]), (None, Some(at(11))), "priority 9 was emptied, 5 was cut short");
        claim(&mut marks, 2, &[]);
        assert!(next(&mut marks).iter().all(Option::is_none));
    }

    #[test]
    fn a_full_look_comes_whatever_the_marks_say() {
        let mut marks = Marks::default();
        claim(&mut marks, 1, &[found(1, 5, 7)]);
        assert!(marks.look(&[1]).full.is_empty());
        marks.by_lane.entry(1).and_modify(|look| look.next_at = clock::monotonic());
        let look = marks.look(&[1]);
        assert!(look.full == [1] && look.from.iter().all(Option::is_none));
    }

    #[test]
    fn a_full_look_at_one_lane_is_none_at_another() {
        let mut marks = Marks::default();
        claim(&mut marks, 1, &[found(1, 5, 7)]);
        let look = marks.look(&[2, 1]);
        assert_eq!((&look.full[..], look.from[14]), (&[2][..], Some(at(7))));
        // Asked for and not looked at: the full look is still to come.
        marks.note(&look, &[Want { lane: 1, quota: 1 }], &[], false);
        assert_eq!(marks.look(&[2, 1]).full, [2]);
    }

    #[test]
    fn where_full_looks_are_slow_every_mark_counts() {
        let mut marks = Marks::default();
        claim(&mut marks, 3, &[found(1, 5, 7)]);
        assert_eq!(next(&mut marks)[4], None);
        marks.by_lane.entry(1).and_modify(|look| look.slow = true);
        assert_eq!(next(&mut marks)[4], Some(at(7)));
    }
}
