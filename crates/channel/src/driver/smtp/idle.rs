//! Connections of a lane that wait for the next message.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::dialogue::Dialogue;
use crate::clock;

/// A connection that was idle for longer is not used again. Servers close idle connections after some minutes.
const IDLE: Duration = Duration::from_secs(60);
/// A connection that is older is not used again, so that a change of the server's address is noticed.
const AGE: Duration = Duration::from_secs(300);
/// The most messages over one connection. Many servers refuse more than 100.
const MESSAGES: u32 = 100;
/// The most idle connections. More are closed.
const KEPT: usize = 16;

/// The idle connections of one provider, the one used last at the end.
#[derive(Default)]
pub(super) struct IdleDialogues(Mutex<Vec<(Dialogue, Instant)>>);

impl IdleDialogues {
    /// Takes a connection that may be used again. Closes those that may not.
    pub(super) fn take(&self) -> Option<Dialogue> {
        let now = clock::monotonic();
        let (old, found) = {
            let mut idle = self.lock();
            let is_old = |(dialogue, since): &(Dialogue, Instant)| {
                now.duration_since(*since) > IDLE || now.duration_since(dialogue.opened()) > AGE
            };
            let old: Vec<_> = idle.extract_if(.., |kept| is_old(kept)).collect();
            (old, idle.pop())
        };
        old.into_iter().for_each(|(dialogue, _)| close(dialogue));
        found.map(|(dialogue, _)| dialogue)
    }

    /// Keeps a connection for the next message, if it may be used again.
    pub(super) fn put(&self, dialogue: Dialogue) {
        let surplus = {
            let mut idle = self.lock();
            if dialogue.messages() < MESSAGES && idle.len() < KEPT {
                idle.push((dialogue, clock::monotonic()));
                None
            } else {
                Some(dialogue)
            }
        };
        surplus.into_iter().for_each(close);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Dialogue, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says QUIT in the background, so that no send waits for it.
fn close(dialogue: Dialogue) {
    tokio::spawn(dialogue.quit());
}
