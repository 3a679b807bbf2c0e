//! Low-water marks: the due time from which a claim reads the index.
//!
//! While a long transaction keeps vacuum from removing rows, the claim's index is full of entries of deleted rows. A
//! claim that reads from the beginning reads all of them: 686 ms in a trial with 1.1 million entries, instead of 0.8 ms
//! from a mark. A mark is only a hint, kept in this process. It can hide a row, for example one that a long transaction
//! commits late. The next full scan finds that row seconds later.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::Delivery;

use crate::store::Want;

/// The usual time between two full scans of a lane, which ignore its marks.
const LOOK: Duration = Duration::from_secs(2);
/// A slow full scan is repeated only after this many times its duration, so that full scans use about 1 % of the time.
/// [`LONGEST`] is the upper limit of this interval.
const COST: u32 = 100;
const LONGEST: Duration = Duration::from_secs(30);
/// A full scan that took longer than this has probably read entries of deleted rows. After such a scan, marks are used
/// even for lanes whose last claim found fewer rows than its quota.
const SLOW: Duration = Duration::from_millis(50);
/// The largest number of entries in each of the two maps of [`Marks`].
const LANES: usize = 10_000;

/// The marks of each lane and priority.
#[derive(Debug, Default)]
pub struct Marks {
    by_queue: HashMap<(i32, i16), Mark>,
    /// The time of the next full scan of each lane. Each lane has its own time, because a claim does not ask for all
    /// lanes.
    by_lane: HashMap<i32, FullLook>,
}

#[derive(Debug, Clone, Copy)]
struct FullLook {
    next_at: Instant,
    /// Whether the last full scan was slow.
    slow: bool,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// The earliest due time in the last batch.
    from: Timestamp,
    /// Whether the batch stopped because it was full, so more rows are probably due. If so, the next claim starts at
    /// `from` again.
    more: bool,
}

/// The due times at which one claim begins: for each lane in turn, the priorities 9 to 0.
#[derive(Debug)]
pub struct Look {
    pub from: Vec<Option<Timestamp>>,
    /// Lanes that this claim scans in full.
    full: Vec<i32>,
    began: Instant,
}

impl Marks {
    /// Returns where a claim of these lanes begins now.
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

    /// Updates the marks from the rows that a claim found in the examined lanes. If the claim also searched other lanes
    /// and was slow, its duration says nothing about the examined lanes and is not recorded.
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
            // The quota can cut short only the lowest priority that was found in a lane. All due rows of higher
            // priorities were found.
            if let Some(quota) = quotas.get(&queue.0) {
                self.by_queue.insert(queue, Mark { from: batch.earliest, more: batch.so_far >= *quota });
            }
        }
        self.forget();
    }

    /// Limits the memory used: removes entries of lanes that are not slow and have no further due rows.
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

/// The rows that a claim found in one lane with one priority.
struct Batch {
    earliest: Timestamp,
    /// How many rows were found in this lane with this priority or a higher one.
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
    // In reverse order each lane is handled from its highest priority down.
    for ((lane, _), batch) in batches.iter_mut().rev() {
        batch.so_far += if before.0 == *lane { before.1 } else { 0 };
        before = (*lane, batch.so_far);
    }
    batches
}

#[cfg(test)]
mod tests {
    use postcommit::Timestamp;

    use super::*;
    use crate::store::delivery_in;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000 + second * 1_000_000)
    }

    fn found(lane: i32, priority: i16, second: i64) -> Delivery {
        Delivery { priority, due_at: at(second), leased_at: at(second), ..delivery_in(lane, 1) }
    }

    /// Returns where the next claim of lane 1 begins, for the priorities 9 to 0.
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
        // The claim asked for lane 2 but did not examine it, so its full scan is still to come.
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
