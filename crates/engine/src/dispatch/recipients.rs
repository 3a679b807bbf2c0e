//! Keeps the time that a provider asks for between two messages to the same recipient. Each process counts its own
//! sends.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many recipients are remembered before those are forgotten whose next message may be sent.
const REMEMBERED: usize = 10_000;

/// The recipients of a lane to whom a message was sent a moment ago.
#[derive(Default)]
pub struct RecipientPace(Mutex<HashMap<Box<str>, Turn>>);

struct Turn {
    /// When the next message may be sent.
    next: Instant,
    /// How many messages were put off and have not been sent yet.
    waiting: u32,
}

impl RecipientPace {
    /// Takes the turn of a message to this recipient. Returns how long the message must wait if it is not its turn.
    /// Messages that wait get different times, so that each is put off once.
    pub fn take(&self, recipient: &str, interval: Duration, now: Instant) -> Option<Duration> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = known.get_mut(recipient) {
            if turn.next > now {
                let wait = turn.next - now + interval * turn.waiting;
                turn.waiting = turn.waiting.saturating_add(1);
                return Some(wait);
            }
            *turn = Turn { next: now + interval, waiting: turn.waiting.saturating_sub(1) };
            return None;
        }
        if known.len() >= REMEMBERED {
            known.retain(|_, turn| turn.next > now);
        }
        known.insert(recipient.into(), Turn { next: now + interval, waiting: 0 });
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
        // Those that waited come back one after another.
        assert_eq!([take("a", 1.0), take("a", 2.0), take("a", 3.0)], [None; 3]);
        assert_eq!(take("a", 3.0), Some(SECOND), "nobody waits any more");
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
