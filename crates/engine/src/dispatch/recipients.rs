//! Enforces the interval that a provider asks for between two messages to the same recipient. Each process counts its
//! own sends.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many recipients are remembered. Beyond that, recipients whose interval is over are forgotten.
const REMEMBERED: usize = 10_000;
/// The most waiting messages to one recipient that get different times. Further messages all get the next time. The
/// number is limited because a waiting message may expire, be cancelled or be sent by another process, and its time is
/// then lost.
const AHEAD: u32 = 30;

/// The recipients of a lane to whom a message was sent a moment ago.
#[derive(Default)]
pub struct RecipientPace(Mutex<HashMap<Box<str>, Turn>>);

struct Turn {
    /// When the next message may be sent.
    next: Instant,
    /// The first time that no waiting message was given.
    free: Instant,
}

impl RecipientPace {
    /// Takes the turn of a message to this recipient. Returns how long the message must wait if it is not its turn.
    /// Messages that wait get different times, so that each is put off once.
    pub fn take(&self, recipient: &str, interval: Duration, now: Instant) -> Option<Duration> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = known.get_mut(recipient) {
            if turn.next > now {
                let given = turn.free.clamp(turn.next, turn.next + interval * AHEAD);
                turn.free = given + interval;
                return Some(given - now);
            }
            turn.next = now + interval;
            return None;
        }
        if known.len() >= REMEMBERED {
            known.retain(|_, turn| turn.next > now);
        }
        known.insert(recipient.into(), Turn { next: now + interval, free: now + interval });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn messages_to_one_recipient_take_turns_and_others_do_not_wait() {
        let (pace, now) = (RecipientPace::default(), Instant::now());
        let take = |recipient: &str, after: f64| pace.take(recipient, SECOND, now + Duration::from_secs_f64(after));
        assert_eq!(take("a", 0.0), None);
        assert_eq!(
            [take("a", 0.0), take("a", 0.0), take("a", 0.5)],
            [1.0, 2.0, 2.5].map(|s| Some(Duration::from_secs_f64(s)))
        );
        assert_eq!(take("b", 0.0), None);
        // The messages that waited come back one after another.
        assert_eq!([take("a", 1.0), take("a", 2.0), take("a", 3.0)], [None; 3]);
        assert_eq!(take("a", 3.0), Some(SECOND), "no other message waits any more");
    }

    #[test]
    fn messages_that_never_come_back_delay_later_ones_only_for_a_while() {
        let (pace, now) = (RecipientPace::default(), Instant::now());
        let take = |after: u64| pace.take("a", SECOND, now + SECOND * u32::try_from(after).unwrap());
        assert_eq!(take(0), None);
        let waits: Vec<Duration> = (0..300).map(|_| take(0).unwrap()).collect();
        assert_eq!((waits[29], waits[30], waits[299]), (SECOND * 30, SECOND * 31, SECOND * 31));
        // None of the 300 waiting messages comes back.
        assert_eq!([take(60), take(60), take(60)], [None, Some(SECOND), Some(SECOND * 2)]);
    }

    #[test]
    fn recipients_are_forgotten() {
        let (pace, now) = (RecipientPace::default(), Instant::now());
        for n in 0..=REMEMBERED {
            pace.take(&n.to_string(), SECOND, now + SECOND * 2 * u32::from(n == REMEMBERED));
        }
        assert_eq!(pace.0.lock().unwrap().len(), 1);
    }
}
