//! A program under test as a child process: its lines, its signals, its exit.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::GUARD;

/// A running child whose output is captured line by line. Killed when dropped.
///
/// The waits block the thread; the servers of this crate run on their own and are not held up.
pub struct Child {
    name: String,
    pid: u32,
    shared: Arc<Shared>,
    waiter: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<String>,
    /// How many of stdout and stderr are still being read.
    open: usize,
    exit: Option<ExitStatus>,
}

impl Child {
    /// Starts `command` with its output captured and nothing to read on stdin.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn spawn(mut command: Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        let shared = Arc::new(Shared::default());
        shared.state().open = 2;
        read_lines(child.stdout.take().expect("stdout is piped"), &shared);
        read_lines(child.stderr.take().expect("stderr is piped"), &shared);
        let pid = child.id();
        let waiter = thread::spawn({
            let shared = shared.clone();
            move || {
                let exit = child.wait().expect("wait for the child");
                shared.change(|state| state.exit = Some(exit));
            }
        });
        Self { name, pid, shared, waiter: Some(waiter) }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The lines of stdout and stderr so far, as they came in.
    pub fn output(&self) -> Vec<String> {
        self.shared.state().lines.clone()
    }

    /// Blocks until a line of stdout or stderr, since the start, contains `needle`; returns it.
    ///
    /// # Panics
    /// After [`GUARD`] or when the output ends without it, with the output so far.
    pub fn wait_for_line(&self, needle: &str) -> String {
        self.wait_for_lines(needle, 1).remove(0)
    }

    /// As [`Child::wait_for_line`], but `None` when the output ends without such a line.
    ///
    /// # Panics
    /// After [`GUARD`], with the output so far.
    pub fn wait_for_line_or_exit(&self, needle: &str) -> Option<String> {
        let state = self.wait_until(|state| matching(state, needle).count() > 0 || state.finished());
        let line = matching(&state, needle).next().cloned();
        if line.is_none() && !state.finished() {
            self.fail(state, &format!("a line with {needle:?}, or the end"));
        }
        line
    }

    /// Blocks until `count` lines, since the start, contain `needle`; returns all that do.
    ///
    /// # Panics
    /// As [`Child::wait_for_line`].
    pub fn wait_for_lines(&self, needle: &str, count: usize) -> Vec<String> {
        let found = |state: &State| matching(state, needle).count() >= count;
        let state = self.wait_until(|state| found(state) || state.finished());
        if !found(&state) {
            self.fail(state, &format!("{count} line(s) with {needle:?}"));
        }
        matching(&state, needle).cloned().collect()
    }

    /// Kills the process (SIGKILL); it is gone when this returns.
    pub fn kill9(&self) -> ExitStatus {
        self.signal("KILL");
        self.wait()
    }

    /// Freezes the process (SIGSTOP); it stands still when this returns.
    pub fn stop(&self) {
        self.signal("STOP");
        let deadline = Instant::now() + GUARD;
        // The kernel reports a stop only to the parent's `waitpid`, out of reach without libc.
        while self.run_state() != Some('T') {
            assert!(Instant::now() < deadline, "{} did not stop", self.name);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets a frozen process go on (SIGCONT).
    pub fn cont(&self) {
        self.signal("CONT");
    }

    /// Asks the process to end (SIGTERM); [`Child::wait`] for it to do so.
    pub fn term(&self) {
        self.signal("TERM");
    }

    /// Sends a signal by its name, such as `"HUP"`. Does nothing when the process has ended.
    pub fn signal(&self, name: &str) {
        if self.shared.state().exit.is_some() {
            return;
        }
        // The shell's own `kill`, because /bin/kill is not part of a minimal Debian.
        let _ = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name]).arg(self.pid.to_string()).stderr(Stdio::null()).status();
    }

    /// Blocks until the process has ended.
    ///
    /// # Panics
    /// After [`GUARD`], with the output so far.
    pub fn wait(&self) -> ExitStatus {
        let state = self.wait_until(|state| state.exit.is_some());
        match state.exit {
            Some(exit) => exit,
            None => self.fail(state, "the process to end"),
        }
    }

    /// Blocks until `done`, or for as long as [`GUARD`].
    fn wait_until(&self, done: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.shared.state();
        let (state, _) = self.shared.changed.wait_timeout_while(state, GUARD, |state| !done(state)).expect("child state");
        state
    }

    fn fail(&self, state: MutexGuard<'_, State>, wanted: &str) -> ! {
        let output = state.lines.join("\n");
        let exit = state.exit;
        // Released first: a panic that holds it would poison the lock for `drop`.
        drop(state);
        panic!("{}: waited for {wanted}; exit: {exit:?}; output:\n{output}", self.name);
    }

    /// The state letter of `/proc/<pid>/stat`, which follows the name in parentheses.
    fn run_state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal("KILL");
        if let Some(waiter) = self.waiter.take() {
            // A panic here would abort a test that is already unwinding.
            let _ = waiter.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("child state")
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

impl State {
    /// Whether no further line can come.
    fn finished(&self) -> bool {
        self.exit.is_some() && self.open == 0
    }
}

fn matching<'a>(state: &'a State, needle: &'a str) -> impl Iterator<Item = &'a String> {
    state.lines.iter().filter(move |line| line.contains(needle))
}

fn read_lines(stream: impl Read + Send + 'static, shared: &Arc<Shared>) {
    let shared = shared.clone();
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            shared.change(|state| state.lines.push(line));
        }
        shared.change(|state| state.open -= 1);
    });
}
