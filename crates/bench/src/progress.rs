//! Progress on stderr: one animated line on a terminal, elsewhere a plain line per suite and round.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_server::telemetry::say;

const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const BEAT: Duration = Duration::from_millis(100);

/// The progress of the run.
pub struct Progress {
    state: Arc<Mutex<ProgressState>>,
    /// The task that draws the line. `None` when stderr is not a terminal.
    drawing: Option<tokio::task::JoinHandle<()>>,
}

struct ProgressState {
    suite: String,
    round: String,
    step: String,
    since: Instant,
}

impl Progress {
    /// Starts to draw if stderr is a terminal.
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(ProgressState {
            suite: String::new(),
            round: String::new(),
            step: String::new(),
            since: clock::monotonic(),
        }));
        let drawing = std::io::stderr().is_terminal().then(|| tokio::spawn(draw_forever(state.clone())));
        Self { state, drawing }
    }

    /// Reports the start of a suite.
    pub fn suite(&self, name: &str) {
        self.change(|state| {
            *state = ProgressState {
                suite: name.to_owned(),
                round: String::new(),
                step: "getting ready".to_owned(),
                since: clock::monotonic(),
            };
        });
    }

    /// Reports the start of a round.
    pub fn round(&self, round: usize, of: usize) {
        self.change(|state| state.round = format!(" {round}/{of}"));
        if self.drawing.is_none()
            && let Ok(state) = self.state.lock()
        {
            say!("bench: {}: round {round} of {of}", state.suite);
        }
    }

    /// Reports the current step. Shown on a terminal only.
    pub fn step(&self, what: impl Into<String>) {
        self.change(|state| state.step = what.into());
    }

    /// Prints a line that the progress line does not overwrite.
    pub fn note(&self, what: &str) {
        if self.drawing.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        say!("bench: {what}");
    }

    fn change(&self, change: impl FnOnce(&mut ProgressState)) {
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

async fn draw_forever(state: Arc<Mutex<ProgressState>>) {
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
