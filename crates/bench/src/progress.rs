//! What is going on, on stderr: one line that moves on a terminal, a plain line per suite and round elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_server::telemetry::say;

const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const BEAT: Duration = Duration::from_millis(100);

/// The line.
pub struct Progress {
    state: Arc<Mutex<State>>,
    /// Draws it, on a terminal.
    drawing: Option<tokio::task::JoinHandle<()>>,
}

struct State {
    suite: String,
    round: String,
    step: String,
    since: Instant,
}

impl Progress {
    /// Begins to draw where there is somebody to look.
    pub fn start() -> Self {
        let state =
            Arc::new(Mutex::new(State { suite: String::new(), round: String::new(), step: String::new(), since: clock::monotonic() }));
        let drawing = std::io::stderr().is_terminal().then(|| tokio::spawn(draw_forever(state.clone())));
        Self { state, drawing }
    }

    /// A suite begins.
    pub fn suite(&self, name: &str) {
        self.change(|state| {
            *state = State { suite: name.to_owned(), round: String::new(), step: "getting ready".to_owned(), since: clock::monotonic() };
        });
    }

    /// A round of it begins.
    pub fn round(&self, round: usize, of: usize) {
        self.change(|state| state.round = format!(" {round}/{of}"));
        if self.drawing.is_none()
            && let Ok(state) = self.state.lock()
        {
            say!("bench: {}: round {round} of {of}", state.suite);
        }
    }

    /// What is done now; too fine for a log.
    pub fn step(&self, what: impl Into<String>) {
        self.change(|state| state.step = what.into());
    }

    /// A line that stays.
    pub fn note(&self, what: &str) {
        if self.drawing.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        say!("bench: {what}");
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        if let Ok(mut state) = self.state.lock() {
            change(&mut state);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(drawing) = &self.drawing {
            drawing.abort();
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

async fn draw_forever(state: Arc<Mutex<State>>) {
    let mut beat = tokio::time::interval(BEAT);
    for frame in FRAMES.iter().cycle() {
        beat.tick().await;
        if let Ok(state) = state.lock() {
            let elapsed = clock::monotonic().duration_since(state.since).as_secs();
            let line = format!("{frame} {}{}  {}  {elapsed} s", state.suite, state.round, state.step);
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        }
    }
}
