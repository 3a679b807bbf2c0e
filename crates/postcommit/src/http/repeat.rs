//! Decides whether and when a request is repeated.

use std::time::Duration;

use uuid::Uuid;

use crate::Error;

/// The default maximum number of repeats after the first try. [`Builder::repeats`](super::Builder::repeats) changes it.
pub const REPEATS: u32 = 4;
/// The longest wait between two tries. If the server asks for a longer wait, the request is not repeated.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

const MOST_REPEATS: u32 = 10;
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// A failed try. The request may have taken effect or not.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// A description of the failure.
    pub(super) problem: String,
    /// The wait that the server asked for.
    pub(super) after: Option<Duration>,
}

impl Unsettled {
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), after: None }
    }
}

/// The number of repeats made and allowed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repeats {
    made: u32,
    most: u32,
}

impl Repeats {
    pub(super) fn at_most(most: u32) -> Result<Self, Error> {
        if most > MOST_REPEATS {
            return Err(Error::invalid("repeats", format!("is {most}; 0 to {MOST_REPEATS} are allowed")));
        }
        Ok(Self { made: 0, most })
    }

    /// Returns the wait before the next try, or an error when no repeat is left.
    pub(super) fn next(&mut self, last: Unsettled) -> Result<Duration, Error> {
        let asked = last.after.unwrap_or_default();
        if self.made >= self.most || asked > LONGEST_WAIT {
            let tries = self.made + 1;
            let and_then = if asked > LONGEST_WAIT {
                format!("; the server asks to wait {} s", asked.as_secs())
            } else {
                String::new()
            };
            return Err(Error::unavailable(format!("{}{and_then} (tries: {tries})", last.problem)));
        }
        let wait = FIRST_WAIT * 2_u32.saturating_pow(self.made);
        self.made += 1;
        // The wait has a jitter, so that many clients that failed together do not repeat together.
        let chance = u32::from(Uuid::new_v4().as_bytes()[0]);
        let wait = wait.min(LONGEST_WAIT) * (128 + chance / 2) / 256;
        Ok(last.after.map_or(wait, |asked| asked.max(if asked.is_zero() { asked } else { wait })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(after: Option<u64>) -> Unsettled {
        Unsettled { problem: "503".into(), after: after.map(Duration::from_secs) }
    }

    #[test]
    fn waits_grow_and_end() {
        let mut repeats = Repeats::at_most(10).unwrap();
        for n in 0..10 {
            let most = FIRST_WAIT * 2_u32.pow(n);
            let wait = repeats.next(met(None)).unwrap();
            assert!(wait >= most.min(LONGEST_WAIT) / 2 && wait <= most.min(LONGEST_WAIT), "{n}: {wait:?}");
        }
        let ended = repeats.next(met(None)).unwrap_err();
        assert!(ended.to_string().contains("503 (tries: 11)"), "{ended}");
    }

    #[test]
    fn the_server_is_not_asked_before_the_time_it_names() {
        let mut repeats = Repeats::at_most(10).unwrap();
        assert!(repeats.next(met(Some(7))).unwrap() >= Duration::from_secs(7));
        assert_eq!(repeats.next(met(Some(0))).unwrap(), Duration::ZERO);
        assert!(repeats.next(met(Some(31))).unwrap_err().to_string().contains("asks to wait 31 s"));
    }
}
